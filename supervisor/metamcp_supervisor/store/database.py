"""The database file: one connection, transactions, versions of the tables.

Owns: the file `metamcp.db` in the state directory, the tables and the steps from each version to
the next, a copy before these steps, the errors of the file as sentences. Never: the meaning of a
table (the packages that keep something in it have its repository), the order of changes,
configuration, secrets.

A change is one transaction on disk before anybody hears of it. A file that cannot be read is left
alone, and so is a file that replaced the one that was read: unknown content is never overwritten.
SQLite is loaded when the file exists, or for the first change to write. A repository uses `Rows`
alone and SQL that PostgreSQL understands too (`store.postgres`).
"""

import asyncio
import os
import stat
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from secrets import token_bytes
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msgspec import Struct

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import MetaMCPError

if TYPE_CHECKING:
    import sqlite3

    from metamcp_supervisor.config.config import GatewayConfig

T = TypeVar("T")

FILE = "metamcp.db"
BUSY_S_MAX = 2.0
"""Maximum seconds to wait while another program keeps the file locked, for example to copy it. A
write waits at most twice: for its beginning, and for its end."""
FILE_MODE = 0o600
FOLDER_MODE = 0o700
SCHEMA = "metamcp_store"
"""Schema of the tables in PostgreSQL."""
Steps = tuple[tuple[str, ...], ...]
"""SQL statements that bring the tables from each version to the next."""

#: Existing steps are never changed; new steps are added behind them. A step after which programs
#: of an earlier version can still read and change the tables says so: the first of these creates
#: the table `min_reader` with one row, whose `version` is the lowest such version; any later step
#: that they cannot use raises it.
STEPS: Steps = (
    (
        "CREATE TABLE toolset (name TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID",
        """
        CREATE TABLE view (
            endpoint TEXT NOT NULL, principal TEXT NOT NULL, session TEXT NOT NULL,
            body TEXT NOT NULL, PRIMARY KEY (endpoint, principal, session)
        ) WITHOUT ROWID
        """,
    ),
    (
        "CREATE TABLE api_key (id TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID",
        """
        CREATE TABLE quota (
            kind TEXT NOT NULL, name TEXT NOT NULL, day INTEGER NOT NULL, used INTEGER NOT NULL,
            PRIMARY KEY (kind, name)
        ) WITHOUT ROWID
        """,
    ),
    (
        """
        CREATE TABLE script (
            name TEXT NOT NULL, version INTEGER NOT NULL, body TEXT NOT NULL,
            PRIMARY KEY (name, version)
        )
        """,
    ),
    ("CREATE TABLE consent (id TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID",),
)

#: Tables that the steps make.
TABLES = ("toolset", "view", "api_key", "quota", "script", "consent")

_EMPTIED = "it is empty, and what was in it is lost"
"""Reason for an empty database: the file is created with its first content, so the content was
removed later."""
_File = tuple[int, int]
"""Device and inode of a file."""


class StoreError(MetaMCPError):
    """The file could not be read or written. The text is a sentence without a full stop."""


class StoreUnfit(StoreError):
    """The database cannot have the tables, however often it is tried."""


class SecretUnfit(StoreError):
    """A secret in the database cannot be decrypted."""


class Rows(Protocol):
    """Rows of the tables, within one transaction."""

    def read(self, sql: str, values: Sequence[object] = ()) -> Iterable[tuple[Any, ...]]:
        """Return the rows that this query finds."""
        ...

    def change(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        """Run this statement once for each of the rows of values."""
        ...


class StoreContent(Struct, frozen=True, kw_only=True):
    """Content of the tables. `version`: 0 without tables; `in_use`: whether a gateway has them;
    `rows`: number of rows by table."""

    version: int
    in_use: bool
    rows: dict[str, int]


class SecretStore(Protocol):
    """Secrets that are in the database, too."""

    async def read(self, name: str) -> bytes | None:
        """Return the secret with this name; None if there is none. Raises StoreError, and of its
        kinds SecretUnfit."""
        ...

    async def write(self, name: str, secret: bytes) -> None:
        """Put a secret in the place of the one with this name. Raises StoreError."""
        ...


async def own_key(secrets: SecretStore, name: str, size_bytes: int) -> bytes:
    """Return a key of this gateway that nobody else knows, created on first use. Raises
    StoreError."""
    text = await secrets.read(name)
    if text is None:
        text = f"{token_bytes(size_bytes).hex()}\n".encode()
        await secrets.write(name, text)
    try:
        key = bytes.fromhex(text.decode())
    except ValueError:
        key = b""
    if len(key) != size_bytes:
        raise StoreError(f"{name} in the database is damaged")
    return key


class Database(Protocol):
    """The tables, wherever they are. `state_dir`: state directory of the gateway; `secrets`: None
    if secrets are files there; `trouble`: why the last order failed, where later ones may not."""

    state_dir: Path
    trouble: str

    @property
    def secrets(self) -> SecretStore | None: ...

    async def open(self) -> str:
        """Take the tables for this gateway, where others could, too. Return a sentence for the
        operator, if there is one. Raises StoreError."""
        ...

    async def watch(self) -> None:
        """Look after the database until this is cancelled."""
        ...

    async def describe(self) -> StoreContent:
        """Return what is in the tables, which stay as they are. Raises StoreError."""
        ...

    async def peek(self, work: Callable[[Rows], T], empty: T) -> T:
        """Return the result of `work` on the tables, which another program may use; `empty` without
        any. Raises StoreError."""
        ...

    async def read(self, work: Callable[[Rows], T], empty: T) -> T:
        """Return the result of `work` on the tables; `empty` without any. Raises StoreError."""
        ...

    async def write(self, work: Callable[[Rows], None], *, repeats: bool = False) -> None:
        """Let `work` change the tables, as one transaction. `repeats`: the caller makes the same
        change again if it fails. Raises StoreError."""
        ...

    async def close(self) -> None: ...


class DatabaseFile:
    """The database file; calls run one after the other. `busy_s`: see BUSY_S_MAX."""

    def __init__(
        self, state_dir: Path, *, busy_s: float = BUSY_S_MAX, steps: Steps = STEPS
    ) -> None:
        self.state_dir = state_dir
        self.secrets: SecretStore | None = None
        self.trouble = ""
        self.path = state_dir / FILE
        self._steps = steps
        self._busy_s = busy_s
        self._one = threading.Lock()
        """Lock of the connection: a thread whose caller was cancelled may still run, and two
        threads that use one connection crash."""
        self._database: sqlite3.Connection | None = None
        self._seen: _File | None = None
        """The file that was read or created; None if there was not a file."""
        self._read_once = False

    async def open(self) -> str:
        """Return nothing: the state directory is locked."""
        return ""

    async def watch(self) -> None:
        """Do nothing: each order looks at the file."""

    async def read(self, work: Callable[[Rows], T], empty: T) -> T:
        """Return the result of `work` on the content of the file; `empty` without a file. Raises
        StoreError."""
        how = "cannot be read, so it stays as it is"
        end = "; repair it, or move it away to begin anew"
        try:
            file = self._file()
        except OSError as error:
            raise StoreError(f"{self.path} {how}: {error.strerror}{end}") from None
        if self._read_once and file != self._seen:
            raise StoreError(
                f"{self.path} {how}: it is another file than before; restart the gateway"
            )
        self._seen = file
        if file is None:
            self._read_once = True
            return empty
        got = await asyncio.to_thread(self._run_work, how, end, lambda: self._read(work))
        self._read_once = True
        return got

    async def describe(self) -> StoreContent:
        """Return what is in the file, which stays as it is. Raises StoreError."""

        def describe(database: "sqlite3.Connection") -> StoreContent:
            names = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
            tables = [table for table in TABLES if table in names]
            rows = count_rows(SqliteRows(database), tables)
            return StoreContent(version=self._version(database), in_use=False, rows=rows)

        return await self._peek(describe, StoreContent(version=0, in_use=False, rows={}))

    async def peek(self, work: Callable[[Rows], T], empty: T) -> T:
        """Return the result of `work` on the file, which stays as it is; `empty` without one.
        Raises StoreError."""
        return await self._peek(lambda database: work(SqliteRows(database)), empty)

    async def _peek(self, work: "Callable[[sqlite3.Connection], T]", empty: T) -> T:
        if not self.path.exists():
            return empty

        def read() -> T:
            with closing(read_only(self.path)) as database:
                return work(database)

        return await asyncio.to_thread(self._run_work, "cannot be read", "", read)

    async def write(self, work: Callable[[Rows], None], *, repeats: bool = False) -> None:
        """Let `work` change the content, as one transaction. Raises StoreError; then nothing was
        changed. `repeats`: is of no importance here."""
        await asyncio.to_thread(self._run_work, "cannot be written", "", lambda: self._write(work))

    async def close(self) -> None:
        if self._database is not None:
            await asyncio.to_thread(self._run_work, "cannot be closed", "", self._close)

    # --- in a thread --------------------------------------------------------------------------

    def _run_work(self, how: str, end: str, work: Callable[[], T]) -> T:
        """Return the result of `work`. An error closes the connection, which undoes an open
        transaction, and becomes a sentence. Raises StoreError."""
        from sqlite3 import Error

        with self._one:
            try:
                return work()
            except (Error, OSError, codec.Malformed, UnicodeError) as error:
                self._close()
                reason = str(error.strerror if isinstance(error, OSError) else error)
        if reason == "database is locked":
            reason, end = "another program keeps it locked; try again", ""
        raise StoreError(f"{self.path} {how}: {reason}{end}")

    def _read(self, work: Callable[[Rows], T]) -> T:
        database = self._get_connection()
        database.execute("BEGIN")
        if self._version(database) == 0:
            ((tables,),) = database.execute("SELECT count(*) FROM sqlite_master")
            raise _wrong("it belongs to another program" if tables else _EMPTIED)
        self._migrate(database)
        result = work(SqliteRows(database))
        database.execute("COMMIT")
        return result

    def _write(self, work: Callable[[Rows], None]) -> None:
        if self._file() != self._seen:
            raise OSError(0, "it is gone, or another file than before; restart the gateway")
        if made := self._seen is None:
            self._make()
        done = False
        try:
            database = self._get_connection()
            database.execute("BEGIN IMMEDIATE")
            if not made and not self._version(database):
                raise _wrong(_EMPTIED)
            self._migrate(database)
            work(SqliteRows(database))
            database.execute("COMMIT")
            done = True
        finally:
            if made and not done:  # an empty file would look like one that was emptied
                self._close()
                self.path.unlink()
                self._seen = None

    def _file(self) -> _File | None:
        """Return which file has the name now. Raises OSError, also for a FIFO, where SQLite would
        wait for a writer."""
        state: os.stat_result | None = None
        for end in ("-wal", "-journal", ""):
            try:
                state = os.stat(f"{self.path}{end}")
            except FileNotFoundError:
                state = None
            if state is not None and not stat.S_ISREG(state.st_mode):
                raise OSError(0, f"{FILE}{end} is not a regular file")
        return None if state is None else (state.st_dev, state.st_ino)

    def _make(self) -> None:
        """Make an empty file, which is an empty database. Raises OSError."""
        self.path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE))
        self._seen = self._file()

    def _get_connection(self) -> "sqlite3.Connection":
        """Return the connection to the existing file. Transactions begin and end by statements."""
        if self._database is None:
            self._database = connect_database(self.path, self._busy_s)
            self._copy_before_steps(self._database)
        return self._database

    def _copy_before_steps(self, database: "sqlite3.Connection") -> None:
        """Copy tables of an older version, for the program that knows them, to a file beside this
        one with the number of the version. Raises sqlite3.Error and OSError."""
        version = self._version(database)
        copy = f"{self.path}.v{version}"
        if not 0 < version < len(self._steps) or os.path.lexists(copy):
            return
        fresh = f"{copy}.new"
        with suppress(FileNotFoundError):
            os.unlink(fresh)  # of a copy that was interrupted
        os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE))
        database.execute("VACUUM INTO ?", (fresh,))
        os.rename(fresh, copy)

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _version(self, database: "sqlite3.Connection") -> int:
        """Return the version of the tables; 0 without tables. Raises sqlite3.Error, also for a
        version newer than this program."""
        return version_of(database, len(self._steps))

    def _migrate(self, database: "sqlite3.Connection") -> None:
        """Bring the tables to the newest version, in the transaction that is open. Raises
        sqlite3.Error."""
        version = self._version(database)
        for number, step in enumerate(self._steps[version:], version + 1):
            for statement in step:
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {number}")


class SqliteRows:
    """Rows of an open connection to SQLite."""

    def __init__(self, database: "sqlite3.Connection") -> None:
        self._database = database

    def read(self, sql: str, values: Sequence[object] = ()) -> Iterable[tuple[Any, ...]]:
        return self._database.execute(sql, tuple(values))

    def change(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        self._database.executemany(sql, [tuple(row) for row in rows])


def select(columns: str, table: str) -> str:
    """Return a query for all rows of one of the tables."""
    return f"SELECT {columns} FROM {table}"  # noqa: S608 - of TABLES


def count_rows(rows: Rows, tables: Iterable[str] = TABLES) -> dict[str, int]:
    """Return the number of rows of each table."""
    return {table: n for table in tables for (n,) in rows.read(select("count(*)", table))}


def make_database(gateway: "GatewayConfig") -> Database:
    """Return the database that `store` names, else the file in the state directory."""
    if gateway.store is None:
        return DatabaseFile(gateway.state_dir)
    from metamcp_supervisor.store.postgres import PostgresDatabase

    return PostgresDatabase(gateway.store.url, gateway.cluster_secret, gateway.state_dir)


def connect_database(path: Path, busy_s: float = BUSY_S_MAX) -> "sqlite3.Connection":
    """Return a connection to an existing file. Raises sqlite3.Error."""
    import sqlite3

    database = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=rw",
        uri=True,
        timeout=busy_s,
        isolation_level=None,
        check_same_thread=False,  # one after the other, from whatever thread
    )
    # The journal of a transaction is synced with its folder: a reported change is on disk.
    database.execute("PRAGMA synchronous = EXTRA")
    return database


def read_only(path: Path) -> "sqlite3.Connection":
    """Return a connection to an existing file, which cannot change it. Raises sqlite3.Error."""
    import sqlite3

    return sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)


def version_of(database: "sqlite3.Connection", newest: int = len(STEPS)) -> int:
    """Return the version of the tables; 0 without tables. Raises sqlite3.Error, also for a version
    newer than `newest` whose tables cannot be used by a program of version `newest`."""
    ((version,),) = database.execute("PRAGMA user_version")
    if version > newest and _min_reader(database, version) > newest:
        supported = f"this program knows versions up to {newest}"
        raise _wrong(f"it is of version {version}, and {supported}")
    return int(version)


def _min_reader(database: "sqlite3.Connection", version: int) -> int:
    """Return the lowest version of programs that can use tables of this version. Raises
    sqlite3.Error."""
    table = "SELECT count(*) FROM sqlite_master WHERE name = 'min_reader'"
    if database.execute(table).fetchone() == (0,):
        return version
    ((lowest,),) = database.execute("SELECT version FROM min_reader")
    return int(lowest)


def _wrong(message: str) -> "sqlite3.Error":
    from sqlite3 import DatabaseError

    return DatabaseError(message)
