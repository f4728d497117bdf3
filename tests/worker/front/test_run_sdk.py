"""The official client against a front, in each way that it can connect."""

import asyncio

import pytest
from mcp.client.client import Client
from mcp.client.subscriptions import ToolsListChanged

from metamcp_worker.ipc.frames import Progress, Result

from .door import Door, opened_door
from .offers import offer

RESULT = b'{"resultType":"complete","content":[{"type":"text","text":"hi"}]}'


async def work(door: Door, calls: int) -> None:
    """What the server does: progress, then the result, for so many calls."""
    for _ in range(calls):
        call = await door.peer.call()
        if call.wants_progress:
            door.peer.write(Progress(call.id, b'{"progress":1,"total":2}'))
        door.peer.write(Result(call.id, RESULT))


@pytest.mark.promise("M1")
@pytest.mark.parametrize("mode", ["legacy", "auto", "2026-07-28"])
async def test_the_official_client_lists_calls_and_sees_progress(mode: str) -> None:
    async with opened_door() as door:
        seen: list[float] = []

        async def progressed(progress: float, total: float | None, message: str | None) -> None:
            seen.append(progress)

        server = asyncio.create_task(work(door, 2))
        async with Client(f"http://localhost:{door.port}/mcp", mode=mode) as client:
            tools = await client.list_tools()
            assert [tool.name for tool in tools.tools] == ["t", "u"]
            plain = await client.call_tool("t", {})
            told = await client.call_tool("u", {}, progress_callback=progressed)
            assert plain.content == told.content
            assert seen == [1.0]
        await server


@pytest.mark.promise("M23")
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_call_that_the_official_client_gives_up_is_cancelled(mode: str) -> None:
    async with (
        opened_door() as door,
        Client(f"http://localhost:{door.port}/mcp", mode=mode) as client,
    ):
        asked = asyncio.create_task(client.call_tool("t", {}))
        call = await door.peer.call()
        asked.cancel()
        assert (await door.peer.cancelled()).id == call.id
        await client.list_tools()  # behind what still comes for the call


@pytest.mark.promise("M28")
async def test_the_official_client_hears_of_changed_lists() -> None:
    async with (
        opened_door() as door,
        Client(f"http://localhost:{door.port}/mcp") as client,
        client.listen(tools_list_changed=True) as news,
    ):
        door.offer(offer("t"))
        assert isinstance(await anext(aiter(news)), ToolsListChanged)
