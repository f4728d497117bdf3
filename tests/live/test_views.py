"""Views over the true gateway: tool sets, search and loading, with the official client in both eras
and listeners beside it that see every byte."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator, Iterator
from typing import Any

import pytest
from mcp.client.client import Client as Sdk
from mcp_types import CallToolResult, TextContent

from metamcp_worker.ipc import codec
from tests.live.gateway import Gateway, fake
from tests.live.raw import LEGACY, MODERN, Raw, Stream
from tests.waiting import until

pytestmark = pytest.mark.live

CHANGED = "notifications/tools/list_changed"
SETS = [
    "discover-all-tools", "build-toolset", "equip-toolset", "unequip-toolset",
    "get-active-toolset", "list-saved-toolsets", "delete-toolset",
]  # fmt: skip
FIND = [
    "search_tools", "load_tool", "unload_tool", "load_tool_set", "save_tool_set",
    "list_loaded_tools", "describe_tool", "call_tool",
]  # fmt: skip
DEV = ["git_echo", "docker_echo", "linear_pid"]
EXTRA = """
[endpoints.default]
namespace = "default"
exposure = "toolset"
naming = { style = "flat" }

[endpoints.own]
namespace = "default"
exposure = "toolset"
view_scope = "session"

[endpoints.whole]
namespace = "default"
exposure = "servers"
view_scope = "principal"

[endpoints.find]
namespace = "default"
exposure = "search"
view_scope = "principal"

[endpoints.strict]
namespace = "default"
exposure = "search"
view_scope = "principal"
call_hidden = false

[endpoints.everything]
namespace = "default"
naming = { style = "flat" }
"""
eras = pytest.mark.parametrize("mode", ["legacy", MODERN])


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    servers = {
        "git": fake("--era", "legacy"), "docker": fake("--era", "modern"), "linear": fake(),
    }  # fmt: skip
    with Gateway(servers, extra=EXTRA) as running:
        yield running


@pytest.fixture(autouse=True)
def begin(gateway: Gateway) -> None:
    """Each test finds the same: two tool sets, nothing equipped, nothing loaded."""
    client = Raw(gateway.port, MODERN)
    saved = called(client, "list-saved-toolsets")["structuredContent"]["toolsets"]
    for one in saved:
        called(client, "delete-toolset", name=one["name"], confirm=True)
    for name, tools in (
        ("dev", ["git.echo", "docker.echo", "linear.pid"]), ("data", ["linear.echo"]),
    ):  # fmt: skip
        wanted = [{"namespacedName": tool} for tool in tools]
        assert not called(client, "build-toolset", name=name, tools=wanted)["isError"]
    called(client, "unequip-toolset")
    for path in ("find", "strict"):
        searcher = Raw(gateway.port, MODERN, f"/metamcp/{path}/mcp")
        loaded = called(searcher, "list_loaded_tools")["structuredContent"]["tools"]
        if names := [one["exposedName"] for one in loaded]:
            called(searcher, "unload_tool", name=names)


def called(client: Raw, tool: str, /, **arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = client.result(
        "tools/call", codec.dump({"name": tool, "arguments": arguments})
    )
    return found


def talk(
    gateway: Gateway, mode: str, test: Callable[[Sdk], Awaitable[None]], path: str = "/mcp"
) -> None:
    async def main() -> None:
        where = f"http://127.0.0.1:{gateway.port}{path}"
        async with asyncio.timeout(60), Sdk(where, mode=mode) as client:
            await test(client)

    asyncio.run(main())


async def text(client: Sdk, tool: str, /, **arguments: Any) -> str:
    return said(await client.call_tool(tool, arguments))


def said(result: CallToolResult) -> str:
    block = result.content[0]
    assert isinstance(block, TextContent)
    return block.text


async def names(client: Sdk) -> list[str]:
    return [tool.name for tool in (await client.list_tools()).tools]


@contextlib.contextmanager
def listeners(gateway: Gateway, path: str = "/mcp") -> Generator[tuple[Stream, Stream]]:
    """One of each era, on the same endpoint."""
    legacy, modern = Raw(gateway.port, LEGACY, path), Raw(gateway.port, MODERN, path)
    with legacy.listen() as one, modern.listen(toolsListChanged=True) as other:
        yield one, other


def heard(streams: tuple[Stream, Stream]) -> None:
    """Both are told that the list of tools is another one."""
    assert [stream.next().method for stream in streams] == [CHANGED, CHANGED]


@pytest.mark.promise("M32")
@pytest.mark.promise("M33")
@eras
def test_a_tool_set_is_equipped_used_and_unequipped_and_everybody_hears_of_it(
    gateway: Gateway, mode: str
) -> None:
    async def work(client: Sdk) -> None:
        assert await names(client) == SETS
        with listeners(gateway) as streams:
            equipped = await client.call_tool("equip-toolset", {"name": "dev"})
            assert said(equipped).startswith('Toolset "dev" is equipped, 3 of its 3 tools')
            await asyncio.to_thread(heard, streams)
            assert await names(client) == SETS + DEV
            assert await text(client, "git_echo", text="hello") == "hello"
            unequipped = await client.call_tool("unequip-toolset", {})
            assert not unequipped.is_error
            await asyncio.to_thread(heard, streams)
            assert await names(client) == SETS

    talk(gateway, mode, work)


@pytest.mark.promise("M32")
@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_an_equipped_tool_is_defined_as_where_everything_is_shown(
    gateway: Gateway, era: str
) -> None:
    client = Raw(gateway.port, era)
    called(client, "equip-toolset", name="dev")
    everything = Raw(gateway.port, era, "/metamcp/everything/mcp").result("tools/list")["tools"]
    plain = {tool["name"]: tool for tool in everything}
    equipped = client.result("tools/list")["tools"][len(SETS) :]
    assert equipped == [plain[name] for name in DEV]


@pytest.mark.promise("M34")
@eras
def test_a_server_that_is_away_is_warned_of_and_its_tools_come_with_it(
    gateway: Gateway, mode: str
) -> None:
    async def work(client: Sdk) -> None:
        await asyncio.to_thread(gateway.ctl, "stop", "git", "--wait")
        equipped = await client.call_tool("equip-toolset", {"name": "dev"})
        assert not equipped.is_error
        assert "git server unavailable, skipping tools: git.echo" in said(equipped)
        assert await names(client) == [*SETS, "docker_echo", "linear_pid"]
        with listeners(gateway) as streams:
            await asyncio.to_thread(gateway.ctl, "start", "git", "--wait")
            await asyncio.to_thread(heard, streams)
        assert await names(client) == SETS + DEV
        assert await text(client, "git_echo", text="back") == "back"

    try:
        talk(gateway, mode, work)
    finally:
        gateway.ctl("start", "git", "--wait", ok=(0, 1, 2, 3, 4, 5))


@pytest.mark.promise("M33")
def test_a_failed_equip_changes_nothing(gateway: Gateway) -> None:
    client = Raw(gateway.port, LEGACY)
    called(client, "equip-toolset", name="data")
    failed = called(client, "equip-toolset", name="nothing")
    assert failed["isError"]
    assert failed["content"][0]["text"].startswith("Failed to equip toolset: ")
    assert client.names() == [*SETS, "linear_echo"]


@pytest.mark.promise("M33")
@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_a_rapid_sequence_ends_as_its_last_step_says(gateway: Gateway, era: str) -> None:
    client = Raw(gateway.port, era)
    steps: list[tuple[str, dict[str, object]]] = [
        ("equip-toolset", {"name": "dev"}), ("equip-toolset", {"name": "data"}),
        ("unequip-toolset", {}),
    ]  # fmt: skip
    for _ in range(5):
        started = [
            client.start(
                "tools/call", codec.dump({"name": name, "arguments": arguments}), b"%d" % number
            )
            for number, (name, arguments) in enumerate(steps)
        ]
        results: list[Any] = []
        for number, one in enumerate(started):
            with one.stream() as stream:
                results.append(codec.value(stream.until(b"%d" % number)[1].result))
        first, second, last = results
        assert not first["isError"]
        if second["isError"]:
            assert second["content"][0]["text"] == (
                "Failed to equip toolset: operation in progress, please wait"
            )
        assert not last["isError"]
        assert client.names() == SETS


@pytest.mark.promise("M37")
@eras
def test_a_client_that_never_lists_again_calls_an_equipped_tool_by_its_name(
    gateway: Gateway, mode: str
) -> None:
    async def work(client: Sdk) -> None:
        assert await names(client) == SETS
        await client.call_tool("equip-toolset", {"name": "dev"})
        assert await text(client, "git_echo", text="hello") == "hello"

    talk(gateway, mode, work)


@pytest.mark.promise("M37")
def test_each_session_has_its_own_view_where_the_operator_wants_that(gateway: Gateway) -> None:
    path = "/metamcp/own/mcp"
    mine, yours = Raw(gateway.port, LEGACY, path), Raw(gateway.port, LEGACY, path)
    called(mine, "equip-toolset", name="data")
    assert mine.names() == [*SETS, "linear__echo"]
    assert yours.names() == SETS


@pytest.mark.promise("M36")
@eras
def test_a_tool_is_searched_for_loaded_and_called(gateway: Gateway, mode: str) -> None:
    path = "/metamcp/find/mcp"

    async def work(client: Sdk) -> None:
        assert await names(client) == FIND
        found = await client.call_tool("search_tools", {"query": "git echo"})
        assert said(found).startswith("- `git__echo`: Does echo.")
        with listeners(gateway, path) as streams:
            assert not (await client.call_tool("load_tool", {"name": "git__echo"})).is_error
            await asyncio.to_thread(heard, streams)
        assert await names(client) == [*FIND, "git__echo"]
        assert await text(client, "git__echo", text="hello") == "hello"
        saved = await client.call_tool("save_tool_set", {"name": "one"})
        assert not saved.is_error
        await client.call_tool("unload_tool", {"name": "git.echo"})
        assert await names(client) == FIND
        await client.call_tool("load_tool_set", {"name": "one"})
        assert await names(client) == [*FIND, "git__echo"]

    talk(gateway, mode, work, path)


@pytest.mark.promise("M37")
@eras
def test_a_tool_out_of_view_is_called_through_call_tool_or_by_its_name(
    gateway: Gateway, mode: str
) -> None:
    async def work(client: Sdk) -> None:
        asked = {"name": "docker.echo", "arguments": {"text": "hello"}}
        assert await text(client, "call_tool", **asked) == "hello"
        assert await text(client, "docker__echo", text="hello") == "hello"

    talk(gateway, mode, work, "/metamcp/find/mcp")


@pytest.mark.promise("M37")
def test_where_only_what_is_in_view_may_be_called_the_rest_is_refused(gateway: Gateway) -> None:
    client = Raw(gateway.port, LEGACY, "/metamcp/strict/mcp")
    asked: dict[str, object] = {"name": "git__echo", "arguments": {"text": "hello"}}
    assert "not loaded" in called(client, "call_tool", **asked)["content"][0]["text"]
    params = codec.dump(asked)
    assert codec.value(client.answer("tools/call", params).error)["code"] == -32602
    called(client, "load_tool", name="git__echo")
    assert called(client, "call_tool", **asked)["content"][0]["text"] == "hello"
    assert client.text("git__echo", text="hello") == "hello"


@pytest.mark.promise("M35")
@eras
def test_a_server_is_activated_leaves_the_list_while_it_is_away_and_is_deactivated(
    gateway: Gateway, mode: str
) -> None:
    path = "/metamcp/whole/mcp"
    builtins = ["gateway_activate", "gateway_deactivate", "gateway_status"]

    async def work(client: Sdk) -> None:
        assert await names(client) == builtins
        with listeners(gateway, path) as streams:
            assert not (await client.call_tool("gateway_activate", {"name": "git"})).is_error
            await asyncio.to_thread(heard, streams)
            active = await names(client)
            assert "git__echo" in active
            assert not [name for name in active if name.startswith("docker__")]
            await asyncio.to_thread(gateway.ctl, "stop", "git", "--wait")
            await asyncio.to_thread(heard, streams)
            assert await names(client) == builtins
            assert "- git: stopped" in await text(client, "gateway_status")
            await asyncio.to_thread(gateway.ctl, "start", "git", "--wait")
            await asyncio.to_thread(heard, streams)
            assert await names(client) == active
        await client.call_tool("gateway_deactivate", {"name": "git"})
        assert await names(client) == builtins
        assert await text(client, "git__echo", text="runs on") == "runs on"

    talk(gateway, mode, work, path)


@pytest.mark.promise("M30")
def test_discovery_tells_everything_whatever_is_equipped_and_who_is_away(
    gateway: Gateway,
) -> None:
    client = Raw(gateway.port, MODERN)

    def discovered() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        offset: int | None = 0
        while offset is not None:
            told = called(client, "discover-all-tools", offset=offset)["structuredContent"]
            for server in told["toolsByServer"]:
                tools = [tool["namespacedName"] for tool in server["tools"]]
                found.setdefault(server["serverName"], []).extend(tools)
            offset = told.get("nextOffset")
        return found

    before = discovered()
    assert list(before) == ["git", "docker", "linear"]
    assert "git.echo" in before["git"]
    called(client, "equip-toolset", name="data")
    assert discovered() == before
    gateway.ctl("stop", "git", "--wait")
    try:
        assert discovered() == before
        told = called(client, "discover-all-tools", server="git")["structuredContent"]
        assert told["toolsByServer"][0]["available"] is False
    finally:
        gateway.ctl("start", "git", "--wait")


@pytest.mark.promise("M31")
def test_the_equipped_tool_set_is_there_again_after_a_restart(gateway: Gateway) -> None:
    called(Raw(gateway.port, LEGACY), "equip-toolset", name="dev")
    assert gateway.stop() == 0
    gateway.start()
    client = Raw(gateway.port, LEGACY)
    until(lambda: client.names() == SETS + DEV, "the equipped tools are in the list again")
    told = called(client, "get-active-toolset")["structuredContent"]
    assert told["toolset"]["name"] == "dev"
    assert told["warnings"] == []
