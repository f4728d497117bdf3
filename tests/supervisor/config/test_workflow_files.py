"""`workflows` and `[suggestions]`: the files that they name, read with the configuration."""

import json
from pathlib import Path

import pytest

from metamcp_supervisor.config.config import ConfigInvalid
from metamcp_supervisor.config.reload import fingerprint, plan
from metamcp_supervisor.config.show import tables
from tests.supervisor.configs import loaded, messages, write

SERVER = '[servers.git]\ncommand = ["git-server"]\n'
FILE = f"""workflows = ["flows/", "metamcp:review-change"]
{SERVER}
[suggestions]
rules = ["rules.yaml"]

[workspaces.team]
workflows = ["team.yaml"]
[workspaces.team.servers.notes]
command = ["notes"]
"""
FLOW = "name: {}\nsteps: [{{output: {}}}]\n"
RULE = "rules: [{keywords: [say], template: flows/one.yaml}]\n"


def files(folder: Path) -> None:
    write(folder, "flows/one.yaml", FLOW.format("one", 1))
    write(folder, "team.yaml", FLOW.format("own", 2))
    write(folder, "rules.yaml", RULE)


@pytest.mark.promise("M52")
def test_workflows_of_each_workspace_are_read_with_the_configuration(tmp_path: Path) -> None:
    files(tmp_path)
    found = loaded(tmp_path, FILE).workflows
    names = {workspace: sorted(each) for workspace, each in found.definitions.items()}
    assert names == {"default": ["one", "review-change"], "team": ["own"]}
    assert json.loads(found.definitions["team"]["own"]) == {"name": "own", "steps": [{"output": 2}]}
    rules = [json.loads(one)["name"] for one in found.rules]
    assert rules[0] == "one"
    assert "review a change" in rules
    watched = {"flows", "flows/one.yaml", "team.yaml", "rules.yaml"}
    assert {tmp_path / name for name in watched} <= set(found.files)


def test_without_both_keys_nothing_is_read(tmp_path: Path) -> None:
    assert loaded(tmp_path, SERVER).workflows.files == ()


def test_shipped_rules_can_be_left_out(tmp_path: Path) -> None:
    files(tmp_path)
    found = loaded(tmp_path, FILE.replace("rules =", "shipped = false\nrules ="))
    assert len(found.workflows.rules) == 1


@pytest.mark.promise("M52")
def test_problems_of_the_files_are_errors_of_the_configuration(tmp_path: Path) -> None:
    files(tmp_path)
    write(tmp_path, "flows/bad.yaml", "name: bad\nsteps:\n  - {cal: a}\n  - {wait: soon}\n")
    text = FILE.replace("team.yaml", "none.yaml").replace("review-change", "review")
    with pytest.raises(ConfigInvalid) as raised:
        loaded(tmp_path, text)
    told = [str(one).replace(f"{tmp_path}/", "") for one in raised.value.problems]
    assert "flows/bad.yaml:3: steps[0].cal: is not a key here; did you mean 'call'?" in told
    assert any(
        one.startswith("flows/bad.yaml:4: steps[1].wait: must be a duration") for one in told
    )
    assert "none.yaml: cannot be read: No such file or directory" in told
    assert "metamcp:review: is not shipped; did you mean 'review-change'?" in told
    assert tmp_path / "flows/bad.yaml" in raised.value.files


def test_a_changed_file_changes_the_plan_and_the_hash(tmp_path: Path) -> None:
    files(tmp_path)
    before = loaded(tmp_path, FILE)
    assert fingerprint(loaded(tmp_path)) == fingerprint(before)
    write(tmp_path, "flows/one.yaml", FLOW.format("one", 3))
    after = loaded(tmp_path)
    assert fingerprint(after) != fingerprint(before)
    changes = {each.server: each.why for each in plan(before, after).changes}
    assert changes["[workflows]"] == "definitions changed, rules changed"


def test_the_settings_are_shown_as_written(tmp_path: Path) -> None:
    files(tmp_path)
    shown = tables(loaded(tmp_path, FILE))
    assert shown["workflows"] == ["flows/", "metamcp:review-change"]
    assert shown["workspaces"] == {"team": {"workflows": ["team.yaml"]}}
    assert shown["suggestions"] == {"rules": ["rules.yaml"], "shipped": True}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('workflows = [""]\n', "workflows[0]: is not a path"),
        ('workflows = "flows"\n', "workflows: must be a list of strings"),
        (f"workflows = {json.dumps(['a'] * 65)}\n", "workflows: has more than 64 paths"),
        ('[suggestions]\nrule = ["a"]\n', "did you mean 'rules'?"),
    ],
)
def test_wrong_settings_are_told(tmp_path: Path, text: str, told: str) -> None:
    assert told in "\n".join(messages(tmp_path, f"{text}{SERVER}"))
