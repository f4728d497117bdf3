"""The official client in its handshake era against the true gateway: what servers ask and tell in
the middle of a call, over both transports of that era, from servers of both eras."""

import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.client.session import ClientSession
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from tests.live import processes
from tests.live.gateway import Gateway, fake

pytestmark = pytest.mark.live

BODY_KIB = 16 * 1024 - 1
"""As much text as fits into the largest message with what is around it."""
SERVERS = ("old", "new")
TRANSPORTS = ("http", "sse")


class Person:
    """Who answers what servers ask. `asked`: what was asked, `heard`: log messages, in order."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.heard: list[str] = []

    async def fill(self, context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        self.asked.append(params.message)
        return types.ElicitResult(action="accept", content={"name": "Ada"})

    async def write(
        self, context: object, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult:
        self.asked.append("sample")
        text = types.TextContent(type="text", text="hi")
        return types.CreateMessageResult(role="assistant", content=text, model="m")

    async def show(self, context: object) -> types.ListRootsResult:
        self.asked.append("roots")
        return types.ListRootsResult(roots=[types.Root.model_validate({"uri": "file:///a"})])

    async def hear(self, params: types.LoggingMessageNotificationParams) -> None:
        self.heard.append(params.level)


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    servers = {
        "old": fake("--era", "legacy", "--logging"),
        "new": fake("--era", "modern", "--logging"),
    }
    with Gateway(servers) as running:
        yield running


@asynccontextmanager
async def connected(
    gateway: Gateway, transport: str
) -> AsyncGenerator[tuple[ClientSession, Person]]:
    person = Person()
    where = f"http://127.0.0.1:{gateway.port}"
    streams: Any = (
        streamable_http_client(f"{where}/mcp")
        if transport == "http"
        else sse_client(f"{where}/sse")
    )
    async with (
        streams as found,
        ClientSession(
            found[0],
            found[1],
            elicitation_callback=person.fill,
            sampling_callback=person.write,
            list_roots_callback=person.show,
            logging_callback=person.hear,
        ) as session,
    ):
        await session.initialize()
        yield session, person


async def text(session: ClientSession, tool: str, **arguments: Any) -> str:
    result = await session.call_tool(tool, arguments)
    block = result.content[0]
    assert isinstance(block, types.TextContent)
    return block.text


@pytest.mark.promise("M23", "M3")
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("server", SERVERS)
async def test_what_a_server_asks_in_the_middle_of_a_call_the_official_client_answers(
    gateway: Gateway, transport: str, server: str
) -> None:
    async with connected(gateway, transport) as (session, person):
        accepted = {"action": "accept", "content": {"name": "Ada"}}
        assert json.loads(await text(session, f"{server}__elicit")) == accepted
        visited = json.loads(await text(session, f"{server}__elicit", mode="url"))
        assert visited["action"] == "accept"
        said = json.loads(await text(session, f"{server}__sample", text="x"))
        assert said["content"] == {"type": "text", "text": "hi"}
        assert json.loads(await text(session, f"{server}__roots"))["roots"][0]["uri"] == "file:///a"
        assert json.loads(await text(session, f"{server}__ask_many", n=3)) == [accepted] * 3
        assert await text(session, f"{server}__ask_rounds", n=3) == "3 rounds"
        rounds = ["Round 0", "Round 1", "Round 2"]
        assert person.asked[:4] == ["Name?", "Sign in", "sample", "roots"]
        assert sorted(person.asked[4:7]) == ["Question 0", "Question 1", "Question 2"]
        assert person.asked[7:] == rounds


@pytest.mark.promise("M23")
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("server", SERVERS)
async def test_log_messages_reach_the_official_client_from_its_level_on(
    gateway: Gateway, transport: str, server: str
) -> None:
    async with connected(gateway, transport) as (session, person):
        level = types.SetLevelRequestParams(level="error")
        await session.send_request(types.SetLevelRequest(params=level), types.EmptyResult)
        await session.call_tool(f"{server}__log", {"text": "x", "level": "info"})
        await session.call_tool(f"{server}__log", {"text": "x", "level": "critical"})
        await session.send_ping()
        assert person.heard == ["critical"]


def peak(pid: int) -> int:
    """The most memory that this process has had since `reset`."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no peak for process {pid}")


def reset(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


@pytest.mark.promise("M98")
async def test_a_result_of_the_largest_size_crosses_with_bounded_memory(gateway: Gateway) -> None:
    async with connected(gateway, "http") as (session, _person):
        await text(session, "old__echo", text="warm")
        pid: int = gateway.status()["fronts"][0]["pid"]
        before = processes.memory(pid, "Rss")
        reset(pid)
        assert len(await text(session, "old__blob", kib=BODY_KIB)) == BODY_KIB * 1024
        assert peak(pid) - before <= 6 * BODY_KIB * 1024
