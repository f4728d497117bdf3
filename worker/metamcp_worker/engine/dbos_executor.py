"""Executor of runs for engines of many machines: rows in PostgreSQL, and DBOS, which says which
engine has a run.

Owns: the schema `metamcp`, the session of this engine, engines that ended, orders for runs of other
engines, DBOS and its thread. Never: SQL of rows (`run_journal`), what a step does
(`workflow_run_io`).

Each run is one workflow of DBOS, whose steps are our rows, by their paths: DBOS counts steps in the
order in which they begin, which branches side by side do not keep. In one session an engine writes
its rows and holds the lock of its id. So it can write only while it holds the lock, and who gets
the lock knows that the engine has ended; its workflows go into DBOS' queue, for any engine.
"""

import asyncio
import hashlib
import logging
import threading
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from urllib.parse import quote

import psycopg
from dbos import DBOS, Serializer, SetWorkflowID
from msgspec import json

from metamcp_worker.engine.run_journal import (
    Executor,
    JournalError,
    Runs,
    Sync,
    T,
    Values,
    Write,
)
from metamcp_worker.engine.workflow_run import RunRecord
from metamcp_worker.runtime import postgres

VERSION = 1
"""Number of the layout, and the version of the application for DBOS."""
ANSWER_S_MAX = 30.0
"""Seconds for a transaction or a query."""
PAUSE_S_MIN, PAUSE_S_MAX = 1.0, 30.0
"""Seconds between two attempts to reach the database."""
TURN_S = 1.0
"""Seconds between two looks for engines that ended and for orders."""
PASSED_S_MAX = 20.0
"""Seconds that an order waits for the engine that has the run."""
PASSED_STEP_S = 0.2
"""Seconds between two looks whether an order was obeyed."""
CONNECTIONS_MAX = 4
"""Connections of DBOS, besides the session."""
THREADS_MAX = 8
"""Threads in which DBOS asks the database."""
DBOS_SCHEMA = "metamcp_dbos"

_LAYOUT_KEY = 0x6D65_7461_6D63_7000
"""Number of the lock under which the schema is created."""
_ADD_KEY = _LAYOUT_KEY + 1
"""Number of the lock that a run is added under, so that none is deleted with its definition."""
_LAYOUT = """
CREATE SCHEMA IF NOT EXISTS metamcp;
CREATE TABLE IF NOT EXISTS layout (version INT NOT NULL);
CREATE TABLE IF NOT EXISTS definitions (hash TEXT PRIMARY KEY, data BYTEA NOT NULL);
CREATE TABLE IF NOT EXISTS runs (
  id TEXT PRIMARY KEY, workspace TEXT NOT NULL, principal TEXT NOT NULL, auth TEXT NOT NULL,
  name TEXT NOT NULL, hash TEXT NOT NULL, owner BYTEA NOT NULL, inputs BYTEA NOT NULL,
  status TEXT NOT NULL, step TEXT NOT NULL, error TEXT NOT NULL, output BYTEA NOT NULL,
  created DOUBLE PRECISION NOT NULL, ended DOUBLE PRECISION NOT NULL);
CREATE INDEX IF NOT EXISTS runs_created ON runs (created);
CREATE INDEX IF NOT EXISTS runs_ended ON runs (ended);
CREATE TABLE IF NOT EXISTS steps (
  run TEXT NOT NULL, path TEXT NOT NULL, attempt INT NOT NULL, status TEXT NOT NULL,
  key TEXT NOT NULL, output BYTEA NOT NULL, error TEXT NOT NULL, at BIGSERIAL,
  PRIMARY KEY (run, path));
CREATE TABLE IF NOT EXISTS orders (
  id BIGSERIAL PRIMARY KEY, run TEXT NOT NULL, step TEXT NOT NULL, decision TEXT);
"""
_ORPHANS = (
    "DELETE FROM metamcp_dbos.workflow_status"
    " WHERE status IN ('SUCCESS', 'ERROR', 'CANCELLED') AND workflow_uuid NOT IN"
    " (SELECT id FROM runs)"
)
_ENGINES = "SELECT DISTINCT executor_id FROM metamcp_dbos.workflow_status WHERE status = 'PENDING'"

log = logging.getLogger("metamcp.engine")


class DbosSilent(JournalError):
    """Raised if DBOS does not answer. No other one can begin in this process."""


class JsonSerializer(Serializer):
    """Form of values for DBOS: nothing from a database is ever unpickled."""

    def serialize(self, data: Any) -> str:
        return json.encode(data).decode()

    def deserialize(self, serialized_data: str) -> Any:
        return json.decode(serialized_data)

    def name(self) -> str:
        return "metamcp_json"


class DbosExecutor(Executor):
    """Runs and steps in the database at `url`, which may have a password in it."""

    PUT_STEP = (
        "INSERT INTO steps (run, path, attempt, status, key, output, error)"
        " VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (run, path) DO UPDATE SET"
        " attempt = EXCLUDED.attempt, status = EXCLUDED.status, output = EXCLUDED.output,"
        " error = EXCLUDED.error, at = EXCLUDED.at"
    )
    NO_BYTES = "''::bytea"
    ORDER = "at"

    def __init__(self, url: str, failed: Callable[[BaseException], None]) -> None:
        super().__init__(failed)
        self._url = url
        self._id = uuid.uuid4().hex[:16]
        self._base: postgres.Connection | None = None
        self._stuck = False
        """The thread waits for a database that does not answer."""
        self._dbos: _DbosThread | None = None
        self._turns: asyncio.Task[None] | None = None
        self._obeying: dict[int, asyncio.Task[None]] = {}
        """Tasks by the numbers of orders."""

    async def open(self, sync: Sync, runs: Runs) -> None:
        """Connect, again and again until the database is there, and begin to take runs. Raises
        DbosSilent."""
        pause_s = PAUSE_S_MIN
        while True:
            try:
                name = await self._run_in_thread(self._open, sync)
                self._dbos = _DbosThread(self._id, name, self._open_connection)
                await self._dbos.start(runs.take)
                break
            except DbosSilent:
                raise
            except JournalError as error:
                trouble = f"{error}; the engine tries again every {PAUSE_S_MAX:.0f} s at most"
                if trouble != self.trouble:
                    log.warning("%s", trouble)
                self.trouble = trouble
                self.tried.set()
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)
        self.trouble = ""
        self.tried.set()
        self._turns = asyncio.get_running_loop().create_task(self._take_turns(runs))
        self._turns.add_done_callback(self._on_task_done)

    def close(self) -> None:
        """Write what was posted, and let the lock go. DBOS ends with this process: what it notes of
        a run is that this engine has it, until another one does."""
        if self._turns is not None:
            self._turns.cancel()
        if self._dbos is not None:
            self._dbos.ends = True
        if self._base is not None:
            if self._posted:
                self._thread.submit(self._commit, self._posted)
            self._thread.submit(self._base.close)
        self._thread.shutdown(wait=not self._stuck)

    def put_run(self, run: RunRecord, definition: bytes) -> asyncio.Future[None]:
        """Have DBOS note that this engine has a run, then add it: DBOS' note of a run without a
        row does nothing, and there is not a row without it."""
        return asyncio.ensure_future(self._add_run(run, definition))

    async def open_runs(self) -> list[RunRecord]:
        """Return none: DBOS hands over each run that this engine is to go on with."""
        return []

    def forget(self, ended_before: float) -> asyncio.Future[None]:
        self._post("SELECT pg_advisory_xact_lock(?)", (_ADD_KEY,))
        super().forget(ended_before)
        self._post("DELETE FROM orders WHERE run NOT IN (SELECT id FROM runs WHERE ended = 0)", ())
        return self._post(_ORPHANS, ())

    async def pass_on(self, run: str, step: str, decision: str | None) -> bool:
        """Leave an order in the database, for at most PASSED_S_MAX."""
        sql = "INSERT INTO orders (run, step, decision) VALUES (?, ?, ?) RETURNING id"
        ((number,),) = await self._rows(sql, (run, step, decision))
        sql = "SELECT 1 FROM orders WHERE id = ? UNION ALL SELECT 1 FROM runs WHERE id = ? AND"
        sql += " ended = 0 AND ?"
        try:
            async with asyncio.timeout(PASSED_S_MAX):
                while await self._rows(sql, (number, run, decision is None)):  # noqa: ASYNC110 - of another machine
                    await asyncio.sleep(PASSED_STEP_S)
        except TimeoutError:
            deleted = await self._rows("DELETE FROM orders WHERE id = ? RETURNING id", (number,))
            return not deleted and decision is not None
        return True

    # Turns

    async def _take_turns(self, runs: Runs) -> None:
        """Look for engines that ended and for orders, again and again. Raises JournalError."""
        assert self._dbos is not None
        while True:
            dead, orders = await self._run_in_thread(self._look)
            for number, run, step, decision in orders:
                if number not in self._obeying and runs.has(run):
                    task = asyncio.ensure_future(self._obey(number, run, step, decision, runs))
                    self._obeying[number] = task
                    task.add_done_callback(self._on_task_done)
            if dead:
                await self._dbos.recover(dead)
                await self._run_in_thread(self._unlock, dead)
            await asyncio.sleep(TURN_S)

    async def _obey(
        self, number: int, run: str, step: str, decision: str | None, runs: Runs
    ) -> None:
        """Obey an order, and delete it in the transaction that has the decision: it is neither lost
        nor obeyed twice."""
        try:
            if runs.has(run):
                self._post("DELETE FROM orders WHERE id = ?", (number,))
                await runs.obey(run, step, decision)
        finally:
            del self._obeying[number]

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)

    async def _add_run(self, run: RunRecord, definition: bytes) -> None:
        assert self._dbos is not None
        try:
            await self._dbos.begin(run.id)
        except JournalError as error:
            self._failed(error)
            raise
        self._post("SELECT pg_advisory_xact_lock_shared(?)", (_ADD_KEY,))
        await asyncio.shield(super().put_run(run, definition))

    # Thread

    async def _run_in_thread(self, work: Callable[[*Values], T], *values: *Values) -> T:
        try:
            async with asyncio.timeout(ANSWER_S_MAX + postgres.CONNECT_S_MAX):
                return await super()._run_in_thread(work, *values)
        except (psycopg.Error, OSError, TimeoutError) as error:
            self._stuck = isinstance(error, TimeoutError)
            failure = "the database of workflows cannot be used"
            raise JournalError(postgres.explain_error(self._url, error, failure)) from None

    def _open_connection(self, purpose: str = "dbos") -> postgres.Connection:
        return postgres.connect(self._url, f"metamcp {purpose} {self._id}")

    def _open(self, sync: Sync) -> str:
        """Begin the session, and return the name of the database."""
        if self._base is not None:
            self._base.close()
        base = self._base = self._open_connection("engine")
        postgres.begin_session(base, "metamcp", ANSWER_S_MAX)
        commit = "on" if sync == "full" else "off"
        base.execute("SELECT set_config('synchronous_commit', %s, false)", (commit,))
        with base.transaction():
            base.execute("SELECT pg_advisory_xact_lock(%s)", (_LAYOUT_KEY,))
            base.execute(_LAYOUT.encode())
            row = base.execute("SELECT max(version) FROM layout").fetchone()
            version = row[0] if row else None
            if version is None:
                base.execute("INSERT INTO layout VALUES (%s)", (VERSION,))
            elif version != VERSION:
                problem = f"it has layout {version}, of another version of MetaMCP"
                raise psycopg.DatabaseError(problem)
        base.execute("SELECT pg_advisory_lock(%s)", (_key(self._id),))
        return base.info.dbname

    def _session(self) -> postgres.Connection:
        if self._base is None:
            raise psycopg.OperationalError("it is not open")
        return self._base

    def _read(self, sql: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        return self._session().execute(_sql(sql), [_storable(value) for value in values]).fetchall()

    def _commit(self, batch: Sequence[Write]) -> None:
        base = self._session()
        with base.pipeline(), base.transaction():
            for sql, values in batch:
                base.execute(_sql(sql), [_storable(value) for value in values])

    def _look(self) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Return engines that ended, whose locks are ours now, and all orders."""
        orders = self._read("SELECT id, run, step, decision FROM orders ORDER BY id", ())
        others = [engine for (engine,) in self._read(_ENGINES, ()) if engine != self._id]
        return [engine for engine in others if self._try_lock(engine)], orders

    def _try_lock(self, engine: str) -> bool:
        return bool(self._read("SELECT pg_try_advisory_lock(?)", (_key(engine),))[0][0])

    def _unlock(self, engines: Sequence[str]) -> None:
        for engine in engines:
            self._read("SELECT pg_advisory_unlock(?)", (_key(engine),))


class _DbosThread:
    """DBOS in a thread and a loop of its own: it blocks, and changes the loop that it is in.
    `ends`: this process ends, and no thread of DBOS goes on trying."""

    def __init__(
        self, engine: str, database: str,
        connect: Callable[[], postgres.Connection],
    ) -> None:  # fmt: skip
        self.ends = False
        self._engine = engine
        self._database = database
        self._connect = connect
        self._ours = asyncio.get_running_loop()
        self._loop = asyncio.new_event_loop()
        self._workflow: Callable[[str], Coroutine[Any, Any, None]] | None = None

    async def start(self, take: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        """Begin the thread. `take`: carries out a run, in the loop of the caller. Raises
        JournalError."""
        threading.Thread(target=self._loop.run_forever, name="dbos", daemon=True).start()
        try:
            await self._within(self._launch(take))
        except JournalError:
            self._loop.call_soon_threadsafe(self._loop.stop)
            raise

    async def begin(self, run: str) -> None:
        """Note that this engine has a run. Raises JournalError."""
        await self._within(self._begin(run))

    async def recover(self, engines: Sequence[str]) -> None:
        """Give the runs of engines that ended to any engine. Raises JournalError."""
        await self._within(self._recover(engines))

    async def _within(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
        except TimeoutError:
            raise DbosSilent(f"DBOS does not answer within {ANSWER_S_MAX:.0f} s") from None
        except Exception as error:
            reason = str(error).partition("\n")[0]
            raise JournalError(f"DBOS cannot use the database of workflows: {reason}") from error

    async def _launch(self, take: Callable[[str], Coroutine[Any, Any, None]]) -> None:
        logger = logging.getLogger("dbos")
        logger.setLevel(logging.ERROR)
        logger.addHandler(logging.NullHandler())  # else it adds one for the console
        DBOS.destroy(destroy_registry=True)

        async def run(number: str) -> None:
            """Carry out a run. An end of any other kind than that of the run is not to be noted:
            the workflow stays as it is, for the next engine."""
            try:
                work = asyncio.run_coroutine_threadsafe(take(number), self._ours)
                await asyncio.wrap_future(work)
            # `take` has reported why.
            except (Exception, asyncio.CancelledError):  # noqa: BLE001 - for the next engine
                await asyncio.Event().wait()

        self._workflow = DBOS.workflow(name="metamcp.run", max_recovery_attempts=None)(run)
        DBOS(
            config={
                "name": "metamcp",
                "system_database_url": f"postgresql://localhost/{quote(self._database)}",
                "dbos_system_schema": DBOS_SCHEMA,
                "db_engine_kwargs": {"creator": self._connection, "hide_parameters": True},
                "sys_db_pool_size": CONNECTIONS_MAX,
                "executor_id": self._engine,
                "application_version": str(VERSION),
                "max_executor_threads": THREADS_MAX,
                "serializer": JsonSerializer(),
                "use_listen_notify": False,
                "enable_otlp": False,
                "log_level": "ERROR",
            }
        )
        DBOS.launch()

    async def _begin(self, run: str) -> None:
        assert self._workflow is not None
        with SetWorkflowID(run):
            await DBOS.start_workflow_async(self._workflow, run)

    async def _recover(self, engines: Sequence[str]) -> None:
        workflows = await DBOS.list_workflows_async(
            status="PENDING", executor_id=list(engines), load_input=False, load_output=False
        )
        if workflows:
            log.info("%d runs of an engine that ended are taken over", len(workflows))
            await DBOS.resume_workflows_async([workflow.workflow_id for workflow in workflows])

    def _connection(self) -> postgres.Connection:
        if self.ends:
            raise RuntimeError("the engine ends")
        return self._connect()


def _key(engine: str) -> int:
    """Return the number of the lock of an engine."""
    digest = hashlib.sha256(f"metamcp engine {engine}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def _sql(sql: str) -> bytes:
    return sql.replace("?", "%s").encode()


def _storable(value: object) -> object:
    """Return a value as PostgreSQL has it: its texts have no NUL."""
    return value.replace("\0", "\ufffd") if isinstance(value, str) else value
