"""Files of tool sets: what is taken, and the sentence for everything else."""

import json
from typing import Any

import pytest

from metamcp_supervisor.cli import toolsets
from metamcp_supervisor.cli.toolsets import FileToolset
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit
from metamcp_worker.ipc.disclosure import TOOLSETS_MAX

DEV = {
    "name": "dev",
    "description": "for work",
    "tools": [{"namespacedName": "git.status"}, {"namespacedName": "db.query"}],
    "createdAt": "2023-11-14T22:13:20.250Z",
    "updatedAt": "2023-11-14T22:13:20.250Z",
}


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (DEV, [FileToolset("dev", (("git", "status"), ("db", "query")), "for work")]),
        ({"name": "a", "tools": ["git.x.y"]}, [FileToolset("a", (("git", "x.y"),), "")]),
        (
            [
                {"name": "a", "tools": ["git.x", {"namespacedName": "git.x"}], "description": None},
                {"id": 7, "name": "b", "tools": [{"namespacedName": "db.y", "more": 7}]},
            ],
            [FileToolset("a", (("git", "x"),), ""), FileToolset("b", (("db", "y"),), "")],
        ),
        (
            {"v": 1, "toolsets": [DEV], "equipped": [{"toolset": "dev"}]},
            [FileToolset("dev", (("git", "status"), ("db", "query")), "for work")],
        ),
    ],
)
def test_files_hold_one_tool_set_or_a_list_with_tools_of_either_form(
    value: Any, found: list[FileToolset]
) -> None:
    assert toolsets.parse(json.dumps(value).encode(), "x") == found
    assert toolsets.parse(b"\xef\xbb\xbf" + json.dumps(value).encode(), "x") == found


A = {"name": "a", "tools": ["git.x"]}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "Input data was truncated"),
        (b"no json", "invalid character (byte 4)"),
        (b"\xff\xfe", "invalid character (byte 0)"),
        (b'{"x":' + b"[" * 100_000, "nested too deeply"),
        (b"[]", "there is no tool set in it"),
        (b'{"v":1,"toolsets":[]}', "there is no tool set in it"),
        (b'{"toolsets":7}', "Expected `array`, got `int` - at `$.toolsets`"),
        (
            b'{"toolsets":[{"name":"a","tools":["git"]}]}',
            (
                "'git' is not a tool: one is written server.tool, as git.git_status"
                " - at `$.toolsets[0].tools[0]`"
            ),
        ),
        (b"7", "Expected `object | array`, got `int`"),
        (b'{"tools":["git.x"]}', "Object missing required field `name`"),
        (b'{"name":"a"}', "Object missing required field `tools`"),
        (b'{"name":7,"tools":[]}', "Expected `str`, got `int` - at `$.name`"),
        (b'[{"name":"a","tools":[7]}]', "Expected `str | object`, got `int` - at `$[0].tools[0]`"),
        (
            b'[{"name":"a","tools":[{"name":"git.x"}]}]',
            "Object missing required field `namespacedName` - at `$[0].tools[0]`",
        ),
        (
            b'{"name":"a","tools":["git.x","git"]}',
            "'git' is not a tool: one is written server.tool, as git.git_status - at `$.tools[1]`",
        ),
        (json.dumps([A, A]).encode(), "the name 'a' is there twice - at `$[1].name`"),
        (
            json.dumps([{**A, "name": str(n)} for n in range(TOOLSETS_MAX + 1)]).encode(),
            f"there are more than {TOOLSETS_MAX} tool sets in it",
        ),
    ],
)
def test_a_broken_file_gets_one_sentence_with_the_place(data: bytes, why: str) -> None:
    with pytest.raises(Failed) as found:
        toolsets.parse(data, "x.json")
    assert str(found.value) == f"x.json is not a file of tool sets: {why}"
    assert found.value.exit == Exit.FAILED


def test_a_file_that_never_ends_is_not_read_to_its_end() -> None:
    with pytest.raises(Failed, match="/dev/zero has more than 16777216 bytes"):
        toolsets.load("/dev/zero")
