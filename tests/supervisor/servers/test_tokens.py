"""`metamcp tools --tokens` and `metamcp ctl views` as they are called."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from metamcp_supervisor.cli import listings as shown_views
from metamcp_supervisor.verbs import Exit
from metamcp_worker.ipc import builtin_definitions, codec
from metamcp_worker.ipc.disclosure import ViewStats
from tests.supervisor.cli.test_lock_verbs import Place
from tests.supervisor.small_gateway import server, steered

CONFIG = """
[gateway]
state_dir = "state"
[servers.files]
command = ["x"]
[servers.notes]
command = ["y"]
[servers.off]
command = ["z"]
enabled = false
[endpoints.default]
namespace = "default"
[endpoints.few]
namespace = "few"
exposure = "servers"
[namespaces.default]
servers = ["*"]
[namespaces.few]
servers = ["notes"]
tools."notes.drop".enabled = false
"""
WORDS = 5_000
"""Characters of the description of a large tool."""


def tool(name: str, size: int = 0) -> bytes:
    schema = {"type": "object"}
    return codec.dump({"name": name, "description": "x" * size, "inputSchema": schema})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    found = Place(tmp_path, CONFIG)
    found.offer("files", tool("read"), tool("write", WORDS))
    found.offer("notes", tool("add", 400), tool("drop", 800))
    return found


def told(place: Place, *arguments: str) -> dict[str, Any]:
    done = place.run("tools", "--tokens", "--json", *arguments)
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def tokens_of(place: Place, *tools: str) -> int:
    every = {f"{one['server']}.{one['tool']}": one["tokens"] for one in told(place)["tools"]}
    return sum(every[name] for name in tools)


@pytest.mark.promise("M38")
def test_the_first_screen_is_for_what_costs_most_and_what_to_do(place: Place) -> None:
    done = place.run("tools", "--tokens")
    assert (done.exit_code, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    every = told(place)
    whole, few = every["endpoints"]
    search = builtin_definitions.tokens_of_bytes(builtin_definitions.size("search"))
    servers = builtin_definitions.tokens_of_bytes(builtin_definitions.size("servers"))
    assert lines[0] == [
        "ENDPOINT", "EXPOSURE", "TOOLS", "AT", "START", "SAVED", "%", "ALL", "TOOLSET", "SERVERS",
        "SEARCH", "CODE",
    ]  # fmt: skip
    assert lines[1][:6] == ["default", "all", "4", str(whole["all"]), "0", "0"]
    saved = few["all"] - servers
    assert lines[2][:6] == ["few", "servers", "1", str(servers), str(saved), "0"]
    assert " ".join(lines[3]) == (
        f'default: exposure = "search" would make it {search} tokens,'
        f" {(whole['all'] - search) * 100 // whole['all']} % less"
    )
    assert [line[0] for line in lines[5:8]] == ["SERVER", "files", "notes"]
    large = tokens_of(place, "files.write")
    assert lines[6][4:] == ["write", f"({large})"]
    assert [line[0] for line in lines[9:14]] == [
        "TOOL", "files.write", "notes.drop", "notes.add", "files.read",
    ]  # fmt: skip
    assert " ".join(lines[-1]).startswith("tokens are estimated: 4 bytes of a definition each;")


@pytest.mark.promise("M38")
def test_an_endpoint_costs_what_its_own_names_and_switched_off_tools_make_of_it(
    place: Place,
) -> None:
    whole, few = told(place)["endpoints"]
    named = [tool(f"notes__{name}", size) for name, size in (("add", 400), ("drop", 800))]
    named += [tool("files__read"), tool("files__write", WORDS)]
    assert whole["all"] == whole["at_start"] == builtin_definitions.tokens_of_all(named)
    assert (few["tools"], few["all"]) == (1, builtin_definitions.tokens_of_all([named[0]])), (
        "one is switched off"
    )
    assert whole["exposures"] == {
        "all": whole["all"],
        "toolset": builtin_definitions.tokens_of_bytes(builtin_definitions.size("toolset")),
        "servers": few["at_start"],
        "search": builtin_definitions.tokens_of_bytes(builtin_definitions.size("search")),
        "code": builtin_definitions.tokens_of_bytes(builtin_definitions.size("code")),
    }
    assert few["saved"] == few["all"] - few["at_start"] < 0, "a small server needs no exposure"
    assert few["saved_percent"] == 0


def test_where_nothing_is_saved_nothing_is_advised(tmp_path: Path) -> None:
    place = Place(tmp_path, CONFIG)
    place.offer("files", tool("read"))
    done = place.run("tools", "--tokens")
    assert "would make it" not in done.stdout
    assert "not seen yet: notes; start the gateway once\n" in done.stdout
    assert "off" not in done.stdout.split(), "what is not enabled costs nothing"


@pytest.mark.promise("M38")
def test_of_one_server_all_tools_are_told_and_of_many_the_largest(place: Place) -> None:
    place.offer("files", *(tool(f"t{n}", 10 * n) for n in range(30)))
    done = place.run("tools", "--tokens")
    assert "22 more tools: 'metamcp tools --tokens SERVER' shows those of one server" in done.stdout
    rows = place.run("tools", "--tokens", "files").stdout.splitlines()
    assert [row.split()[0] for row in rows[1:4]] == ["files.t29", "files.t28", "files.t27"]
    assert len(rows) == 1 + 30 + 2
    sums = {one["name"]: one["tokens"] for one in told(place)["servers"]}
    assert rows[-2] == f"files: 30 tools, {sums['files']} tokens"
    one = told(place, "files.t3")
    assert [each["tool"] for each in one["tools"]] == ["t3"]
    assert [each["name"] for each in one["servers"]] == ["files"]


def test_who_asks_wrongly_is_told_what_there_is(place: Place) -> None:
    unknown = place.run("tools", "--tokens", "file")
    assert unknown.exit_code == Exit.UNKNOWN_NAME
    assert unknown.stderr == "metamcp: no server is named 'file'; did you mean 'files'?\n"
    tool_unknown = place.run("tools", "--tokens", "files.raed")
    assert tool_unknown.exit_code == Exit.UNKNOWN_NAME
    assert "'files' has no tool 'raed'; did you mean 'read'?" in tool_unknown.stderr
    both = place.run("tools", "--tokens", "--diff")
    assert both.exit_code == Exit.USAGE
    assert "--diff and --tokens are two questions" in both.stderr


def test_before_any_server_was_seen_there_is_one_table_and_what_to_do(tmp_path: Path) -> None:
    lines = Place(tmp_path, CONFIG).run("tools", "--tokens").stdout.splitlines()
    assert all(lines), "no table is without rows"
    assert lines[0].startswith("ENDPOINT")
    assert lines[-2] == "not seen yet: files, notes; start the gateway once"


def test_a_catalogue_that_cannot_be_read_is_said_and_the_others_are_counted(place: Place) -> None:
    (path,) = (place.folder / "state" / "catalogue" / "files").iterdir()
    path.write_bytes(b"no JSON")
    done = place.run("tools", "--tokens")
    assert done.exit_code == 0
    assert done.stderr.startswith(f"metamcp: files: {path} cannot be read, so it stays as it is")
    assert "not seen yet: files" in done.stdout
    assert place.run("tools", "--tokens", "files").stdout.startswith("files was not seen yet")
    for option in ("--tokens", "--diff"):
        one = place.run("tools", option, "files.read")
        assert one.exit_code == Exit.UNKNOWN_NAME
        assert one.stderr.splitlines()[-1] == (
            "metamcp: files was not seen yet as it is configured now; start the gateway once"
        )


def test_a_tool_in_quarantine_costs_nobody_anything(tmp_path: Path) -> None:
    place = Place(
        tmp_path, CONFIG.replace('command = ["x"]', 'command = ["x"]\npinning = "enforce"')
    )
    place.offer("files", tool("read"), tool("write", WORDS))
    place.run("lock", "write")
    before = told(place)["endpoints"][0]
    place.offer("files", tool("read"), tool("write", WORDS + 1))
    after = told(place)["endpoints"][0]
    assert (before["tools"], after["tools"]) == (2, 1)
    assert after["all"] < before["all"] - WORDS // 5


# What is in view now

VIEWS = (
    ViewStats("default", "search", "local", "", "", 8, 871, 40, 20_000),
    ViewStats("default", "search", "ann", "8a", "dev", 11, 2_000, 40, 20_000),
    ViewStats("gone", "all", "local", "", "", 1, 1, 1, 1),
)


async def said(directory: Path, *arguments: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "metamcp_supervisor", "ctl", "--runtime-dir", str(directory), "views",
        *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()


@pytest.mark.process
@pytest.mark.promise("M38")
async def test_what_each_view_has_now_is_told_with_what_it_saves() -> None:
    async with steered(server("git")) as (gateway, directory):
        code, out, err = await said(directory)
        assert (code, err) == (0, "")
        assert out == "no front has told yet what is in view; ask again in two seconds\n"
        gateway.shown = VIEWS
        code, out, err = await said(directory)
        assert [" ".join(line.split()) for line in out.splitlines()] == [
            " ".join(shown_views.VIEW_COLUMNS),
            "default search ann 8a dev 11 40 2000 20000 18000 90",
            "default search local - - 8 40 871 20000 19129 95",
            (
                "tokens are estimated: 4 bytes of JSON each; TOOLS and TOKENS are with the"
                " built-in tools"
            ),
        ]
        code, out, err = await said(directory, "default", "--json")
        whole = json.loads(out)
        assert (whole["token_bytes"], len(whole["views"])) == (4, 2)
        assert whole["views"][0]["saved"] == 19129
        code, out, err = await said(directory, "defualt")
        assert (code, out) == (Exit.UNKNOWN_NAME, "")
        assert "no endpoint is named 'defualt'; did you mean 'default'?" in err
