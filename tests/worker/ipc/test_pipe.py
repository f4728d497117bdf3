"""The pipe on the event loop, against the standard library's own end of it."""

import asyncio
import multiprocessing
import os
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from metamcp_worker.ipc import frame_bytes, frames, pipe
from metamcp_worker.ipc.errors import PipeFull
from metamcp_worker.ipc.frames import CallFrame, Frame, Notice, Result
from metamcp_worker.ipc.pipe import Pipe
from metamcp_worker.runtime import loop

WAIT_S = 30.0


class Inbox:
    """Collects what one pipe delivers."""

    def __init__(self) -> None:
        self.frames: asyncio.Queue[Frame] = asyncio.Queue()
        self.gone: asyncio.Queue[str] = asyncio.Queue()


def with_pipe(test: Callable[[Pipe, Connection, Inbox], Awaitable[None]]) -> None:
    """Run `test` with one end on the loop and the other as a plain Connection."""

    async def main() -> None:
        near, far = multiprocessing.Pipe()
        inbox = Inbox()
        async with asyncio.timeout(WAIT_S):
            end = await Pipe.open(
                os.dup(near.fileno()), inbox.frames.put_nowait, inbox.gone.put_nowait
            )
            near.close()
            try:
                await test(end, far, inbox)
            finally:
                end.close()
                far.close()
                await asyncio.to_thread(lambda: None)

    # The workers run on uvloop, whose transports are not asyncio's; the supervisor on asyncio.
    asyncio.run(main())
    loop.run(_zero(main()))


async def _zero(main: Awaitable[None]) -> int:
    await main
    return 0


def test_a_plain_connection_reads_and_writes_the_same_frames() -> None:
    async def talk(end: Pipe, far: Connection, inbox: Inbox) -> None:
        end.send(CallFrame(7, "tools/call", b'{"name":"x"}'))
        got = frame_bytes.unpack(await asyncio.to_thread(far.recv_bytes))
        assert got == CallFrame(7, "tools/call", b'{"name":"x"}')
        far.send_bytes(frame_bytes.pack(Result(7, b"{}"))[4:])
        assert await inbox.frames.get() == Result(7, b"{}")

    with_pipe(talk)


def test_many_frames_of_one_tick_arrive_in_order() -> None:
    async def talk(end: Pipe, far: Connection, inbox: Inbox) -> None:
        for number in range(500):
            end.send(Result(number, b"x" * number))

        def read() -> list[Frame]:
            return [frame_bytes.unpack(far.recv_bytes()) for _ in range(500)]

        got = await asyncio.to_thread(read)
        assert got == [Result(number, b"x" * number) for number in range(500)]

    with_pipe(talk)


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="counts what the kernel counts")
def test_what_one_turn_of_the_loop_sends_leaves_as_one_write() -> None:
    async def main() -> None:
        near, far = multiprocessing.Pipe()
        end = await Pipe.open(os.dup(near.fileno()), lambda frame: None)
        near.close()
        before = writes()
        for number in range(500):
            end.send(Result(number, b"{}"))
        await asyncio.to_thread(lambda: [far.recv_bytes() for _ in range(500)])
        assert writes() - before < 10  # those that wake the loop are among them
        end.close()
        far.close()

    loop.run(_zero(main()))


def test_a_large_frame_does_not_overtake_what_waits() -> None:
    async def talk(end: Pipe, far: Connection, inbox: Inbox) -> None:
        large = bytes(2 * pipe.APART_BYTES)
        sent = [Result(1, b"{}"), Result(2, large), Result(3, b"{}")]
        for frame in sent:
            end.send(frame)
        for frame in sent:
            assert frame_bytes.unpack(await asyncio.to_thread(far.recv_bytes)) == frame

    with_pipe(talk)


def test_a_closed_pipe_passes_on_no_more_frames() -> None:
    async def talk(end: Pipe, far: Connection, inbox: Inbox) -> None:
        end.data_received(frame_bytes.pack(Result(1, b"{}")))
        end.close()
        end.data_received(frame_bytes.pack(Result(2, b"{}")))
        assert await inbox.gone.get() == "closed"
        assert inbox.frames.get_nowait() == Result(1, b"{}")
        assert inbox.frames.empty()

    with_pipe(talk)


def writes() -> int:
    """How often this process has written so far."""
    figures = Path("/proc/self/io").read_text().split()
    return int(figures[figures.index("syscw:") + 1])


def test_the_largest_message_crosses_both_ways() -> None:
    async def talk(end: Pipe, far: Connection, inbox: Inbox) -> None:
        body = os.urandom(frames.MESSAGE_BYTES)
        end.send(Result(1, body))
        raw = await asyncio.to_thread(far.recv_bytes)
        await asyncio.to_thread(far.send_bytes, raw)
        assert await inbox.frames.get() == Result(1, body)

    with_pipe(talk)


def test_a_peer_that_does_not_read_fills_a_bounded_queue() -> None:
    async def talk(end: Pipe, far: Connection, inbox: Inbox) -> None:
        body = bytes(1024 * 1024)

        async def flood() -> None:
            for number in range(100):
                end.send(Result(number, body))
                await asyncio.to_thread(lambda: None)

        with pytest.raises(PipeFull):
            await flood()
        assert end.queued_bytes <= pipe.QUEUE_BYTES_MAX
        far.close()
        assert await inbox.gone.get()

    with_pipe(talk)


def test_the_end_of_the_other_side_is_told_once() -> None:
    async def talk(end: Pipe, far: Connection, inbox: Inbox) -> None:
        far.close()
        assert await inbox.gone.get() == "closed"
        end.send(Notice("notifications/message", b"{}"))
        end.close()
        assert inbox.gone.empty()
        assert end.is_closed

    with_pipe(talk)


def test_a_peer_that_talks_nonsense_is_cut_off() -> None:
    async def talk(end: Pipe, far: Connection, inbox: Inbox) -> None:
        far.send_bytes(b"\x63garbage")
        assert "not a frame" in await inbox.gone.get()

    with_pipe(talk)


def test_what_came_before_nonsense_is_delivered() -> None:
    async def talk(end: Pipe, far: Connection, inbox: Inbox) -> None:
        os.write(far.fileno(), frame_bytes.pack(Result(1, b"{}")) + b"\0\0\0\x20\x63" + bytes(40))
        assert "not a frame" in await inbox.gone.get()
        assert inbox.frames.get_nowait() == Result(1, b"{}")

    with_pipe(talk)


def test_what_waits_is_sent_before_a_close() -> None:
    async def talk(end: Pipe, far: Connection, inbox: Inbox) -> None:
        end.send(Result(1, b"last words"))
        end.close()
        assert frame_bytes.unpack(await asyncio.to_thread(far.recv_bytes)) == Result(
            1, b"last words"
        )

    with_pipe(talk)
