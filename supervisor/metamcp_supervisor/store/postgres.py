"""The tables in PostgreSQL, in place of the database file.

Owns: the session of this gateway, the schema `metamcp_store`, the lock that one gateway has, the
encryption of secrets, the errors of the database as sentences. Never: the tables themselves
(`database.STEPS`), the meaning of a row (the packages with a repository).

A thread has the session, and statements run one after the other in it. If a session does not answer
in time, its connection is shut down, and the next statement begins another session. The gateway
holds an advisory lock, so that no other gateway uses the tables. Each change puts a new mark into
them: by the mark a new session sees whether a change is there whose answer was lost, and whether
anybody else has changed them since, or a failover has lost what was there.
"""

import asyncio
import hmac
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, Generic, TypeVar

import psycopg
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from metamcp_supervisor.store.database import (
    FILE,
    SCHEMA,
    STEPS,
    TABLES,
    Rows,
    SecretUnfit,
    Steps,
    StoreContent,
    StoreError,
    StoreUnfit,
    count_rows,
)
from metamcp_worker.ipc import codec
from metamcp_worker.runtime import postgres
from metamcp_worker.runtime.postgres import Connection

T = TypeVar("T")

VERSION_MIN = 14
"""Lowest version of PostgreSQL."""
ANSWER_S_MAX = 5.0
"""Maximum seconds for a statement, and for all that an order asks."""
COPY_S_MAX = 300.0
"""Maximum seconds to copy a file."""
LOCK_S_MAX = 5.0
"""Maximum seconds to wait until a gateway that ends, or takes over, has let the lock go."""
LOCK_STEP_S = 0.1
WATCH_S = 10.0
"""Seconds between two looks for the session."""
NONCE_BYTES = 12
_LOCK_KEY = 0x6D65_7461_6D63_7002
"""Number of the advisory lock of the gateway that uses the tables."""
_HOLDERS = (
    "FROM pg_locks WHERE locktype = 'advisory' AND classid = %s AND objid = %s"
    " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
"""End of a query for those who have the lock; its values are _LOCK_HALVES."""
_LOCK_HALVES = (_LOCK_KEY >> 32, _LOCK_KEY & 0xFFFF_FFFF)
_LAYOUT = (
    "CREATE TABLE layout (version INT NOT NULL, mark TEXT NOT NULL)",
    "CREATE TABLE secret (name TEXT PRIMARY KEY, body BYTEA NOT NULL)",
    "INSERT INTO layout VALUES (0, '')",
)
"""Tables that a file does not need: it has its version in its header, and secrets beside it."""
PLACE = "the store in PostgreSQL"
APPLICATION = "metamcp store"
"""Name of the sessions at the database."""
DOUBT = "whether the change was made is not known"
_ELSEWHERE = "another gateway uses it; end that one first, or ask that one"
_STALE = "it has a change that was reported as refused; restart the gateway"
_CHANGED = "others changed it since the connection was lost; restart the gateway"


def find_flaw(version: int, *, is_replica: bool) -> str:
    """Return why a database cannot have the tables; empty for no reason. `version`: as PostgreSQL
    numbers it, 150018 for 15.18."""
    if version // 10_000 < VERSION_MIN:
        return f"it is PostgreSQL {version // 10_000}; the store needs {VERSION_MIN} or newer"
    return "it is a replica, which is read-only; name the primary" if is_replica else ""


class PostgresDatabase:
    """The tables at `url`, which may have a password. `secret`: encrypts secrets in them;
    `answer_s`, `lock_s`, `watch_s`: see ANSWER_S_MAX, LOCK_S_MAX and WATCH_S."""

    def __init__(
        self,
        url: str,
        secret: str,
        state_dir: Path,
        *,
        steps: Steps = STEPS,
        answer_s: float = ANSWER_S_MAX,
        lock_s: float = LOCK_S_MAX,
        watch_s: float = WATCH_S,
    ) -> None:
        self.state_dir = state_dir
        self.secrets = SealedSecrets(self, secret)
        self.trouble = ""
        self._url = url
        self._steps = steps
        self._answer_s = answer_s
        self._lock_s = lock_s
        self._watch_s = watch_s
        self._thread = ThreadPoolExecutor(1, "store")
        self._session: Connection | None = None
        self._probe: Connection | None = None
        """Second session, while a pooler is looked for."""
        self._backend = 0
        """Number of the last session's process at the database."""
        self._mark: str | None = None
        """Mark of the last change that is in the tables; None before the first session."""
        self._doubtful: _Order[Any] | None = None
        """Change whose commit was lost with its session."""
        self._stale = False
        """The tables have a change whose caller was told that it is not there."""
        self._lock = threading.Lock()
        """Lock of the results of orders, and of the order that is carried out."""
        self._current: _Order[Any] | None = None

    async def open(self) -> str:
        """Take the tables for this gateway, and bring them to the newest version. Return a sentence
        if there is a file with tables that are not used. Raises StoreError."""
        count = await self._run(
            "cannot be used", _Order(lambda rows: sum(count_rows(rows).values())), self._lock_s
        )
        file = self.state_dir / FILE
        if count or not file.exists():
            return ""
        return f"what is in {file} is not in the store: 'metamcp store copy' copies it"

    async def watch(self) -> None:
        """Look for the session again and again, so that a lost one, and with it the lock, is soon
        followed by another."""
        while True:
            await asyncio.sleep(self._watch_s)
            with suppress(StoreError):
                await self._run("cannot be used", _Order(lambda _: None))

    async def peek(self, work: Callable[[Rows], T], empty: T) -> T:
        """Return the result of `work` on the tables, which are not taken; `empty` without any.
        Raises StoreError."""
        return await self._peek(lambda session: self._peek_rows(session, work, empty))

    async def describe(self) -> StoreContent:
        """Return what is in the tables, without taking them. Raises StoreError."""
        return await self._peek(_describe)

    async def read(self, work: Callable[[Rows], T], _empty: T) -> T:
        """Return the result of `work` on the tables. Raises StoreError."""
        return await self._run("cannot be read", _Order(work))

    async def write(self, work: Callable[[Rows], None], *, repeats: bool = False) -> None:
        """Let `work` change the tables, as one transaction. `repeats`: the caller makes the same
        change again if it fails. Raises StoreError; then nothing was changed, or it is not known,
        which the text says."""
        await self._run("cannot be written", _Order(work, repeats=repeats))

    async def close(self) -> None:
        """End the session, and with it the lock."""
        ending = asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        await asyncio.wait([ending], timeout=self._answer_s)
        with self._lock:
            self._cut_off()
        await asyncio.wait([ending], timeout=self._answer_s)
        self._thread.shutdown(wait=False)

    async def _run(self, failure: str, order: "_Order[T]", more_s: float = 0.0) -> T:
        loop = asyncio.get_running_loop()
        limit_s = self._answer_s + more_s
        try:
            async with asyncio.timeout(limit_s):
                result = await loop.run_in_executor(self._thread, self._transact, order)
                self.trouble = ""
                return result
        except TimeoutError:
            with self._lock:
                if order.results:
                    return order.results[0]
                order.abandoned.set()
                if self._current is order:
                    self._cut_off()
            doubt = f"; {DOUBT}" if order.mark else ""
            problem: Exception = TimeoutError(f"it does not answer within {limit_s:.0f} s{doubt}")
        except RuntimeError as error:  # the thread has ended
            problem = error
        except (psycopg.Error, OSError, UnicodeError, codec.Malformed) as error:
            problem = error
        kind = StoreUnfit if isinstance(problem, _Unfit | psycopg.ProgrammingError) else StoreError
        self.trouble = postgres.explain_error(self._url, problem, f"{PLACE} {failure}")
        raise kind(self.trouble)

    def _cut_off(self) -> None:
        """Shut down the connections of a session that does not answer: the thread that waits for
        the answer gets an error."""
        for session in (self._session, self._probe):
            with suppress(OSError, psycopg.Error):
                if session is not None:
                    with socket.socket(fileno=os.dup(session.fileno())) as connection:
                        connection.shutdown(socket.SHUT_RDWR)

    async def _peek(self, work: Callable[[Connection], T]) -> T:
        def read() -> T:
            with postgres.connect(self._url, APPLICATION) as session:
                postgres.begin_session(session, SCHEMA, self._answer_s)
                return work(session)

        try:
            return await asyncio.to_thread(read)
        except (psycopg.Error, OSError, UnicodeError, codec.Malformed) as error:
            failure = f"{PLACE} cannot be read"
            raise StoreError(postgres.explain_error(self._url, error, failure)) from None

    def _peek_rows(self, session: Connection, work: Callable[[Rows], T], empty: T) -> T:
        version = _version(session)
        self._refuse_newer(session, version)
        return empty if version < len(self._steps) else work(_PostgresRows(session, _Order(work)))

    # --- in the thread ------------------------------------------------------------------------

    def _transact(self, order: "_Order[T]") -> T:
        """Return the result of the order, which is carried out in a transaction. Raises
        psycopg.Error, and what the order does."""
        with self._lock:
            self._current = order
        session = self._begin()
        with ExitStack() as undo:
            undo.callback(self._roll_back, session)
            result = order.work(_PostgresRows(session, order))
            if order.abandoned.is_set():
                raise psycopg.OperationalError("it came too late")
            undo.pop_all()
        try:
            session.execute("COMMIT")
        except psycopg.Error as error:
            self._close()
            self._doubtful = order if order.mark else None
            if self._doubtful is None or not self._find_out(error):
                raise
        with self._lock:
            self._current = None
            order.results.append(result)
            if order.mark:
                self._mark = order.mark
                self._stale = self._stale or (order.abandoned.is_set() and not order.repeats)
        return result

    def _begin(self) -> Connection:
        """Begin a transaction, in a new session if the last one ended, and return the session."""
        session = self._session
        if session is not None:
            try:
                session.execute("BEGIN")
            except psycopg.OperationalError:
                self._close()
                session = None
        if session is None:
            session = self._connect()
            session.execute("BEGIN")
        if self._stale:
            session.execute("ROLLBACK")
            raise psycopg.DatabaseError(_STALE)
        return session

    def _roll_back(self, session: Connection) -> None:
        try:
            session.execute("ROLLBACK")
        except psycopg.Error:
            self._close()

    def _find_out(self, error: BaseException) -> bool:
        """Return whether the doubtful change, whose commit ended with this error, is in the tables.
        Raises psycopg.OperationalError if that is not known yet."""
        order, self._doubtful = self._doubtful, None
        assert order is not None
        try:
            self._connect(order)
        except psycopg.Error:
            self._doubtful = order
            reason = str(error).partition("\n")[0]
            raise psycopg.OperationalError(f"{reason}; {DOUBT}") from None
        return self._mark == order.mark

    def _connect(self, order: "_Order[Any] | None" = None) -> Connection:
        """Begin a session that has the lock, and return it. `order`: waits to hear whether its
        change is in the tables."""
        session = self._session = postgres.connect(self._url, APPLICATION)
        with ExitStack() as undo:
            undo.callback(self._close)
            postgres.begin_session(session, SCHEMA, self._answer_s)
            backend = self._refuse_unfit(session)
            self._take_lock(session)
            self._compare_marks(self._migrate(session), order)
            undo.pop_all()
        self._backend = backend
        return session

    def _compare_marks(self, mark: str, order: "_Order[Any] | None") -> None:
        """Compare the mark in the tables with the last one that is known. Raises
        psycopg.DatabaseError for that of another gateway."""
        doubtful, self._doubtful = self._doubtful, None
        if self._mark in {None, mark} or (order is not None and mark == order.mark):
            self._mark = mark
        elif doubtful is not None and mark == doubtful.mark:
            self._mark = mark
            self._stale = self._stale or not doubtful.repeats
        else:
            self._doubtful = doubtful
            raise psycopg.DatabaseError(_CHANGED)

    def _refuse_unfit(self, session: Connection) -> int:
        """Return the number of the session's process at the database. Raises _Unfit for a database
        that cannot have the tables."""
        ((pid, replica),) = session.execute("SELECT pg_backend_pid(), pg_is_in_recovery()")
        if flaw := find_flaw(session.info.server_version, is_replica=replica):
            raise _Unfit(flaw)
        if pid != session.info.backend_pid:
            self._refuse_shared_sessions(pid)
        return int(pid)

    def _refuse_shared_sessions(self, pid: int) -> None:
        """Raise _Unfit if the program between here and the database gives a session to several
        clients in turns: two clients at once would have the same one."""
        with postgres.connect(self._url, APPLICATION) as self._probe:
            ((second,),) = self._probe.execute("SELECT pg_backend_pid()")
        self._probe = None
        if second == pid:
            raise _Unfit(
                "a pooler in front of it gives the session to others after each transaction; name"
                " the database itself, or a pool by session"
            )

    def _take_lock(self, session: Connection) -> None:
        """Wait for the lock. The last session of this gateway ends if it still has it, because its
        connection is lost but not yet given up."""
        terminate = f"SELECT pg_terminate_backend(pid) {_HOLDERS} AND pid = %s"
        session.execute(terminate.encode(), (*_LOCK_HALVES, self._backend))
        end = time.monotonic() + self._lock_s
        while True:
            ((ours,),) = session.execute("SELECT pg_try_advisory_lock(%s)", (_LOCK_KEY,))
            if ours:
                return
            if time.monotonic() > end:
                raise psycopg.DatabaseError(_ELSEWHERE)
            time.sleep(LOCK_STEP_S)

    def _migrate(self, session: Connection) -> str:
        """Bring the tables to the newest version, and return the mark in them."""
        with session.transaction():
            ((schema,),) = session.execute("SELECT to_regnamespace(%s)::text", (SCHEMA,))
            if schema is None:
                session.execute(f"CREATE SCHEMA {SCHEMA}".encode())
            version = _version(session)
            self._refuse_newer(session, version)
            for statement in () if version >= 0 else _LAYOUT:
                session.execute(statement.encode())
            steps = self._steps[max(version, 0) :]
            for statement in (each for step in steps for each in step):
                session.execute(_sql(statement.replace("WITHOUT ROWID", "")))
            if steps:
                session.execute("UPDATE layout SET version = %s", (len(self._steps),))
            ((mark,),) = session.execute("SELECT mark FROM layout")
        return str(mark)

    def _refuse_newer(self, session: Connection, version: int) -> None:
        """Raise _Unfit for tables that programs of this version cannot use."""
        newest = len(self._steps)
        if version <= newest:
            return
        ((table,),) = session.execute("SELECT to_regclass('min_reader')::text")
        lowest = version
        if table is not None:
            ((lowest,),) = session.execute("SELECT version FROM min_reader")
        if lowest > newest:
            limit = f"this program knows versions up to {newest}"
            raise _Unfit(f"it is of version {version}, and {limit}")

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


class _Unfit(psycopg.DatabaseError):
    """The database cannot have the tables, however often it is tried."""


def _version(session: Connection) -> int:
    """Return the version of the tables; -1 without any."""
    ((layout,),) = session.execute("SELECT to_regclass('layout')::text")
    if layout is None:
        return -1
    ((version,),) = session.execute("SELECT version FROM layout")
    return int(version)


def _describe(session: Connection) -> StoreContent:
    version = _version(session)
    ((holders,),) = session.execute(f"SELECT count(*) {_HOLDERS}".encode(), _LOCK_HALVES)
    sql = "SELECT tablename FROM pg_tables WHERE schemaname = %s"
    names = {name for (name,) in session.execute(sql, (SCHEMA,))}
    rows = _PostgresRows(session, _Order(lambda _: None))
    counts = count_rows(rows, [table for table in TABLES if table in names])
    return StoreContent(version=max(version, 0), in_use=bool(holders), rows=counts)


class _Order(Generic[T]):
    """Work in a transaction. `repeats`: see `PostgresDatabase.write`; `mark`: of the change, empty
    if nothing is changed; `results`: its result once that is in the tables; `abandoned`: the
    caller was told that there is none."""

    def __init__(self, work: Callable[[Rows], T], *, repeats: bool = False) -> None:
        self.work = work
        self.repeats = repeats
        self.mark = ""
        self.results: list[T] = []
        self.abandoned = threading.Event()


class _PostgresRows:
    """Rows of a session. The first change in a transaction puts a new mark into the tables."""

    def __init__(self, session: Connection, order: "_Order[Any]") -> None:
        self._session = session
        self._order = order

    def read(self, sql: str, values: Sequence[object] = ()) -> Iterable[tuple[Any, ...]]:
        return self._session.execute(_sql(sql), values).fetchall()

    def change(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        if not self._order.mark:
            self._order.mark = token_hex(16)
            self._session.execute("UPDATE layout SET mark = %s", (self._order.mark,))
        with self._session.cursor() as cursor:
            cursor.executemany(_sql(sql), rows)


def _sql(text: str) -> bytes:
    """Return a statement of the repositories as PostgreSQL and its driver have it."""
    return text.replace("?", "%s").replace("INTEGER", "BIGINT").encode()


class SealedSecrets:
    """Secrets of the gateway in the tables, encrypted with a key from `secret`."""

    def __init__(self, database: PostgresDatabase, secret: str) -> None:
        self._database = database
        self._secret = secret.encode()

    async def read(self, name: str) -> bytes | None:
        """Return the secret with this name; None if there is none. Raises StoreError, and of its
        kinds SecretUnfit."""
        sql = "SELECT body FROM secret WHERE name = ?"
        none: list[bytes] = []
        bodies = await self._database.peek(
            lambda rows: [body for (body,) in rows.read(sql, (name,))], none
        )
        if not bodies:
            return None
        (body,) = bodies
        try:
            return self._cipher(name).decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], name.encode())
        except InvalidTag:
            problem = f"{PLACE} has secrets of another cluster_secret"
            raise SecretUnfit(f"{problem}; set the one with which they were stored") from None

    async def write(self, name: str, secret: bytes) -> None:
        """Put a secret in the place of the one with this name. Raises StoreError."""
        await self._database.write(lambda rows: self.put(rows, {name: secret}))

    def put(self, rows: Rows, secrets: Mapping[str, bytes]) -> None:
        """Do that in a transaction, with secrets by their names."""
        rows.change(
            "INSERT INTO secret VALUES (?, ?)"
            " ON CONFLICT (name) DO UPDATE SET body = excluded.body",
            [(name, self._seal(name, secret)) for name, secret in secrets.items()],
        )

    def _seal(self, name: str, secret: bytes) -> bytes:
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._cipher(name).encrypt(nonce, secret, name.encode())

    def _cipher(self, name: str) -> AESGCM:
        return AESGCM(hmac.digest(self._secret, f"metamcp store {name}".encode(), "sha256"))
