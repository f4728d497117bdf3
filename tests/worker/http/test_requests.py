"""Requests on a connection: heads that come again, bodies nobody wants, answers that wait."""

import asyncio
import gc
import socket

import pytest

from metamcp_worker.http.connection import KNOWN_BYTES_MAX, Connection, KnownHead
from metamcp_worker.http.request_head import JSON, Head, error_body, head
from metamcp_worker.http.requests import HttpRequest, Pending
from metamcp_worker.ipc.errors import TooLarge
from tests.worker.http.test_serve import CHUNKED, OK, Served, connected, echo, opened_server
from tests.worker.rawhttp import post, until

pytestmark = pytest.mark.process


def known(one: Served) -> list[KnownHead | None]:
    return [connection.known for connection in one.server.open]


async def test_a_connection_knows_a_head_that_comes_again_whatever_the_length_of_the_body() -> None:
    heads: list[Head] = []

    async def app(request: HttpRequest) -> None:
        heads.append(request.head)
        await echo(request)

    async with opened_server(app) as one:
        client, other = await one.connect(), await one.connect()
        for body in (b"ab", b"cdefghijklmno", b"\r\n", b""):
            said = post(body, "Authorization: Bearer x")
            assert (await client.ask(said)).body == b"POST /mcp " + body
        assert (await other.ask(post(b"ef", "Authorization: Bearer y"))).body == b"POST /mcp ef"
        assert (await client.ask(post(b"gh", path="/x"))).body == b"POST /x gh"
        first, *same, foreign, changed = heads
        assert all(head is first for head in same)
        assert all(head is not first for head in (foreign, changed))


#: What comes in one read behind a known head, and what the bodies of the answers are.
BEHIND = {
    "nothing": (b"", [b"POST /mcp ab"]),
    "another request": (post(b"c", path="/x"), [b"POST /mcp ab", b"POST /x c"]),
    "the same again": (post(b"cd"), [b"POST /mcp ab", b"POST /mcp cd"]),
    "half a request": (post(b"cd")[:-1], [b"POST /mcp ab"]),
}


@pytest.mark.parametrize("case", BEHIND)
async def test_a_known_head_with_more_than_its_body_behind_it_is_read_as_any_other(
    case: str,
) -> None:
    behind, bodies = BEHIND[case]
    async with connected() as (_, client):
        await client.ask(post(b"xy"))
        client.send(post(b"ab") + behind)
        assert [(await client.reply()).body for _ in bodies] == bodies


async def test_a_known_head_in_pieces_is_one_request() -> None:
    async with connected() as (_, client):
        await client.ask(post(b"xy"))
        for at in (10, len(post(b"ab")) - 2, len(post(b"ab")) - 1):
            client.send(post(b"ab")[:at])
            await client.drain()
            await until(lambda: True)
            assert (await client.ask(post(b"ab")[at:])).body == b"POST /mcp ab"


UNKNOWN = {
    "blank lines before it": b"\r\n\r\n" + post(b""),
    "chunks": post(b"", "Transfer-Encoding: chunked", "Content-Length:") + b"2\r\nab\r\n0\r\n\r\n",
    "a wait": post(b"ab", "Expect: 100-continue"),
    "its size": post(b"ab", "X: " + "x" * KNOWN_BYTES_MAX),
    "two requests": post(b"ab") + post(b"ab"),
}


@pytest.mark.parametrize("case", UNKNOWN)
async def test_a_head_that_says_more_than_a_length_is_not_kept(case: str) -> None:
    async with connected() as (one, client):
        reply = await client.ask(UNKNOWN[case])
        assert reply.status == 200
        assert known(one) == [None]


async def test_a_request_behind_one_that_closes_the_connection_keeps_no_client_from_going() -> None:
    waiting: list[HttpRequest] = []
    async with opened_server(waiting.append) as one:
        client, gone = await one.connect(), await one.connect()
        client.send(post(b"xy"))
        await until(lambda: bool(waiting))
        waiting.pop().answer(OK)
        gone.send(post(b"1", "Connection: close"))
        await until(lambda: bool(waiting))
        gone.send(post(b"ab"))
        await gone.drain()
        await gone.close()
        await until(lambda: waiting[0].lost)
        assert len(waiting) == 1


BROKEN_BODY = CHUNKED.replace(b"POST /", b"POST /broken") + b"\r\nzz\r\nab\r\n0\r\n\r\n"


async def test_a_request_under_way_is_still_answered_when_the_body_of_the_next_is_broken() -> None:
    go = asyncio.Event()

    async def app(request: HttpRequest) -> None:
        await go.wait()
        await echo(request)

    async with connected(app) as (one, client):
        client.send(post(b"1") + BROKEN_BODY)
        await until(lambda: one.refused == ["framing"])
        go.set()
        reply = await client.reply()
        assert (reply.body, reply.headers["connection"]) == (b"POST /mcp 1", "close")
        assert await client.closed() == b""


async def test_a_request_that_is_refused_as_a_whole_never_begins() -> None:
    begun: list[bytes] = []

    def app(request: HttpRequest) -> None:
        begun.append(request.head.target)

    async with connected(app) as (_, client):
        assert (await client.ask(BROKEN_BODY)).status == 400
        assert await client.closed() == b""
        assert begun == []


async def test_a_connection_that_is_over_needs_no_collector() -> None:
    async with connected() as (one, client):
        await client.ask(post(b"xy"))
        number = id(next(iter(one.server.open)))

        def there() -> bool:
            """A weak reference to an object of a compiled class outlives it."""
            found = gc.get_objects()
            return any(id(each) == number and isinstance(each, Connection) for each in found)

        gc.disable()
        try:
            assert there()
            await client.close()
            await until(lambda: not there())
        finally:
            gc.enable()


async def test_an_answer_to_HEAD_has_a_length_and_no_body() -> None:  # noqa: N802 - the method
    async with connected() as (_, client):
        client.send(post(b"", method="HEAD") + post(b"x"))
        head = await client.head()
        assert head.headers["content-length"] == "10"
        assert (await client.reply()).body == b"POST /mcp x"


@pytest.mark.parametrize(
    ("version", "body"),
    [(b"1.1", b"1\r\na\r\n1\r\nb\r\n0\r\n\r\n"), (b"1.0", b"ab")],
)
async def test_an_answer_in_pieces_is_framed_as_the_client_understands_it(
    version: bytes, body: bytes
) -> None:
    async def app(request: HttpRequest) -> None:
        request.begin(OK)
        for piece in (b"a", b"", b"b"):
            await request.send(piece)
        request.end()

    async with connected(app) as (_, client):
        client.send(post(b"", "Connection: close").replace(b"HTTP/1.1", b"HTTP/" + version))
        assert ("transfer-encoding" in (await client.head()).headers) == (version == b"1.1")
        assert await client.closed() == body


async def test_a_request_waits_until_the_answer_before_it_is_read() -> None:
    asked: list[bytes] = []

    def app(request: HttpRequest) -> None:
        asked.append(request.take())
        request.answer(OK, b"x" * 30_000_000)

    async with opened_server(app) as one:
        with socket.create_connection(("127.0.0.1", one.port)) as slow:
            slow.sendall(post(b"1") + post(b"2"))
            assert await asyncio.to_thread(slow.recv, 1)
            assert asked == [b"1"]
            while len(asked) < 2:
                assert await asyncio.to_thread(slow.recv, 1_000_000)


async def test_a_body_that_nobody_asks_for_is_not_read_and_one_that_is_too_large_is_told_of() -> (
    None
):
    go, begun = asyncio.Event(), asyncio.Event()
    sizes: list[int] = []

    async def app(request: HttpRequest) -> None:
        begun.set()
        await go.wait()
        sizes.append(request.size)
        try:
            await request.body(3_000_000)
        except TooLarge:
            request.last(head(413, [JSON]), error_body(1, "Too large."))

    async with connected(app) as (_, client):
        client.send(post(b"x" * 8_000_000))
        await begun.wait()
        go.set()
        assert (await client.reply()).status == 413
        await client.drain()
        assert sizes[0] < 1_000_000


async def test_what_fails_later_fails_for_its_own_request_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    waiting: list[HttpRequest] = []

    def fail() -> Pending:
        raise LookupError("secret detail")

    async with opened_server(waiting.append) as one:
        first, second = await one.connect(), await one.connect()
        first.send(post(b"1"))
        await until(lambda: bool(waiting))
        waiting.pop().run(fail)
        reply = await first.reply()
        assert (reply.outcome, reply.headers["connection"]) == ((500, -32603), "close")
        second.send(post(b"2"))
        await until(lambda: bool(waiting))
        waiting[0].run(lambda: echo(waiting[0]))
        assert (await second.reply()).body == b"POST /mcp 2"
    assert len(caplog.records) == 1
