"""The database: views and tool sets, kept over restarts.

Owns: the file `metamcp.db` in the state directory, its tables and their versions. Never: the
meaning of its content (`ledger`), the order of changes (`ledger_io`), secrets, configuration.

A change is one transaction on disk before any client hears of it. A file that cannot be read is
left alone, and so is a file that replaced the one that was read: unknown content is never
overwritten. SQLite is loaded when the file exists, or for the first change to write.
"""

import asyncio
import os
import stat
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from metamcp_supervisor.views.ledger import Delta
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import Everything, Shown, ToolSet, ViewOwner
from metamcp_worker.ipc.errors import MetaMCPError

if TYPE_CHECKING:
    import sqlite3

T = TypeVar("T")

FILE = "metamcp.db"
BUSY_S_MAX = 2.0
"""Maximum seconds to wait while another program keeps the file locked, for example to copy it. A
write waits at most twice: for its beginning, and for its end."""
FILE_MODE = 0o600
FOLDER_MODE = 0o700

Steps = tuple[tuple[str, ...], ...]
"""SQL statements that bring the tables from each version to the next."""

#: Existing steps are never changed; new steps are added behind them.
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
)

_EMPTIED = "it is empty, and what was in it is lost"
"""Reason for an empty database: the file is made together with its first content, so the content
was removed later."""
_File = tuple[int, int]
"""Device and inode of a file."""


class Unstored(MetaMCPError):
    """The file could not be read or written. The text is a sentence without a full stop."""


class Store:
    """The database file; calls run one after the other. `busy_s`: see BUSY_S_MAX."""

    def __init__(
        self, state_dir: Path, *, busy_s: float = BUSY_S_MAX, steps: Steps = STEPS
    ) -> None:
        self.path = state_dir / FILE
        self._steps = steps
        self._busy_s = busy_s
        self._one = threading.Lock()
        """Lock of the connection: a thread whose caller was cancelled may still run, and two
        threads that use one connection crash."""
        self._database: sqlite3.Connection | None = None
        self._seen: _File | None = None
        """The file that was read or made; None if there was not a file."""
        self._dead: tuple[ViewOwner, ...] = ()
        """Views to delete with the next write, of sessions that ended with their gateway."""

    async def read(self, living: Collection[str]) -> Everything:
        """Return the content of the file; empty without a file. `living`: words for the sessions
        that go on, whose views are included. Raises Unstored."""
        how = "cannot be read and is left alone"
        end = "; repair it, or move it away to begin anew"
        try:
            self._seen = self._file()
        except OSError as error:
            raise Unstored(f"{self.path} {how}: {error.strerror}{end}") from None
        if self._seen is None:
            return Everything()
        return await asyncio.to_thread(self._told, how, end, lambda: self._read(living))

    async def write(self, delta: Delta) -> None:
        """Write a change. Raises Unstored; then nothing was written."""
        await asyncio.to_thread(self._told, "cannot be written", "", lambda: self._write(delta))

    async def close(self) -> None:
        if self._database is not None:
            await asyncio.to_thread(self._told, "cannot be closed", "", self._close)

    # --- in a thread --------------------------------------------------------------------------

    def _told(self, how: str, end: str, work: Callable[[], T]) -> T:
        """Return the result of `work`. An error closes the connection, which undoes an open
        transaction, and becomes a sentence. Raises Unstored."""
        from sqlite3 import Error

        with self._one:
            try:
                return work()
            except (Error, OSError, codec.Malformed, UnicodeError) as error:
                self._close()
                why = str(error.strerror if isinstance(error, OSError) else error)
        if why == "database is locked":
            why, end = "another program keeps it locked; try again", ""
        raise Unstored(f"{self.path} {how}: {why}{end}")

    def _read(self, living: Collection[str]) -> Everything:
        database = self._opened()
        database.execute("BEGIN")
        if self._version(database) == 0:
            ((tables,),) = database.execute("SELECT count(*) FROM sqlite_master")
            raise _wrong("it belongs to another program" if tables else _EMPTIED)
        self._migrate(database)
        known: dict[str, Shown] = {}  # one value for all that are equal
        views: list[tuple[ViewOwner, Shown]] = []
        for endpoint, principal, session, body in database.execute(
            "SELECT endpoint, principal, session, body FROM view ORDER BY 1, 2, 3"
        ):
            if body not in known:
                known[body] = codec.typed(Shown, body.encode())
            views.append((ViewOwner(endpoint, principal, session), known[body]))
        toolsets = tuple(
            codec.typed(ToolSet, body.encode())
            for (body,) in database.execute("SELECT body FROM toolset ORDER BY name")
        )
        database.execute("COMMIT")
        self._dead = tuple(
            whose for whose, _ in views if whose.session and whose.session not in living
        )
        return Everything(tuple(one for one in views if one[0] not in self._dead), toolsets)

    def _write(self, delta: Delta) -> None:
        # Encoded before the transaction begins: an error here changes nothing.
        shown = [(whose, codec.dump(one).decode()) for whose, one in delta.views if one != Shown()]
        put = None if delta.put is None else codec.dump(delta.put).decode()
        gone = [*self._dead, *(whose for whose, one in delta.views if one == Shown())]
        if self._file() != self._seen:
            raise OSError(0, "it is gone, or another file than before; restart the gateway")
        if made := self._seen is None:
            self._make()
        done = False
        try:
            self._change(delta, gone, shown, put, made=made)
            done = True
        finally:
            if made and not done:  # an empty file would look like one that was emptied
                self._close()
                self.path.unlink()
                self._seen = None
        self._dead = ()

    def _change(
        self,
        delta: Delta,
        gone: Sequence[ViewOwner],
        shown: Sequence[tuple[ViewOwner, str]],
        put: str | None,
        *,
        made: bool,
    ) -> None:
        """Write a change in one transaction. `made`: the file is new. Raises sqlite3.Error."""
        database = self._opened()
        database.execute("BEGIN IMMEDIATE")
        if not made and not self._version(database):
            raise _wrong(_EMPTIED)
        self._migrate(database)
        database.executemany(
            "DELETE FROM view WHERE endpoint = ? AND principal = ? AND session = ?",
            [(one.endpoint, one.principal, one.session) for one in gone],
        )
        database.executemany(
            "REPLACE INTO view VALUES (?, ?, ?, ?)",
            [(one.endpoint, one.principal, one.session, body) for one, body in shown],
        )
        if delta.put is not None:
            database.execute("REPLACE INTO toolset VALUES (?, ?)", (delta.put.name, put))
        if delta.drop:
            database.execute("DELETE FROM toolset WHERE name = ?", (delta.drop,))
        database.execute("COMMIT")

    def _file(self) -> _File | None:
        """Return which file has the name now. Raises OSError, also for a FIFO, where SQLite would
        wait for a writer."""
        found: os.stat_result | None = None
        for end in ("-wal", "-journal", ""):
            try:
                found = os.stat(f"{self.path}{end}")
            except FileNotFoundError:
                found = None
            if found is not None and not stat.S_ISREG(found.st_mode):
                raise OSError(0, f"{FILE}{end} is not a regular file")
        return None if found is None else (found.st_dev, found.st_ino)

    def _make(self) -> None:
        """Make an empty file, which is an empty database. Raises OSError."""
        self.path.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE))
        self._seen = self._file()

    def _opened(self) -> "sqlite3.Connection":
        """Return the connection to the existing file. Transactions begin and end by statements."""
        if self._database is None:
            import sqlite3

            self._database = sqlite3.connect(
                f"{self.path.absolute().as_uri()}?mode=rw",
                uri=True,
                timeout=self._busy_s,
                isolation_level=None,
                check_same_thread=False,  # one after the other, from whatever thread
            )
            # The journal of a transaction is synced with its folder: what was told is on disk.
            self._database.execute("PRAGMA synchronous = EXTRA")
        return self._database

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _version(self, database: "sqlite3.Connection") -> int:
        """Return the version of the tables; 0 without tables. Raises sqlite3.Error, also for a
        version newer than this program."""
        ((version,),) = database.execute("PRAGMA user_version")
        if version > len(self._steps):
            known = f"this program knows versions up to {len(self._steps)}"
            raise _wrong(f"it is of version {version}, and {known}")
        return int(version)

    def _migrate(self, database: "sqlite3.Connection") -> None:
        """Bring the tables to the newest version, in the transaction that is open. Raises
        sqlite3.Error."""
        version = self._version(database)
        for number, step in enumerate(self._steps[version:], version + 1):
            for statement in step:
                database.execute(statement)
            database.execute(f"PRAGMA user_version = {number}")


def _wrong(why: str) -> "sqlite3.Error":
    from sqlite3 import DatabaseError

    return DatabaseError(why)
