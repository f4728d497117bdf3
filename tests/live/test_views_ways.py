"""The same examples for clients of HTTP+SSE, and for those that start a program and speak to it."""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from mcp.client.client import Client as Sdk
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters
from mcp_types import ToolListChangedNotification

from tests.live.gateway import ROOT, Gateway
from tests.live.raw import MODERN, Raw
from tests.live.viewed import (
    FIND,
    RUN_S_MAX,
    SETS,
    WHOLE,
    called,
    done,
    endpoint,
    named,
    names,
)

pytestmark = pytest.mark.live

TOOLS = ["git_status", "git_commit"]
#: Built-in tools, what brings the tools into view, and what takes them out.
STEPS: dict[str, tuple[list[str], tuple[str, dict[str, Any]], tuple[str, dict[str, Any]]]] = {
    "toolset": (SETS, ("equip-toolset", {"name": "dev"}), ("unequip-toolset", {})),
    "servers": (
        WHOLE, ("gateway_activate", {"name": "git"}), ("gateway_deactivate", {"name": "git"}),
    ),
    "search": (FIND, ("load_tool", {"name": TOOLS}), ("unload_tool", {"name": TOOLS})),
}  # fmt: skip
WAYS = [("sse", "legacy"), ("stdio", "legacy"), ("stdio", MODERN)]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    extra = "".join(
        endpoint(exposure, exposure=f'"{exposure}"', naming='{ style = "flat" }')
        for exposure in STEPS
    )
    servers = {"git": named("status", "commit"), "db": named("query")}
    with Gateway(servers, extra=extra) as running:
        client = Raw(running.port, MODERN, "/metamcp/toolset/mcp")
        assert not called(client, "build-toolset", name="dev", tools=TOOLS)["isError"]
        yield running


class Hearing:
    """What is told of the list of tools."""

    def __init__(self) -> None:
        self._news = asyncio.Semaphore(0)

    async def told(self, message: object) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._news.release()

    async def changed(self) -> None:
        await self._news.acquire()


@asynccontextmanager
async def opened_way(
    gateway: Gateway, way: str, mode: str, exposure: str
) -> AsyncGenerator[tuple[Sdk, Hearing]]:
    """One session of the official client, which hears of changes."""
    hearing = Hearing()
    server: Any = sse_client(f"http://127.0.0.1:{gateway.port}/metamcp/{exposure}/sse")
    if way == "stdio":
        where = ["--runtime-dir", str(gateway.folder / "run"), "--endpoint", exposure]
        command = ["-m", "metamcp_supervisor", "connect", *where]
        server = StdioServerParameters(
            command=sys.executable, args=command, cwd=ROOT, env=dict(os.environ)
        )
    client = Sdk(server, mode=mode, message_handler=hearing.told)
    async with asyncio.timeout(RUN_S_MAX), AsyncExitStack() as stack:
        await stack.enter_async_context(client)
        if mode == MODERN:
            await stack.enter_async_context(client.listen(tools_list_changed=True))
        yield client, hearing


@pytest.mark.promise("M3", "M5", "M32", "M35", "M36")
@pytest.mark.parametrize("exposure", list(STEPS))
@pytest.mark.parametrize(("way", "mode"), WAYS, ids="-".join)
async def test_tools_come_into_view_are_called_and_leave_it_and_the_client_hears_of_both(
    gateway: Gateway, exposure: str, way: str, mode: str
) -> None:
    builtins, (step, given), (back, again) = STEPS[exposure]

    async with opened_way(gateway, way, mode, exposure) as (client, hearing):
        assert await names(client) == builtins
        await done(client, step, **given)
        await hearing.changed()
        assert await names(client) == [*builtins, *TOOLS]
        for name in TOOLS:
            found = await done(client, name, query="typescript")
            assert found["arguments"] == {"query": "typescript"}
            assert f"git_{found['name']}" == name
        assert (await done(client, "db_query"))["name"] == "query", "out of view"
        await done(client, back, **again)
        await hearing.changed()
        assert await names(client) == builtins
