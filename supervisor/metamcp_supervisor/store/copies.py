"""Copies of the database: one created while a gateway uses the file, and one put in its place.

Owns: the online copy, the checks of a copy before anybody relies on it, moving the replaced file
aside. Never: who may restore when (the lock of the state directory is the caller's), the pepper of
the API keys, which is a secret and not in the database.
"""

import os
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from metamcp_supervisor.store.database import (
    FILE,
    FILE_MODE,
    StoreError,
    connect_database,
    version_of,
)

if TYPE_CHECKING:
    import sqlite3

COPY_S_MAX = 10.0
"""Maximum seconds to wait until the gateway has finished a change."""
PROBLEM_CHARACTERS_MAX = 200
"""Maximum characters that a sentence quotes from SQLite."""
_COUNTED = ("toolset", "view", "api_key")


class DatabaseContent(Struct, frozen=True, kw_only=True):
    """Number of rows in a copy, by kind."""

    toolsets: int = 0
    views: int = 0
    keys: int = 0


class RestoreResult(Struct, frozen=True, kw_only=True):
    """Result of `restore`. `replaced`: where the file that was there before is now, empty if there
    was none."""

    content: DatabaseContent
    replaced: str = ""


def backup(state_dir: Path, target: Path) -> DatabaseContent:
    """Copy the database to a new file that only this user may read, also while a gateway uses it:
    the copy is the database as it was at one moment. Raises Unstored; then nothing is left of
    it."""
    source = state_dir / FILE
    if not source.is_file():
        raise StoreError(f"{source} does not exist: nothing is stored yet")
    return _copy_database(source, target)


def restore(state_dir: Path, source: Path, now: float) -> RestoreResult:
    """Put a copy of `source` in the place of the database, whole or not at all. `now`: seconds
    since the epoch, for the name of the file that is replaced. The caller holds the state
    directory, whose owner gets the file. Raises Unstored; then the database is as before."""
    if not source.is_file():
        raise StoreError(f"{source} does not exist, or is not a file")
    path = state_dir / FILE
    if path.exists() and path.samefile(source):
        raise StoreError(f"{source} is the database itself; name a file that 'metamcp backup' made")
    fresh = state_dir / f"{FILE}.new"
    try:
        fresh.unlink(missing_ok=True)  # of a restore that was interrupted
        content = _copy_database(source, fresh)
        if os.geteuid() == 0:
            owner = state_dir.stat()
            os.chown(fresh, owner.st_uid, owner.st_gid, follow_symlinks=False)
        replaced = ""
        if path.exists():
            stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
            aside = state_dir / f"{FILE}.before-{stamp}"
            if aside.exists():
                raise StoreError(f"{aside} exists already; try again in a second")
            # The journal goes first: the new database must never meet the journal of another one.
            for end in ("-wal", "-journal", ""):
                with suppress(FileNotFoundError):
                    os.rename(f"{path}{end}", f"{aside}{end}")
            replaced = str(aside)
        os.rename(fresh, path)
        _sync(state_dir)
    except OSError as error:
        raise StoreError(f"{path} cannot be replaced: {error.strerror}") from None
    return RestoreResult(content=content, replaced=replaced)


def _copy_database(source: Path, target: Path) -> DatabaseContent:
    """Copy a database to a new file, check the copy, and return what is in it. Raises Unstored;
    then nothing is left of it."""
    from sqlite3 import Error

    try:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE))
    except FileExistsError:
        raise StoreError(
            f"{target} exists already, and nothing is overwritten; name another file"
        ) from None
    except OSError as error:
        raise StoreError(f"{target} cannot be made: {error.strerror}") from None
    done = False
    try:
        with (
            closing(connect_database(source, COPY_S_MAX)) as old,
            closing(connect_database(target)) as new,
        ):
            version_of(old)
            old.backup(new)
            content = _check_database(new)
        _sync(target)
        done = True
        return content
    except (Error, OSError) as error:
        reason = str(error.strerror if isinstance(error, OSError) else error)
    finally:
        if not done:
            for end in ("-journal", ""):
                Path(f"{target}{end}").unlink(missing_ok=True)
    raise StoreError(f"{source} cannot be copied: {reason[:PROBLEM_CHARACTERS_MAX]}")


def _check_database(database: "sqlite3.Connection") -> DatabaseContent:
    """Return what is in a database of this gateway that is not damaged. Raises sqlite3.Error."""
    from sqlite3 import DatabaseError

    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
    if not version_of(database) or "toolset" not in tables:
        raise DatabaseError("it is not a database of MetaMCP")
    ((verdict,),) = database.execute("PRAGMA integrity_check(1)")
    if verdict != "ok":
        raise DatabaseError(f"it is damaged: {verdict}")
    counts = [
        next(database.execute(f"SELECT count(*) FROM {name}"))[0] if name in tables else 0  # noqa: S608 - names of this module
        for name in _COUNTED
    ]
    return DatabaseContent(toolsets=counts[0], views=counts[1], keys=counts[2])


def _sync(path: Path) -> None:
    """Bring a file or a folder to the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
