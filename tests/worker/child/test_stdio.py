"""The way into a server's stdin: in order, in one write where that is possible, never blocking."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from metamcp_worker.child.stdio import QUEUE_BYTES_MAX, WRITE_S_MAX, Writer

WAIT_S = 30.0
ROOM_BYTES = 1024 * 1024
"""More than any pipe holds."""


@asynccontextmanager
async def opened_writer() -> AsyncGenerator[tuple[Writer, int, asyncio.Event]]:
    """The writer, the descriptor of the other end, and what the end of that sets."""
    far, near = os.pipe()
    ended = asyncio.Event()
    writer = Writer(near, ended.set)
    try:
        yield writer, far, ended
    finally:
        writer.close()
        os.close(far)


def take(far: int, size: int) -> bytes:
    taken = b""
    while len(taken) < size:
        taken += os.read(far, size - len(taken))
    return taken


async def turn() -> None:
    """Let the loop do what is due."""
    await asyncio.to_thread(lambda: None)


async def test_what_one_turn_of_the_loop_writes_arrives_as_one() -> None:
    async with opened_writer() as (writer, far, _):
        assert all(writer.write(b"line %d\n" % number) for number in range(3))
        assert await asyncio.to_thread(os.read, far, 1024) == b"line 0\nline 1\nline 2\n"
        assert not writer.queued_bytes


async def test_a_server_that_reads_slowly_gets_everything_in_order() -> None:
    async with opened_writer() as (writer, far, _):
        lines = [os.urandom(ROOM_BYTES) for _ in range(3)]
        for line in lines:
            assert writer.write(line)
            await turn()
        assert await asyncio.to_thread(take, far, 3 * ROOM_BYTES) == b"".join(lines)
        assert writer.write(b"last")
        assert await asyncio.to_thread(take, far, 4) == b"last"


async def test_a_server_is_stuck_when_it_takes_nothing_for_long_and_not_before() -> None:
    async with opened_writer() as (writer, far, _):
        late = asyncio.get_running_loop().time() + WRITE_S_MAX + WAIT_S
        assert writer.write(bytes(ROOM_BYTES))
        assert not writer.is_stalled(late)  # nothing has been tried yet
        await turn()
        assert not writer.is_stalled(late - WAIT_S - 1)
        assert writer.is_stalled(late)
        await asyncio.to_thread(take, far, ROOM_BYTES)
        assert not writer.is_stalled(late)


async def test_what_waits_for_a_server_has_a_bound() -> None:
    async with opened_writer() as (writer, _, _):
        assert writer.write(bytes(QUEUE_BYTES_MAX + 1))
        assert writer.queued_bytes > QUEUE_BYTES_MAX
        assert not writer.write(b"one more")


async def test_a_server_that_closed_its_input_is_told_of_once_and_takes_nothing_more() -> None:
    async with opened_writer() as (writer, far, ended):
        os.close(far)
        assert writer.write(b"into the void")
        await ended.wait()
        assert writer.is_closed
        assert not writer.write(b"more")
        assert os.open(os.devnull, os.O_RDONLY) == far  # so that it can be closed again
