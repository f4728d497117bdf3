"""A listening socket in a process that has no free descriptor."""

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import Generator
from typing import cast

import pytest

from metamcp_worker.http.serve import PAUSE_S, Acceptor, HttpServer
from tests.worker.http.test_serve import echo
from tests.worker.rawhttp import Client, listener, post

pytestmark = pytest.mark.process


class Greeter(asyncio.Protocol):
    """Says hello and closes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        there = cast(asyncio.Transport, transport)
        there.write(b"hello")
        there.close()


@contextlib.contextmanager
def descriptors_below(number: int) -> Generator[None]:
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)


@contextlib.contextmanager
def all_taken() -> Generator[None]:
    """Every descriptor up to the highest one is in use, and there are no others."""
    with contextlib.ExitStack() as held:
        highest = max(map(int, os.listdir("/proc/self/fd")))
        with descriptors_below(highest + 1):
            with contextlib.suppress(OSError):
                while True:
                    held.callback(os.close, os.dup(0))
            yield


def connected(listening: socket.socket) -> socket.socket:
    client = socket.create_connection(listening.getsockname())
    client.setblocking(False)
    return client


async def heard(client: socket.socket) -> bytes:
    return await asyncio.get_running_loop().sock_recv(client, 100)


async def test_who_comes_while_no_descriptor_is_free_waits_and_is_served() -> None:
    listening = listener()
    with connected(listening) as early, connected(listening) as late:
        acceptor = Acceptor(listening, Greeter)
        with all_taken(), pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await heard(early)
        assert [await heard(early), await heard(late)] == [b"hello", b"hello"]
        await acceptor.close()


async def test_what_is_held_back_lets_somebody_in_again_and_again() -> None:
    listening = listener()
    with contextlib.ExitStack() as opened:
        clients = [opened.enter_context(connected(listening)) for _ in range(12)]
        acceptor = Acceptor(listening, Greeter, reserve=4)
        with all_taken():
            assert [await heard(client) for client in clients] == [b"hello"] * 12
        await acceptor.close()


async def test_who_is_to_wait_waits_also_when_a_pause_for_want_of_descriptors_ends() -> None:
    listening = listener()
    with connected(listening) as early:
        acceptor = Acceptor(listening, Greeter, reserve=4)
        with all_taken():
            assert await heard(early) == b"hello"
    acceptor.admit(False)
    with connected(listening) as late:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2 * PAUSE_S):
                await heard(late)
        acceptor.admit(True)
        assert await heard(late) == b"hello"
    await acceptor.close()


async def test_a_server_keeps_descriptors_for_what_is_no_connection() -> None:
    refused: list[str] = []
    server, sock = HttpServer(echo, on_refused=refused.append), listener()
    port = sock.getsockname()[1]
    first_free = os.dup(0)
    os.close(first_free)
    with descriptors_below(2 * first_free):
        await server.start([sock])
    client = await Client.connect(port)
    assert ((await client.reply()).status, refused) == (503, ["descriptors"])
    await client.close()
    await server.drain(1)
    server, sock = HttpServer(echo), listener()
    port = sock.getsockname()[1]
    await server.start([sock])
    client = await Client.connect(port)
    assert (await client.ask(post(b""))).status == 200
    await client.close()
    await server.drain(1)
