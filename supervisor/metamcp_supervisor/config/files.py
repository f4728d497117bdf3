"""Reading files that users wrote: configuration, and secrets that it refers to.

Owns: which files are read at all (regular, limited in size, text), and a sentence for each refused
file; the temporary file for content that must be written whole or not at all; noticing that files
changed. Never: the meaning of the content.
"""

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from metamcp_supervisor.config.document import shorten
from metamcp_supervisor.config.references import Unresolved, no_credentials

CONFIG_BYTES_MAX = 4 * 1024 * 1024
"""Maximum bytes of a configuration file; a thousand servers with long commands take less than
1 MiB."""
SECRET_BYTES_MAX = 64 * 1024
"""Maximum bytes of a file with a secret; keys and certificates have a few KiB."""
_CHUNK_BYTES = 64 * 1024
QUIET_S = 1.0
"""Seconds without a further change before changed files are read, because a file may be half
written."""

READS_MAX = 5
"""Maximum times that files are read for one reload; each brings files that no earlier one named."""

T = TypeVar("T")
Stamp = tuple[int, int, int]
"""Inode, size in bytes and modification time in nanoseconds of a file."""
Stamps = dict[Path, Stamp | None]
"""Stamps of files; None for a file whose state cannot be read."""


class FileUnreadable(Exception):
    """A file that is not read. The text follows the file's name in a sentence."""


def text(path: Path, limit_bytes: int = CONFIG_BYTES_MAX) -> str:
    """Read the text of a configuration file, without a byte order mark. Raises Unreadable."""
    return _decode_text(data(path, limit_bytes))


def owned_text(path: Path) -> tuple[str, str]:
    """Read the text of a configuration file, and return why no command in it may run: another user
    chose its content, or could. The second text is empty if it belongs to this user or root, and
    nobody else may write to it. Raises Unreadable."""
    data, file_stat = _content(path, CONFIG_BYTES_MAX, os.O_RDONLY)
    try:
        _check_owner(
            file_stat, stat.S_IWGRP | stat.S_IWOTH, "written by others; run 'chmod go-w' on it"
        )
    except FileUnreadable as error:
        return _decode_text(data), str(error)
    return _decode_text(data), ""


def data(path: Path, limit_bytes: int) -> bytes:
    """Read the bytes of a file. Raises Unreadable."""
    return _content(path, limit_bytes, os.O_RDONLY)[0]


def others_may_write(path: Path) -> bool:
    """Whether every user of this machine may change the file. False if it is gone by now."""
    try:
        return bool(path.stat().st_mode & stat.S_IWOTH)
    except OSError:
        return False


def secret(path: Path) -> str:
    """Read the text of a file that holds a secret, without the newline at its end.

    The file must be one that other users can neither read nor replace: not a link, owned by this
    user or root, mode 0600 or less. Raises references.Unresolved.
    """
    return _secret(
        path, f"the file {path}", 0o077, "read or written by others; run 'chmod 600' on it"
    )


def text_of(path: str) -> str:
    """Read the text of a file of variables. Raises references.Unresolved."""
    try:
        return text(Path(path))
    except FileUnreadable as error:
        raise Unresolved(f"{shorten(path)} {error}") from None


def credential(folder: str, name: str) -> str:
    """Read the text of a credential of the service, without the newline at its end. `folder`: where
    systemd puts credentials for this service alone; empty without credentials.

    The file must belong to this user or root. The group may have the right to read: systemd gives
    this user an access list, whose mask these bits are. Raises references.Unresolved.
    """
    if not folder:
        return no_credentials(name)
    if not name or "/" in name or name in {".", ".."}:
        raise Unresolved(
            f"'{shorten(name)}' is not the name of a credential; it is a file name, no path"
        )
    return _secret(
        Path(folder, name), f"the credential {shorten(name)}", 0o037, "read or changed by others"
    )


def _secret(path: Path, label: str, forbidden: int, ending: str) -> str:
    """Return the text of a file with a secret. `label`: words for it; `forbidden`: bits of its mode
    that it must not have; `ending`: of a sentence about them. Raises references.Unresolved."""
    try:
        data, file_stat = _content(path, SECRET_BYTES_MAX, os.O_RDONLY | os.O_NOFOLLOW)
        _check_owner(file_stat, forbidden, ending)
        text = _decode_text(data).removesuffix("\n").removesuffix("\r")
    except FileUnreadable as error:
        raise Unresolved(f"{label} {error}") from None
    if not text:
        raise Unresolved(f"{label} is empty")
    return text


def create_temp_file(path: Path) -> tuple[int, str]:
    """Create a file in the same folder, with mode 0600. Return its descriptor and its path.

    `tempfile` is not used, because it imports all libraries for compression. Raises OSError."""
    name = os.path.join(path.parent, f".{path.name[:64]}.{secrets.token_hex(8)}")
    return os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), name


def replace_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file beside `path` and rename it: whoever reads, and a crash, finds the old file or
    the new one. Raises OSError; then the old file is still there."""
    fd, name = create_temp_file(path)
    try:
        with open(fd, "wb") as file:
            os.fchmod(fd, mode)
            file.write(content)
            file.flush()
            os.fsync(fd)
        os.replace(name, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def make_once(path: Path, content: bytes) -> None:
    """Make a file with mode 0600, whole or not at all; if the file is there already, it stays.
    Raises OSError."""
    fd, name = create_temp_file(path)
    try:
        with open(fd, "wb") as made:
            made.write(content)
            made.flush()
            os.fsync(made.fileno())
        with contextlib.suppress(FileExistsError):
            os.link(name, path)
    finally:
        os.unlink(name)


def own_key(path: Path, size_bytes: int, *, make: bool = True) -> bytes:
    """Return the random key in this file of the gateway, which has it in hexadecimal digits.
    `make`: make the file, whole and once, if it is not there. Raises OSError if that cannot be
    done, references.Unresolved if the file cannot be read, ValueError if it has something else."""
    if make and not os.path.lexists(path):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        make_once(path, f"{secrets.token_hex(size_bytes)}\n".encode())
    key = bytes.fromhex(secret(path).strip())
    if len(key) != size_bytes:
        raise ValueError(f"{path} has {len(key)} bytes, not {size_bytes}")
    return key


def _content(path: Path, limit_bytes: int, flags: int) -> tuple[bytes, os.stat_result]:
    try:
        # Without O_NONBLOCK, opening a FIFO waits for a writer.
        fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise FileUnreadable(_reason(error)) from None
    except ValueError:
        raise FileUnreadable("has a name that no file can have") from None
    try:
        before = os.fstat(fd)
        _check_kind(before.st_mode)
        data = _read(fd, limit_bytes)
        after = os.fstat(fd)
    except OSError as error:
        raise FileUnreadable(f"cannot be read: {error.strerror}") from None
    finally:
        os.close(fd)
    if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
        raise FileUnreadable("changed while it was read; try again")
    return data, before


def _read(fd: int, limit_bytes: int) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while chunk := os.read(fd, _CHUNK_BYTES):
        chunks.append(chunk)
        size += len(chunk)
        if size > limit_bytes:
            raise FileUnreadable(f"is larger than {limit_bytes} bytes, the limit")
    return b"".join(chunks)


def _reason(error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return "does not exist"
    if isinstance(error, PermissionError):
        return "may not be read by this user"
    return f"cannot be opened: {error.strerror}"


def _check_kind(mode: int) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise FileUnreadable("is a directory; name a file")
    if stat.S_ISFIFO(mode):
        raise FileUnreadable("is a FIFO, not a regular file")
    raise FileUnreadable("is a device, not a regular file")


def _check_owner(file_stat: os.stat_result, forbidden: int, ending: str) -> None:
    if file_stat.st_uid not in {os.geteuid(), 0}:
        raise FileUnreadable(
            f"belongs to user id {file_stat.st_uid}, neither to this user nor to root"
        )
    if file_stat.st_mode & forbidden:
        raise FileUnreadable(f"may be {ending}")


def _decode_text(data: bytes) -> str:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileUnreadable(f"is not UTF-8 text (byte {error.start})") from None
    if "\0" in text:
        raise FileUnreadable("has NUL characters in it: it is not text")
    return text


class FileChangeDetector:
    """Detector of files that changed and then stayed the same for QUIET_S. `stamps`: of the files
    as they were read."""

    def __init__(self, stamps: Stamps) -> None:
        self.known = self._seen = stamps
        self._since = 0.0

    def look(self, stamps: Stamps, now: float) -> bool:
        """Whether to read the files again. `stamps`: of the files now; `now`: monotonic seconds."""
        if stamps != self._seen:
            self._seen, self._since = stamps, now
        return stamps != self.known and now - self._since >= QUIET_S


def stamp_files(files: Iterable[Path]) -> Stamps:
    stamps: Stamps = {}
    for path in files:
        try:
            state = os.stat(path)
        except OSError:
            stamps[path] = None
        else:
            stamps[path] = (state.st_ino, state.st_size, state.st_mtime_ns)
    return stamps


def read_stamped(
    read: Callable[[], tuple[T, Iterable[Path]]], expected: Iterable[Path]
) -> tuple[T, Stamps]:
    """Return what `read` read, and stamps of its files from before it read them. `expected`: files
    that it will probably read. Files that it names without such a stamp are read again, READS_MAX
    times at most; then they have None, as if they had come since."""
    files = tuple(expected)
    for _ in range(READS_MAX):
        stamps = stamp_files(files)
        content, named = read()
        files = tuple(named)
        if stamps.keys() >= set(files):
            break
        files = (*stamps, *files)
    return content, {path: stamps.get(path) for path in files}
