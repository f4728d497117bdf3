"""Segments of the audit: SQLite files of rows that are only added.

Owns: opening, filling and sealing a segment, its tables, its permissions, removing old segments,
the file for records while the disk is full. Never: the content of records (`ipc.audit_records`),
who sends them (`run`).

A segment is a UTC day, or `bytes_max`. The number of its first record is its name, and the segment
keeps the hash before that record. A sealed segment is one file that can only be read, and a later
record has its digest.

A program that fills the disk must not stop the audit, and so all calls. Therefore a file of
`RESERVE_BYTES` has its blocks from the start, and takes records that no segment has room for. The
writer changes it in place and never shortens it, so no other program gets a block of it. When there
is room again its records go to the chain, in their order; until then all later ones follow them
into the file.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import MsgspecError, Struct

from metamcp_worker.ipc import audit_records as audit
from metamcp_worker.ipc.audit_records import START

DAY_S = 86_400
ROW_BYTES = 56
"""Bytes of a row beside its body, roughly."""
BUSY_S_MAX = 0.2
"""Seconds for another process that reads a segment to let go of it."""
HASH_BYTES = 1024 * 1024
"""Bytes of a file that are hashed at once."""
RETURN_BYTES = 1024 * 1024
"""Bytes of records above which one commit of those that were kept back ends."""
_TABLES = """
CREATE TABLE IF NOT EXISTS start (seq INTEGER NOT NULL, hash BLOB NOT NULL, day INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS record (seq INTEGER PRIMARY KEY, body BLOB NOT NULL, hash BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS sender (origin TEXT PRIMARY KEY, number INTEGER NOT NULL) WITHOUT ROWID;
CREATE TRIGGER IF NOT EXISTS kept BEFORE UPDATE ON record
BEGIN SELECT RAISE(ABORT, 'records of the audit do not change'); END;
CREATE TRIGGER IF NOT EXISTS there BEFORE DELETE ON record
BEGIN SELECT RAISE(ABORT, 'records of the audit are not deleted'); END;
CREATE TRIGGER IF NOT EXISTS begun BEFORE UPDATE ON start
BEGIN SELECT RAISE(ABORT, 'the start of a segment does not change'); END;
CREATE TRIGGER IF NOT EXISTS begins BEFORE DELETE ON start
BEGIN SELECT RAISE(ABORT, 'the start of a segment is not deleted'); END;
"""


class AuditWriteError(Exception):
    """Records could not be written. `code`: number of the error."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class SegmentFacts(Struct, frozen=True):
    """Facts of a segment that ended, for its record. `first`, `last`: of its records."""

    name: str
    first: int
    last: int
    last_hash: str


class Segments:
    """Segments in `folder`; one segment is open. `durable`: whether a commit survives a loss of
    power. `seq`, `hash`: of the last record. Only one process at a time has them: it holds a
    lock."""

    def __init__(self, folder: Path, *, durable: bool, bytes_max: int) -> None:
        self.seq, self.hash = 0, START
        self.taken = False
        """Whether another process has the segments."""
        self.senders: dict[str, int] = {}
        """Number of the last record of each sender."""
        self._recent: set[str] = set()
        """Senders of the process before this one, which may not have connected to it yet."""
        self._reserve = _Reserve(folder / audit.RESERVE, durable=durable)
        self._folder = folder
        self._durable = durable
        self._bytes_max = bytes_max
        self._lock = -1
        self._base: sqlite3.Connection | None = None
        self._path = folder
        self._day = 0
        self._bytes = 0

    @property
    def name(self) -> str:
        return self._path.name

    def begin(self, day: int) -> None:
        """Open the newest segment, or the first one. Idempotent. Raises Unwritten."""
        if self._base is not None:
            return
        with _refusing():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._claim()
            names = self.names()
            if names:
                self._open(names[-1])
            else:
                self.keep_room()
                self._new(day)

    def names(self) -> list[str]:
        """Return the names of all segments, the oldest first."""
        return sorted(filter(audit.is_segment, os.listdir(self._folder)))

    def spools(self) -> list[Path]:
        """Return the spools that are there. Raises Unwritten."""
        folder = self._folder / audit.SPOOLS
        with _refusing():
            paths = folder.iterdir() if folder.is_dir() else ()
            return [path for path in paths if not path.name.startswith(".")]

    def due(self, day: int) -> bool:
        """Whether the next record begins another segment. A clock that goes back does not."""
        return self.seq > 0 and (day > self._day or self._bytes >= self._bytes_max)

    def keep_room(self) -> None:
        """Take room on the disk for records, if that is not done and there is enough."""
        if not self._reserve.is_open:
            self._reserve.open(self.senders)

    def head(self, origin: str) -> int:
        """Return the number of the last record of a sender, 0 if there is none."""
        return self._reserve.heads.get(origin) or self.senders.get(origin, 0)

    @property
    def keeps_back(self) -> bool:
        """Whether there are records that no segment had room for."""
        return self._reserve.has_records

    def add(self, bodies: Sequence[bytes], senders: Mapping[str, int]) -> None:
        """Commit these records, and the number of the last record of their senders; keep them back
        while the disk is full. Raises Unwritten; then nothing has changed."""
        try:
            if self.keeps_back:
                raise AuditWriteError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._commit(bodies, senders)
        except AuditWriteError as error:
            full = error.code == errno.ENOSPC or self._base is None
            if not full or not self._reserve.add(bodies, senders):
                raise

    def add_kept_back(self, day: int) -> None:
        """Commit the records that were kept back, if there are any. Raises Unwritten; then some of
        them may be committed."""
        with _refusing():
            while lines := self._reserve.next(RETURN_BYTES):
                self.begin(day)
                self._commit(lines, {of.origin: of.n for of in map(audit.read, lines)})
                self._reserve.mark_committed(lines)

    def _commit(self, bodies: Sequence[bytes], senders: Mapping[str, int]) -> None:
        base = self._base
        if base is None:
            raise AuditWriteError(errno.EIO, "no segment is open")
        rows = list(audit.iter_chain_rows(self.hash, self.seq, bodies))
        try:
            with _refusing():
                base.execute("BEGIN IMMEDIATE")
                base.executemany(
                    "INSERT INTO record VALUES (?, ?, ?)",
                    [(row.seq, row.body, row.hash) for row in rows],
                )
                base.executemany("REPLACE INTO sender VALUES (?, ?)", senders.items())
                base.execute("COMMIT")
        except AuditWriteError:
            with contextlib.suppress(sqlite3.Error):
                base.execute("ROLLBACK")
            raise
        if rows:
            self.seq, self.hash = rows[-1].seq, rows[-1].hash
        self.senders |= senders
        self._bytes += sum(len(body) + ROW_BYTES for body in bodies)

    def turn(self, day: int, living: Iterable[str]) -> Path | None:
        """Seal the open segment and begin the next one; return the path of the sealed one, None if
        somebody reads it. `living`: senders whose numbers still count. Raises Unwritten."""
        alive = self._recent | set(living)
        with _refusing():
            sealed = self._path if self._seal() else None
            self.senders = {sender: n for sender, n in self.senders.items() if sender in alive}
            self._recent = set()
            self._new(day)
        return sealed

    def remove(self, before: float) -> SegmentFacts | None:
        """Remove the oldest segment, if it is sealed and was last written before this moment, in
        seconds since the epoch; return what it had. Raises Unwritten."""
        with _refusing():
            oldest, *later = self.names()
            path = self._folder / oldest
            if not later or oldest == self.name or path.stat().st_mtime >= before:
                return None
            base = sqlite3.connect(f"file:{_quote_path(later[0], self._folder)}?mode=ro", uri=True)
            try:
                last, digest = base.execute("SELECT seq, hash FROM start").fetchone()
            finally:
                base.close()
            first = int(oldest.removesuffix(audit.SUFFIX))
            path.unlink()
            return SegmentFacts(oldest, first, last, bytes(digest).hex())

    def close(self) -> None:
        if self._base is not None:
            with contextlib.suppress(sqlite3.Error):
                self._base.close()  # the log of the database goes into the file
            self._base = None
        self._reserve.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _claim(self) -> None:
        if self._lock < 0:
            lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                self.taken = True
                os.close(lock)
                raise
            self.taken = False
            self._lock = lock

    def _connect(self, path: Path) -> sqlite3.Connection:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        base = sqlite3.connect(path, timeout=BUSY_S_MAX, isolation_level=None)
        base.execute("PRAGMA journal_mode = WAL")
        base.execute(f"PRAGMA synchronous = {'FULL' if self._durable else 'NORMAL'}")
        base.executescript(_TABLES)
        return base

    def _open(self, name: str) -> None:
        path = self._folder / name
        if not os.stat(path).st_mode & 0o200:  # sealed, and the next one was not begun
            base = sqlite3.connect(f"file:{_quote_path(name, self._folder)}?mode=ro", uri=True)
            self.seq, self.hash, day = _last(base, name)
            self._know(base)
            base.close()
            self._new(day)
            return
        base = self._connect(path)
        if base.execute("SELECT count(*) FROM start").fetchone() == (0,):  # died while creating it
            base.close()
            path.unlink()
            self.begin(0)
            return
        self.seq, self.hash, self._day = _last(base, name)
        self._know(base)
        self._base, self._path, self._bytes = base, path, path.stat().st_size

    def _know(self, base: sqlite3.Connection) -> None:
        """Take over the senders of a segment."""
        self.senders = dict(base.execute("SELECT origin, number FROM sender"))
        self._recent = set(self.senders)
        self.keep_room()

    def _new(self, day: int) -> None:
        path = self._folder / audit.segment_name(self.seq + 1)
        base = self._connect(path)
        base.execute("BEGIN IMMEDIATE")
        base.execute("INSERT INTO start VALUES (?, ?, ?)", (self.seq, self.hash, day))
        base.executemany("REPLACE INTO sender VALUES (?, ?)", self.senders.items())
        base.execute("COMMIT")
        self._base, self._path, self._day, self._bytes = base, path, day, 0

    def _seal(self) -> bool:
        """Close the open segment; return whether it is one file that can only be read."""
        if self._base is not None:
            base, self._base = self._base, None
            try:
                base.execute("PRAGMA journal_mode = DELETE")
                os.chmod(self._path, 0o400)
                return True
            except sqlite3.OperationalError:  # somebody reads it: the chain holds it all the same
                return False
            finally:
                base.close()
        return False


class _Reserve:
    """File of `RESERVE_BYTES` with records, one a line, and zeros behind them. The records from
    `_first` to `_end` are in no segment. `heads`: numbers of the last of them, by sender."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        self._path = path
        self._durable = durable
        self._fd = -1
        self._first = self._end = 0
        self.heads: dict[str, int] = {}

    @property
    def is_open(self) -> bool:
        return self._fd >= 0

    @property
    def has_records(self) -> bool:
        return self._first < self._end

    def open(self, committed: Mapping[str, int]) -> None:
        """Take the blocks of the disk, if there is room for all, and read what an earlier process
        kept back. `committed`: numbers of the last records in the segments."""
        if not hasattr(os, "posix_fallocate"):  # macOS
            return
        how = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            self._fd = os.open(self._path, how, 0o600)
            try:
                os.posix_fallocate(self._fd, 0, audit.RESERVE_BYTES)
            except OSError:
                if not os.fstat(self._fd).st_size:
                    raise
        except OSError:
            self.close()
            return
        self._first = self._end = 0
        for line in os.pread(self._fd, audit.RESERVE_BYTES, 0).split(b"\n")[:-1]:
            try:
                record = audit.read(line)
            except MsgspecError:  # written when the power failed
                return
            self._end += len(line) + 1
            if record.n <= committed.get(record.origin, 0):
                self._first = self._end
            else:
                self.heads[record.origin] = record.n

    def add(self, bodies: Sequence[bytes], senders: Mapping[str, int]) -> bool:
        """Return whether these records are in the file now."""
        lines = b"".join(b"%b\n" % body for body in bodies)
        if not self.is_open or self._end + len(lines) > audit.RESERVE_BYTES:
            return False
        try:
            if os.pwrite(self._fd, lines, self._end) < len(lines):
                return False
            if self._durable:
                os.fdatasync(self._fd)
        except OSError:
            return False
        self._end += len(lines)
        self.heads |= senders
        return True

    def next(self, bytes_max: int) -> list[bytes]:
        """Return the first records that are in no segment, of `bytes_max` together or a single
        one. Raises OSError."""
        if not self.has_records:
            return []
        size = self._end - self._first
        lines = os.pread(self._fd, min(size, bytes_max), self._first).split(b"\n")[:-1]
        return lines or os.pread(self._fd, size, self._first).split(b"\n")[:1]

    def mark_committed(self, lines: Sequence[bytes]) -> None:
        """Note that the first records are in a segment now. Raises OSError."""
        self._first += sum(len(line) + 1 for line in lines)
        if not self.has_records:
            os.pwrite(self._fd, bytes(self._end), 0)
            self._first = self._end = 0
            self.heads.clear()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def digest(path: Path) -> str:
    """Return the SHA-256 of a file. Raises OSError."""
    sha256 = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(HASH_BYTES):
            sha256.update(chunk)
    return sha256.hexdigest()


def _last(base: sqlite3.Connection, name: str) -> tuple[int, bytes, int]:
    """Return sequence number, hash and day of the last record."""
    seq, start_hash, day = base.execute("SELECT seq, hash, day FROM start").fetchone()
    last = base.execute("SELECT seq, hash FROM record ORDER BY seq DESC LIMIT 1").fetchone()
    return (seq, bytes(start_hash), day) if last is None else (last[0], bytes(last[1]), day)


def _quote_path(name: str, folder: Path) -> str:
    from urllib.parse import quote

    return quote(str(folder / name))


class _refusing(contextlib.AbstractContextManager[None]):  # noqa: N801 - reads as a statement
    """Turns errors of the disk and of SQLite into Unwritten."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, sqlite3.Error):
            full = getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_FULL
            raise AuditWriteError(errno.ENOSPC if full else errno.EIO, str(error)) from None
        if isinstance(error, OSError):
            raise AuditWriteError(error.errno or errno.EIO, error.strerror or str(error)) from None
