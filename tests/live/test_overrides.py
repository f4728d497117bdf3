"""Tools that an operator wants otherwise, over the true gateway, with the official client in both
eras: renamed, described, hidden, switched off, with fixed and default arguments."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client as Sdk
from mcp.client.sse import sse_client
from mcp.shared.exceptions import MCPError
from mcp_types import Tool

from tests import programs
from tests.live.bridge import Bridge
from tests.live.gateway import Gateway, fake
from tests.live.raw import LEGACY, MODERN, Raw, Stream
from tests.live.test_recording import metamcp, recorded
from tests.live.viewed import opened_client, said
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M27")]

CHANGED = "notifications/tools/list_changed"
ORIGINAL = "io.metamcp/original"
SCHEMA = {
    "type": "object",
    "properties": {
        "repo": {"type": "string"}, "n": {"type": "integer", "x-kept": 1.0},
        "text": {"type": "string"},
    },
    "required": ["repo", "n"],
}  # fmt: skip
SAID = """
{ name = "ask_SERVER", aliases = ["SERVER.before"], title = "Ask", description = "Says it all.",\
 fixed = { repo = "/safe" }, defaults = { n = 5 } }
"""
HERE = "\n".join(
    f'tools."{server}.raw" = {SAID.strip().replace("SERVER", server)}\n'
    f'tools."{server}.pid" = {{ hidden = true }}\n'
    f'tools."{server}.blob" = {{ enabled = false }}'
    for server in ("old", "new")
)
EXTRA = f"""
[recording]
calls = "full"

[endpoints.default]
namespace = "default"
{HERE}

[endpoints.plain]
namespace = "default"
"""
eras = pytest.mark.parametrize("mode", ["legacy", MODERN])
both = pytest.mark.parametrize("server", ["old", "new"])


def servers(folder: Path) -> dict[str, dict[str, Any]]:
    words = folder / "words.json"
    words.write_text(json.dumps({"raw": {"inputSchema": SCHEMA}}))
    more = ("--words", str(words))
    return {"old": fake("--era", "legacy", *more), "new": fake("--era", "modern", *more)}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with Gateway(servers(tmp_path_factory.mktemp("words")), extra=EXTRA) as running:
        yield running


async def tools(client: Sdk) -> dict[str, Tool]:
    return {tool.name: tool for tool in (await client.list_tools()).tools}


def got(text: str) -> dict[str, Any]:
    """What reached the server, of a call of its tool `raw`."""
    found: dict[str, Any] = json.loads(text)
    return {"name": found["name"], "arguments": found["arguments"]}


@eras
@both
async def test_clients_see_the_tool_that_the_operator_wants(
    gateway: Gateway, mode: str, server: str
) -> None:
    async with opened_client(gateway, mode) as client:
        found = await tools(client)
        assert not {f"{server}__{tool}" for tool in ("raw", "pid", "blob")} & set(found)
        assert f"{server}.before" not in found
        tool = found[f"ask_{server}"]
        assert (tool.title, tool.description) == ("Ask", "Says it all.")
        assert tool.input_schema["properties"] == {
            "n": {"type": "integer", "x-kept": 1.0, "default": 5}, "text": {"type": "string"},
        }  # fmt: skip
        assert "required" not in tool.input_schema
        assert tool.meta is not None
        assert tool.meta[ORIGINAL] == {"server": server, "name": "raw"}
        assert tool.meta["example.com/vendor"] == {"kept": 1.0}
        plain = found[f"{server}__echo"]
        assert plain.meta == {"example.com/vendor": {"kept": 1.0}}


@eras
@both
async def test_calls_have_the_arguments_that_the_operator_wants(
    gateway: Gateway, mode: str, server: str
) -> None:
    async with opened_client(gateway, mode) as client:
        name = f"ask_{server}"
        sent = {"text": "x", "repo": "/evil"}
        answer = await client.call_tool(name, sent)
        assert got(said(answer)) == {
            "name": "raw", "arguments": {"text": "x", "n": 5, "repo": "/safe"},
        }  # fmt: skip
        answer = await client.call_tool(name, {"n": 7})
        assert got(said(answer))["arguments"] == {"n": 7, "repo": "/safe"}
        answer = await client.call_tool(name)
        assert got(said(answer))["arguments"] == {"n": 5, "repo": "/safe"}
        assert int(said(await client.call_tool(f"{server}__pid")))
        for gone in ("blob", "raw"):
            with pytest.raises(MCPError, match=f"Unknown tool: {server}__{gone}"):
                await client.call_tool(f"{server}__{gone}")


@pytest.mark.promise("M25")
@eras
@both
async def test_an_alias_calls_the_same_tool(gateway: Gateway, mode: str, server: str) -> None:
    async with opened_client(gateway, mode) as client:
        answer = await client.call_tool(f"{server}.before", {"repo": "/evil"})
        assert got(said(answer)) == {"name": "raw", "arguments": {"n": 5, "repo": "/safe"}}


@eras
@both
async def test_another_endpoint_of_the_same_servers_has_them_as_they_are(
    gateway: Gateway, mode: str, server: str
) -> None:
    async with opened_client(gateway, mode, "/metamcp/plain/mcp") as client:
        found = await tools(client)
        assert f"ask_{server}" not in found
        assert {f"{server}__{tool}" for tool in ("raw", "pid", "blob")} <= set(found)
        tool = found[f"{server}__raw"]
        assert (tool.title, tool.description) == ("The raw", "Does raw.")
        assert tool.input_schema == SCHEMA
        assert tool.meta == {"example.com/vendor": {"kept": 1.0}}
        answer = await client.call_tool(f"{server}__raw", {"repo": "/mine"})
        assert got(said(answer)) == {"name": "raw", "arguments": {"repo": "/mine"}}


async def test_clients_of_2024_get_the_same(gateway: Gateway) -> None:
    where = f"http://127.0.0.1:{gateway.port}/sse"
    async with asyncio.timeout(60), Sdk(sse_client(where), mode="legacy") as client:
        answer = await client.call_tool("ask_old", {"repo": "/evil"})
        assert got(said(answer))["arguments"] == {"n": 5, "repo": "/safe"}


@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_a_bridge_gets_the_same(gateway: Gateway, era: str) -> None:
    where = ("--runtime-dir", str(gateway.folder / "run"))
    with Bridge(*where, folder=gateway.folder, era=era, forked=True) as bridge:
        assert {"ask_old", "ask_new"} <= set(bridge.tools())
        found = got(bridge.text("ask_new", repo="/evil"))
        assert found == {"name": "raw", "arguments": {"n": 5, "repo": "/safe"}}


def test_what_the_server_got_is_recorded_and_made_once_more(gateway: Gateway) -> None:
    client = Raw(gateway.port, MODERN)
    client.text("ask_old", repo="/evil", text="to be recorded")

    def lines() -> list[dict[str, Any]]:
        found = [one for one in recorded(gateway) if one["name"] == "ask_old"]
        return [one for one in found if one["arguments"].get("text") == "to be recorded"]

    line = until(lines, "the call is recorded")[0]
    assert line["arguments"] == {"text": "to be recorded", "n": 5, "repo": "/safe"}
    again = metamcp(gateway, "replay", line["id"])
    # The server tells what it got, so the result has the gateway's token for the new call: 1.
    assert (again.returncode, again.stderr) == (1, "")
    assert "progressToken" in again.stdout


@contextlib.contextmanager
def listening(port: int, path: str) -> Generator[tuple[Stream, Stream]]:
    """One listener of each era."""
    legacy, modern = Raw(port, LEGACY, path), Raw(port, MODERN, path)
    with legacy.listen() as one, modern.listen(toolsListChanged=True) as other:
        yield one, other


@pytest.mark.promise("M28", "M78")
def test_a_reload_of_overrides_restarts_nothing_and_tells_who_sees_another_list(
    tmp_path: Path,
) -> None:
    wanted = servers(tmp_path)
    with Gateway(wanted, extra=EXTRA) as gateway:
        plain = "/metamcp/plain/mcp"
        client = Raw(gateway.port, MODERN)
        pids = [client.text(f"{server}__pid") for server in wanted]

        def reload(old: str, new: str) -> None:
            assert old in gateway.extra
            gateway.extra = gateway.extra.replace(old, new)
            gateway.write(wanted)
            assert "tools changed" in gateway.ctl("reload", "--dry-run")
            gateway.ctl("reload")

        with listening(gateway.port, "/mcp") as here, listening(gateway.port, plain) as there:
            reload('name = "ask_old"', 'name = "question"')
            assert [stream.next().method for stream in here] == [CHANGED, CHANGED]
            assert client.names()[:1] != ["ask_old"]
            assert "question" in client.names()
            reload('"/safe"', '"/safer"')
            until(lambda: '"/safer"' in client.text("question"), "another argument is fixed")
            reload('aliases = ["old.before"]', 'aliases = ["old.after"]')
            until(lambda: '"/safer"' in client.text("old.after"), "there is another alias")
            reload("[endpoints.plain]", '[endpoints.plain]\ntools."new.raw" = { hidden = true }')
            assert [stream.next().method for stream in there] == [CHANGED, CHANGED]
            assert [client.text(f"{server}__pid") for server in wanted] == pids
            gateway.stop()
            for stream in (*here, *there):
                assert CHANGED.encode() not in b"".join(stream.rest()), "one change is told once"


@pytest.mark.promise("M67")
def test_verbs_hide_rename_and_switch_a_tool_of_a_gateway_that_runs() -> None:
    extra = '[gateway]\nstate_dir = "state"\n[endpoints.default]\nnamespace = "default"\n'
    with Gateway({"git": fake("--only", "echo,raw")}, extra=extra) as gateway:
        client = Raw(gateway.port, MODERN)

        def run(*arguments: str) -> str:
            command = [sys.executable, "-m", "metamcp_supervisor", "tools", *arguments]
            where = ["--config", str(gateway.config)]
            done = programs.run([*command, *where])
            return done.stdout + done.stderr

        def tools(*arguments: str) -> None:
            assert "git.echo" in run(*arguments)
            gateway.ctl("reload")

        assert "did you mean 'echo'?" in run("hide", "git.ecko")
        tools("hide", "git.echo")
        until(lambda: client.names() == ["git__raw"], "it is hidden")
        assert client.text("git__echo", text="here") == "here"
        call = gateway.command("call", "git.echo", "text=here")
        assert subprocess.check_output(call, text=True, timeout=60) == "here\n"
        tools("show", "git.echo")
        tools("rename", "git.echo", "say")
        until(lambda: set(client.names()) == {"git__raw", "say"}, "it has another name")
        tools("disable", "git.echo", "--endpoint", "default")
        until(lambda: client.names() == ["git__raw"], "it is switched off")
        assert client.answer("tools/call", b'{"name":"say","arguments":{}}').error
        tools("enable", "git.echo", "--endpoint", "default")
        until(lambda: "say" in client.names(), "it is switched on")


@pytest.mark.promise("M67")
def test_a_server_gets_another_name_while_the_gateway_runs() -> None:
    with Gateway({"git": fake("--only", "echo,raw")}) as gateway:

        def run(*arguments: str) -> str:
            command = gateway.command(*arguments)
            return subprocess.check_output(command, text=True, timeout=60)

        run("toolsets", "create", "dev", "git.echo")
        said = run("rename", "git", "vcs", "--config", str(gateway.config))
        assert "tool set dev: it has the new name" in said
        gateway.ctl("reload")
        client = Raw(gateway.port, MODERN)
        until(lambda: client.names() == ["vcs__echo", "vcs__raw"], "clients know the name")
        assert '"vcs.echo"' in run("toolsets", "export", "dev")


def test_what_is_wanted_for_nothing_is_said_in_the_log(tmp_path: Path) -> None:
    extra = '[endpoints.default]\nnamespace = "default"\ntools."old.rwa" = { hidden = true }\n'
    with Gateway(servers(tmp_path), extra=extra) as gateway:
        said = "endpoint default: old has no tool 'rwa', which is overridden here"
        until(lambda: said in gateway.log.read_text(), "the log says so")
