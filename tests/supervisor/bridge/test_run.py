"""The bridge between real pipes and a real HTTP server, both in the hands of the test."""

import asyncio
import json
import socket
from typing import Any

import pytest

from metamcp_supervisor.bridge.run import INTERRUPTED
from metamcp_worker.http.sse import EVENT_BYTES_MAX
from metamcp_worker.ipc.frames import BODY_BYTES_MAX, MESSAGE_BYTES
from tests.supervisor.bridge.client import connected
from tests.supervisor.bridge.talk import line, modern, result
from tests.worker.rawhttp import listener
from tests.worker.scripted import Request, Wire, serving

pytestmark = pytest.mark.process

NOBODY = "http://127.0.0.1:9/mcp"


class Gateway:
    """A scripted gateway: it answers what it is asked with what the test says. `seen`: verb and
    method of each request, in the order in which they came."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.connections = 0
        self.hold = asyncio.Event()
        self.left = asyncio.Event()

    async def __call__(self, wire: Wire) -> None:
        self.connections += 1
        while request := await wire.request():
            await self.answer(wire, request)

    async def answer(self, wire: Wire, request: Request) -> None:
        verb = request.line.partition(" ")[0]
        message: dict[str, Any] = json.loads(request.body or b"{}")
        method, number = message.get("method", ""), message.get("id")
        self.seen.append(f"{verb} {method}".strip())
        if verb == "DELETE":
            await wire.answer(b"")
        elif verb == "GET":
            await wire.answer(b"", status="405 Method Not Allowed")
        elif number is None or not method:
            await wire.answer(b"", status="202 Accepted")
        elif method == "initialize":
            body = result(number, protocolVersion="2025-11-25")
            await wire.answer(body, "Content-Type: application/json", "Mcp-Session-Id: s")
        elif method == "slow":
            await self.hold.wait()
            await wire.answer(result(number), "Content-Type: application/json")
        elif method == "stuck":
            await wire.closed()
            self.left.set()
        elif method in {"large", "grown"}:
            size = BODY_BYTES_MAX if method == "large" else MESSAGE_BYTES
            padding = size - len(result(number, text=""))
            body = result(number, text="x" * padding)
            await wire.answer(body, "Content-Type: application/json")
        elif method == "streamed":
            told = b'data: {"jsonrpc":"2.0","method":"notifications/progress"}\n\n'
            body = told + b": keep\n\ndata: " + result(number) + b"\n\n"
            await wire.answer(body, "Content-Type: text/event-stream")
        else:
            await wire.answer(result(number), "Content-Type: application/json")


async def test_requests_run_at_once_and_are_answered_as_they_come() -> None:
    gateway = Gateway()
    async with serving(gateway) as url, connected(url) as client:
        client.say(modern("slow", 1), modern("quick", 2))
        assert (await client.hear())["id"] == 2
        gateway.hold.set()
        assert (await client.hear())["id"] == 1


async def test_a_stream_brings_news_and_the_answer_and_leaves_its_connection_usable() -> None:
    gateway = Gateway()

    async with serving(gateway) as url, connected(url) as client:
        for number in (1, 2, 3):
            client.say(modern("streamed", number))
            assert (await client.hear())["method"] == "notifications/progress"
            assert (await client.hear())["id"] == number
    assert gateway.connections == 1


async def test_messages_arrive_in_the_order_in_which_they_were_written() -> None:
    gateway = Gateway()

    async with serving(gateway) as url, connected(url) as client:
        client.say(line("initialize", 0), line("notifications/initialized"))
        assert (await client.hear())["id"] == 0
        for number in range(1, 20):
            cancel = line("notifications/cancelled", requestId=number)
            client.say(line("slow", number), cancel, line(f"after{number}", 100 + number))
            assert (await client.hear())["id"] == 100 + number
    posts = [one for one in gateway.seen if one.startswith("POST")]
    assert posts[:2] == ["POST initialize", "POST notifications/initialized"]
    expected = [
        f"POST {method}"
        for number in range(1, 20)
        for method in ("slow", "notifications/cancelled", f"after{number}")
    ]
    assert posts[2:] == expected


@pytest.mark.parametrize(
    ("method", "size_bytes"), [("large", BODY_BYTES_MAX), ("grown", MESSAGE_BYTES)]
)
async def test_the_largest_message_comes_through_even_if_it_grew_on_its_way(
    method: str, size_bytes: int
) -> None:
    async with serving(Gateway()) as url, connected(url) as client:
        client.say(modern(method, 1))
        raw = await client.out.readuntil(b"\n")
        assert len(raw) == size_bytes + 1


async def test_a_url_that_wants_mending_is_served_as_well() -> None:
    gateway = Gateway()
    async with serving(gateway) as url, connected(url + "?a|b") as client:
        client.say(line("initialize", 0), line("notifications/initialized"))
        assert (await client.hear())["id"] == 0
        client.say(line("slow", 1), line("quick", 2), line("streamed", 3))
        heard = [await client.hear() for _ in range(3)]
        assert {message.get("id") for message in heard} == {2, 3, None}
        gateway.hold.set()
        assert (await client.hear())["id"] == 1


async def test_a_client_may_speak_through_sockets_and_its_ends_stay_as_they_were() -> None:
    def sockets() -> tuple[int, int]:
        near, far = socket.socketpair()
        return near.detach(), far.detach()

    async with serving(Gateway()) as url, connected(url, sockets) as client:
        for number in range(10):
            client.say(modern("quick", number))
            assert (await client.hear())["id"] == number
        assert client.unchanged


async def test_a_cancelled_modern_request_ends_its_http_request() -> None:
    gateway = Gateway()
    async with serving(gateway) as url, connected(url) as client:
        client.say(modern("stuck", 1), line("notifications/cancelled", requestId=1))
        await gateway.left.wait()
        client.say(modern("quick", 2))
        assert (await client.hear())["id"] == 2


async def test_the_end_of_the_input_waits_for_answers_and_closes_the_session() -> None:
    gateway = Gateway()

    async with serving(gateway) as url, connected(url) as client:
        client.say(line("initialize", 0), line("notifications/initialized"), line("x", 1))
        client.hang_up()
        assert await client.running == 0
        assert [(await client.hear())["id"] for _ in range(2)] == [0, 1]
    assert gateway.seen[-1] == "DELETE"


async def test_a_request_that_is_not_answered_does_not_hold_up_the_end() -> None:
    gateway = Gateway()
    async with serving(gateway) as url, connected(url) as client:
        client.say(modern("stuck", 1))
        client.hang_up()
        assert await client.running == 0
        await gateway.left.wait()


async def test_an_interrupt_ends_it_with_the_code_that_shells_give() -> None:
    async with serving(Gateway()) as url, connected(url) as client:
        client.say(modern("quick", 1))
        await client.hear()
        client.bridge.stop(INTERRUPTED)
        assert await client.running == INTERRUPTED


async def test_a_client_that_reads_no_more_ends_it() -> None:
    async with serving(Gateway()) as url, connected(url) as client:
        client.stop_reading()
        client.say(modern("quick", 1))
        await client.running


async def test_an_absent_gateway_is_an_error_that_says_what_to_do_and_its_return_is_noticed() -> (
    None
):
    with listener() as sock:
        port: int = sock.getsockname()[1]
    async with connected(f"http://127.0.0.1:{port}/mcp") as client:
        client.say(modern("quick", 1))
        answer = await client.hear()
        assert (answer["id"], answer["error"]["code"]) == (1, -10001)
        assert answer["error"]["message"].endswith("Do it.")
        assert b"cannot be reached" in await client.err.readuntil(b"\n")
        async with serving(Gateway(), port):
            client.say(modern("quick", 2))
            assert (await client.hear())["result"] == {}
            assert b"is back" in await client.err.readuntil(b"\n")


async def test_a_gateway_that_moved_is_found_where_it_is() -> None:
    async with serving(Gateway()) as url, connected(NOBODY) as client:
        client.location = url
        client.say(modern("quick", 1), modern("quick", 2))
        assert {(await client.hear())["id"] for _ in range(2)} == {1, 2}


async def test_an_answer_above_the_limit_is_an_error() -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        await wire.write(head % (EVENT_BYTES_MAX + 1))
        await wire.closed()

    async with serving(script) as url, connected(url) as client:
        client.say(modern("x", 1))
        assert "the limit is" in (await client.hear())["error"]["message"]


async def test_a_page_of_somebody_else_is_an_error() -> None:
    async def script(wire: Wire) -> None:
        while await wire.request():
            await wire.answer(b"<html>", "Content-Type: text/html", status="502 Bad Gateway")

    async with serving(script) as url, connected(url) as client:
        client.say(modern("x", 1))
        assert "HTTP 502" in (await client.hear())["error"]["message"]
