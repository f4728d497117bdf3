"""Bounds of event streams: readers that do not read, streams that are too many."""

import asyncio
import socket

import pytest

from metamcp_worker.front_clients import streams
from metamcp_worker.front_clients.streams import Stream, Streams, WaitingStream
from metamcp_worker.ipc.frames import Progress
from tests.worker.front.door import META, modern, opened_door

from ..rawhttp import until


class Wire:
    """What a stream sends, taken while `reads` is set; and its connection."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.streams = Streams(self.refused.append)
        self.sent: list[bytes] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.cut = self.ends = 0
        self.sends = False

    def begin(self, head: bytes) -> None: ...

    async def send(self, piece: bytes) -> None:
        self.sends = True
        await self.reads.wait()
        self.sent.append(piece)

    def end(self) -> None:
        self.ends += 1

    def abort(self) -> None:
        self.cut += 1
        self.reads.set()

    def stream(self, farewell: bytes = b"") -> Stream:
        return Stream(self.streams, self, farewell)

    @property
    def body(self) -> bytes:
        return b"".join(self.sent)


async def test_events_leave_in_order_and_the_farewell_last() -> None:
    wire = Wire()
    stream = wire.stream(farewell=b"z")
    stream.put(b"a")
    stream.put(b"b")
    stream.announce(b"b")  # it is waiting already
    task = asyncio.create_task(stream.run())
    stream.end()
    stream.put(b"late")
    await task
    assert wire.body == b"abz"
    assert wire.ends == 1
    assert wire.streams.running == 0


@pytest.mark.promise("M98")
@pytest.mark.parametrize(
    ("event", "times"),
    [(b"x", streams.QUEUE_EVENTS_MAX), (b"x" * 1024, streams.QUEUE_BYTES_MAX // 1024)],
)
async def test_a_reader_that_does_not_read_is_cut_off_at_the_limit(
    event: bytes, times: int
) -> None:
    wire = Wire()
    stream = wire.stream()
    wire.reads.clear()
    task = asyncio.create_task(stream.run())
    stream.put(event)
    await until(lambda: wire.sends)
    for _ in range(min(times, streams.QUEUE_EVENTS_MAX) - 1):
        stream.put(event)
    assert wire.cut == 0
    stream.put(event * 1024)
    stream.put(event)
    await task
    assert (wire.cut, wire.refused) == (1, ["slow_reader"])


async def test_events_that_come_faster_than_the_stream_gets_a_turn_cut_nobody_off() -> None:
    wire = Wire()
    stream = wire.stream()
    task = asyncio.create_task(stream.run())
    for _ in range(3):
        for _ in range(2 * streams.QUEUE_EVENTS_MAX):
            stream.put(b"x" * 1024)
        await until(lambda: len(wire.body) % (2 * 1024 * streams.QUEUE_EVENTS_MAX) == 0)
    stream.end()
    await task
    assert len(wire.body) == 3 * 2 * 1024 * streams.QUEUE_EVENTS_MAX
    assert (wire.cut, wire.refused) == (0, [])


async def test_an_answer_may_be_larger_than_what_may_wait() -> None:
    wire = Wire()
    stream = wire.stream(farewell=b"x" * (streams.QUEUE_BYTES_MAX + 1))
    stream.put(b"a")
    stream.end()
    await stream.run()
    assert (len(wire.body), wire.cut) == (streams.QUEUE_BYTES_MAX + 2, 0)


@pytest.mark.promise("M98")
async def test_standing_streams_are_limited_by_address_but_not_on_loopback() -> None:
    wire = Wire()
    tasks: list[asyncio.Task[None]] = []
    for address in ("192.0.2.1", "127.0.0.1"):
        for _ in range(streams.PEER_STREAMS_MAX):
            standing = WaitingStream(wire.stream(), "default", "me", address, {"n": b"e"})
            tasks.append(asyncio.create_task(wire.streams.stand(standing)))
    await until(lambda: wire.streams.running == len(tasks))
    full = {
        name: wire.streams.full(name) for name in ("192.0.2.1", "127.0.0.1", "::1", "", "192.0.2.2")
    }
    assert full == {
        "192.0.2.1": True,
        "127.0.0.1": False,
        "::1": False,
        "": False,
        "192.0.2.2": False,
    }
    news = {("default", "me"): ["n", "m"], ("dev", "me"): ["n"], ("default", "you"): ["n"]}
    wire.streams.announce(lambda endpoint, who: news.get((endpoint, who), []))
    wire.streams.close()
    await asyncio.gather(*tasks)
    assert wire.body == b"e" * len(tasks)
    assert wire.streams.closed


@pytest.mark.promise("M98")
async def test_a_deaf_client_loses_its_stream_and_its_call_is_cancelled() -> None:
    async with opened_door() as door:
        with socket.create_connection(("127.0.0.1", door.port)) as deaf:
            deaf.sendall(modern("tools/call", {"name": "t"}, meta={**META, "progressToken": 1}))
            call = await door.peer.call()
            params = b'{"progress":1,"message":"%b"}' % (b"x" * 100_000)
            while door.stats.refusals != {"slow_reader": 1}:
                await asyncio.to_thread(door.peer.write, Progress(call.id, params))
            assert (await door.peer.cancelled()).id == call.id
