"""The connection to the writer of the audit, with a writer that commits when a test says so."""

import asyncio
import contextlib
import errno
import socket
import tempfile
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path

import pytest

from metamcp_worker.ipc import audit_records as audit
from metamcp_worker.ipc import packets
from metamcp_worker.ipc.audit_link import FRAME_BYTES, KEPT_MAX, SPOOL_BYTES_MAX, AuditLink
from metamcp_worker.ipc.audit_records import FRAME, VERDICT

WAIT_S = 20.0
STEP = 100
RECORD = b'{"ts":1,"n":%d,"text":"' + b"x" * 8000 + b'"}'

Tell = Callable[[int], None]


class Writer:
    """Writer with its spools in `folder`. `frames`: number of the first record, and the records, of
    each frame that has come."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.acceptor, self._connector = packets.acceptor()
        self.frames: list[tuple[int, list[bytes]]] = []
        self._streams: list[asyncio.StreamWriter] = []
        self._serving: set[asyncio.Task[None]] = set()
        self._news = asyncio.Event()

    @property
    def received(self) -> list[bytes]:
        return [body for _, bodies in self.frames for body in bodies]

    async def until(self, count: int) -> None:
        """Return when so many records have come."""
        async with asyncio.timeout(WAIT_S):
            while len(self.received) < count:
                self._news.clear()
                await self._news.wait()

    def tell(self, number: int, error: int = 0) -> None:
        self._streams[-1].write(VERDICT.pack(number, error))

    def connect(self) -> socket.socket:
        return packets.connect(self._connector)

    def begin(self) -> None:
        """Take connections from now on."""
        asyncio.get_running_loop().add_reader(self.acceptor, self._accept)

    def _accept(self) -> None:
        serving = asyncio.create_task(self._serve(packets.accept(self.acceptor)))
        self._serving.add(serving)

    async def _serve(self, sock: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        self._streams.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                size, count, first = FRAME.unpack(await reader.readexactly(FRAME.size))
                body = await reader.readexactly(size)
                if count:
                    self.frames.append((first, body.split(b"\n")))
                    self._news.set()

    def close(self) -> None:
        for one in self._streams:
            one.close()

    async def end(self) -> None:
        asyncio.get_running_loop().remove_reader(self.acceptor)
        self.close()
        await asyncio.gather(*self._serving)
        self.acceptor.close()
        self._connector.close()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, because a socket is in it."""
    with tempfile.TemporaryDirectory(prefix="metamcp-", dir="/tmp") as name:
        yield Path(name)


@contextlib.asynccontextmanager
async def writing(folder: Path) -> AsyncGenerator[Writer]:
    found = Writer(folder)
    found.begin()
    try:
        yield found
    finally:
        await found.end()


def linked(writer: Writer, *, spools: bool) -> AuditLink[Tell]:
    folder = str(writer.folder / audit.SPOOLS) if spools else ""
    return AuditLink(writer.connect, gap, tell, keeps=True, spools=folder)


def gap(number: int, lost: int) -> bytes:
    return b"gap"


def tell(waiting: list[Tell], error: int) -> None:
    for one in waiting:
        one(error)


async def turn() -> None:
    """Return when everything that was to be called soon has been."""
    over = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(over.set_result, None)
    await over


def spooled(writer: Writer, link: AuditLink[Tell]) -> list[bytes]:
    return (writer.folder / audit.SPOOLS / link.origin).read_bytes().splitlines()


async def test_records_of_one_turn_are_told_together_when_they_are_in_the_spool(
    folder: Path,
) -> None:
    async with writing(folder) as writer:
        link = linked(writer, spools=True)
        told: list[int] = []
        for number in range(3):
            link.add(b"%d" % number, told.append)
        assert not told
        await turn()
        assert told == [0, 0, 0]
        assert spooled(writer, link) == [b"0", b"1", b"2"]
        await writer.until(3)
        assert writer.frames == [(1, [b"0", b"1", b"2"])]
        await link.close()


async def test_without_a_spool_a_record_is_told_when_the_writer_has_committed_it(
    folder: Path,
) -> None:
    async with writing(folder) as writer:
        link = linked(writer, spools=False)
        told: asyncio.Queue[int] = asyncio.Queue()
        link.add(b"one", told.put_nowait)
        link.add(b"two", told.put_nowait)
        await writer.until(2)
        assert told.empty()
        writer.tell(2)
        async with asyncio.timeout(WAIT_S):
            assert [await told.get(), await told.get()] == [0, 0]
        await link.close()


async def test_a_spool_without_room_leaves_its_records_to_the_writer_until_there_is_room(
    folder: Path,
) -> None:
    async with writing(folder) as writer:
        (folder / audit.SPOOLS).write_text("no folder, so nothing can be written below it")
        link = linked(writer, spools=True)
        told: asyncio.Queue[int] = asyncio.Queue()

        async def answers(count: int) -> list[int]:
            async with asyncio.timeout(WAIT_S):
                return [await told.get() for _ in range(count)]

        link.add(b"one", told.put_nowait)
        await writer.until(1)
        (folder / audit.SPOOLS).unlink()
        link.add(b"two", told.put_nowait)  # not into the spool while it lacks the one before
        await writer.until(2)
        assert told.empty()
        writer.tell(2)
        assert await answers(2) == [0, 0]
        link.add(b"three", told.put_nowait)
        assert await answers(1) == [0]  # before the writer tells
        assert spooled(writer, link) == [b"three"]
        assert (link.lost, link.down) == (0, 0)
        await link.close()


async def test_a_spool_stays_small_under_a_load_that_never_pauses(folder: Path) -> None:
    """The writer is always some records behind, so the spool is at no time all committed."""
    async with writing(folder) as writer:
        link = linked(writer, spools=True)
        largest = 0
        for sent in range(STEP, 3 * SPOOL_BYTES_MAX // len(RECORD), STEP):
            for number in range(sent - STEP, sent):
                link.add(RECORD % number)
            await turn()
            found = spooled(writer, link)
            uncommitted = range(max(0, sent - 2 * STEP), sent)
            assert found[-len(uncommitted) :] == [RECORD % number for number in uncommitted]
            largest = max(largest, len(found))
            await writer.until(sent)
            writer.tell(sent - STEP)
        assert largest * len(RECORD) < 2 * SPOOL_BYTES_MAX
        await link.close()


async def test_the_next_writer_gets_what_the_one_before_did_not_commit(folder: Path) -> None:
    async with writing(folder) as writer:
        link = linked(writer, spools=True)
        for number in range(1, 4):
            link.add(b"%d" % number)
            await writer.until(number)
        writer.tell(1)
        writer.close()
        await writer.until(5)
        assert [first for first, _ in writer.frames] == [1, 2, 3, 2]
        assert writer.received[-2:] == [b"2", b"3"]
        await link.close()


async def test_a_large_backlog_comes_in_frames_that_a_writer_reads(folder: Path) -> None:
    count = 4 * FRAME_BYTES // len(RECORD)
    async with writing(folder) as writer:
        link = linked(writer, spools=True)
        for number in range(count):
            link.add(RECORD % number)
        await writer.until(count)
        sizes = [sum(len(body) + 1 for body in bodies) for _, bodies in writer.frames]
        assert max(sizes) < 2 * FRAME_BYTES
        assert writer.received == [RECORD % number for number in range(count)]
        await link.close()


async def test_who_waits_is_told_when_the_connection_is_closed(folder: Path) -> None:
    told: list[int] = []

    def refused() -> socket.socket:
        raise ConnectionRefusedError

    link = AuditLink(refused, gap, tell, keeps=True)
    link.add(b"one", told.append)
    await link.close()
    assert told == [errno.ETIMEDOUT]


async def test_no_more_records_are_taken_than_are_kept(folder: Path) -> None:
    async with writing(folder) as writer:
        link = linked(writer, spools=True)

        def full() -> bool:
            return link.full

        for number in range(KEPT_MAX):
            assert not full()
            link.add(b"%d" % number)
        assert full()
        await writer.until(KEPT_MAX)
        writer.tell(KEPT_MAX)
        async with asyncio.timeout(WAIT_S):
            while full():
                await turn()
        await link.close()
