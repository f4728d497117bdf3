"""The connections of the bridge, to a real HTTP server in the hands of the test."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from metamcp_supervisor.bridge.http_client import (
    AHEAD_BYTES,
    IDLE_CONNECTIONS_MAX,
    GatewayReply,
    PlainHttpClient,
    build_client,
)
from metamcp_worker.http.fetch import ConnectionBroken, FetchLimits, Origin, Unreachable
from metamcp_worker.ipc.errors import TooLarge
from tests.supervisor.bridge.client import connected
from tests.supervisor.bridge.talk import modern, result
from tests.worker.rawhttp import listener, until
from tests.worker.scripted import Request, Wire, serving

pytestmark = pytest.mark.process

ANSWER_S = 5.0
LARGE = b"x" * 16 * 1024 * 1024
"""More than a kernel takes for somebody who does not read."""


@contextlib.asynccontextmanager
async def client(url: str, limits: FetchLimits | None = None) -> AsyncGenerator[PlainHttpClient]:
    found = build_client(url, limits)
    assert isinstance(found, PlainHttpClient)
    try:
        yield found
    finally:
        await found.close()


async def fetched(origin: PlainHttpClient, body: bytes = b"{}", limit_bytes: int = 100) -> bytes:
    async with await origin.send("POST", {}, body, answer_s=ANSWER_S) as response:
        return await response.read(wait_s=ANSWER_S, limit_bytes=limit_bytes)


class Echo:
    """Answers with what it was asked. `connections`: how many there were."""

    def __init__(self, *headers: str) -> None:
        self.headers = headers
        self.connections = 0
        self.seen: list[Request] = []

    async def __call__(self, wire: Wire) -> None:
        self.connections += 1
        while request := await wire.request():
            self.seen.append(request)
            await wire.answer(request.body, *self.headers)


@pytest.mark.parametrize(
    ("url", "direct"),
    [
        ("http://127.0.0.1:1/mcp", True),
        ("http://[::1]/a?b=%20", True),
        ("http://localhost", True),
        ("https://127.0.0.1:1/mcp", False),
        ("http://ä.example/mcp", False),
        ("http://h/a b", False),
    ],
)
async def test_only_urls_that_need_nothing_special_are_spoken_to_directly(
    url: str, direct: bool
) -> None:
    assert isinstance(build_client(url), PlainHttpClient if direct else Origin)


@pytest.mark.parametrize("url", ["", "ftp://h/", "http://u:p@h/", "http://"])
async def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(Unreachable):
        build_client(url)


async def test_requests_follow_each_other_on_one_connection() -> None:
    echo = Echo("Content-Type: Text/X; charset=utf-8")

    async with serving(echo) as url, client(url) as origin:
        for number in range(5):
            assert await fetched(origin, b"%d" % number) == b"%d" % number
        async with await origin.send("DELETE", {"A": "b"}, answer_s=ANSWER_S) as response:
            assert (response.status, response.media_type) == (200, "text/x")
    assert echo.connections == 1
    assert (echo.seen[-1].line, echo.seen[-1].headers["a"]) == ("DELETE /mcp HTTP/1.1", "b")


async def test_requests_at_once_have_connections_of_their_own_and_no_more_than_allowed() -> None:
    hold = asyncio.Event()

    async def script(wire: Wire) -> None:
        while await wire.request():
            await hold.wait()
            await wire.answer(b"late")

    limits = FetchLimits(requests_max=3)
    async with serving(script) as url, client(url, limits) as origin:
        waiting = [asyncio.ensure_future(fetched(origin)) for _ in range(3)]
        await asyncio.wait(waiting, timeout=0.05)
        with pytest.raises(Unreachable, match="already has 3 requests"):
            await fetched(origin)
        hold.set()
        assert await asyncio.gather(*waiting) == [b"late"] * 3


async def test_who_has_more_connections_than_it_keeps_gets_every_answer() -> None:
    count = IDLE_CONNECTIONS_MAX + 8
    all_there = asyncio.Event()
    there: list[bytes] = []

    async def answer(wire: Wire) -> None:
        while request := await wire.request():
            there.append(request.body)
            if len(there) == count:
                all_there.set()
            await all_there.wait()
            await wire.answer(request.body)

    async with serving(answer) as url, client(url) as origin:
        wanted = [b"%d" % number for number in range(count)]
        async with asyncio.timeout(2 * ANSWER_S):
            assert await asyncio.gather(*(fetched(origin, one) for one in wanted)) == wanted


def closing_server() -> tuple[socket.socket, threading.Semaphore, list[bytes]]:
    """It answers one request on each connection, and closes it. Each close is told."""
    sock, closed, seen = listener(), threading.Semaphore(0), list[bytes]()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                peer, _ = sock.accept()
                seen.append(peer.recv(65536))
                peer.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
                peer.close()
                closed.release()

    threading.Thread(target=serve, daemon=True).start()
    return sock, closed, seen


async def test_a_connection_that_was_closed_between_requests_is_noticed_before_it_is_used() -> None:
    sock, closed, seen = closing_server()

    async with client(f"http://127.0.0.1:{sock.getsockname()[1]}/") as origin:
        for _ in range(10):
            assert await fetched(origin) == b"ok"
            assert closed.acquire(timeout=30.0)  # the loop has had no turn to see it
    sock.shutdown(socket.SHUT_RDWR)
    sock.close()
    assert len(seen) == 10


async def test_a_request_that_may_have_been_processed_is_not_sent_again() -> None:
    seen: list[bytes] = []

    async def script(wire: Wire) -> None:
        while request := await wire.request():
            seen.append(request.body)
            if request.body == b"break":
                return
            await wire.answer(b"ok")

    async with serving(script) as url, client(url) as origin:
        assert await fetched(origin) == b"ok"
        with pytest.raises(ConnectionBroken, match="the connection to http"):
            await fetched(origin, b"break")
    assert seen == [b"{}", b"break"]


def half_reader(whole: list[bytes]) -> Callable[..., Awaitable[None]]:
    """On its first connection it answers once, then breaks in the middle of the next request; on
    others it answers everything."""
    connections = 0

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        first = connections == 1
        wire = Wire(reader, writer)
        with contextlib.closing(writer):
            while request := await wire.request():
                whole.append(request.body)
                await wire.answer(result(len(whole)), "Content-Type: application/json")
                if first:
                    await reader.readuntil(b"\r\n\r\n")
                    writer.transport.abort()
                    return

    return script


async def test_a_request_that_the_gateway_got_half_of_is_sent_again() -> None:
    whole: list[bytes] = []
    large = modern("tools/call", 2, text=LARGE[: 15 * 1024 * 1024].decode())

    limit = 32 * 1024 * 1024
    server = await asyncio.start_server(half_reader(whole), "127.0.0.1", 0, limit=limit)
    port: int = server.sockets[0].getsockname()[1]
    async with server, connected(f"http://127.0.0.1:{port}/mcp") as bridged:
        bridged.say(modern("tools/call", 1))
        assert (await bridged.hear())["id"] == 1
        await asyncio.to_thread(bridged.say, large)
        assert await bridged.hear() == {"jsonrpc": "2.0", "id": 2, "result": {}}
    assert whole[1:] == [large]


async def test_an_answer_that_nobody_reads_makes_the_gateway_wait_and_is_whole_when_read() -> None:
    async def script(wire: Wire) -> None:
        while await wire.request():
            await wire.answer(LARGE)

    async with serving(script) as url, client(url) as origin:
        async with await origin.send("POST", {}, b"", answer_s=ANSWER_S) as response:
            assert isinstance(response, GatewayReply)
            answer = response.answer
            await until(lambda: answer.held_bytes > AHEAD_BYTES)
            for _ in range(20):
                await asyncio.to_thread(lambda: None)
            assert answer.held_bytes < len(LARGE) / 8
            assert await response.read(wait_s=ANSWER_S, limit_bytes=len(LARGE)) == LARGE
        assert await fetched(origin, limit_bytes=len(LARGE)) == LARGE


@pytest.mark.parametrize(
    ("said", "error"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab", ConnectionBroken),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n", ConnectionBroken),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\nzz", ConnectionBroken),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\nab", TooLarge),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 101, TooLarge),
        (
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nx",
            ConnectionBroken,
        ),
        (b"what?", ConnectionBroken),
        (b"", ConnectionBroken),
    ],
)
async def test_an_answer_that_is_none_is_told_as_one(said: bytes, error: type[Exception]) -> None:
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.write(said)

    async with serving(script) as url, client(url) as origin:
        with pytest.raises(error):
            await fetched(origin)


async def test_silence_ends_a_request_and_its_connection() -> None:
    left = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.closed()
        left.set()

    async with serving(script) as url, client(url) as origin:
        with pytest.raises(ConnectionBroken, match="gave no answer"):
            await origin.send("POST", {}, b"", answer_s=0.05)
        await left.wait()


async def test_a_redirect_within_the_origin_is_followed_with_the_same_body() -> None:
    seen: list[tuple[str, bytes]] = []

    async def script(wire: Wire) -> None:
        while request := await wire.request():
            path = request.line.split(" ")[1]
            seen.append((path, request.body))
            if path == "/mcp":
                await wire.answer(b"", "Location: /new", status="307 Temporary Redirect")
            else:
                await wire.answer(b"moved")

    async with serving(script) as url, client(url) as origin:
        assert await fetched(origin, b"a") == b"moved"
        assert await fetched(origin, b"b") == b"moved"
    assert [path for path, _ in seen if path == "/new"] == ["/new", "/new"]
    assert {body for _, body in seen} == {b"a", b"b"}


async def test_who_is_not_there_cannot_be_reached() -> None:
    with listener() as sock:
        port: int = sock.getsockname()[1]
    async with client(f"http://localhost:{port}/") as origin:
        with pytest.raises(Unreachable, match="cannot be reached: Connection refused"):
            await fetched(origin)
        with pytest.raises(Unreachable, match="does not fit into HTTP"):
            await origin.send("POST", {"A": "\n"}, b"", answer_s=ANSWER_S)


async def test_a_connection_that_nobody_uses_is_closed() -> None:
    left = asyncio.Event()

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.answer(b"ok")
        await wire.closed()
        left.set()

    async with serving(script) as url, client(url, FetchLimits(idle_s=0.05)) as origin:
        assert await fetched(origin) == b"ok"
        await left.wait()
