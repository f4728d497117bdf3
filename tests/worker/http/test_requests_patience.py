"""How slowly a client may send and read, when it is not its own fault."""

import asyncio
import socket
from functools import partial

import pytest

from metamcp_worker.http.requests import HttpRequest
from tests.worker.http.test_serve import OK, QUICK, echo, opened_server
from tests.worker.rawhttp import post, until

pytestmark = pytest.mark.process


async def test_a_head_that_nobody_reads_yet_is_not_late() -> None:
    waiting: list[HttpRequest] = []
    async with opened_server(waiting.append, QUICK) as one:
        client, clock = await one.connect(), await one.connect()
        client.send(post(b"1") + post(b"2") + post(b"3")[:40])
        await until(lambda: bool(waiting))
        assert await clock.closed() == b""  # by now the head would have been late
        client.send(post(b"3")[40:])
        for body in (b"1", b"2", b"3"):
            await until(lambda: bool(waiting))
            waiting[0].run(partial(echo, waiting.pop()))
            assert (await client.reply()).body == b"POST /mcp " + body
        assert one.refused == []


async def test_a_client_that_reads_a_stream_slowly_is_not_cut_off() -> None:
    async def app(request: HttpRequest) -> None:
        request.begin(OK)
        while not request.lost:
            await request.send(b"x" * 1_000_000)

    async with opened_server(app, QUICK) as one:
        with socket.create_connection(("127.0.0.1", one.port)) as slow:
            slow.sendall(post(b""))
            for _ in range(8):
                clock = await one.connect()
                while not clock.ended:  # in this time the server looks at what is unread
                    assert await asyncio.to_thread(slow.recv, 4096)
            assert one.server.connections == 1
