"""The first steps of README and docs, typed as they stand there, with the built wheel."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import lines, part
from tests.docs.walk import QUESTION, Walk
from tests.house import ROOT
from tests.live.gateway import SERVER
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M111")]


@pytest.fixture
def walk(program: Path, tmp_path: Path) -> Iterator[Walk]:
    with Walk(tmp_path, program) as made:
        yield made


def test_the_program_is_the_one_of_the_wheel(walk: Walk, program: Path) -> None:
    assert walk.type("metamcp --version").startswith("metamcp ")
    python = program.with_name("python")
    where = walk.type(
        f"{python} -c 'import metamcp_supervisor; print(metamcp_supervisor.__file__)'"
    )
    assert where.startswith(str(program.parents[1]))


def test_the_four_lines_of_the_readme_lead_to_the_first_call(walk: Walk) -> None:
    said = [walk.type(line) for line in part("README.md", "Four lines to the first call")]
    assert len(said) == 4
    assert '"content"' in said[-1]
    walk.type("uvx metamcp install claude-code")
    walk.type("uvx metamcp down")
    assert walk.gone() == 0


def test_the_three_lines_of_the_first_page_start_a_gateway(walk: Walk) -> None:
    for line in part("docs/index.md", "Try it"):
        walk.type(line)
    walk.type("uvx metamcp wait --timeout 60s")
    walk.type("uvx metamcp install cursor")
    assert '"connect"' in (walk.folder / ".cursor" / "mcp.json").read_text()


def test_one_command_beside_an_mcp_json_is_enough(walk: Walk) -> None:
    entry = f'{{"mcpServers": {{"time": {{"command": "{SERVER[0]}", "args": ["{SERVER[1]}"]}}}}}}'
    (walk.folder / ".mcp.json").write_text(entry)
    (_, command, client) = part("README.md", "With the servers that you have")
    walk.type(command)
    walk.type("metamcp wait --timeout 60s")
    until(lambda: client.replace(":6270", f":{walk.port}").encode() in walk.said, client)


def test_the_tutorial_leads_from_an_empty_folder_to_its_end(walk: Walk) -> None:
    text = (ROOT / "docs" / "tutorial.md").read_text()
    said = {line: walk.type(line) for line in lines(text)}
    assert '"content"' in next(out for line, out in said.items() if line.startswith("curl"))
    assert QUESTION in walk.said
    (file,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    assert file in (walk.folder / "metamcp.toml").read_text()
    assert "SIGKILL" in said["metamcp events -n 20"]
    assert walk.gone() == 0


def test_the_service_of_the_readme_does_what_its_lines_say(walk: Walk) -> None:
    text = (ROOT / "README.md").read_text().split("\n## As a service\n")[1]
    (walk.folder / "metamcp.toml").write_text(re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0])
    entry = f'{{"mcpServers": {{"notes": {{"command": "{SERVER[0]}", "args": ["{SERVER[1]}"]}}}}}}'
    (walk.folder / ".mcp.json").write_text(entry)
    for line in part("README.md", "As a service"):
        if line == "metamcp ctl status":
            walk.type("metamcp wait --timeout 60s")
        walk.type(line)
