"""Connection of a process to the writer of the audit.

Owns: sending records in the order of their numbers, many in one write, keeping those that are not
committed, and sending them again to the next writer; telling who waits for them. Never: the content
of records, files.

A writer that is killed takes no answer along: a record is kept here until the writer has said that
it is committed, and the next writer skips what the one before had committed.
"""

import asyncio
import errno
import secrets
import socket
from collections import deque
from collections.abc import Callable
from itertools import islice

from metamcp_worker.ipc import audit
from metamcp_worker.ipc.audit import FRAME, VERDICT

AGAIN_S = 0.05
"""Seconds between two attempts to reach a writer, which is started again meanwhile."""
RETRY_S = 0.5
"""Seconds after which records are sent again that the writer could not write."""
POLL_S = 0.005
"""Seconds between two looks at what is due at the end."""
READ_BYTES = 4096
KEPT_MAX = 10_000
"""Maximum number of records that wait for their commit."""
KEPT_BYTES_MAX = 64 * 1024 * 1024
WAIT_S_MAX = 10.0
"""Seconds that a record waits for a writer that does not come; then its answer does not wait any
longer."""

Told = Callable[[int], None]
"""Called with 0 when a record is committed, else with the error number."""
Gap = Callable[[int, int], bytes]
"""Makes the body of the record about lost records, of its number and their number."""


class _Kept:
    __slots__ = ("body", "number", "told", "weight")

    def __init__(self, number: int, body: bytes, told: Told | None, weight: int) -> None:
        self.number = number
        self.body = body
        self.told = told
        self.weight = weight


class AuditLink:
    """Connection to the writer that listens at `path`. `keeps`: whether records that could not be
    written are kept and sent again, or are lost. `lost`: number of events without a record, for
    the next gap; `down`: error number while records cannot be written, else 0."""

    def __init__(self, path: str, gap: Gap, *, keeps: bool) -> None:
        self.origin = secrets.token_hex(audit.ORIGIN_BYTES // 2)
        self.lost = self.down = 0
        self.keeps = keeps
        self._path = path
        self._gap = gap
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._kept: deque[_Kept] = deque()
        self._kept_bytes = 0
        self._sent = 0
        """Number of the last record that this writer was sent."""
        self._out = bytearray()
        self._in = b""
        self._sock: socket.socket | None = None
        self._due: asyncio.Handle | None = None
        self._again: asyncio.TimerHandle | None = None
        self._overdue: asyncio.TimerHandle | None = None
        self._closed = False
        self._connect()

    @property
    def number(self) -> int:
        """Number of the next record."""
        return self._number + 1

    @property
    def full(self) -> bool:
        """Whether no further record is taken now."""
        return len(self._kept) >= KEPT_MAX or self._kept_bytes >= KEPT_BYTES_MAX

    def add(self, body: bytes, told: Told | None = None, weight: int = 1) -> None:
        """Send a record with the number `number`; records of one turn of the loop go together. The
        caller looks at `full` first. `weight`: events that are lost with this record."""
        self._number += 1
        self._kept.append(_Kept(self._number, body, told, weight))
        self._kept_bytes += len(body)
        if self._due is None and self._sock is not None:
            self._due = self._loop.call_soon(self._flush)
        if self._overdue is None:
            self._overdue = self._loop.call_later(WAIT_S_MAX, self._late, self._number)

    @property
    def _due_now(self) -> bool:
        return bool(self._kept) and self._sock is not None

    async def close(self, within_s: float = 0.0) -> None:
        """Close the connection, after at most `within_s` seconds for the commits that are due."""
        ends = self._loop.time() + within_s
        while self._due_now and self._loop.time() < ends:  # noqa: ASYNC110 - once in a life
            await asyncio.sleep(POLL_S)
        self._closed = True
        for timer in (self._due, self._again, self._overdue):
            if timer is not None:
                timer.cancel()
        self._part()

    # The socket

    def _connect(self) -> None:
        self._again = None
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.setblocking(False)
        try:
            sock.connect(self._path)
        except OSError:
            sock.close()
            self._part(AGAIN_S)
            return
        self._sock, self._in = sock, b""
        self._out = bytearray(FRAME.pack(audit.ORIGIN_BYTES, 0, 0) + self.origin.encode())
        self._loop.add_reader(sock, self._readable)
        self._sent = self._kept[0].number - 1 if self._kept else self._number
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
        if behind := self._number - self._sent:
            new = [one.body for one in islice(reversed(self._kept), behind)]
            new.reverse()
            body = b"\n".join(new)
            self._out += FRAME.pack(len(body), behind, self._sent + 1) + body
            self._sent = self._number
        self._send()

    def _send(self) -> None:
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
            self._send()

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
        whole = len(data) - len(data) % VERDICT.size
        self._in = data[whole:]
        for number, error in VERDICT.iter_unpack(data[:whole]):
            if not error:
                self._committed(number)
                continue
            # The writer reads nothing more here, so nothing later overtakes what was refused.
            self._release(error)
            self._part(RETRY_S)
            return

    # Verdicts

    def _committed(self, number: int) -> None:
        kept = self._kept
        while kept and kept[0].number <= number:
            one = kept.popleft()
            self._kept_bytes -= len(one.body)
            if one.told is not None:
                one.told(0)
        self.down = 0
        if self.lost:
            self._tell_lost()

    def _tell_lost(self) -> None:
        if self.lost and not self.full:
            lost, self.lost = self.lost, 0
            self.add(self._gap(self.number, lost), None, lost)

    def _release(self, error: int) -> None:
        """Let nobody wait any longer for records that cannot be written."""
        self.down = error
        for one in list(self._kept):
            if one.told is not None:
                told, one.told = one.told, None
                told(error)
        if not self.keeps:
            self.lost += sum(one.weight for one in self._kept)
            self._kept.clear()
            self._kept_bytes = 0
            self._sent = self._number

    def _late(self, number: int) -> None:
        """Wait no longer for a writer that does not come."""
        self._overdue = None
        if self._kept and self._kept[0].number <= number:
            self._release(errno.ETIMEDOUT)
        if self._kept:
            self._overdue = self._loop.call_later(WAIT_S_MAX, self._late, self._number)
