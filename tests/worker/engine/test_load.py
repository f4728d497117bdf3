"""Files of workflows and of rules: what they hold, and what is wrong with them, by line."""

import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from metamcp_worker.engine import definition, load
from metamcp_worker.ipc.engine_runs import LoadedFiles

GOOD = """\
name: {name}
steps:
  - id: read
    call: fs.read
    retry: {{attempts: 2, on: [timeout]}}
  - output: ${{{{ steps.read.text }}}}
"""


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return folder


def told(loaded: LoadedFiles, folder: Path) -> list[str]:
    return [str(one).removeprefix(f"{folder}/") for one in loaded.problems]


@pytest.mark.promise("M52")
def test_a_folder_and_a_file_give_workflows_by_workspace(tmp_path: Path) -> None:
    written(tmp_path, a=GOOD.format(name="one"), b=GOOD.format(name="two"))
    (tmp_path / "notes.txt").write_text("no workflow")
    single = str(tmp_path / "a.yaml")
    loaded = load.load([("default", str(tmp_path)), ("team", single)])
    assert loaded.problems == []
    assert {name: sorted(found) for name, found in loaded.definitions.items()} == {
        "default": ["one", "two"],
        "team": ["one"],
    }
    data = json.loads(bytes(loaded.definitions["default"]["one"]))
    assert data["steps"][0]["retry"] == {"attempts": 2, "on": ["timeout"]}
    assert loaded.files == [str(tmp_path), single, str(tmp_path / "b.yaml")]


def test_a_folder_without_workflows_is_read_and_watched(tmp_path: Path) -> None:
    loaded = load.load([("default", str(tmp_path))])
    assert (loaded.problems, loaded.files) == ([], [str(tmp_path)])


@pytest.mark.promise("M52")
def test_problems_of_all_files_are_told_at_once_by_file_and_line(tmp_path: Path) -> None:
    written(
        tmp_path,
        a=GOOD.format(name="one"),
        b=GOOD.format(name="one"),
        c="name: c\nsteps:\n  - call: a\n    wiht: {}\n  - id: x\n    output: ${{ steps.y }}\n",
        d="name: d\nsteps: [\n",
        e="",
        f="name: f\nname: g\nsteps: [{output: 1}]\n",
        g="name: g\nsteps: [{output: !secret x}]\n",
        h="name: h\nsteps: &a [{output: *a}]\n",
        i="name: i\nsteps: [{output: {1: a, [1]: b}}]\n<<: {a: 1}\n",
    )
    missing = str(tmp_path / "none.yaml")
    found = told(load.load([("default", str(tmp_path)), ("default", missing)]), tmp_path)
    assert [one.partition(" ")[0] for one in found] == [
        "b.yaml:1:", "c.yaml:4:", "c.yaml:6:", "d.yaml:3:", "e.yaml:", "f.yaml:2:", "g.yaml:2:",
        "h.yaml:2:", "i.yaml:2:", "i.yaml:3:", "none.yaml:",
    ]  # fmt: skip
    assert "c.yaml:4: steps[0].wiht is not a key here; did you mean 'with'?" in found
    assert found[0].startswith("b.yaml:1: name is 'one', which is also the name in ")
    assert found[-1] == "none.yaml: cannot be read: No such file or directory"


def test_aliases_count_what_they_stand_for(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x]", *(f"a{at}: &a{at} [*a{at - 1}, *a{at - 1}]" for at in range(1, 40))]
    written(tmp_path, bomb="\n".join(lines))
    found = told(load.load([("default", str(tmp_path))]), tmp_path)
    assert any("is too much: a file has at most 50000 values" in one for one in found)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\xff", "is not UTF-8 text (byte 0)"),
        (b"x" * (load.FILE_BYTES_MAX + 1), "is larger than 262144 bytes"),
        (b"[" * 700, "deep"),
        (b"name: a\0b", "is not YAML"),
    ],
)
def test_a_file_that_cannot_be_read_is_a_problem(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "a.yaml").write_bytes(content)
    assert why in "\n".join(told(load.load([("default", str(tmp_path / "a.yaml"))]), tmp_path))


def test_rules_have_a_workflow_in_them_or_in_a_file_beside_them(tmp_path: Path) -> None:
    written(
        tmp_path,
        flow=GOOD.format(name="one"),
        rules="rules:\n"
        "  - {keywords: [Review, code review], match: all, template: flow.yaml}\n"
        "  - {name: say, keywords: [say], template: {name: say, steps: [{output: 1}]}}\n",
    )
    loaded = load.load([], [str(tmp_path / "rules.yaml")])
    assert loaded.problems == []
    first, second = (json.loads(bytes(one)) for one in loaded.rules)
    assert (first["name"], first["keywords"], first["match"]) == (
        "one",
        ["review", "code review"],
        "all",
    )
    assert definition.parse(first["template"])[1] == ()
    assert (second["name"], second["match"]) == ("say", "any")


def test_problems_of_rules_are_told_by_file_and_line(tmp_path: Path) -> None:
    written(
        tmp_path,
        bad="name: a\nsteps: 3\n",
        rules="rules:\n"
        "  - {keywords: [], match: some, template: {name: a, steps: []}}\n"
        "  - {keyword: [a], keywords: [a], template: bad.yaml}\n"
        "  - 3\n"
        "other: 1\n",
    )
    found = told(load.load([], [str(tmp_path / "rules.yaml")]), tmp_path)
    assert [one.partition(" ")[0] for one in found] == [
        "bad.yaml:2:", "rules.yaml:2:", "rules.yaml:2:", "rules.yaml:2:", "rules.yaml:3:",
        "rules.yaml:4:", "rules.yaml:5:",
    ]  # fmt: skip


def test_the_process_prints_everything_as_json(tmp_path: Path) -> None:
    written(tmp_path, a=GOOD.format(name="one"))
    command = [sys.executable, "-P", "-m", "metamcp_worker.engine.load"]
    arguments = [f"w:default:{tmp_path}", "w:team:metamcp:none"]
    done = subprocess.run([*command, *arguments], capture_output=True, check=True, timeout=60)
    loaded = msgspec.json.decode(done.stdout, type=LoadedFiles)
    assert list(loaded.definitions["default"]) == ["one"]
    assert [one.path for one in loaded.problems] == [""]
    assert "metamcp:none is not shipped" in str(loaded.problems[0]).replace(": is", " is")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.text(alphabet="ab:-[]{}&*!|>'\"#\n ,?%@1.<", max_size=80))
def test_no_text_raises_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    assert load.load([("default", str(tmp_path / "a.yaml"))]).problems
