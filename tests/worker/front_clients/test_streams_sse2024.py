"""HTTP+SSE of 2024-11-05, over raw sockets and with the official client."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from mcp.client.session import ClientSession
from mcp.client.sse import sse_client

from metamcp_worker.front_clients import streams
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.frames import Progress, QuestionFrame, ReplyFrame, Result
from tests.worker.front.door import Door, bodiless, modern, opened_door
from tests.worker.front.offers import offer

from ..rawhttp import Client, post, until
from .test_streams import Wire

HELLO: dict[str, Any] = {
    "protocolVersion": "2024-11-05", "capabilities": {"roots": {}}, "clientInfo": {"name": "c"},
}  # fmt: skip

LARGE = b'{"x":"%b"}' % (b"x" * (8 * 1024 * 1024))


class Line:
    """One stream, and where messages for it are posted."""

    def __init__(self, door: Door, stream: Client, path: str) -> None:
        self.door = door
        self.stream = stream
        self.path = path

    @classmethod
    async def open(cls, door: Door, path: str = "/sse") -> "Line":
        stream = await door.connect()
        stream.send(bodiless("GET", path=path))
        head = await stream.head()
        assert (head.status, head.headers["content-type"]) == (200, "text/event-stream")
        name, _, where = (await stream.chunk()).decode().strip().partition("\n")
        assert name == "event: endpoint"
        return cls(door, stream, where.removeprefix("data: "))

    async def say(self, **members: Any) -> int:
        """Post a message; the status."""
        body = codec.dump({"jsonrpc": "2.0", **members})
        reply = await self.door.ask(post(body, "Accept: */*", path=self.path))
        return reply.status

    async def ask(self, method: str, params: object = None, name: object = 1) -> Any:
        """Post a request, and read its answer from the stream."""
        more = {} if params is None else {"params": params}
        assert await self.say(id=name, method=method, **more) == 202
        answer = await self.stream.event()
        assert answer["id"] == name
        return answer

    async def hello(self) -> Any:
        answer = await self.ask("initialize", HELLO, "h")
        assert await self.say(method="notifications/initialized") == 202
        return answer["result"]


@asynccontextmanager
async def opened_line() -> AsyncGenerator[tuple[Door, Line]]:
    async with opened_door() as door:
        yield door, await Line.open(door)


async def held_back(door: Door, slow: socket.socket, request: bytes) -> None:
    """This request has come, behind an answer that the client has not read to its end."""
    slow.sendall(modern("tools/call", {"name": "t"}) + request)
    call = await door.peer.call()
    await asyncio.to_thread(door.peer.write, Result(call.id, LARGE))
    assert await asyncio.to_thread(slow.recv, 1)


@pytest.mark.promise("M3")
@pytest.mark.parametrize("path", ["/sse", "/metamcp/default/sse", "/metamcp/dev/sse"])
async def test_a_stream_says_where_to_post_and_brings_every_answer(path: str) -> None:
    async with opened_door() as door:
        line = await Line.open(door, path)
        endpoint = "dev" if "dev" in path else "default"
        assert line.path.startswith(f"/metamcp/{endpoint}/messages?session_id=")
        result = await line.hello()
        assert (result["protocolVersion"], result["serverInfo"]["name"]) == (
            "2024-11-05",
            "metamcp",
        )
        tools = (await line.ask("tools/list"))["result"]["tools"]
        assert [tool["name"] for tool in tools] == ["t", "u"]
        assert (await line.ask("ping", name="p"))["result"] == {}
        assert (await line.ask("tools/call", {"name": "none"}))["error"]["code"] == -32602
        assert door.app.counts().sessions["2024-11-05"] == 1


@pytest.mark.promise("M3")
@pytest.mark.parametrize("protocol", ["2024-11-05", "2025-06-18", "2025-11-25"])
async def test_any_revision_with_a_handshake_can_be_spoken(protocol: str) -> None:
    async with opened_line() as (_, line):
        answer = await line.ask("initialize", {**HELLO, "protocolVersion": protocol})
        assert answer["result"]["protocolVersion"] == protocol


@pytest.mark.promise("M3")
async def test_progress_questions_and_answers_of_several_calls_share_the_stream() -> None:
    async with opened_line() as (door, line):
        await line.hello()
        for name in (1, 2):
            params = {"name": "t", "_meta": {"progressToken": name}}
            assert await line.say(id=name, method="tools/call", params=params) == 202
        first, second = await door.peer.call(), await door.peer.call()
        door.peer.write(Progress(second.id, b'{"progress":1}'))
        assert (await line.stream.event())["params"]["progressToken"] == 2
        door.peer.write(QuestionFrame(first.id, 5, "roots/list", b"{}"))
        question = await line.stream.event()
        assert await line.say(id=question["id"], result={"roots": []}) == 202
        assert await door.peer.read() == ReplyFrame(5, b'{"roots":[]}')
        door.peer.write(Result(second.id, b'{"n":2}'))
        door.peer.write(Result(first.id, b'{"n":1}'))
        answers = [await line.stream.event() for _ in range(2)]
        assert [answer["result"]["n"] for answer in answers] == [2, 1]
        door.offer(offer("t"))
        assert (await line.stream.event())["method"] == "notifications/tools/list_changed"


@pytest.mark.promise("M3")
async def test_with_the_stream_the_session_and_its_calls_end() -> None:
    async with opened_line() as (door, line):
        await line.hello()
        await line.say(id=1, method="tools/call", params={"name": "t"})
        call = await door.peer.call()
        await line.stream.close()
        assert (await door.peer.cancelled()).id == call.id
        await until(lambda: door.app.counts().sessions["2024-11-05"] == 0)
        assert await line.say(id=2, method="ping") == 404
        assert door.kept == []  # no other front could go on with it
        assert len(door.over) == 1  # what was started for it alone can go


async def test_a_drain_waits_for_the_answers_that_are_owed_on_a_stream() -> None:
    async with opened_door() as door:
        busy, idle = await Line.open(door), await Line.open(door)
        await busy.hello()
        await busy.say(id=1, method="tools/call", params={"name": "t"})
        call = await door.peer.call()
        drain = asyncio.create_task(door.app.drain(30))
        assert await idle.stream.event() is None
        door.peer.write(Result(call.id, b'{"n":1}'))
        assert (await busy.stream.event())["result"] == {"n": 1}
        assert await busy.stream.event() is None
        await drain


async def test_a_message_behind_an_answer_that_nobody_reads_is_not_taken_by_a_front_that_ends() -> (
    None
):
    async with opened_door() as door:
        busy, idle = await Line.open(door), await Line.open(door)
        await busy.hello()
        ping = codec.dump({"jsonrpc": "2.0", "id": 7, "method": "ping"})
        with socket.create_connection(("127.0.0.1", door.port)) as slow:
            slow.settimeout(10.0)
            await held_back(door, slow, post(ping, path=busy.path))
            drain = asyncio.create_task(door.app.drain(30))
            assert await idle.stream.event() is None
            assert await busy.stream.event() is None
            slow.shutdown(socket.SHUT_WR)
            with slow.makefile("rb") as rest:
                assert b"404 Not Found" in await asyncio.to_thread(rest.read)
        await drain


async def test_a_message_for_a_stream_that_has_ended_is_refused_though_its_rest_is_still_read() -> (
    None
):
    async with opened_door() as door:
        line, idle = await Line.open(door), await Line.open(door)
        await line.hello()
        await line.say(id=1, method="tools/call", params={"name": "t"})
        call = await door.peer.call()
        drain = asyncio.create_task(door.app.drain(30))
        assert await idle.stream.event() is None
        await asyncio.to_thread(door.peer.write, Result(call.id, LARGE))
        await until(lambda: not any(door.calls.inflight().values()))
        assert await line.say(id=2, method="ping") == 404
        assert (await line.stream.event())["id"] == 1
        assert await line.stream.event() is None
        await drain


@pytest.mark.promise("M98")
async def test_a_message_for_no_stream_is_refused() -> None:
    async with opened_line() as (door, line):
        ping = codec.dump({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        for path, status in (
            ("/metamcp/default/messages", 400),
            ("/metamcp/default/messages?session_id=", 400),
            (line.path + "&session_id=x", 400),
            ("/metamcp/default/messages?session_id=x", 404),
            (line.path.replace("default", "dev"), 404),
        ):
            assert (await door.ask(post(ping, path=path))).outcome == (status, -32600), path
        name = line.path.partition("=")[2]
        assert (await door.ask(post(ping, f"Mcp-Session-Id: {name}"))).outcome == (404, -32600)


@pytest.mark.promise("M98")
async def test_what_is_wrong_with_a_message_is_said_where_its_answer_would_be() -> None:
    async with opened_line() as (door, line):
        assert (await line.ask("ping"))["error"]["code"] == -32600  # before the handshake
        assert (await line.ask("initialize", {}))["error"]["code"] == -32602
        await line.hello()
        assert (await line.ask("initialize", HELLO))["error"]["code"] == -32600  # a second one
        assert await line.say(method="notifications/example") == 202
        broken = await door.ask(post(b"{", path=line.path))
        assert broken.outcome == (400, -32700)
        assert (await line.ask("ping"))["result"] == {}


@pytest.mark.promise("M98")
async def test_an_answer_of_the_largest_size_fits_on_the_stream() -> None:
    async with opened_line() as (door, line):
        await line.hello()
        await line.say(id=1, method="tools/call", params={"name": "t"})
        call = await door.peer.call()
        body = b'{"x":"%b"}' % (b"x" * (16 * 1024 * 1024 - 8))
        await asyncio.to_thread(door.peer.write, Result(call.id, body))
        assert len((await line.stream.event())["result"]["x"]) == len(body) - 8
        assert (await line.ask("ping"))["result"] == {}


@pytest.mark.promise("M98")
async def test_answers_that_wait_for_a_slow_reader_are_bounded_apart_from_what_else_waits() -> None:
    wire = Wire()
    stream = wire.stream()
    wire.reads.clear()
    task = asyncio.create_task(stream.run())
    await until(lambda: wire.streams.running == 1)
    large = b"x" * (streams.ANSWERS_BYTES_MAX // 2)
    for _ in range(2):
        stream.answer(large)
    stream.put(b"small")
    assert wire.cut == 0
    stream.answer(large)
    await task
    assert (wire.cut, wire.refused) == (1, ["slow_reader"])


@pytest.mark.promise("M3")
async def test_the_transport_is_not_served_where_it_is_switched_off() -> None:
    async with opened_door() as door:
        line = await Line.open(door, "/metamcp/dev/sse")
        door.serve_only("default", sse=False)
        assert await line.stream.event() is None
        for path in ("/sse", "/metamcp/default/sse"):
            assert (await door.ask(bodiless("GET", path=path))).outcome == (404, -32600)


@pytest.mark.promise("M3")
async def test_the_official_client_of_that_transport_lists_calls_and_sees_progress() -> None:
    async with opened_door() as door:
        seen: list[float] = []

        async def progressed(progress: float, total: float | None, message: str | None) -> None:
            seen.append(progress)

        async def serve() -> None:
            call = await door.peer.call()
            door.peer.write(Progress(call.id, b'{"progress":1}'))
            door.peer.write(Result(call.id, b'{"content":[{"type":"text","text":"hi"}]}'))

        server = asyncio.create_task(serve())
        url = f"http://localhost:{door.port}/metamcp/default/sse"
        async with sse_client(url) as pair, ClientSession(*pair) as session:
            await session.initialize()
            assert [tool.name for tool in (await session.list_tools()).tools] == ["t", "u"]
            result = await session.call_tool("t", {}, progress_callback=progressed)
            assert result.content[0].type == "text"
        await server
        assert seen == [1.0]


async def test_a_client_whose_stream_ends_while_it_posts_leaves_no_session() -> None:
    async with opened_line() as (door, line):
        hello = codec.dump({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO})
        with socket.create_connection(("127.0.0.1", door.port)) as slow:
            slow.settimeout(10.0)
            await held_back(door, slow, post(hello, path=line.path))
            await line.stream.close()
            await until(lambda: door.app.counts().streams == 0)
            slow.shutdown(socket.SHUT_WR)
            with slow.makefile("rb") as rest:
                assert b"404 Not Found" in await asyncio.to_thread(rest.read)
        assert door.app.counts().sessions["2024-11-05"] == 0


async def test_an_answer_before_the_handshake_is_not_answered() -> None:
    async with opened_line() as (_, line):
        assert await line.say(id="q", result={}) == 202
        assert (await line.ask("ping"))["error"]["code"] == -32600
