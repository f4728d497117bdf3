"""Journal of workflow runs: the interface of executors, and the one that is built in, an SQLite
database that only one engine has at a time.

Owns: tables, transactions and their durability, the lock against a second engine, the age of ended
runs. Never: what a step does and when (`workflow_run_io`), secrets: callers give none, PostgreSQL
(`dbos_executor`).

A thread of its own writes and reads. Rows that are posted while a transaction is under way go into
the next one, so that many steps share one flush to the disk. The order of posts is kept.
"""

import asyncio
import fcntl
import os
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, TypeVarTuple

from msgspec import json

from metamcp_worker.engine.workflow_run import OPEN, RunRecord, StepRecord
from metamcp_worker.ipc.engine_runs import RunOwner
from metamcp_worker.ipc.errors import MetaMCPError

VERSION = 1
"""Number of the layout, in `user_version`."""
ENDED_MAX = 100_000
"""Maximum ended runs that are kept; the oldest go first."""
LOCK_STEP_S = 0.1
"""Seconds between two attempts at the lock of an engine that is being replaced."""

T = TypeVar("T")
Values = TypeVarTuple("Values")
Sync: TypeAlias = Literal["full", "normal"]
Write: TypeAlias = tuple[str, Sequence[object]]
ALL = 1 << 40
"""Limit of a query that is to return all rows."""
_LAYOUT = """
CREATE TABLE IF NOT EXISTS definitions (hash TEXT PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS runs (
  id TEXT PRIMARY KEY, workspace TEXT NOT NULL, principal TEXT NOT NULL, auth TEXT NOT NULL,
  name TEXT NOT NULL, hash TEXT NOT NULL, owner BLOB NOT NULL, inputs BLOB NOT NULL,
  status TEXT NOT NULL, step TEXT NOT NULL, error TEXT NOT NULL, output BLOB NOT NULL,
  created REAL NOT NULL, ended REAL NOT NULL);
CREATE INDEX IF NOT EXISTS runs_created ON runs (created);
CREATE INDEX IF NOT EXISTS runs_ended ON runs (ended);
CREATE TABLE IF NOT EXISTS steps (
  run TEXT NOT NULL, path TEXT NOT NULL, attempt INTEGER NOT NULL, status TEXT NOT NULL,
  key TEXT NOT NULL, output BLOB NOT NULL, error TEXT NOT NULL, PRIMARY KEY (run, path));
"""
_RUN = "id, name, hash, owner, inputs, status, step, error, created, ended"
_END_STEPS = (
    "UPDATE steps SET status = 'cancelled' WHERE run = ?"
    " AND status IN ('running', 'waiting', 'needs_decision', 'needs_answer')"
)


class JournalError(MetaMCPError):
    """Raised if the journal cannot be read or written. The text is a sentence."""


class Runs(Protocol):
    """Runs under way in this engine, as an executor of many machines sees them."""

    def has(self, run: str) -> bool:
        """Whether this engine carries out the run, which has not ended."""
        ...

    async def take(self, run: str) -> None:
        """Go on with a run after its last step, and return when it has ended. Raises an error, with
        which this process ends, if the run cannot be carried out."""
        ...

    async def obey(self, run: str, step: str, decision: str | None) -> None:
        """Give a decision, or the text of an answer, to a step of a run of this engine, or cancel
        the run without one. The decision is posted before anything is awaited."""
        ...


class Executor:
    """Interface of what keeps runs and says which of them this engine carries out: `RunJournal`
    for one engine, `dbos_executor.DbosExecutor` for those of many machines. `open` comes before all
    else. All methods may raise JournalError. `failed`: called with the error of a transaction; what
    was posted is lost then. Futures are shared: await them with `asyncio.shield`. `trouble`: the
    sentence why `open` goes on, empty otherwise; `tried`: set with the first, or when `open` is
    over."""

    PUT_STEP = "INSERT OR REPLACE INTO steps VALUES (?, ?, ?, ?, ?, ?, ?)"
    NO_BYTES = "x''"
    ORDER = "rowid"
    """Column of steps that grows with each change of a row."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self.trouble = ""
        self.tried = asyncio.Event()
        self._failed = failed
        self._thread = ThreadPoolExecutor(1, "journal")
        self._posted: list[Write] = []
        self._future: asyncio.Future[None] | None = None
        self._writing = False

    async def open(self, sync: Sync, runs: Runs) -> None:
        """Wait until the runs can be used. `runs`: gets those of engines that ended, from now
        on."""
        raise NotImplementedError

    def close(self) -> None:
        """Write what was posted, and give the runs to other engines."""
        raise NotImplementedError

    async def pass_on(self, run: str, step: str, decision: str | None) -> bool:
        """Have the engine that carries out a run obey; return whether it did."""
        raise NotImplementedError

    # Writing

    def put_run(self, run: RunRecord, definition: bytes) -> asyncio.Future[None]:
        """Add a run. The future is done when the run is durable, as with all that is posted."""
        owner = run.owner
        self._post(
            "INSERT INTO definitions VALUES (?, ?) ON CONFLICT DO NOTHING", (run.hash, definition)
        )
        return self._post(
            "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                run.id, owner.workspace, owner.name, owner.auth, run.name, run.hash,
                json.encode(owner), run.inputs, run.status, run.step, run.error, run.output,
                run.created, run.ended,
            ),
        )  # fmt: skip

    def set_run(self, run: RunRecord) -> asyncio.Future[None]:
        """Note the state of a run. The steps of one that has ended are not under way."""
        if run.status not in OPEN:
            self._post(_END_STEPS, (run.id,))
        return self._post(
            "UPDATE runs SET status = ?, step = ?, error = ?, output = ?, ended = ? WHERE id = ?",
            (run.status, run.step, run.error, run.output, run.ended, run.id),
        )

    def put_step(self, run: str, step: StepRecord) -> asyncio.Future[None]:
        """Note the state of a step in place of the one before."""
        return self._post(
            self.PUT_STEP,
            (run, step.path, step.attempt, step.status, step.key, step.output, step.error),
        )

    def forget(self, ended_before: float) -> asyncio.Future[None]:
        """Delete runs that ended before this time, and the oldest beyond ENDED_MAX."""
        doomed = (
            "SELECT id FROM runs WHERE ended > 0 AND (ended < ? OR id IN (SELECT id FROM runs"  # noqa: S608 - constants
            f" WHERE ended > 0 ORDER BY ended DESC LIMIT {ALL} OFFSET ?))"
        )
        values = (ended_before, ENDED_MAX)
        self._post(f"DELETE FROM steps WHERE run IN ({doomed})", values)  # noqa: S608 - constants
        self._post(f"DELETE FROM runs WHERE id IN ({doomed})", values)  # noqa: S608 - constants
        return self._post("DELETE FROM definitions WHERE hash NOT IN (SELECT hash FROM runs)", ())

    # Reading

    async def runs(
        self, limit: int, owner: RunOwner | None = None, status: str = ""
    ) -> list[RunRecord]:
        """Return the latest runs without outputs, of all owners if `owner` is None."""
        conditions, values = ["1 = 1"], list[object]()
        if owner is not None:
            conditions.append("workspace = ? AND principal = ? AND auth = ?")
            values += [owner.workspace, owner.name, owner.auth]
        if status:
            conditions.append("status = ?")
            values.append(status)
        sql = f"SELECT {_RUN}, {self.NO_BYTES} FROM runs WHERE {' AND '.join(conditions)}"  # noqa: S608 - constants
        return await self._find_runs(f"{sql} ORDER BY created DESC LIMIT ?", (*values, limit))

    async def run(self, run: str) -> RunRecord | None:
        records = await self._find_runs(f"SELECT {_RUN}, output FROM runs WHERE id = ?", (run,))  # noqa: S608 - constants
        return records[0] if records else None

    async def open_runs(self) -> list[RunRecord]:
        """Return all runs that have not ended, the oldest first, if this engine is to go on with
        them at once."""
        sql = f"SELECT {_RUN}, output FROM runs WHERE ended = 0 ORDER BY created"  # noqa: S608 - constants
        return await self._find_runs(sql, ())

    async def definition(self, digest: str) -> bytes:
        rows = await self._rows("SELECT data FROM definitions WHERE hash = ?", (digest,))
        return bytes(rows[0][0]) if rows else b"null"

    async def steps(self, run: str, limit: int = ALL, *, outputs: bool = True) -> list[StepRecord]:
        """Return the steps of a run in the order in which they began or ended last. `outputs`: all
        of them, not only questions that wait for an answer."""
        question_output = f"CASE status WHEN 'needs_answer' THEN output ELSE {self.NO_BYTES} END"
        output = "output" if outputs else question_output
        columns = f"path, attempt, status, key, {output}, error"
        sql = f"SELECT {columns} FROM steps WHERE run = ? ORDER BY {self.ORDER} LIMIT ?"  # noqa: S608 - constants
        rows = await self._rows(sql, (run, limit))
        return [StepRecord(*row) for row in rows]

    # Thread

    def _post(self, sql: str, values: Sequence[object]) -> asyncio.Future[None]:
        self._posted.append((sql, values))
        loop = asyncio.get_running_loop()
        if self._future is None:
            self._future = loop.create_future()
            self._future.add_done_callback(_retrieve_error)
            if not self._writing:
                loop.call_soon(self._write)
        return self._future

    def _write(self) -> None:
        """Begin the transaction of all that was posted."""
        future = self._future
        if future is None:
            return
        self._writing = True
        batch, self._posted, self._future = self._posted, [], None
        work = asyncio.ensure_future(self._run_in_thread(self._commit, batch))

        def on_write_done(_: object) -> None:
            self._writing = False
            error = asyncio.CancelledError() if work.cancelled() else work.exception()
            if error is None:
                future.set_result(None)
                self._write()
            else:
                future.set_exception(JournalError(str(error)))
                self._failed(error)

        work.add_done_callback(on_write_done)

    async def _run_in_thread(self, work: Callable[[*Values], T], *values: *Values) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, work, *values)

    async def _find_runs(self, sql: str, values: Sequence[object]) -> list[RunRecord]:
        return [_run(row) for row in await self._rows(sql, values)]

    async def _rows(self, sql: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        return await self._run_in_thread(self._read, sql, values)

    def _read(self, sql: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """Return the rows of a query, in the thread."""
        raise NotImplementedError

    def _commit(self, batch: Sequence[Write]) -> None:
        """Make a transaction, in the thread."""
        raise NotImplementedError


class RunJournal(Executor):
    """Runs and steps in a file, of one engine at a time."""

    def __init__(self, path: str, failed: Callable[[BaseException], None]) -> None:
        super().__init__(failed)
        self._path = path
        self._base: sqlite3.Connection | None = None
        self._lock = -1
        self._sync: Sync = "full"

    async def open(self, sync: Sync, runs: Runs) -> None:
        """Wait until no other engine has the journal, and open it."""
        try:
            self._lock = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            while not self._try_lock():  # noqa: ASYNC110 - a lock has no event
                await asyncio.sleep(LOCK_STEP_S)
        except OSError as error:
            raise JournalError(f"{self._path}.lock cannot be locked: {error.strerror}") from None
        self._sync = sync
        await self._run_in_thread(self._open)
        self.tried.set()

    def close(self) -> None:
        if self._base is not None:
            if self._posted:
                self._thread.submit(self._commit, self._posted)
            self._thread.submit(self._base.close)
        self._thread.shutdown()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    async def pass_on(self, run: str, step: str, decision: str | None) -> bool:
        """Refuse: this engine has all runs of the file."""
        return False

    # Thread

    async def _run_in_thread(self, work: Callable[[*Values], T], *values: *Values) -> T:
        try:
            return await super()._run_in_thread(work, *values)
        except (sqlite3.Error, OSError) as error:
            raise JournalError(f"the journal {self._path} cannot be used: {error}") from None

    def _read(self, sql: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        return self._require_connection().execute(sql, values).fetchall()

    def _try_lock(self) -> bool:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _require_connection(self) -> sqlite3.Connection:
        if self._base is None:
            raise sqlite3.OperationalError("it is not open")
        return self._base

    def _open(self) -> None:
        os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        base = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        base.execute("PRAGMA journal_mode = WAL")
        base.execute(f"PRAGMA synchronous = {self._sync.upper()}")
        (version,) = base.execute("PRAGMA user_version").fetchone()
        if version not in {0, VERSION}:
            raise sqlite3.DatabaseError(f"it has layout {version}, of another version of MetaMCP")
        base.executescript(f"{_LAYOUT} PRAGMA user_version = {VERSION};")
        self._base = base

    def _commit(self, batch: Sequence[Write]) -> None:
        base = self._require_connection()
        base.execute("BEGIN IMMEDIATE")
        try:
            for sql, values in batch:
                base.execute(sql, values)
            base.execute("COMMIT")
        except sqlite3.Error:
            base.execute("ROLLBACK")
            raise


def _retrieve_error(future: asyncio.Future[None]) -> None:
    """Take note of an error that `failed` has received."""
    if not future.cancelled():
        future.exception()


def _run(row: tuple[Any, ...]) -> RunRecord:
    run, name, digest, owner, inputs, *state, output = row
    status, step, error, created, ended = state
    return RunRecord(
        id=run, name=name, hash=digest, owner=json.decode(owner, type=RunOwner), inputs=inputs,
        status=status, step=step, error=error, output=output, created=created, ended=ended,
    )  # fmt: skip
