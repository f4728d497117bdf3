"""Connections: what breaks HTTP, what comes too slowly, what is too much, and the end."""

import asyncio
import logging
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from metamcp_worker.http import request_head
from metamcp_worker.http.client_limits import LINGER_BYTES_MAX
from metamcp_worker.http.requests import Handler, HttpRequest
from metamcp_worker.http.serve import ClientLimits, HttpServer
from tests.worker.rawhttp import WAIT_S, Client, listener, post, until

pytestmark = pytest.mark.process

QUICK = ClientLimits(head_s=0.2, body_grace_s=0.2, idle_s=0.3)


OK = request_head.head(200)


async def echo(request: HttpRequest) -> None:
    """Answers with the method, the target and the body."""
    body = await request.body()
    if body is not None:
        said = request.head
        request.answer(OK, b"%b %b %b" % (said.method.encode(), said.target, body))


class Served:
    """A server in this process."""

    def __init__(self, server: HttpServer, port: int, refused: list[str]) -> None:
        self.server = server
        self.port = port
        self.refused = refused
        self.clients: list[Client] = []

    async def connect(self) -> Client:
        client = await Client.connect(self.port)
        self.clients.append(client)
        return client


@asynccontextmanager
async def opened_server(
    app: Handler = echo,
    limits: ClientLimits = ClientLimits(),  # noqa: B008 - frozen
    request: type[HttpRequest] = HttpRequest,
) -> AsyncGenerator[Served]:
    refused: list[str] = []
    server = HttpServer(app, request=request, limits=limits, on_refused=refused.append)
    sock = listener()
    one = Served(server, sock.getsockname()[1], refused)
    await server.start([sock])
    try:
        yield one
    finally:
        for client in one.clients:
            await client.close()
        await server.drain(1)


@asynccontextmanager
async def connected(app: Handler = echo, **how: Any) -> AsyncGenerator[tuple[Served, Client]]:
    """A server, and a client that is connected to it."""
    async with opened_server(app, **how) as one:
        yield one, await one.connect()


async def test_requests_are_answered_one_after_the_other_on_a_connection() -> None:
    async with connected() as (one, client):
        for body in (b"a", b"", b"c" * 300_000):
            reply = await client.ask(post(body, path="/x?y=1"))
            assert (reply.status, reply.body) == (200, b"POST /x?y=1 " + body)
            assert not {"server", "date"} & set(reply.headers)
        assert one.server.connections == 1


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with connected() as (_, client):
        client.send(post(b"1") + post(b"2") + post(b"3", path="/z")[:40])
        client.send(post(b"3", path="/z")[40:])
        bodies = [(await client.reply()).body for _ in range(3)]
        assert bodies == [b"POST /mcp 1", b"POST /mcp 2", b"POST /z 3"]


CHUNKED = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
LENGTH = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: "
BROKEN = {
    "length and chunks": (LENGTH + b"2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunks and length": (CHUNKED + b"Content-Length: 2\r\n\r\n0\r\n\r\n", 400),
    "two lengths": (LENGTH + b"2\r\nContent-Length: 3\r\n\r\nabc", 400),
    "length with a plus": (LENGTH + b"+5\r\n\r\nabcde", 400),
    "length below zero": (LENGTH + b"-1\r\n\r\n", 400),
    "huge length": (LENGTH + b"9" * 30 + b"\r\n\r\n", 400),
    "two encodings": (CHUNKED.replace(b"chunked", b"gzip, chunked") + b"\r\n0\r\n\r\n", 501),
    "an encoding in two headers": (
        CHUNKED.replace(b"chunked", b"gzip\r\nTransfer-Encoding: chunked") + b"\r\n0\r\n\r\n",
        501,
    ),
    "unknown encoding": (CHUNKED.replace(b"chunked", b"rot13") + b"\r\n", 501),
    "encoding with a tab": (CHUNKED.replace(b": chunked", b":\tchunked") + b"\r\n{}", 400),
    "bad chunk size": (CHUNKED + b"\r\nzz\r\nab\r\n0\r\n\r\n", 400),
    "space before the colon": (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
    "bare line feeds": (b"GET / HTTP/1.1\nHost: a\n\n", 400),
    "folded header": (b"GET / HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n", 400),
    "NUL in a header": (b"GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n", 400),
    "unknown method": (b"FROB / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "HTTP/0.9": (b"GET /\r\n\r\n", 505),
    "HTTP/2.0": (b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", 505),
    "RTSP/1.0": (b"GET / RTSP/1.0\r\nHost: a\r\n\r\n", 505),
    "RTSP/1.1 with more blanks": (b"POST  /mcp  RTSP/1.1\r\nHost: a\r\n\r\n", 505),
    "authority as target": (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "star as target": (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "absolute without a path": (b"GET http://a HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "foreign bytes in the target": (b"GET /\xff HTTP/1.1\r\nHost: a\r\n\r\n", 400),
    "long URL": (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 414),
    "URL without an end": (b"GET /" + b"x" * 300_000, 414),
    "200 kB header": (b"GET / HTTP/1.1\r\nX: " + b"x" * 200_000 + b"\r\n\r\n", 431),
    "header without an end": (b"GET / HTTP/1.1\r\nX: " + b"x" * 1_000_000, 431),
    "10,000 headers": (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 10_000 + b"\r\n", 431),
    "101 headers": (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 101 + b"\r\n", 431),
}


async def test_another_protocol_is_found_behind_a_request_and_in_pieces() -> None:
    async with connected() as (_, client):
        whole = post(b"1")
        client.send(whole[:-10])
        client.send(whole[-10:] + post(b"2") + b"GET /mcp RT")
        assert (await client.reply()).body == b"POST /mcp 1"
        assert (await client.reply()).body == b"POST /mcp 2"
        client.send(b"SP/1.0\r\nHost: a\r\n\r\n")
        assert (await client.reply()).status == 505


@pytest.mark.promise("M98")
@pytest.mark.parametrize("case", BROKEN)
async def test_broken_http_gets_one_sentence_and_the_connection_ends(
    case: str, caplog: pytest.LogCaptureFixture
) -> None:
    data, status = BROKEN[case]

    async with connected() as (one, client):
        reply = await client.ask(data)
        assert reply.status == status
        assert reply.headers["connection"] == "close"
        assert reply.message.endswith(".")
        client.half_close()
        assert await client.closed() == b""  # no second answer, nothing smuggled
        assert len(one.refused) == 1
    assert not caplog.records


async def test_a_request_before_a_broken_one_is_still_answered() -> None:
    async with connected() as (_, client):
        client.send(post(b"1") + b"FROB / HTTP/1.1\r\n\r\n")
        assert (await client.reply()).body == b"POST /mcp 1"
        assert await client.closed() == b""


async def test_trailers_never_become_headers() -> None:
    seen: list[request_head.Headers] = []

    async def app(request: HttpRequest) -> None:
        seen.append(request.head.headers)
        await echo(request)

    async with connected(app) as (_, client):
        trailer = b"\r\n2\r\nab\r\n0\r\nAuthorization: x\r\nHost: evil\r\n\r\n"
        assert (await client.ask(CHUNKED + trailer)).body == b"POST / ab"
        assert [name for name, _ in seen[0]] == [b"host", b"transfer-encoding"]


async def test_an_upgrade_is_answered_as_a_request_and_nothing_after_it_is_read() -> None:
    async with connected() as (_, client):
        head = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        reply = await client.ask(head + post(b"smuggled"))
        assert (reply.status, reply.headers["connection"]) == (200, "close")
        assert await client.closed() == b""


@pytest.mark.promise("M98")
@pytest.mark.parametrize(
    ("start", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost:", 408),
        (b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nabc", 408),
    ],
)
async def test_a_request_that_comes_too_slowly_is_ended(start: bytes, status: int) -> None:
    async with connected(limits=QUICK) as (one, client):
        reply = await client.ask(start)
        assert (reply.status, reply.headers["connection"]) == (status, "close")
        assert await client.closed() == b""
        assert one.refused in (["slow_head"], ["slow_body"])


async def test_an_idle_connection_is_closed_before_and_after_a_request() -> None:
    async with opened_server(limits=QUICK) as one:
        fresh, used = await one.connect(), await one.connect()
        assert (await used.ask(post(b"x"))).status == 200
        assert await fresh.closed() == b""
        assert await used.closed() == b""
        assert one.refused == []


async def test_a_client_that_does_not_read_its_answer_is_cut_off() -> None:
    async def app(request: HttpRequest) -> None:
        request.begin(OK)
        await request.send(b"x" * 30_000_000)
        request.end()

    async with opened_server(app, QUICK) as one:
        with socket.create_connection(("127.0.0.1", one.port)) as deaf:
            deaf.sendall(post(b""))
            await until(lambda: one.server.connections == 1)
            await until(lambda: one.server.connections == 0)


async def test_a_client_that_reads_large_answers_slowly_is_not_cut_off() -> None:
    sizes = iter((20_000_000, 30_000_000))

    def app(request: HttpRequest) -> None:
        request.answer(OK, b"x" * next(sizes))

    async with opened_server(app, QUICK) as one:
        with socket.create_connection(("127.0.0.1", one.port)) as slow:
            for size in (20_000_000, 30_000_000):
                slow.sendall(post(b""))
                clock = await one.connect()
                assert await clock.closed() == b""  # by now the server has looked at both
                assert await asyncio.to_thread(_read, slow, size) >= size


def _read(sock: socket.socket, size: int) -> int:
    """Read so much, or to the end; how much it was."""
    count = 0
    while count < size and (data := sock.recv(1024 * 1024)):
        count += len(data)
    return count


async def test_one_connection_too_many_is_told_so() -> None:
    async with opened_server(limits=ClientLimits(connections_max=1)) as one:
        first = await one.connect()
        assert (await first.ask(post(b""))).status == 200
        second = await one.connect()
        reply = await second.reply()
        assert (reply.status, one.refused) == (503, ["connections"])
        assert await second.closed() == b""
        assert (await first.ask(post(b""))).status == 200


HALF = {
    "silent": b"",
    "half a head": b"POST / HTTP/1.1\r\nHost: a\r\n",
    "half a body": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nhalf",
}


@pytest.mark.promise("M98")
@pytest.mark.parametrize("how", HALF)
async def test_who_has_sent_no_whole_request_makes_room_for_a_new_client(how: str) -> None:
    many, asked, go = 8, asyncio.Event(), asyncio.Event()

    async def app(request: HttpRequest) -> None:
        if (body := await request.body()) == b"wait":
            asked.set()
            await go.wait()
        request.answer(OK, body or b"")

    async with opened_server(
        app, limits=ClientLimits(connections_max=many, makes_room=True)
    ) as one:
        waiting = await one.connect()
        waiting.send(post(b"wait"))
        await asked.wait()
        for _ in range(many - 1):
            (await one.connect()).send(HALF[how])
        await until(lambda: one.server.connections == many)
        for _ in range(3):
            assert (await (await one.connect()).ask(post(b""))).status == 200
        assert one.refused == ["connections"] * 3
        assert one.server.connections == many
        go.set()
        assert (await waiting.reply()).body == b"wait"


@pytest.mark.promise("M98")
async def test_the_address_with_the_most_connections_makes_room() -> None:
    async with opened_server(limits=ClientLimits(connections_max=4, makes_room=True)) as one:
        quiet = await Client.connect(one.port, "127.0.0.2")
        one.clients.append(quiet)
        await until(lambda: one.server.connections == 1)
        for _ in range(8):
            await one.connect()
        await until(lambda: one.refused == ["connections"] * 5)
        assert (await quiet.ask(post(b""))).status == 200


@pytest.mark.promise("M98")
async def test_a_failing_application_gives_one_answer_and_one_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(request: HttpRequest) -> None:
        if request.head.target == b"/late":
            request.begin(OK)
            await request.send(b"x")
        raise LookupError("secret detail")

    async with connected(app) as (one, client):
        reply = await client.ask(post(b""))
        assert reply.outcome == (500, -32603)
        assert b"secret" not in reply.body
        late = await one.connect()
        late.send(post(b"", path="/late"))
        assert (await late.head()).status == 200
        assert not (await late.closed()).endswith(b"0\r\n\r\n")
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2


@pytest.mark.parametrize("size", [1, 300_000, 3_000_000])
async def test_the_application_learns_at_once_that_the_client_is_gone(size: int) -> None:
    lost, read = asyncio.Event(), asyncio.Event()

    async def app(request: HttpRequest) -> None:
        request.on_lost = lost.set
        await request.body()
        read.set()
        await lost.wait()

    async def talk(one: Served) -> None:
        client = await one.connect()
        body = post(b"x" * size)
        client.send(body[:-200_000])  # the rest comes while the application waits for it
        await client.drain()
        await until(lambda: one.server.connections == 1)
        client.send(body[-200_000:] if size > 200_000 else body)
        await read.wait()
        await client.close()
        await lost.wait()

    server = HttpServer(app)
    sock = listener()
    await server.start([sock])
    await talk(Served(server, sock.getsockname()[1], []))
    await server.drain(WAIT_S)


@pytest.mark.promise("M79")
async def test_a_drain_finishes_what_is_open_and_leaves_the_shared_socket_alone() -> None:
    go = asyncio.Event()

    async def app(request: HttpRequest) -> None:
        await go.wait()
        await echo(request)

    sock = listener()
    port = sock.getsockname()[1]
    shared = sock.dup()  # as another process has it
    old, new = HttpServer(app), HttpServer(echo)
    await old.start([sock])
    idle, busy = await Client.connect(port), await Client.connect(port)
    busy.send(post(b"x"))
    await until(lambda: old.connections == 2)
    drained = asyncio.create_task(old.drain(WAIT_S))
    assert await idle.closed() == b""
    late = await Client.connect(port)  # waits in the socket's queue
    await new.start([shared])
    assert (await late.ask(post(b"y"))).body == b"POST /mcp y"
    go.set()
    reply = await busy.reply()
    assert (reply.body, reply.headers["connection"]) == (b"POST /mcp x", "close")
    await drained
    for client in (idle, busy, late):
        await client.close()
    await new.drain(WAIT_S)


async def test_a_drain_cuts_what_does_not_end() -> None:
    async def app(request: HttpRequest) -> None:
        await asyncio.Event().wait()

    async with connected(app) as (one, client):
        client.send(post(b"x"))
        await until(lambda: one.server.connections == 1)
        await one.server.drain(0.1)
        assert await client.closed() == b""
        assert one.server.connections == 0


async def test_the_refusal_reaches_a_client_that_is_still_sending() -> None:
    async with connected() as (_, client):
        client.send(b"GET / HTTP/1.1\r\nX: " + b"x" * (LINGER_BYTES_MAX // 2))
        assert (await client.reply()).status == 431
        client.send(b"x" * 1000)
        await client.drain()
        client.half_close()
        assert await client.closed() == b""
