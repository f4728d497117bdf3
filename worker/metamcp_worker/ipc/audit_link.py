"""Connection of a process to the writer of the audit.

Owns: sending records in the order of their numbers, those of one turn of the loop in one write,
keeping those that are not committed, and sending them again to the next writer; the spool;
notifying who waits for a record. Never: the content of records, the chain.

With a spool, a record is safe when it is in that file: a process that is killed loses nothing that
it has written, and the writer takes over the spools of the dead. So no answer waits for another
process, and the writer hears of many records at once. Without a spool, or while the spool finds no
room on the disk, a record is safe when the writer says that it is committed. The next writer skips
what the one before had committed.
"""

import asyncio
import contextlib
import errno
import fcntl
import os
import secrets
import socket
from collections import deque
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Generic, TypeVar

from metamcp_worker.ipc import audit_records as audit
from metamcp_worker.ipc.audit_records import FRAME, VERDICT

AGAIN_S = 0.05
"""Seconds between two attempts to reach a writer, while it is started again."""
RETRY_S = 0.5
"""Seconds after which records are sent again that the writer could not write."""
SPOOL_BYTES_MAX = 8 * 1024 * 1024
"""Bytes of a spool beyond which a new one takes its place, without what is committed."""
BATCH_S = 0.02
"""Seconds that records in the spool wait for others before the writer gets them."""
FRAME_BYTES = 1024 * 1024
"""Bytes of records above which a frame ends, and a batch; one record may be larger."""
POLL_S = 0.005
"""Seconds between two looks at what is due at the end."""
READ_BYTES = 4096
KEPT_MAX = 10_000
"""Maximum number of records that wait for their commit."""
KEPT_BYTES_MAX = 64 * 1024 * 1024
WAIT_S_MAX = 10.0
"""Seconds that a record waits for a writer that does not come; then its answer does not wait any
longer."""


class _Spool:
    """File of the records of this process that are not committed, and of some that are. The
    process holds a lock on it as long as it lives."""

    def __init__(self, folder: str, origin: str) -> None:
        self._folder = folder
        self._path = os.path.join(folder, origin)
        self._fd = -1
        self._bytes = 0

    def add(self, lines: bytes) -> bool:
        """Append records. Return whether there was room; else nothing was added."""
        lines += b"\n"
        try:
            if self._fd < 0:
                self._begin()
            if os.write(self._fd, lines) == len(lines):
                self._bytes += len(lines)
                return True
            os.ftruncate(self._fd, self._bytes)
        except OSError:
            pass
        return False

    def shorten(self, uncommitted: Iterable[bytes]) -> None:
        """Drop what is committed from a large file. `uncommitted`: its other records."""
        if self._bytes > SPOOL_BYTES_MAX:
            with contextlib.suppress(OSError):
                self._begin(b"".join(b"%b\n" % lines for lines in uncommitted))

    def close(self, *, empty: bool) -> None:
        """Close the file. `empty`: whether all of it is committed; then it goes."""
        if self._fd >= 0:
            if empty:
                with contextlib.suppress(OSError):
                    os.unlink(self._path)
            os.close(self._fd)
            self._fd = -1

    def _begin(self, lines: bytes = b"") -> None:
        """Put a file with these lines in the place of the one before, when it is whole and locked.
        Raises OSError; then the one before is still there."""
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        how = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        made = os.path.join(self._folder, f".{os.path.basename(self._path)}")
        fd = os.open(made, how, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.write(fd, lines) != len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.rename(made, self._path)
        except OSError:
            os.close(fd)
            raise
        if self._fd >= 0:
            os.close(self._fd)
        self._fd, self._bytes = fd, len(lines)


Gap = Callable[[int, int], bytes]
"""Makes the body of the record about lost records, of its number and their number."""
Waits = TypeVar("Waits")
"""Type of those that wait for a record."""


def _nobody(waiting: list[Waits], error: int) -> None:
    pass


class _Batch(Generic[Waits]):
    """Records of one turn of the loop, with the numbers `first` to `last`. `lines`: the records,
    one a line; `size`: their bytes, with all line ends; `waiting`: what waits for them; `weight`:
    events that are lost with them."""

    __slots__ = ("first", "last", "lines", "size", "waiting", "weight")

    def __init__(self, first: int, bodies: list[bytes], waiting: list[Waits], weight: int) -> None:
        self.first = first
        self.last = first + len(bodies) - 1
        self.lines = b"\n".join(bodies)
        self.size = len(self.lines) + 1
        self.waiting = waiting
        self.weight = weight


class AuditLink(Generic[Waits]):
    """Connection to the writer. `connect()`: as `packets.connect`. `on_verdict(waiting, error)`:
    called with what waits for the records of one turn, once: with 0 when these are safe, else with
    the error number.
    `spools`: folder of the spools, empty: each record waits for the writer. `keeps`: whether
    records that could not be written are kept and sent again, or are lost. `lost`: number of events
    without a record, for the next gap; `down`: error number while records cannot be written, else
    0."""

    def __init__(
        self,
        connect: Callable[[], socket.socket],
        gap: Gap,
        on_verdict: Callable[[list[Waits], int], None] = _nobody,
        *,
        keeps: bool,
        spools: str = "",
    ) -> None:
        self.origin = secrets.token_hex(audit.ORIGIN_BYTES // 2)
        self.lost = self.down = 0
        self.keeps = keeps
        self._make_connection = connect
        self._spool = _Spool(spools, self.origin) if spools else None
        self._spools = bool(spools)
        """Whether records go into the spool. After one that found no room there they do not until
        all are committed, so a spool has every record before its last that is not."""
        self._gap = gap
        self._loop = asyncio.get_running_loop()
        self._told = on_verdict
        self._number = self._safe = 0
        """Numbers of the last record before this turn, and of the last one that is committed or
        given up."""
        self._new: list[bytes] = []
        """Records of this turn; `_waiting`, `_weight`, `_new_bytes`: of them."""
        self._waiting: list[Waits] = []
        self._weight = self._new_bytes = 0
        self._kept: deque[_Batch[Waits]] = deque()
        self._kept_bytes = 0
        self._sent = 0
        """Number of the last record that this writer was sent."""
        self._out = bytearray()
        self._in = b""
        self._sock: socket.socket | None = None
        self._turn: asyncio.Handle | None = None
        self._due: asyncio.TimerHandle | None = None
        self._again: asyncio.TimerHandle | None = None
        self._overdue: asyncio.TimerHandle | None = None
        self._closed = False
        self._connect()

    @property
    def number(self) -> int:
        """Number of the next record."""
        return self._number + len(self._new) + 1

    @property
    def full(self) -> bool:
        """Whether no further record is taken now."""
        return (
            self._number + len(self._new) - self._safe >= KEPT_MAX
            or self._kept_bytes + self._new_bytes >= KEPT_BYTES_MAX
        )

    def add(self, body: bytes, waits: Waits | None = None, weight: int = 1) -> None:
        """Send a record with the number `number`. The caller looks at `full` first. `waits`: passed
        to `on_verdict` with others when the record is safe; `weight`: events that are lost with
        this record."""
        self._new.append(body)
        self._weight += weight
        if waits is not None:
            self._waiting.append(waits)
        self._new_bytes += len(body) + 1
        if self._new_bytes > FRAME_BYTES:
            self.send()
        elif self._turn is None:
            self._turn = self._loop.call_soon(self._turn_over)

    def send_all(self, bodies: list[bytes], waiting: list[Waits]) -> None:
        """Send records with the numbers from `number` on now, of FRAME_BYTES together or a single
        one. `waiting`: passed to `on_verdict` when all are safe."""
        self._new += bodies
        self._waiting += waiting
        self._weight += len(bodies)
        self.send()

    def _turn_over(self) -> None:
        self._turn = None
        self.send()

    def send(self) -> None:
        """Send the records of this turn, or put them into the spool, before the turn is over."""
        if not self._new:
            return
        batch = _Batch(self._number + 1, self._new, self._waiting, self._weight)
        self._new, self._waiting, self._weight, self._new_bytes = [], [], 0, 0
        if self._spool is not None and self._spools:
            self._spools = self._spool.add(batch.lines)
        self._number = batch.last
        self._kept_bytes += batch.size
        self._kept.append(batch)
        if not self._spools:
            self._flush()
            if self._overdue is None:
                self._overdue = self._loop.call_later(WAIT_S_MAX, self._on_timeout, self._number)
            return
        self._tell(batch, 0)
        if self._due is None and self._sock is not None:
            self._due = self._loop.call_later(BATCH_S, self._flush)

    def _tell(self, batch: _Batch[Waits], error: int) -> None:
        """Notify all who wait for these records, once."""
        waiting, batch.waiting = batch.waiting, []
        if waiting:
            self._told(waiting, error)

    @property
    def _due_now(self) -> bool:
        return bool(self._kept) and self._sock is not None

    async def close(self, within_s: float = 0.0) -> None:
        """Close the connection, after at most `within_s` seconds for the commits that are due."""
        self.send()
        self._flush()
        ends = self._loop.time() + within_s
        while self._due_now and self._loop.time() < ends:  # noqa: ASYNC110 - once in a life
            await asyncio.sleep(POLL_S)
        self._closed = True
        for timer in (self._turn, self._due, self._again, self._overdue):
            if timer is not None:
                timer.cancel()
        self._part()
        for batch in self._kept:
            self._tell(batch, errno.ETIMEDOUT)
        if self._spool is not None:
            self._spool.close(empty=not self._kept)

    # The socket

    def _connect(self) -> None:
        self._again = None
        try:
            sock = self._make_connection()
        except OSError:
            self._part(AGAIN_S)
            return
        self._sock, self._in = sock, b""
        self._out = bytearray(FRAME.pack(audit.ORIGIN_BYTES, 0, 0) + self.origin.encode())
        self._loop.add_reader(sock, self._readable)
        self._sent = self._kept[0].first - 1 if self._kept else self._number
        self._tell_lost()
        self._flush()

    def _part(self, again_s: float = 0.0) -> None:
        """Close the socket, and try again after `again_s` seconds."""
        if (sock := self._sock) is not None:
            self._sock = None
            self._loop.remove_reader(sock)
            self._loop.remove_writer(sock)
            sock.close()
        if again_s and not self._closed and self._again is None:
            self._again = self._loop.call_later(again_s, self._connect)

    def _flush(self) -> None:
        self._due = None
        if self._sock is None:
            return
        unsent = deque(takewhile(lambda batch: batch.first > self._sent, reversed(self._kept)))
        while unsent:
            last = unsent.pop()
            chunks = [last.lines]
            size = last.size
            while unsent and size + unsent[-1].size <= FRAME_BYTES:
                last = unsent.pop()
                chunks.append(last.lines)
                size += last.size
            lines = b"\n".join(chunks)
            self._out += FRAME.pack(len(lines), last.last - self._sent, self._sent + 1) + lines
            self._sent = last.last
        self._write()

    def _write(self) -> None:
        sock = self._sock
        while self._out and sock is not None:
            try:
                sent = sock.send(self._out, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._loop.add_writer(sock, self._writable)
                return
            except OSError:
                self._part(AGAIN_S)
                return
            del self._out[:sent]

    def _writable(self) -> None:
        if self._sock is not None:
            self._loop.remove_writer(self._sock)
            self._write()

    def _readable(self) -> None:
        sock = self._sock
        if sock is None:
            return
        try:
            data = sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._part(AGAIN_S)
            return
        data = self._in + data
        complete_bytes = len(data) - len(data) % VERDICT.size
        self._in = data[complete_bytes:]
        for number, error in VERDICT.iter_unpack(data[:complete_bytes]):
            if not error:
                self._on_commit(number)
                continue
            # The writer reads nothing more here, so nothing later overtakes what was refused.
            self._release(error)
            self._part(RETRY_S)
            return

    # Verdicts

    def _on_commit(self, number: int) -> None:
        batches = self._kept
        while batches and batches[0].last <= number:
            batch = batches.popleft()
            self._kept_bytes -= batch.size
            self._safe = batch.last
            self._tell(batch, 0)
        self.down = 0
        if self._spool is not None:
            self._spools = self._spools or not batches
            self._spool.shorten(batch.lines for batch in batches)
        if self.lost:
            self._tell_lost()

    def _tell_lost(self) -> None:
        if self.lost and not self.full:
            lost, self.lost = self.lost, 0
            self.add(self._gap(self.number, lost), None, lost)

    def _release(self, error: int) -> None:
        """Let nobody wait any longer for records that cannot be written."""
        self.down = error
        for batch in list(self._kept):
            self._tell(batch, error)
        if not self.keeps:
            self.lost += sum(batch.weight for batch in self._kept)
            self._kept.clear()
            self._kept_bytes = 0
            self._sent = self._safe = self._number

    def _on_timeout(self, number: int) -> None:
        """Wait no longer for a writer that does not come."""
        self._overdue = None
        if self._spools:
            return
        if self._kept and self._kept[0].first <= number:
            self._release(errno.ETIMEDOUT)
        if self._kept:
            self._overdue = self._loop.call_later(WAIT_S_MAX, self._on_timeout, self._number)
