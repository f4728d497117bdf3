"""`metamcp toolsets` at a prompt, and its verbs on the control socket."""

import asyncio
import json
import os
import pty
import sys
from pathlib import Path

import pytest

from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.orders import verbs
from metamcp_supervisor.verbs import Exit
from metamcp_worker.ipc.disclosure import Build, Equip, ViewOrder, ViewOwner
from tests.supervisor.cli.test_ctl import read_until
from tests.supervisor.cli.test_ctl_completion import completed
from tests.supervisor.small_gateway import SmallGateway, server, steered

pytestmark = pytest.mark.process

COMMAND = (sys.executable, "-m", "metamcp_supervisor", "toolsets")
SERVERS = (server("git"), server("db"))
TIME = "2023-11-14T22:13:20.250Z"
ELSEWHERE = (
    'whatever is equipped: set its exposure to "toolset", or choose another one with --endpoint'
)
DEV = {
    "name": "dev",
    "description": "for work",
    "tools": [{"namespacedName": "git.status"}, {"namespacedName": "db.query"}],
    "createdAt": TIME,
    "updatedAt": TIME,
}


async def said(directory: Path, *arguments: str, given: str = "") -> tuple[int, str, str]:
    """Exit code, standard output and standard error of the true command."""
    process = await asyncio.create_subprocess_exec(
        *(*COMMAND, "--runtime-dir", str(directory), *arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate(given.encode())
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


async def made(gateway: SmallGateway) -> None:
    tools = (("git", "status"), ("db", "query"))
    for order in (Build("dev", tools, "for work"), Build("data", tools[1:])):
        await gateway.shelf.carry_out(ViewOrder(ViewOwner("", "local"), order))


def named(gateway: SmallGateway) -> dict[str, list[str]]:
    found = gateway.shelf.read_everything().toolsets
    return {one.name: [".".join(pair) for pair in one.tools] for one in found}


# Looking


@pytest.mark.promise("M31")
async def test_list_is_a_table_and_show_has_all_of_one() -> None:
    async with steered(*SERVERS) as (gateway, directory):
        assert await said(directory, "list") == (
            0, "there are no tool sets; 'metamcp toolsets create' makes one\n", "",
        )  # fmt: skip
        await made(gateway)
        shows_none = (
            ViewOwner("wide", "local"),
            ViewOwner("whole", "local"),
            ViewOwner("gone", "local"),
        )
        for whose in (
            ViewOwner("desk", "local"), ViewOwner("desk", "ann"),
            ViewOwner("desk", "ann", "8a"),
            *shows_none,
        ):  # fmt: skip
            await gateway.shelf.carry_out(ViewOrder(whose, Equip("dev")))
        code, out, err = await said(directory, "list")
        assert (code, err) == (0, "")
        assert [" ".join(line.split()) for line in out.splitlines()] == [
            "NAME TOOLS EQUIPPED ON CHANGED DESCRIPTION",
            f"data 1 - {TIME}",
            f"dev 2 desk, desk for ann, desk for ann in session 8a {TIME} for work",
        ]
        code, out, err = await said(directory, "show", "data")
        assert out == (
            f"data\nTOOL\ndb.query\nequipped on nowhere; created {TIME}, changed {TIME}\n"
        )
        code, out, err = await said(directory, "show", "dev", "--json")
        assert json.loads(out)["toolsets"] == [DEV]
        assert {one["principal"] for one in json.loads(out)["equipped"]} == {"local", "ann"}
        code, out, err = await said(directory, "list", "--json")
        assert [one["name"] for one in json.loads(out)["toolsets"]] == ["data", "dev"]


async def test_names_of_tool_sets_and_endpoints_are_completed(tmp_path: Path) -> None:
    async with steered(*SERVERS) as (gateway, directory):
        await made(gateway)
        words = ("metamcp", "toolsets", "--runtime-dir", str(directory))
        assert await completed(*words, "show", "d", cache=tmp_path) == (["data", "dev"], "")
        assert await completed(*words, "add", "da", cache=tmp_path) == (["data"], "")
        found, _ = await completed(*words, "equip", "dev", "--endpoint", "", cache=tmp_path)
        assert found == ["default"], "those that the status shows"
        assert "unequip" in (await completed(*words, "une", cache=tmp_path))[0]


def test_viewers_look_and_operators_change() -> None:
    assert verbs()["toolsets"].least is Role.VIEWER
    assert verbs()["toolsets-change"].least is Role.OPERATOR


# Changing


@pytest.mark.promise("M31")
async def test_the_whole_life_of_a_tool_set() -> None:
    async with steered(*SERVERS) as (gateway, directory):
        for arguments, answer in (
            (("create", "dev", "git.status", "db.query", "--description", "x"), "dev: 2 tools"),
            (("add", "dev", "git.log"), "dev: 3 tools"),
            (("remove", "dev", "git.status", "db.query"), "dev: 1 tool"),
            (("equip", "dev"), "dev: equipped on endpoint desk"),
            (("unequip",), "endpoint desk: dev is not equipped any more"),
            (
                ("unequip", "--endpoint", "wide"),
                "endpoint wide: all tools are in view, whatever is equipped",
            ),
            (
                ("unequip", "--endpoint", "whole"),
                "endpoint whole: nothing was in view but the built-in tools",
            ),
            (("delete", "dev", "--yes"), "dev: deleted"),
            (("create", "b", "db.query", "--equip"), "b: 1 tool, equipped on endpoint desk"),
            (("create", "b", "git.log", "--replace"), "b: 1 tool"),
        ):
            assert await said(directory, *arguments) == (0, f"{answer}\n", "")
        told = [event.cause for event in gateway.journal.since(0) if event.what == "tool sets"]
        assert [cause.partition(" by ")[0] for cause in told] == [
            "built 'dev'", "changed 'dev'", "changed 'dev'",
            "equipped 'dev' on endpoint 'desk'", "unequipped on endpoint 'desk'",
            "unequipped on endpoint 'wide'", "unequipped on endpoint 'whole'", "deleted 'dev'",
            "built 'b' on endpoint 'desk'", "built 'b'",
        ]  # fmt: skip
        assert all(f"of user id {os.geteuid()}" in cause for cause in told)
        code, out, _ = await said(directory, "add", "b", "db.query", "--json")
        assert (code, json.loads(out)["toolset"]["tools"][1]["namespacedName"]) == (
            0, "db.query",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "code", "lines"),
    [
        (("show", "def"), Exit.UNKNOWN_NAME, ["no tool set is named 'def'; did you mean 'dev'?"]),
        (("delete", "def", "--yes"), 8, ["no tool set is named 'def'; did you mean 'dev'?"]),
        (("add", "def", "git.log"), 8, ["no tool set is named 'def'; did you mean 'dev'?"]),
        (("equip", "def"), 8, ["no tool set is named 'def'; did you mean 'dev'?"]),
        (
            ("equip", "dev", "--endpoint", "dask"),
            8,
            ["no endpoint is named 'dask'; did you mean 'desk'?"],
        ),
        (
            ("equip", "dev", "--endpoint", "wide"),
            1,
            [f"endpoint 'wide' shows all tools, {ELSEWHERE}"],
        ),
        (
            ("create", "new", "git.log", "--equip", "--endpoint", "whole"),
            1,
            [f"endpoint 'whole' shows the tools of active servers, {ELSEWHERE}"],
        ),
        (
            ("equip", "dev", "--endpoint", "program"),
            1,
            [f"endpoint 'program' shows built-in tools alone, {ELSEWHERE}"],
        ),
        (
            ("create", "dev", "git.log"),
            1,
            [
                (
                    "there is a tool set 'dev' already; choose another name, or replace it with"
                    " --replace"
                )
            ],
        ),
        (
            ("create", "new", "git.lag", "gut.log", "slow.x", "db.query"),
            8,
            [
                (
                    "nothing is changed, since not all of these tools are known (--force takes"
                    " them as they are)"
                ),
                "git has no tool 'lag'; did you mean 'log'?",
                "no server is named 'gut'; did you mean 'git'?",
                "slow has not said yet what it offers; start it first",
            ],
        ),
        (("remove", "dev", "git.log"), 1, ["the tool set 'dev' has no tool git.log"]),
        (
            ("remove", "dev", "git.status", "db.query"),
            1,
            ["a tool set has at least one tool"],
        ),
        (
            ("create", "a\nb", "git.log"),
            1,
            ["the name of a tool set has 1 to 64 printable characters"],
        ),
        (("delete", "dev"), 2, ["nobody can be asked here: say --yes to delete it"]),
    ],
)
async def test_what_cannot_be_done_is_a_sentence_and_changes_nothing(
    arguments: tuple[str, ...], code: int, lines: list[str]
) -> None:
    async with steered(*SERVERS, server("slow")) as (gateway, directory):
        await made(gateway)
        before = gateway.shelf.read_everything()
        found = await said(directory, *arguments)
        assert found == (code, "", "".join(f"metamcp: {line}\n" for line in lines))
        assert gateway.shelf.read_everything() == before


@pytest.mark.parametrize("word", ["git", "git.", ".log", ""])
async def test_a_word_that_is_no_tool_is_wrong_usage(word: str) -> None:
    async with steered(*SERVERS) as (_, directory):
        code, _, err = await said(directory, "create", "new", word)
        assert code == Exit.USAGE
        assert f"{word!r} is not a tool: one is written SERVER.TOOL, git.git_status" in err


async def test_tools_that_nobody_offers_are_kept_by_force() -> None:
    async with steered(*SERVERS) as (gateway, directory):
        assert (await said(directory, "create", "new", "far.x", "--force"))[0] == 0
        assert (await said(directory, "add", "new", "git.nope", "--force"))[0] == 0
        assert named(gateway) == {"new": ["far.x", "git.nope"]}


def test_without_a_gateway_the_exit_code_says_so(tmp_path: Path) -> None:
    code, out, err = asyncio.run(said(tmp_path, "list"))
    assert (code, out) == (Exit.NOT_RUNNING, "")
    assert "no gateway is running at" in err


@pytest.mark.parametrize(("answer", "left"), [(b"y\r", {"data"}), (b"n\r", {"data", "dev"})])
async def test_on_a_terminal_deleting_asks(answer: bytes, left: set[str]) -> None:
    async with steered(*SERVERS) as (gateway, directory):
        await made(gateway)
        await gateway.shelf.carry_out(ViewOrder(ViewOwner("desk", "local"), Equip("dev")))
        ours, theirs = pty.openpty()
        command = (*COMMAND, "--runtime-dir", str(directory), "delete", "dev")
        process = await asyncio.create_subprocess_exec(
            *command, stdin=theirs, stdout=theirs, stderr=theirs
        )
        os.close(theirs)
        shown = await asyncio.to_thread(read_until, ours, b"[y/N]: ")
        assert b"Delete the tool set dev of 2 tools, which is equipped on desk?" in shown
        os.write(ours, answer)
        ending = b"deleted\r\n" if left == {"data"} else b"nothing is changed\r\n"
        await asyncio.to_thread(read_until, ours, ending)
        assert await process.wait() == (0 if left == {"data"} else 1)
        os.close(ours)
        assert set(named(gateway)) == left


# Files


@pytest.mark.promise("M31")
async def test_what_is_exported_can_be_imported(tmp_path: Path) -> None:
    async with steered(*SERVERS) as (gateway, directory):
        await made(gateway)
        code, out, _ = await said(directory, "export", "dev")
        assert (code, json.loads(out)) == (0, DEV)
        file = str(tmp_path / "all.json")
        assert await said(directory, "export", "-o", file) == (0, "", "")
        everything = json.loads((tmp_path / "all.json").read_text())
        assert [one["name"] for one in everything] == ["data", "dev"]
        before = named(gateway)
    async with steered(*SERVERS) as (gateway, directory):
        assert await said(directory, "import", file) == (0, "data: 1 tool\ndev: 2 tools\n", "")
        assert named(gateway) == before
        assert (await said(directory, "import", "-", given=out))[0] == 1
        found = await said(directory, "import", "-", "--replace", given=out)
        assert found == (0, "dev: 2 tools\n", "")


async def test_of_a_file_all_tool_sets_are_imported_or_none() -> None:
    async with steered(*SERVERS) as (gateway, directory):
        sets = [{"name": "a", "tools": ["git.log"]}, {"name": "b", "tools": ["git.lag"]}]
        code, _, err = await said(directory, "import", "-", given=json.dumps(sets))
        assert (code, named(gateway)) == (Exit.UNKNOWN_NAME, {})
        assert "git has no tool 'lag'; did you mean 'log'?" in err
        code, _, _ = await said(directory, "import", "-", "--force", given=json.dumps(sets))
        assert (code, named(gateway)) == (0, {"a": ["git.log"], "b": ["git.lag"]})


async def test_a_file_that_cannot_be_read_or_written_is_said(tmp_path: Path) -> None:
    async with steered(*SERVERS) as (_, directory):
        missing = tmp_path / "no" / "x.json"
        assert await said(directory, "import", str(missing)) == (
            1, "", f"metamcp: {missing} cannot be read: No such file or directory\n",
        )  # fmt: skip
        assert await said(directory, "export", "-o", str(missing)) == (
            1, "", f"metamcp: {missing} cannot be written: No such file or directory\n",
        )  # fmt: skip
