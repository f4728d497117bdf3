"""The bridge and streams of a real HTTP server: questions of servers, breaks, floods."""

import asyncio
import json
from typing import Any

import pytest

from tests.supervisor.bridge.client import connected
from tests.supervisor.bridge.talk import line, result
from tests.worker.rawhttp import until
from tests.worker.scripted import Request, Wire, serving

pytestmark = pytest.mark.process

ASK = b'{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"x":1.0}}'
REPLY = b'{"jsonrpc":"2.0","id":"q","result":{"action":"accept", "x":1.0}}'
NEWS = b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'


def event(data: bytes, name: bytes = b"") -> bytes:
    return (b"id: " + name + b"\n" if name else b"") + b"data: " + data + b"\n\n"


class Gateway:
    """Opens sessions, and leaves the rest to the test. `posted`: the bodies that came."""

    def __init__(self) -> None:
        self.posted: list[bytes] = []
        self.answered = asyncio.Event()
        self.opened = 0

    async def __call__(self, wire: Wire) -> None:
        while request := await wire.request():
            message: dict[str, Any] = json.loads(request.body or b"{}")
            if message.get("method") == "initialize":
                self.opened += 1
                body = result(message["id"], protocolVersion="2025-11-25")
                session = f"Mcp-Session-Id: s{self.opened}"
                await wire.answer(body, session, "Content-Type: application/json")
            elif request.line.startswith("GET"):
                await self.stream(wire, request)
            elif "method" in message and "id" in message:
                await self.call(wire, request, message)
            elif request.line.startswith("DELETE"):
                await wire.answer(b"")
            else:
                self.posted.append(request.body)
                await wire.answer(b"", status="202 Accepted")
                if request.body == REPLY:
                    self.answered.set()

    async def stream(self, wire: Wire, request: Request) -> None:
        await wire.answer(b"", status="405 Method Not Allowed")

    async def call(self, wire: Wire, request: Request, message: dict[str, Any]) -> None:
        raise NotImplementedError


async def test_a_question_of_a_server_crosses_and_so_does_the_answer() -> None:
    class Asking(Gateway):
        async def call(self, wire: Wire, request: Request, message: dict[str, Any]) -> None:
            await wire.stream(event(ASK))
            await self.answered.wait()
            await wire.write(event(result(message["id"])))
            await wire.shut()

    gateway = Asking()

    async with serving(gateway) as url, connected(url) as client:
        client.say(line("initialize", 0), line("tools/call", 1))
        assert (await client.hear())["id"] == 0
        assert await client.out.readuntil(b"\n") == ASK + b"\n"
        client.say(REPLY)
        assert (await client.hear())["id"] == 1
    assert gateway.posted == [REPLY]


async def test_a_broken_stream_is_taken_up_behind_the_last_event() -> None:
    resumed: list[str] = []

    class Breaking(Gateway):
        async def stream(self, wire: Wire, request: Request) -> None:
            resumed.append(request.headers.get("last-event-id", ""))
            await wire.stream(event(result(1)))
            await wire.shut()

        async def call(self, wire: Wire, request: Request, message: dict[str, Any]) -> None:
            await wire.stream(b"retry: 10\nid: e1\ndata:\n\n", event(NEWS, b"e2"))
            await wire.shut()

    async with serving(Breaking()) as url, connected(url) as client:
        client.say(line("initialize", 0), line("tools/call", 1))
        heard = [await client.hear() for _ in range(3)]
        assert [message.get("id") for message in heard] == [0, None, 1]
    assert resumed == ["e2"]


async def test_a_stream_of_the_session_that_breaks_is_asked_for_again() -> None:
    class Restless(Gateway):
        async def stream(self, wire: Wire, request: Request) -> None:
            await wire.stream(b"retry: 10\n\n", event(NEWS))
            await wire.shut()

    async with serving(Restless()) as url, connected(url) as client:
        client.say(line("initialize", 0), line("notifications/initialized"))
        assert (await client.hear())["id"] == 0
        for _ in range(2):
            assert await client.out.readuntil(b"\n") == NEWS + b"\n"


async def test_a_forgotten_session_is_opened_again_and_the_client_sees_only_its_answer() -> None:
    class Forgetful(Gateway):
        async def call(self, wire: Wire, request: Request, message: dict[str, Any]) -> None:
            if self.opened == 1:
                await wire.answer(b"{}", status="404 Not Found")
            else:
                await wire.answer(result(message["id"]), "Content-Type: application/json")

    gateway = Forgetful()

    async with serving(gateway) as url, connected(url) as client:
        client.say(line("initialize", 0), line("tools/call", 1), line("tools/call", 2))
        assert [(await client.hear())["id"] for _ in range(3)] == [0, 1, 2]
    assert gateway.opened == 2


async def test_what_a_stream_says_before_an_answer_is_heard_before_it() -> None:
    class Telling(Gateway):
        def __init__(self) -> None:
            super().__init__()
            self.streams: list[Wire] = []

        async def stream(self, wire: Wire, request: Request) -> None:
            await wire.stream(b": here\n\n")
            self.streams.append(wire)
            await wire.closed()

        async def call(self, wire: Wire, request: Request, message: dict[str, Any]) -> None:
            await self.streams[0].write(event(NEWS))
            await wire.answer(result(message["id"]), "Content-Type: application/json")

    gateway = Telling()
    async with serving(gateway) as url, connected(url) as client:
        client.say(line("initialize", 0), line("notifications/initialized"))
        assert (await client.hear())["id"] == 0
        await until(lambda: bool(gateway.streams))
        for number in range(1, 50):
            client.say(line("tools/call", number))
            assert await client.out.readuntil(b"\n") == NEWS + b"\n"
            assert (await client.hear())["id"] == number


async def test_a_flood_waits_for_a_client_that_reads_slowly_and_nothing_is_lost() -> None:
    count = 1500
    news = NEWS[:-1] + b',"params":{"x":"' + b"x" * 60_000 + b'"}}'

    class Flooding(Gateway):
        async def call(self, wire: Wire, request: Request, message: dict[str, Any]) -> None:
            await wire.stream(*[event(news)] * count, event(result(1)))
            await wire.shut()

    async with serving(Flooding()) as url, connected(url) as client:
        client.say(line("initialize", 0), line("tools/call", 1))
        await client.hear()
        for _ in range(count):
            assert await client.out.readuntil(b"\n") == news + b"\n"
        assert (await client.hear())["id"] == 1
