"""Configurations and data on the pages are what the program takes."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from metamcp_supervisor.config.config import ConfigInvalid
from metamcp_supervisor.control.contexts import context_of, tables_of
from tests.docs.pages import Block, blocks
from tests.house import ROOT
from tests.supervisor.configs import loaded, problems, write

ANYWHERE = {
    "sh", "console",  # test_commands
    "toml", "json",  # here
    "text", "ini", "nginx", "mermaid",  # for people
}  # fmt: skip
#: Pages whose blocks in a language another test runs.
RUN = {
    "diff": {"docs/hacking.md"},  # tests/packages/test_example_feature.py
    # tests/worker/engine/test_definition_documented.py, tests/observability/test_rules.py
    "yaml": {"docs/workflows.md", "docs/observability.md"},
    "ts": {"docs/code-mode.md"},  # tests/live/test_code_mode.py
    "python": {
        "docs/code-mode.md",  # tests/live/test_code_mode.py
        "docs/middleware.md",  # tests/live/test_middleware.py
        "docs/transports.md",  # tests/worker/child/test_custom_transport.py
    },
}
#: Problems of a page that shows how a package is made, which is not installed here.
OF_PACKAGES = {
    "docs/middleware.md": "no installed package brings the middleware 'office-hours'",
    "docs/transports.md": "no installed package brings a transport named 'unix'",
}
CONTEXTS = [block for block in blocks("toml") if "[contexts." in block.text]
TOML = [
    block
    for block in blocks("toml")
    if "[build-system]" not in block.text and block not in CONTEXTS
]


def page(block: Block) -> str:
    return block.place.partition(":")[0]


def test_every_block_says_what_it_is_and_programs_are_on_pages_that_are_run() -> None:
    strange = [
        block.place
        for block in blocks()
        if block.language not in ANYWHERE and page(block) not in RUN.get(block.language, ())
    ]
    assert strange == []


@pytest.mark.promise("M111")
@pytest.mark.parametrize("block", TOML, ids=lambda block: block.place)
def test_a_configuration_is_valid(block: Block, tmp_path: Path) -> None:
    text = block.text
    if not re.search(r"^(include|\[servers\.)", text, re.MULTILINE):
        text += '\n[servers.git]\ncommand = ["true"]\n'
    environ = dict.fromkeys(re.findall(r"\$\{env:(\w+)\}", text), "x" * 32)
    write(tmp_path, ".mcp.json", '{"mcpServers": {"notes": {"command": "true"}}}')
    write(tmp_path, "credentials/github", "x" * 12).chmod(0o600)
    rules, flow = (
        next(one.text for one in blocks("yaml") if key in one.text) for key in ("rules:", "steps:")
    )
    for name, content in {"rules": rules, "workflows/a": flow, "team-workflows/a": flow}.items():
        write(tmp_path, f"{name}.yaml", content)
    environ["CREDENTIALS_DIRECTORY"] = str(tmp_path / "credentials")
    try:
        found = [str(one) for one in loaded(tmp_path, text, environ=environ).problems]
    except ConfigInvalid as invalid:
        found = [str(one) for one in invalid.problems]
    allowed = OF_PACKAGES.get(page(block))
    assert [one for one in found if not (allowed and allowed in one)] == []


def test_a_page_without_a_package_is_not_excused() -> None:
    assert {page(block) for block in TOML} >= set(OF_PACKAGES)


@pytest.mark.parametrize("block", [*blocks("json")], ids=lambda block: block.place)
def test_data_is_json(block: Block) -> None:
    json.loads(block.text)


def test_packages_are_made_by_a_valid_pyproject() -> None:
    made = [block for block in blocks("toml") if block not in (*TOML, *CONTEXTS)]
    assert len(made) == len(OF_PACKAGES)
    assert all(tomllib.loads(block.text)["project"]["entry-points"] for block in made)


def test_two_mistakes_are_told_as_the_page_shows(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    shown = re.findall(r"^/home/me/project/(metamcp\.toml:.*)$", text, re.MULTILINE)
    assert len(shown) == 2
    lines = [
        "", "[servers.git]", 'comand = ["git-server"]', 'command = ["git-server"]', "", "",
        "[servers.time]", 'command = ["time-server"]', "timeout = 60",
    ]  # fmt: skip
    found = problems(tmp_path, "\n".join(lines))
    assert [str(one).removeprefix(f"{tmp_path}/") for one in found] == shown


def test_a_file_of_contexts_is_valid() -> None:
    (block,) = CONTEXTS
    for table in tables_of(block.text).values():
        assert context_of(table).address
