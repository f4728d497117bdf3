"""Process of the audit: it commits the records of all other processes, many at once.

Owns: their connections, reading their frames, what goes into one commit, notifying them, segments
that end, checkpoints in the log, old segments. Never: the content of records, the files themselves
(`segments`).

A record is committed before its sender hears of it, so an answer that waited for that has a record,
whatever process is killed. A sender whose records could not be written is notified, and cut:
nothing that it sent later overtakes them.
"""

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import socket
import time
from collections import Counter
from pathlib import Path

from msgspec import MsgspecError

from metamcp_worker.audit.segments import DAY_S, AuditWriteError, SegmentFacts, Segments, digest
from metamcp_worker.ipc import audit_records as audit
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.audit_records import (
    FRAME,
    FRAME_BYTES_MAX,
    ORIGIN_BYTES,
    ROLE,
    VERDICT,
    AuditFigures,
    AuditOn,
    AuditRecord,
)
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.messages import Stop, Tune
from metamcp_worker.runtime import loop
from metamcp_worker.runtime.role_worker import RoleWorker

READ_BYTES = 256 * 1024
GROUP_MAX = 512
"""Maximum number of records in one commit; a larger frame has a commit of its own."""
SENDERS_MAX = 64
"""Maximum connections: one for each front, one for the supervisor, and those of their heirs."""
CHECKPOINT_RECORDS = 1000
CHECKPOINT_S = 60.0
"""Records and seconds after which the log gets the last number and hash."""
SWEEP_S = 60.0
"""Seconds between two searches for segments that are too old."""
TAKEN_S = 0.05
"""Seconds between two attempts to get the lock of the segments."""
_GAP = b'"event":"gap"'

log = logging.getLogger("metamcp.audit")
_read = codec.reader(AuditOn | Tune | Stop)


def main(sock: socket.socket) -> int:
    """Run this process and return its exit code. `sock`: the control socket to the supervisor."""
    return loop.run(_live(sock))


async def _live(sock: socket.socket) -> int:
    return await AuditWorker(sock).run()


class _Sender:
    """Connection of a process. `frames`: number of the first record, and the records, of each frame
    that is not committed."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.origin = ""
        self.data = bytearray()
        self.frames: list[tuple[int, list[bytes]]] = []

    def feed(self, data: bytes) -> bool:
        """Take bytes in; return False if they make no sense."""
        self.data += data
        while len(self.data) >= FRAME.size:
            size, count, first = FRAME.unpack_from(self.data)
            if size > FRAME_BYTES_MAX:
                return False
            if len(self.data) < FRAME.size + size:
                break
            body = bytes(self.data[FRAME.size : FRAME.size + size])
            del self.data[: FRAME.size + size]
            if not self.origin:
                if size != ORIGIN_BYTES or count:
                    return False
                self.origin = body.decode("ascii", "replace")
                continue
            records = body.split(b"\n")
            if len(records) != count or not count:
                return False
            self.frames.append((first, records))
        return True


class AuditWorker(RoleWorker):
    what = "the audit"
    log = log
    links_max = SENDERS_MAX

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, _read)
        self._segments: Segments | None = None
        self._spec: AuditOn | None = None
        self._senders: dict[int, _Sender] = {}
        self._due: asyncio.Handle | None = None
        self._own = 0
        self._origin = ""
        self._counts: Counter[str] = Counter()
        self._marked = 0
        self._said = ""

    async def end(self) -> None:
        self._commit()
        self._checkpoint()
        await super().end()
        for fd in list(self._senders):
            self._drop(fd)
        if self._segments is not None:
            self._segments.close()

    def take(self, message: Message, fds: list[int]) -> None:
        if isinstance(message, AuditOn):
            self._begin(message, socket.socket(fileno=packets.take_fd(fds)))

    def _begin(self, spec: AuditOn, acceptor: socket.socket) -> None:
        self._spec = spec
        self._segments = Segments(
            Path(spec.folder), durable=spec.durable, bytes_max=spec.segment_bytes
        )
        self._origin = os.urandom(ORIGIN_BYTES // 2).hex()
        self._chores.begin(self._serve(acceptor))

    async def _serve(self, acceptor: socket.socket) -> None:
        assert self._segments is not None
        # A writer that is about to end may have the lock.
        while not self._open() and self._segments.taken:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(TAKEN_S)
        self._gather()
        self.accept(acceptor)
        await self._sweep()

    def _open(self) -> bool:
        """Open the newest segment, unless it is open; return whether it is."""
        assert self._segments is not None
        try:
            self._segments.begin(_today())
        except AuditWriteError as error:
            self._fails(error)
            return False
        return True

    # Senders

    @property
    def links(self) -> int:
        return len(self._senders)

    def on_connection(self, sock: socket.socket) -> None:
        self._senders[sock.fileno()] = _Sender(sock)
        self._loop.add_reader(sock, self._readable, sock.fileno())

    def _readable(self, fd: int) -> None:
        sender = self._senders[fd]
        try:
            data = sender.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data or not sender.feed(data):
            if sender.frames:
                self._commit()
            self._drop(fd)
        elif sender.frames and self._due is None:
            # What other senders have sent is read in this turn too.
            self._due = self._loop.call_soon(self._commit)

    def _drop(self, fd: int) -> None:
        sender = self._senders.pop(fd, None)
        if sender is not None:
            self._loop.remove_reader(fd)
            sender.sock.close()

    # Commits

    def _commit(self) -> None:
        """Commit everything that has come, and tell the senders."""
        self._due = None
        while waiting := [sender for sender in self._senders.values() if sender.frames]:
            taken: list[tuple[_Sender, int]] = []
            bodies: list[bytes] = []
            heads: dict[str, int] = {}
            for sender in waiting:
                while sender.frames and (not bodies or len(bodies) < GROUP_MAX):
                    first, records = sender.frames.pop(0)
                    head = self._head(sender.origin, heads)
                    bodies += records[max(0, head + 1 - first) :]
                    last = first + len(records) - 1
                    heads[sender.origin] = max(head, last)
                    taken.append((sender, last))
            self._commit_records(taken, bodies, heads)

    def _head(self, origin: str, heads: dict[str, int]) -> int:
        assert self._segments is not None
        return heads.get(origin) or self._segments.head(origin)

    def _commit_records(
        self, taken: list[tuple[_Sender, int]], bodies: list[bytes], heads: dict[str, int]
    ) -> None:
        assert self._segments is not None
        code = 0
        try:
            self._ready()
            self._segments.add(bodies, heads)
        except AuditWriteError as error:
            self._fails(error)
            self._counts["refused"] += len(bodies)
            code = error.code
        else:
            self._counts["records"] += len(bodies)
            for body in bodies:
                if _GAP in body[:200]:
                    self._counts["lost"] += audit.read(body).count
            if self._segments.keeps_back:
                self._says_full()
            elif self._said:
                self._said = ""
                log.warning("records of the audit are written again")
            if self._segments.seq - self._marked >= CHECKPOINT_RECORDS:
                self._checkpoint()
        for sender, last in dict(taken).items():
            self._tell(sender, last, code)

    def _tell(self, sender: _Sender, last: int, error: int) -> None:
        try:
            sender.sock.send(VERDICT.pack(last, error), socket.MSG_NOSIGNAL)
        except OSError:  # it is gone, or reads nothing: it asks again with its next connection
            error = error or 1
        if error:
            sender.frames.clear()
            self._drop(sender.sock.fileno())

    def _ready(self) -> None:
        """Open a segment, or begin the next one if it is time. Raises Unwritten unless the disk is
        full: then the next records are kept back."""
        assert self._segments is not None
        if self._segments.keeps_back:
            return
        try:
            self._segments.begin(_today())
            if self._segments.due(_today()):
                self._turn()
        except AuditWriteError as error:
            if error.code != errno.ENOSPC:
                raise

    def _fails(self, error: AuditWriteError) -> None:
        if str(error) != self._said:
            self._said = str(error)
            log.error("records of the audit cannot be written: %s", error)

    def _says_full(self) -> None:
        if not self._said:
            self._said = os.strerror(errno.ENOSPC)
            size = audit.RESERVE_BYTES // 1024 // 1024
            log.error("the disk is full: the audit goes on in the %d MiB that it keeps back", size)

    def _bring_back(self) -> None:
        """Commit what was kept back, as soon as there is room."""
        assert self._segments is not None
        with contextlib.suppress(AuditWriteError):  # tried again with the next beat
            self._segments.add_kept_back(_today())

    # Spools of the dead

    def _gather(self) -> None:
        """Take over what processes that were killed have left in their spools."""
        assert self._segments is not None
        try:
            for path in self._segments.spools():
                self._take(path)
        except AuditWriteError as error:
            self._fails(error)
        except OSError as error:
            log.error("a spool of the audit cannot be read: %s", error)

    def _take(self, path: Path) -> None:
        """Commit the spool of a process, unless the process lives. Raises Unwritten, OSError."""
        assert self._segments is not None
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return
            if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return  # its process lives, and has put a new file in its place
            head, bodies = self._segments.head(path.name), list[bytes]()
            for line in file:
                number = _number(line)
                if number > head:
                    bodies.append(line[:-1])
                    head = number
            for at in range(0, len(bodies), GROUP_MAX):
                group = bodies[at : at + GROUP_MAX]
                self._segments.add(group, {path.name: _number(group[-1] + b"\n")})
                self._counts["records"] += len(group)
            path.unlink()
            path.with_name(f".{path.name}").unlink(missing_ok=True)

    # Segments

    def _turn(self) -> None:
        """Begin the next segment. Raises Unwritten."""
        assert self._segments is not None
        living = {sender.origin for sender in self._senders.values()}
        living |= {path.name for path in self._segments.spools()}
        name = self._segments.name
        path = self._segments.turn(_today(), living)
        self._checkpoint()
        if path is not None:
            first = int(name.removesuffix(audit.SUFFIX))
            last = self._segments.seq, self._segments.hash.hex()
            self._chores.begin(self._seal(path, SegmentFacts(name, first, *last)))

    async def _seal(self, path: Path, facts: SegmentFacts) -> None:
        """Record the digest of a sealed segment, which takes a part of a second."""
        try:
            segment_digest = await asyncio.to_thread(digest, path)
        except OSError as error:
            log.error("%s cannot be read: %s", path, error)
            return
        self._note("sealed", facts, segment_digest)

    async def _sweep(self) -> None:
        assert self._segments is not None
        while True:
            await asyncio.sleep(SWEEP_S)
            self._checkpoint()
            self._segments.keep_room()
            self._remove()

    def _remove(self) -> None:
        """Remove segments that are too old; each leaves a record."""
        assert self._segments is not None
        assert self._spec is not None
        try:
            while self._open() and (
                segment := self._segments.remove(time.time() - self._spec.retention_s)
            ):
                self._note("removed", segment)
        except AuditWriteError as error:
            self._fails(error)

    def _note(self, event: str, segment: SegmentFacts, digest: str = "") -> None:
        """Record what was done to a segment."""
        assert self._segments is not None
        self._own += 1
        made = AuditRecord(
            ts=time.time_ns(), n=self._own, origin=self._origin, worker=ROLE, event=event,
            segment=segment.name, first=segment.first, last=segment.last,
            last_hash=segment.last_hash, count=segment.last - segment.first + 1, digest=digest,
        )  # fmt: skip
        try:
            self._segments.add([audit.encoded(made)], {})
        except AuditWriteError as error:
            self._fails(error)

    def _checkpoint(self) -> None:
        segments = self._segments
        if segments is not None and segments.seq != self._marked:
            self._marked = segments.seq
            log.info(
                "audit checkpoint: record %d has the hash %s", segments.seq, segments.hash.hex()
            )

    # News

    def on_heartbeat(self) -> None:
        if self.accepts:
            self._bring_back()
            self._gather()

    def figures(self) -> AuditFigures:
        return AuditFigures(counts=dict(self._counts))


def _number(line: bytes) -> int:
    """Return the number of the record in a line; 0 if the line is not whole."""
    try:
        return audit.read(line).n if line.endswith(b"\n") else 0
    except MsgspecError:
        return 0


def _today() -> int:
    return int(time.time()) // DAY_S
