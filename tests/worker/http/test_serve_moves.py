"""Connections that go on in another server: two of them in one process, each on its own port."""

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable

import pytest
from msgspec import structs

from metamcp_worker.http import request_head
from metamcp_worker.http.connection import ConnectionBusy
from metamcp_worker.http.request_head import MovedConnection
from metamcp_worker.http.requests import HttpRequest
from metamcp_worker.http.serve import ClientLimits, HttpServer
from tests.live.processes import descriptors
from tests.worker.rawhttp import Client, listener, post, run, until

pytestmark = pytest.mark.process


class House:
    """A server that says who it is, and sends requests for `/away` to the other one."""

    def __init__(self, name: str, limits: ClientLimits) -> None:
        self.name = name
        self.server = HttpServer(self.answer, limits=limits)
        self.other: House | None = None
        self.port = 0
        self.stuck = 0
        self.hops: list[int] = []
        self.left: list[MovedConnection] = []

    async def open(self) -> None:
        sock = listener()
        self.port = sock.getsockname()[1]
        await self.server.start([sock])

    async def answer(self, request: HttpRequest) -> None:
        body = await request.body() or b""
        said = request.head
        self.hops.append(request.hops)
        if said.target == b"/away" and self.other is not None:
            left = request.leave(body)
            if left is not None:
                self.left.append(structs.replace(left, hops=1))
                await self.other.server.adopt(self.left[-1])
                return
            self.stuck += 1
        who, method = self.name.encode(), said.method.encode()
        request.answer(request_head.head(200), b"%b %b %b %b" % (who, method, said.target, body))


def moving(
    test: Callable[[House, House, Client], Awaitable[None]],
    limits: ClientLimits = ClientLimits(),  # noqa: B008 - frozen
) -> None:
    """`test(here, there, client)`: of a client that is connected here."""

    async def main() -> None:
        here, there = House("here", limits), House("there", limits)
        here.other = there
        await here.open()
        await there.open()
        client = await Client.connect(here.port)
        try:
            await test(here, there, client)
        finally:
            await client.close()
            await here.server.drain(1)
            await there.server.drain(1)

    run(main)  # the first loop of a process keeps descriptors of its own
    before = descriptors(os.getpid())
    run(main)
    assert descriptors(os.getpid()) == before


def test_a_connection_stays_where_it_went_and_its_client_notices_nothing() -> None:
    async def talk(here: House, there: House, client: Client) -> None:
        assert (await client.ask(post(b"1"))).body == b"here POST /mcp 1"
        assert (await client.ask(post(b"2", path="/away"))).body == b"there POST /away 2"
        assert (await client.ask(post(b"3"))).body == b"there POST /mcp 3"
        assert there.hops == [1, 0], "the way counts for the first request only"
        await until(lambda: here.server.connections == 0)
        assert there.server.connections == 1

    moving(talk)


@pytest.mark.parametrize("size", [0, 1, 1_000_000])
def test_a_body_of_any_size_and_framing_goes_along(size: int) -> None:
    async def talk(here: House, there: House, client: Client) -> None:
        body = b"b" * size
        chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (size, body) if size else b"0\r\n\r\n"
        head = post(b"", "Transfer-Encoding: chunked", "Content-Length:", path="/away")
        assert (await client.ask(head + chunks)).body == b"there POST /away " + body
        assert (await client.ask(post(body, path="/away"))).body == b"there POST /away " + body

    moving(talk)


def test_a_request_that_waits_to_be_told_to_go_on_is_told_so_once() -> None:
    async def talk(here: House, there: House, client: Client) -> None:
        whole = post(b"body", "Expect: 100-continue", path="/away")
        client.send(whole[:-4])
        assert (await client.head()).status == 100
        client.send(whole[-4:])
        assert (await client.reply()).body == b"there POST /away body"

    moving(talk)


def test_requests_that_wait_behind_it_go_along_and_are_answered_in_order() -> None:
    async def talk(here: House, there: House, client: Client) -> None:
        client.send(post(b"1") + post(b"2", path="/away") + post(b"3") + post(b"4", path="/last"))
        bodies = [(await client.reply()).body for _ in range(4)]
        assert bodies == [
            b"here POST /mcp 1", b"there POST /away 2", b"there POST /mcp 3", b"there POST /last 4",
        ]  # fmt: skip

    moving(talk)


@pytest.mark.parametrize("part", [b"POST /mc", post(b"12345")[:-1]])
def test_a_request_that_came_in_part_is_not_taken_for_another_one(part: bytes) -> None:
    async def talk(here: House, there: House, client: Client) -> None:
        client.send(post(b"1", path="/away") + part)
        reply = await client.reply()
        assert (reply.body, reply.headers["connection"]) == (b"there POST /away 1", "close")
        assert await client.closed() == b""
        assert here.left[0].last

    moving(talk)


def test_a_request_that_closes_its_connection_closes_it_there() -> None:
    async def talk(here: House, there: House, client: Client) -> None:
        reply = await client.ask(post(b"", "Connection: close", path="/away"))
        assert reply.headers["connection"] == "close"
        assert await client.closed() == b""

    moving(talk)


def test_a_server_that_drains_still_answers_what_is_sent_to_it() -> None:
    async def talk(here: House, there: House, client: Client) -> None:
        await there.server.drain(0)
        reply = await client.ask(post(b"1", path="/away"))
        assert (reply.body, reply.headers["connection"]) == (b"there POST /away 1", "close")
        assert await client.closed() == b""

    moving(talk)


async def test_a_server_has_not_ended_while_a_connection_arrives() -> None:
    house = House("there", ClientLimits())
    await house.server.start([])
    with listener() as waiting:
        client = await Client.connect(waiting.getsockname()[1])
        accepted, _ = waiting.accept()
    arriving = asyncio.create_task(
        house.server.adopt(MovedConnection(accepted.detach(), post(b"1")))
    )
    await asyncio.gather(arriving, house.server.drain(10))
    assert house.server.ended
    assert (await client.reply()).body == b"there POST /mcp 1"
    assert await client.closed() == b""
    await client.close()


def test_a_connection_that_nobody_can_take_is_cut() -> None:
    async def talk(here: House, there: House, client: Client) -> None:
        here.other = House("not open", ClientLimits())
        client.send(post(b"1", path="/away"))
        assert await client.closed() == b""

    moving(talk)


def test_a_server_with_as_many_connections_as_it_may_have_takes_no_more() -> None:
    async def talk(here: House, there: House, client: Client) -> None:
        other = await Client.connect(there.port)
        await other.ask(post(b""))
        assert (await client.ask(post(b"1", path="/away"))).status == 503
        await other.close()

    moving(talk, ClientLimits(connections_max=1))


async def test_a_client_that_went_away_on_the_way_harms_nobody() -> None:
    house = House("there", ClientLimits())
    await house.open()
    with listener() as waiting:
        client = socket.create_connection(waiting.getsockname())
        accepted, _ = waiting.accept()
        client.close()
    await house.server.adopt(MovedConnection(accepted.detach(), post(b"1")))
    await until(lambda: house.server.connections == 0)
    await house.server.drain(1)


def test_a_server_that_drains_gives_away_what_rests_and_answers_the_rest_before() -> None:
    async def talk(here: House, there: House, client: Client) -> None:
        busy = await Client.connect(here.port)
        await busy.ask(post(b"1"))
        await client.ask(post(b"1"))
        asyncio.get_running_loop().call_soon(busy.send, post(b"2"))
        moves: list[asyncio.Task[None]] = []
        refusals = 3

        def away(leave: Callable[[], MovedConnection | None]) -> None:
            nonlocal refusals
            refusals -= 1
            if refusals >= 0:
                raise ConnectionBusy("too many are on their way")
            left = leave()
            assert left is not None
            moves.append(asyncio.create_task(there.server.adopt(left)))

        here.server.away = away
        await here.server.drain(10)
        assert len(moves) == 2
        assert (await busy.reply()).body.endswith(b" POST /mcp 2")
        for one in (busy, client):
            assert (await one.ask(post(b"3"))).body == b"there POST /mcp 3"
        await busy.close()

    moving(talk)
