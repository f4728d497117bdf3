"""Backups of a state directory: created while a gateway uses it, checked, and put in its place.

Owns: the form of a backup, its encryption, online copies of databases, the checks before anybody
relies on a copy, moving replaced files aside. Never: which files count, who may restore when (the
lock of the state directory is the caller's), asking for a passphrase.

    head     "metamcp-backup-1 plain\\n" or "metamcp-backup-1 scrypt\\n"
    plain    a tar archive: the files by their names in the state directory, then MANIFEST
    scrypt   a salt, an empty chunk that tells a wrong passphrase, and the archive in chunks: each
             is of AES-256-GCM, its nonce counts them and marks the last one

A file that is a database itself is a backup of an earlier version.
"""

import hashlib
import io
import os
import re
import secrets
import shutil
import tarfile
import tempfile
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext
from fnmatch import fnmatchcase
from itertools import groupby
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from msgspec import Struct

from metamcp_supervisor.runtime import UNFINISHED
from metamcp_supervisor.store.database import (
    FILE,
    FILE_MODE,
    FOLDER_MODE,
    TABLES,
    SqliteRows,
    StoreError,
    connect_database,
    count_rows,
    version_of,
)
from metamcp_worker.ipc import codec
from metamcp_worker.oauth.vault import VaultUnfit, hold_key

if TYPE_CHECKING:
    import sqlite3

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

FORMAT = 1
"""Newest form of a backup that this program writes and reads."""
MANIFEST = "backup.json"
"""Last file of the archive: one without it is not complete."""
COPY_S_MAX = 10.0
"""Maximum seconds to wait until the gateway has finished a change."""
PROBLEM_CHARACTERS_MAX = 200
"""Maximum characters that a sentence quotes from SQLite."""
MANIFEST_BYTES_MAX = 64 * 1024
CHUNK_BYTES = 64 * 1024
"""Bytes that are encrypted as one."""
SALT_BYTES, TAG_BYTES = 16, 16
SCRYPT_N, SCRYPT_R = 2**17, 8
"""Cost of a guess at a passphrase: 128 MiB of memory, and half a second."""
DAMAGED = "is damaged, or not complete"
_VAULT = "oauth"
"""Folder of the tokens; the name of the file with their key begins with it, too."""
_HEAD = re.compile(rb"metamcp-backup-(\d{1,9}) ([a-z]+)\n")
_HEAD_BYTES_MAX = 64
_DATABASE_HEAD = b"SQLite format 3\0"
_JOURNALS = ("-wal", "-shm", "-journal")


class DatabaseContent(Struct, frozen=True, kw_only=True):
    """Number of rows in a copy, by kind."""

    toolsets: int = 0
    views: int = 0
    keys: int = 0


class BackupManifest(Struct, frozen=True, kw_only=True):
    """Content of a backup. `files`: names in the state directory; `audit`: the folder of
    the audit, which is not in it; empty without one."""

    content: DatabaseContent = DatabaseContent()
    files: tuple[str, ...] = ()
    audit: str = ""


def list_files(state_dir: Path, patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the files that these patterns mean. Raises StoreError."""
    try:
        paths = {path for pattern in patterns for path in state_dir.glob(pattern)}
        return tuple(sorted(str(path.relative_to(state_dir)) for path in paths if path.is_file()))
    except OSError as error:
        raise StoreError(f"{state_dir} cannot be read: {error.strerror}") from None


def backup(
    state_dir: Path, target: Path, names: Sequence[str], passphrase: bytes, audit: str = ""
) -> BackupManifest:
    """Copy these files to a new file that only this user may read, also while a gateway uses them:
    each database is as it was at one moment. `passphrase`: encrypts it, unless it is empty;
    `audit`: see BackupManifest. Raises StoreError; then nothing is left of it."""
    if not names:
        raise StoreError(f"{state_dir} has nothing to back up: nothing is stored yet")
    try:
        with _create_file(target) as file:
            kind = b"scrypt" if passphrase else b"plain"
            file.write(b"metamcp-backup-%d %s\n" % (FORMAT, kind))
            if not passphrase:
                return _pack(state_dir, names, audit, file)
            body = _EncryptedFile(file, passphrase)
            manifest = _pack(state_dir, names, audit, body)
            body.finish()
            return manifest
    except VaultUnfit as error:
        raise StoreError(str(error)) from None
    except OSError as error:
        problem = error.strerror or error
        raise StoreError(f"{state_dir} cannot be copied to {target}: {problem}") from None


def _pack(
    state_dir: Path, names: Sequence[str], audit: str, body: IO[bytes] | io.RawIOBase
) -> BackupManifest:
    """Write these files as an archive. Raises StoreError and OSError."""
    content, vault = DatabaseContent(), state_dir / _VAULT
    with (
        tempfile.TemporaryDirectory(prefix=".backup-", dir=state_dir) as folder,
        tarfile.open(fileobj=body, mode="w|") as archive,
    ):
        # Tokens and their key come one after the other, and must fit each other.
        for is_of_vault, group in groupby(names, lambda name: name.startswith(_VAULT)):
            with hold_key(str(vault)) if is_of_vault and vault.is_dir() else nullcontext():
                for name in group:
                    copy = state_dir / name
                    if copy.suffix == ".db":
                        copy = Path(folder, copy.name)
                        content = _copy_database(state_dir / name, copy) or content
                    with copy.open("rb") as file:
                        entry = tarfile.TarInfo(name)
                        entry.size, entry.mode = os.fstat(file.fileno()).st_size, FILE_MODE
                        archive.addfile(entry, file)
        manifest = BackupManifest(content=content, files=tuple(names), audit=audit)
        text = codec.dump(manifest)
        entry = tarfile.TarInfo(MANIFEST)
        entry.size = len(text)
        archive.addfile(entry, io.BytesIO(text))
    return manifest


def is_encrypted(source: Path) -> bool:
    """Whether a passphrase is needed to restore this file. Raises StoreError."""
    with _open_backup(source) as file:
        return _read_head(source, file) == "scrypt"


def restore(
    state_dir: Path, source: Path, plain: Sequence[str], secret: Sequence[str], passphrase: bytes,
    now: float,
) -> tuple[BackupManifest, str]:  # fmt: skip
    """Put the content of `source` in the place of the files of a state directory, whole or not at
    all. `plain`, `secret`: patterns of these files; one that is not encrypted leaves the secrets as
    they are. `now`: seconds since the epoch, for the name of the folder with the replaced files.
    The caller holds the state directory, whose owner gets the files. Return what the backup had,
    and that folder, empty without a replaced file. Raises StoreError; then all is as before."""
    fresh = state_dir / "restore.new"
    try:
        shutil.rmtree(fresh, ignore_errors=True)  # of a restore that was interrupted
        fresh.mkdir(FOLDER_MODE)
        try:
            with _open_backup(source) as file:
                kind = _read_head(source, file)
                patterns = {"database": (FILE,), "plain": plain}.get(kind, (*plain, *secret))
                if kind == "database":
                    path = state_dir / FILE
                    if path.exists() and path.samefile(source):
                        raise StoreError(f"{source} is the database itself; name a backup")
                    content = _copy_database(source, fresh / FILE) or DatabaseContent()
                    manifest = BackupManifest(content=content, files=(FILE,))
                else:
                    key = passphrase if kind == "scrypt" else b""
                    manifest = _unpack(source, _read_body(source, file, key), fresh, patterns)
            if os.geteuid() == 0:
                owner = state_dir.stat()
                for path in (fresh, *fresh.rglob("*")):
                    os.chown(path, owner.st_uid, owner.st_gid, follow_symlinks=False)
            replaced = _replace(state_dir, fresh, patterns, now)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    except OSError as error:
        raise StoreError(f"{state_dir} cannot be restored: {error.strerror}") from None
    return manifest, replaced


def _unpack(
    source: Path, body: "IO[bytes] | _DecryptedFile", fresh: Path, patterns: Sequence[str]
) -> BackupManifest:
    """Write the files of an archive into a folder, and check them. Raises StoreError and
    OSError."""
    unfit = StoreError(f"{source} {DAMAGED}")
    names: list[str] = []
    manifest: BackupManifest | None = None
    try:
        with tarfile.open(fileobj=body, mode="r|") as archive:
            for entry in archive:
                content = archive.extractfile(entry) if entry.isreg() else None
                if content is None or manifest is not None:
                    raise unfit
                if entry.name == MANIFEST:
                    manifest = codec.decode_as(BackupManifest, content.read(MANIFEST_BYTES_MAX))
                    continue
                if not any(_is_match(entry.name, pattern) for pattern in patterns):
                    raise StoreError(f"{source} has a file {entry.name[:64]!r} that no backup has")
                path = fresh / entry.name
                path.parent.mkdir(FOLDER_MODE, exist_ok=True)
                with _create_file(path) as copy:
                    shutil.copyfileobj(content, copy)
                names.append(entry.name)
        while body.read(CHUNK_BYTES):  # the last chunk says that nothing is missing
            pass
    except (tarfile.TarError, codec.Malformed, EOFError):
        raise unfit from None
    if manifest is None or manifest.files != tuple(names):
        raise unfit
    for name in names:
        if name.endswith(".db"):
            _check_copy(source, fresh / name)
    return manifest


def _is_match(name: str, pattern: str) -> bool:
    words = name.split("/")
    same = len(words) == pattern.count("/") + 1
    return same and not {"", ".", ".."} & {*words} and fnmatchcase(name, pattern)


def _replace(state_dir: Path, fresh: Path, patterns: Sequence[str], now: float) -> str:
    """Move the files of these patterns aside, and those of `fresh` into their place. Return the
    folder of the former, empty without one. Raises StoreError and OSError; then nothing has
    moved."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now))
    aside, unfinished = state_dir / f"before-{stamp}", state_dir / UNFINISHED
    if aside.exists():
        raise StoreError(f"{aside} exists already; try again in a second")
    # The journal goes first: the new database must never meet the journal of another one.
    databases = [pattern for pattern in patterns if pattern.endswith(".db")]
    journals = [f"{name}{end}" for name in databases for end in _JOURNALS]
    old = (*list_files(state_dir, journals), *list_files(state_dir, patterns))
    new = list_files(fresh, patterns)
    moves = [(state_dir / name, aside / name) for name in old]
    moves += [(fresh / name, state_dir / name) for name in new]
    owner = state_dir.stat()
    for _, path in moves:
        if not path.parent.exists():
            path.parent.mkdir(FOLDER_MODE, parents=True)
            if os.geteuid() == 0:
                os.chown(path.parent, owner.st_uid, owner.st_gid)
    was_unfinished = unfinished.exists()
    unfinished.touch(FILE_MODE)
    _sync(state_dir)
    done: list[tuple[Path, Path]] = []
    try:
        for path, target in moves:
            os.rename(path, target)
            done.append((path, target))
        for folder in {target.parent for _, target in moves}:
            _sync(folder)
    except OSError:
        for path, target in reversed(done):
            os.rename(target, path)
        shutil.rmtree(aside, ignore_errors=True)  # folders without files
        if not was_unfinished:
            unfinished.unlink()
        raise
    unfinished.unlink()
    _sync(state_dir)
    return str(aside) if old else ""


# The form of a backup


@contextmanager
def _create_file(target: Path) -> Generator[IO[bytes]]:
    """Yield a new file, bring it to the disk, and remove it after an error. Raises StoreError and
    OSError."""
    try:
        fd = os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, FILE_MODE)
    except FileExistsError:
        raise StoreError(
            f"{target} exists already, and nothing is overwritten; name another file"
        ) from None
    except OSError as error:
        raise StoreError(f"{target} cannot be made: {error.strerror}") from None
    with ExitStack() as undo, open(fd, "wb") as file:
        undo.callback(target.unlink, missing_ok=True)
        yield file
        file.flush()
        os.fsync(fd)
        undo.pop_all()


@contextmanager
def _open_backup(source: Path) -> Generator[IO[bytes]]:
    if not source.is_file():
        raise StoreError(f"{source} does not exist, or is not a file")
    try:
        file = source.open("rb")
    except OSError as error:
        raise StoreError(f"{source} cannot be read: {error.strerror}") from None
    with file:
        yield file


def _read_head(source: Path, file: IO[bytes]) -> str:
    """Return the form of a backup: `plain`, `scrypt`, or `database`. Raises StoreError."""
    line = file.readline(_HEAD_BYTES_MAX)
    if line.startswith(_DATABASE_HEAD):
        return "database"
    match = _HEAD.fullmatch(line)
    if match is None:
        raise StoreError(f"{source} is not a backup of MetaMCP")
    number, kind = int(match[1]), match[2].decode()
    if number > FORMAT or kind not in {"plain", "scrypt"}:
        raise StoreError(
            f"{source} is of format {number} {kind}, and this program knows formats up to {FORMAT};"
            " restore it with the version of MetaMCP that made it"
        )
    return kind


def _read_body(source: Path, file: IO[bytes], passphrase: bytes) -> "IO[bytes] | _DecryptedFile":
    """Return where the archive behind the head is to be read. `passphrase`: empty for one that is
    not encrypted. Raises StoreError."""
    if not passphrase:
        return file
    cipher = _cipher(passphrase, file.read(SALT_BYTES))
    check = file.read(TAG_BYTES)
    if len(check) < TAG_BYTES:
        raise StoreError(f"{source} {DAMAGED}")
    if _decrypt(cipher, check, 0, last=False) is None:
        raise StoreError(f"the passphrase is not the one with which {source} was made")
    return _DecryptedFile(source, file, cipher)


class _EncryptedFile(io.RawIOBase):
    """Encrypts what is written, and writes it to `file`; `finish` writes the last chunk."""

    def __init__(self, file: IO[bytes], passphrase: bytes) -> None:
        salt = secrets.token_bytes(SALT_BYTES)
        self._file = file
        self._cipher = _cipher(passphrase, salt)
        self._number = 0
        self._pending = bytearray()
        file.write(salt)
        self._put(0, last=False)

    def write(self, data: Any, /) -> int:
        self._pending += data
        while len(self._pending) > CHUNK_BYTES:  # the last chunk has some bytes, too
            self._put(CHUNK_BYTES, last=False)
        return len(data)

    def finish(self) -> None:
        self._put(len(self._pending), last=True)

    def _put(self, size: int, *, last: bool) -> None:
        nonce = _nonce(self._number, last=last)
        self._file.write(self._cipher.encrypt(nonce, bytes(self._pending[:size]), None))
        del self._pending[:size]
        self._number += 1


class _DecryptedFile(io.RawIOBase):
    """Content of the chunks in `file`. Reading raises StoreError where one is missing or is not as
    it was written."""

    def __init__(self, source: Path, file: IO[bytes], cipher: "AESGCM") -> None:
        self._source = source
        self._file = file
        self._cipher = cipher
        self._number = 1
        self._chunk = file.read(CHUNK_BYTES + TAG_BYTES)
        self._pending = b""
        self._ended = False

    def read(self, size: int = -1, /) -> bytes:
        """Return at most `size` bytes, none at the end."""
        if not self._pending and not self._ended:
            chunk, self._chunk = self._chunk, self._file.read(CHUNK_BYTES + TAG_BYTES)
            self._ended = not self._chunk
            content = _decrypt(self._cipher, chunk, self._number, last=self._ended)
            if content is None:
                raise StoreError(f"{self._source} {DAMAGED}")
            self._pending, self._number = content, self._number + 1
        data, self._pending = self._pending[:size], self._pending[size:]
        return data


def _cipher(passphrase: bytes, salt: bytes) -> "AESGCM":
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    most, n, r = 256 * SCRYPT_N * SCRYPT_R, SCRYPT_N, SCRYPT_R
    return AESGCM(hashlib.scrypt(passphrase, salt=salt, n=n, r=r, p=1, maxmem=most, dklen=32))


def _decrypt(cipher: "AESGCM", chunk: bytes, number: int, *, last: bool) -> bytes | None:
    """Return the content of a chunk; None for one that is not as it was written."""
    from cryptography.exceptions import InvalidTag

    try:
        return cipher.decrypt(_nonce(number, last=last), chunk, None)
    except InvalidTag:
        return None


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([last])


# Databases


def _copy_database(source: Path, target: Path) -> DatabaseContent | None:
    """Copy a database to a new file, check the copy, and return what is in it if it is the one of
    this gateway's store. Raises StoreError; then nothing is left of it."""
    from sqlite3 import Error

    with _create_file(target):
        pass
    done = False
    try:
        with (
            closing(connect_database(source, COPY_S_MAX)) as old,
            closing(connect_database(target)) as new,
        ):
            if target.name == FILE:
                version_of(old)
            old.backup(new)
            content = _check_database(new, target.name)
        _sync(target)
        done = True
        return content
    except (Error, OSError) as error:
        reason = str(error.strerror if isinstance(error, OSError) else error)
    finally:
        if not done:
            for end in ("", *_JOURNALS):
                Path(f"{target}{end}").unlink(missing_ok=True)
    raise StoreError(f"{source} cannot be copied: {reason[:PROBLEM_CHARACTERS_MAX]}")


def _check_copy(source: Path, copy: Path) -> None:
    """Raise StoreError for a database of a backup that cannot be used."""
    from sqlite3 import Error

    try:
        with closing(connect_database(copy)) as database:
            _check_database(database, copy.name)
    except Error as error:
        reason = str(error)[:PROBLEM_CHARACTERS_MAX]
        raise StoreError(f"{source} cannot be restored: {copy.name}: {reason}") from None


def _check_database(database: "sqlite3.Connection", name: str) -> DatabaseContent | None:
    """Return what is in the database of a store that is not damaged; None for another database.
    Raises sqlite3.Error."""
    from sqlite3 import DatabaseError

    tables = {table for (table,) in database.execute("SELECT name FROM sqlite_master")}
    if name == FILE and (not version_of(database) or "toolset" not in tables):
        raise DatabaseError("it is not a database of MetaMCP")
    ((verdict,),) = database.execute("PRAGMA integrity_check(1)")
    if verdict != "ok":
        raise DatabaseError(f"it is damaged: {verdict}")
    if name != FILE:
        return None
    present = [table for table in TABLES if table in tables]
    counts = dict.fromkeys(TABLES, 0) | count_rows(SqliteRows(database), present)
    return DatabaseContent(toolsets=counts["toolset"], views=counts["view"], keys=counts["api_key"])


def _sync(path: Path) -> None:
    """Bring a file or a folder to the disk. Raises OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
