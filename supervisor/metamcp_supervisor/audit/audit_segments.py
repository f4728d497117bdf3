"""Segments of the audit as they are on disk: records that fit, one record, proof of the chain.

Owns: reading segments, which records fit a question, checking the chain over all segments. Never:
writing records (`metamcp_worker.audit`), the hash of a record (`metamcp_worker.ipc.audit_records`).
"""

import os
import re
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from msgspec import MsgspecError, Struct

from metamcp_supervisor.store import database
from metamcp_worker.ipc import audit_records as records
from metamcp_worker.ipc import process_names
from metamcp_worker.ipc.audit_records import START, AuditRecord, ChainBreak, ChainRow
from metamcp_worker.ipc.disclosure import is_named
from metamcp_worker.ipc.errors import MetaMCPError

ALL = 1 << 60
"""Number of records that no audit has."""
ROW_BYTES = 256
"""Bytes that a record has as JSON beside its body: number and two hashes."""
CHECKPOINT = re.compile("([1-9][0-9]{0,17}):([0-9a-f]{64})")
CHECKPOINT_FORM = "a checkpoint from the log is written like SEQ:HASH, 64 hex digits"
_ROWS = "SELECT seq, body, hash FROM record ORDER BY seq"


class AuditUnread(MetaMCPError):
    """Raised for segments that cannot be read. The text is a sentence."""


class AuditDenied(AuditUnread):
    """Raised if the folder of the segments may not be read. The text is a sentence."""


class AuditMissing(AuditUnread, LookupError):
    """Raised for an audit or a record that does not exist. The text is a sentence."""


class Segment(Struct, frozen=True):
    """Segment as it begins. `before`, `hash`: the last record before it, and the hash of that."""

    path: Path
    before: int
    hash: bytes


class ChainCheckResult(Struct, frozen=True):
    """Outcome of `verify`. `broken`: the first place where the chain does not hold."""

    records: int
    segments: int
    first: int
    last: int
    last_hash: str
    broken: ChainBreak | None = None


class AuditFilter(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Filter of records; what is empty does not count. `since`, `until`: seconds since the epoch;
    `server`: of a call, or the subject of an event of the gateway; `tool`: as the server or as
    clients name it; `limit`: number of the newest records that are wanted."""

    since: float = 0.0
    until: float = 0.0
    workspace: str = ""
    server: str = ""
    tool: str = ""
    event: str = ""
    outcome: str = ""
    limit: int = 50


class AuditQuestion(AuditFilter, frozen=True, kw_only=True):
    """Question for records. `keys`: ids of API keys and names of principals, one of which a record
    has; any if empty."""

    keys: tuple[str, ...] = ()

    def fits(self, record: AuditRecord) -> bool:
        """Whether a record is wanted."""
        principal = record.principal
        return (
            record.ts >= self.since * 1e9
            and (not self.until or record.ts <= self.until * 1e9)
            and self.workspace in {"", record.workspace}
            and (
                not self.keys
                or not {record.key, principal, principal.removeprefix("key:")}.isdisjoint(self.keys)
            )
            and self.event in {"", record.event}
            and self.server in {"", record.server, _subject(record)}
            and (
                self.tool in {"", record.tool}
                or is_named(self.tool, record.server, record.tool, record.exposed)
            )
            and self.outcome in {"", record.outcome}
        )


def _subject(record: AuditRecord) -> str:
    """Return the server that an event of the gateway is about; empty for other records."""
    return process_names.base(record.who) if record.event == "gateway" else ""


class StoredRecord(Struct, frozen=True):
    """Record as it is on disk. `before`: hash of the record before it."""

    row: ChainRow
    before: bytes
    record: AuditRecord

    def to_export_record(self) -> dict[str, object]:
        return records.to_export_record(self.row, self.before.hex())


class AuditFound(Struct, frozen=True):
    """Records that are wanted, the newest last. `searched`: number of the newest records that were
    looked at; `whole`: whether these were all."""

    records: Sequence[StoredRecord]
    searched: int
    whole: bool


def every(folder: Path) -> Iterator[StoredRecord]:
    """Yield all records, the oldest first. Raises AuditUnread."""
    for path in segments(folder):
        before = START
        with _read(path):
            for row in rows(path):
                if isinstance(row, ChainRow):
                    yield StoredRecord(row, before, records.read(row.body))
                before = row.hash


def find_records(folder: Path, question: AuditQuestion, most: int = ALL) -> AuditFound:
    """Return the newest records that are wanted. `most`: how many are searched at most. Raises
    AuditUnread."""
    matches: list[StoredRecord] = []
    searched = 0
    for stored in _newest(folder):
        if len(matches) >= question.limit or searched >= most:
            return AuditFound(matches[::-1], searched, whole=False)
        searched += 1
        if question.fits(stored.record):
            matches.append(stored)
    return AuditFound(matches[::-1], searched, whole=True)


def _newest(folder: Path) -> Iterator[StoredRecord]:
    """Yield all records, the newest first. Raises AuditUnread."""
    for path in reversed(segments(folder)):
        with _read(path), closing(database.read_only(path)) as base:
            ((digest,),) = base.execute("SELECT hash FROM start")
            newer: ChainRow | None = None
            for seq, body, hashed in base.execute(f"{_ROWS} DESC"):
                row = ChainRow(int(seq), bytes(body), bytes(hashed))
                if newer is not None:
                    yield StoredRecord(newer, row.hash, records.read(newer.body))
                newer = row
            if newer is not None:
                yield StoredRecord(newer, bytes(digest), records.read(newer.body))


@contextmanager
def _read(path: Path) -> Generator[None]:
    """Raise AuditUnread for a segment that is broken."""
    from sqlite3 import Error  # a gateway that nobody asks for its audit never loads it

    try:
        yield
    except (Error, TypeError, ValueError, MsgspecError) as error:
        problem = f"{path} is broken: {error}; 'metamcp audit verify' says where"
        raise AuditUnread(problem) from None


def page(folder: Path, after: int, bytes_max: int) -> tuple[list[dict[str, object]], bool]:
    """Return the next records behind the number `after` whose bodies have `bytes_max` bytes
    together at most, but one at least, and whether more follow. Raises AuditUnread."""
    documents: list[dict[str, object]] = []
    size = 0
    paths = segments(folder)
    first = [int(path.name.removesuffix(records.SUFFIX)) for path in paths]
    begin = max(0, bisect_right(first, after + 1) - 1)
    for path in paths[begin:]:
        before = START
        with _read(path):
            for row in rows(path):
                if isinstance(row, ChainRow) and row.seq > after:
                    size += len(row.body) + ROW_BYTES
                    if documents and size > bytes_max:
                        return documents, True
                    documents.append(records.to_export_record(row, before.hex()))
                before = row.hash
    return documents, False


def one(folder: Path, seq: int) -> StoredRecord:
    """Return the record with this number. Raises AuditUnread."""
    for stored in every(folder):
        if stored.row.seq == seq:
            return stored
    raise AuditMissing(f"the audit has no record {seq}")


def segments(folder: Path) -> list[Path]:
    """Return the segments, the oldest first. Raises AuditUnread."""
    try:
        names = sorted(filter(records.is_segment, os.listdir(folder)))
    except FileNotFoundError:
        names = []
    except OSError as error:
        problem = f"the audit cannot be read: {folder}: {error.strerror}"
        raise AuditDenied(problem) from None
    if not names:
        problem = f"no audit is in {folder}; a table [audit] in the configuration begins one"
        raise AuditMissing(problem)
    return [folder / name for name in names]


def rows(path: Path) -> Iterator[Segment | ChainRow]:
    """Yield the beginning of a segment, then its rows. Raises sqlite3.Error and TypeError for a
    file that is broken."""
    with closing(database.read_only(path)) as base:
        seq, digest = base.execute("SELECT seq, hash FROM start").fetchone()
        yield Segment(path, int(seq), bytes(digest))
        for row in base.execute(_ROWS):
            yield ChainRow(int(row[0]), bytes(row[1]), bytes(row[2]))


def proof(
    folder: Path, expect: str = "", checked: Callable[[int, int], None] = lambda done, total: None
) -> ChainCheckResult:
    """Check everything that is there. `checked`: gets the bytes that are checked, and all. Raises
    AuditUnread."""
    paths = segments(folder)
    sizes = [path.stat().st_size for path in paths]
    check = _Check(expect, lambda done: checked(done, sum(sizes)))
    for at, path in enumerate(paths):
        broken = check.segment(path)
        if broken is not None:
            break
        check.done = sum(sizes[: at + 1])  # more than its records
    else:
        broken = check.rest(paths)
    return ChainCheckResult(
        check.count, len(paths), check.first, check.seq, check.hash.hex(), broken
    )


class _Check:
    """Check of a chain, segment by segment. `seq`, `hash`: of the last record that holds."""

    def __init__(self, expect: str, checked: Callable[[int], None]) -> None:
        self._checked = checked
        self.done = 0
        self.count = self.first = self.seq = 0
        self.hash = START
        seq, _, self._expected_hash = expect.partition(":")
        self._expected = int(seq or 0)
        self._seen = not expect
        self._begins: Segment | None = None
        self._sealed: dict[str, tuple[int, str]] = {}
        self._removed: set[tuple[int, str]] = set()

    def segment(self, path: Path) -> ChainBreak | None:
        """Check one segment behind those before it."""
        from sqlite3 import Error

        try:
            row_iterator = rows(path)
            begins = next(row_iterator)
            assert isinstance(begins, Segment)
            if self._begins is None:
                self._begins, self.seq, self.hash = begins, begins.before, begins.hash
                self.first = self.seq + 1
            if (begins.before, begins.hash) != (self.seq, self.hash):
                return ChainBreak(
                    self.seq + 1, f"{path.name} does not begin where the one before ends"
                )
            for row in row_iterator:
                assert isinstance(row, ChainRow)
                broken = records.check(self.hash, self.seq, [row])
                if broken is not None:
                    return broken
                self.seq, self.hash = row.seq, row.hash
                self._learn(row)
        except (Error, TypeError, ValueError, MsgspecError) as error:
            position = f" behind record {self.seq}" if self.seq else ""
            return ChainBreak(self.seq + 1, f"{path.name} cannot be read{position}: {error}")
        return None

    def rest(self, paths: list[Path]) -> ChainBreak | None:
        """Check the files of sealed segments, the segments that are gone, and the checkpoint."""
        for path in paths:
            seq, digest = self._sealed.get(path.name, (0, ""))
            if digest and _digest(path) != digest:
                return ChainBreak(seq, f"{path.name} is not as it was sealed")
        begins = self._begins
        if begins is not None and begins.before:
            if (begins.before, begins.hash.hex()) not in self._removed:
                return ChainBreak(
                    1, f"records before {begins.before + 1} are missing, and no record says why"
                )
        elif begins is not None and begins.hash != START:
            return ChainBreak(1, "the beginning was changed")
        if not self._seen:
            return ChainBreak(self._expected, "the checkpoint is not in the chain")
        return None

    def _learn(self, row: ChainRow) -> None:
        self.count += 1
        self.done += len(row.body)
        self._checked(self.done)
        if row.seq == self._expected and row.hash.hex() == self._expected_hash:
            self._seen = True
        if b'"worker":"audit"' in row.body:
            record = records.read(row.body)
            if record.event == "sealed":
                self._sealed[record.segment] = record.first, record.digest
            elif record.event == "removed":
                self._removed.add((record.last, record.last_hash))


def _digest(path: Path) -> str:
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
