"""The tables in PostgreSQL, in place of the database file.

Owns: the session of this gateway, the schema `metamcp_store`, the lock that one gateway has, the
encryption of secrets, the errors of the database as sentences. Never: the tables themselves
(`database.STEPS`), the meaning of a row (the packages with a repository).

A thread has the session, and statements run one after the other in it. If a session does not answer
in time, its connection is shut down, and the next statement begins another session. The gateway
holds an advisory lock and writes its mark into the tables, so that no other gateway uses them; if
its session ended, the mark tells it whether another one has used them since.
"""

import asyncio
import hmac
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

import psycopg
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from metamcp_supervisor.store.database import (
    FILE,
    SCHEMA,
    STEPS,
    TABLES,
    DatabaseFile,
    Rows,
    Steps,
    StoreContent,
    StoreError,
    count_rows,
    select,
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
_ELSEWHERE = "another gateway uses it; end that one first"


def find_flaw(version: int, *, is_replica: bool) -> str:
    """Return why a database cannot have the tables; empty for no reason. `version`: as PostgreSQL
    numbers it, 150018 for 15.18."""
    if version // 10_000 < VERSION_MIN:
        return f"it is PostgreSQL {version // 10_000}; the store needs {VERSION_MIN} or newer"
    return "it is a replica, which is read-only; name the primary" if is_replica else ""


class PostgresDatabase:
    """The tables at `url`, which may have a password. `secret`: encrypts secrets in them;
    `answer_s`, `lock_s`: see ANSWER_S_MAX and LOCK_S_MAX."""

    def __init__(
        self,
        url: str,
        secret: str,
        state_dir: Path,
        *,
        steps: Steps = STEPS,
        answer_s: float = ANSWER_S_MAX,
        lock_s: float = LOCK_S_MAX,
    ) -> None:
        self.state_dir = state_dir
        self.secrets = SealedSecrets(self, secret)
        self._url = url
        self._steps = steps
        self._answer_s = answer_s
        self._lock_s = lock_s
        self._thread = ThreadPoolExecutor(1, "store")
        self._session: Connection | None = None
        self._backend = 0
        """Number of the last session's process at the database."""
        self._mark = ""
        """Mark of this gateway in the tables; empty before its first session."""
        self._doubtful = ""
        """Transaction that was lost during its commit; empty if there is none."""
        self._stale = False
        """The tables have a change whose caller was told that it is not there."""
        self._lock = threading.Lock()

    async def open(self) -> str:
        """Take the tables for this gateway, and bring them to the newest version. Return a sentence
        if there is a file with tables that are not used. Raises StoreError."""
        count = await self._run(
            "cannot be used", lambda rows: sum(count_rows(rows).values()), self._lock_s
        )
        file = self.state_dir / FILE
        if count or not file.exists():
            return ""
        return f"what is in {file} is not in the store: 'metamcp store copy' copies it"

    async def describe(self) -> StoreContent:
        """Return what is in the tables, without taking them. Raises StoreError."""
        try:
            return await asyncio.to_thread(self._describe)
        except (psycopg.Error, OSError) as error:
            failure = f"{PLACE} cannot be read"
            raise StoreError(postgres.explain_error(self._url, error, failure)) from None

    async def read(self, work: Callable[[Rows], T], _empty: T) -> T:
        """Return the result of `work` on the tables. Raises StoreError."""
        return await self._run("cannot be read", work)

    async def write(self, work: Callable[[Rows], None]) -> None:
        """Let `work` change the tables, as one transaction. Raises StoreError; then nothing was
        changed, or it is not known, which the text says."""
        await self._run("cannot be written", work)

    async def close(self) -> None:
        """End the session, and with it the lock."""
        ending = asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        await asyncio.wait([ending], timeout=self._answer_s)
        self._thread.shutdown(wait=False)

    async def _run(self, how: str, work: Callable[[Rows], T], more_s: float = 0.0) -> T:
        loop = asyncio.get_running_loop()
        limit_s = self._answer_s + more_s
        order = _Order(work)
        try:
            async with asyncio.timeout(limit_s):
                return await loop.run_in_executor(self._thread, self._transact, order)
        except TimeoutError:
            with self._lock:
                if order.results:
                    return order.results[0]
                order.abandoned.set()
            self._cut_off()
            problem: Exception = TimeoutError(f"it does not answer within {limit_s:.0f} s")
        except (psycopg.Error, OSError, UnicodeError, codec.Malformed) as error:
            problem = error
        raise StoreError(postgres.explain_error(self._url, problem, f"{PLACE} {how}"))

    def _cut_off(self) -> None:
        """Shut down the connection of a session that does not answer: the thread that waits for
        the answer gets an error."""
        session = self._session
        with suppress(OSError, psycopg.Error):
            if session is not None:
                with socket.socket(fileno=os.dup(session.fileno())) as connection:
                    connection.shutdown(socket.SHUT_RDWR)

    # --- in the thread ------------------------------------------------------------------------

    def _transact(self, order: "_Order[T]") -> T:
        """Return the result of the order, which is carried out in a transaction. Raises
        psycopg.Error, and what the order does."""
        session = self._begin()
        with ExitStack() as undo:
            undo.callback(self._roll_back, session)
            result = order.work(_PostgresRows(session))
            ((number,),) = session.execute("SELECT pg_current_xact_id_if_assigned()::text")
            if order.abandoned.is_set():
                raise psycopg.OperationalError("it came too late")
            undo.pop_all()
        try:
            session.execute("COMMIT")
        except psycopg.Error as error:
            self._close()
            self._doubtful = number or ""
            if not self._find_out(error):
                raise
            self._doubtful = ""
        with self._lock:
            order.results.append(result)
            self._stale = self._stale or (order.abandoned.is_set() and number is not None)
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
            self._stale = self._stale or self._is_committed(session)
            session.execute("BEGIN")
        if self._stale:
            session.execute("ROLLBACK")
            raise psycopg.DatabaseError("it has a change that was refused; restart the gateway")
        return session

    def _roll_back(self, session: Connection) -> None:
        try:
            session.execute("ROLLBACK")
        except psycopg.Error:
            self._close()

    def _find_out(self, error: BaseException) -> bool:
        """Return whether the doubtful transaction, which ended with this error, is in the tables.
        Raises psycopg.OperationalError if that is not known yet."""
        try:
            return self._is_committed(self._connect())
        except psycopg.Error:
            doubt = "whether the change was made is not known"
            raise psycopg.OperationalError(f"{str(error).splitlines()[0]}; {doubt}") from None

    def _is_committed(self, session: Connection) -> bool:
        """Whether the doubtful transaction is in the tables; if not, it is doubtful no more."""
        if not self._doubtful:
            return False
        ((status,),) = session.execute("SELECT pg_xact_status(%s::xid8)", (self._doubtful,))
        if status != "committed":
            self._doubtful = ""
        return bool(self._doubtful)

    def _connect(self) -> Connection:
        """Begin a session that has the lock, and return it."""
        session = self._session = postgres.connect(self._url, "metamcp store")
        with ExitStack() as undo:
            undo.callback(self._close)
            postgres.begin_session(session, SCHEMA, self._answer_s)
            backend = self._refuse_unfit(session)
            self._take_lock(session)
            self._migrate(session)
            undo.pop_all()
        self._backend = backend
        return session

    def _refuse_unfit(self, session: Connection) -> int:
        """Return the number of the session's process at the database. Raises
        psycopg.DatabaseError for a database that cannot have the tables."""
        ((pid, replica),) = session.execute("SELECT pg_backend_pid(), pg_is_in_recovery()")
        if flaw := find_flaw(session.info.server_version, is_replica=replica):
            raise psycopg.DatabaseError(flaw)
        if pid != session.info.backend_pid:
            self._refuse_shared_sessions(pid)
        return int(pid)

    def _refuse_shared_sessions(self, pid: int) -> None:
        """Raise psycopg.DatabaseError if the program between here and the database gives a session
        to several clients in turns: two clients at once would have the same one."""
        with postgres.connect(self._url, "metamcp store") as other:
            ((second,),) = other.execute("SELECT pg_backend_pid()")
        if second == pid:
            raise psycopg.DatabaseError(
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

    def _migrate(self, session: Connection) -> None:
        """Bring the tables to the newest version, and put the mark of this gateway into them.
        Raises psycopg.DatabaseError if another gateway has put its own there meanwhile, too."""
        with session.transaction():
            ((schema,),) = session.execute("SELECT to_regnamespace(%s)::text", (SCHEMA,))
            if schema is None:
                session.execute(f"CREATE SCHEMA {SCHEMA}".encode())
            ((layout,),) = session.execute("SELECT to_regclass('layout')::text")
            for statement in () if layout else _LAYOUT:
                session.execute(statement.encode())
            ((version, mark),) = session.execute("SELECT version, mark FROM layout")
            if self._mark and mark != self._mark:
                raise psycopg.DatabaseError("another gateway used it since; restart this gateway")
            mark = self._mark or secrets.token_hex(16)
            self._refuse_newer(session, version)
            for statement in (each for step in self._steps[version:] for each in step):
                session.execute(_sql(statement.replace("WITHOUT ROWID", "")))
            newest = max(version, len(self._steps))
            session.execute("UPDATE layout SET version = %s, mark = %s", (newest, mark))
        self._mark = mark

    def _refuse_newer(self, session: Connection, version: int) -> None:
        """Raise psycopg.DatabaseError for tables that programs of this version cannot use."""
        newest = len(self._steps)
        if version <= newest:
            return
        ((table,),) = session.execute("SELECT to_regclass('min_reader')::text")
        lowest = version
        if table is not None:
            ((lowest,),) = session.execute("SELECT version FROM min_reader")
        if lowest > newest:
            limit = f"this program knows versions up to {newest}"
            raise psycopg.DatabaseError(f"it is of version {version}, and {limit}")

    def _describe(self) -> StoreContent:
        with postgres.connect(self._url, "metamcp store") as session:
            postgres.begin_session(session, SCHEMA, self._answer_s)
            ((layout,),) = session.execute("SELECT to_regclass('layout')::text")
            if layout is None:
                return StoreContent(version=0, in_use=False, rows={})
            ((version,),) = session.execute("SELECT version FROM layout")
            ((holders,),) = session.execute(f"SELECT count(*) {_HOLDERS}".encode(), _LOCK_HALVES)
            return StoreContent(
                version=version, in_use=bool(holders), rows=count_rows(_PostgresRows(session))
            )

    def _close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None


class _Order(Generic[T]):
    """Work in a transaction. `results`: its result once that is in the tables; `abandoned`: the
    caller was told that there is none."""

    def __init__(self, work: Callable[[Rows], T]) -> None:
        self.work = work
        self.results: list[T] = []
        self.abandoned = threading.Event()


class _PostgresRows:
    def __init__(self, session: Connection) -> None:
        self._session = session

    def read(self, sql: str, values: Sequence[object] = ()) -> Iterable[tuple[Any, ...]]:
        return self._session.execute(_sql(sql), values).fetchall()

    def change(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        with self._session.cursor() as cursor:
            cursor.executemany(_sql(sql), rows)


def _sql(text: str) -> bytes:
    """Return a statement of the repositories as PostgreSQL and its driver have it."""
    return text.replace("?", "%s").replace("INTEGER", "BIGINT").encode()


async def copy_file(
    source: DatabaseFile, target: PostgresDatabase, secret_files: Iterable[str]
) -> StoreContent:
    """Copy the tables of a file, and the secrets in these files beside it, into tables without any
    row, whole or not at all. Return what is there now. Raises StoreError and OSError."""

    def read_tables(rows: Rows) -> dict[str, list[tuple[Any, ...]]]:
        return {table: list(rows.read(select("*", table))) for table in TABLES}

    none: dict[str, list[tuple[Any, ...]]] = {}
    tables = await source.read(read_tables, none)
    paths = [source.state_dir / name for name in secret_files]
    sealed = {path.name: path.read_bytes() for path in paths if path.exists()}

    def write_tables(rows: Rows) -> None:
        if sum(count_rows(rows).values()):
            raise StoreError(f"{PLACE} has rows already, and a copy would mix them with others")
        for table, records in tables.items():
            if records:
                marks = ", ".join("?" * len(records[0]))
                rows.change(f"INSERT INTO {table} VALUES ({marks})", records)  # noqa: S608 - of TABLES
        target.secrets.put(rows, sealed)

    await target.write(write_tables)
    return await target.describe()


class SealedSecrets:
    """Secrets of the gateway in the tables, encrypted with a key from `secret`."""

    def __init__(self, database: PostgresDatabase, secret: str) -> None:
        self._database = database
        self._secret = secret.encode()

    async def read(self, name: str) -> bytes | None:
        """Return the secret with this name; None if there is none. Raises StoreError."""
        sql = "SELECT body FROM secret WHERE name = ?"
        none: list[bytes] = []
        bodies = await self._database.read(
            lambda rows: [body for (body,) in rows.read(sql, (name,))], none
        )
        if not bodies:
            return None
        (body,) = bodies
        try:
            return self._cipher(name).decrypt(body[:NONCE_BYTES], body[NONCE_BYTES:], name.encode())
        except InvalidTag:
            problem = f"{PLACE} has secrets of another cluster_secret"
            raise StoreError(f"{problem}; set the one with which they were stored") from None

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
