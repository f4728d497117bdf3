"""The file of a client on the disk: read unchanged, written whole or not at all, with a backup.

Owns: bytes and modes, links, backups and their number. Never: the content of a file (`texts`).
"""

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from metamcp_supervisor.config import files

FILE_BYTES_MAX = 32 * 1024 * 1024
"""Maximum bytes of a file; some clients keep much more in it than servers."""
BACKUP = ".metamcp-backup"
BACKUPS_MAX = 3
"""Maximum number of backups; the newest is NAME.metamcp-backup, older ones end with .1, .2 and so
on."""
_BOM = b"\xef\xbb\xbf"
_NEW_MODE = 0o600
"""Mode of a file that we create: only for its user, because many of these files hold secrets sooner
or later."""


class FileChanged(Exception):
    """Another program has written to the file since it was read."""


@dataclass(frozen=True, slots=True)
class Content:
    """Content of a file. `data`: its bytes, None if the file does not exist; `text`: the decoded
    bytes, without a byte order mark."""

    path: Path
    data: bytes | None
    text: str

    @property
    def exists(self) -> bool:
        return self.data is not None


def read(path: Path) -> Content:
    """Read a file, which may be missing. Raises files.Unreadable."""
    if not path.exists():
        return Content(path, None, "")
    data = files.data(path, FILE_BYTES_MAX)
    try:
        return Content(path, data, data.removeprefix(_BOM).decode())
    except UnicodeDecodeError as error:
        raise files.FileUnreadable(f"is not UTF-8 text (byte {error.start})") from None


def write(content: Content, text: str | None) -> None:
    """Replace the content of the file by `text`; None removes the file. Links are followed, the
    mode is kept, and readers see either the old file or the new one. Raises OSError and Changed."""
    path = Path(os.path.realpath(content.path))
    if read(content.path).data != content.data:
        raise FileChanged
    if text is None:
        path.unlink()
        return
    data = (_BOM if (content.data or b"").startswith(_BOM) else b"") + text.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    place(path, data, path.stat().st_mode & 0o7777 if content.exists else _NEW_MODE)


def place(path: Path, data: bytes, mode: int) -> None:
    """Write a whole file at once: beside `path`, then renamed. Raises OSError."""
    fd, fresh = tempfile.mkstemp(prefix=f".{path.name[:64]}.", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(fd, mode)
            os.fsync(fd)
        os.replace(fresh, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(fresh)
        raise


# The backup


def backup_of(path: Path) -> Path:
    """Return the path of the newest backup: beside the file itself, not beside a link to it."""
    real = Path(os.path.realpath(path))
    return real.with_name(real.name + BACKUP)


def keep(content: Content) -> Path | None:
    """Write the content that was read to a new backup; older backups get the next number. Return
    the path of the backup, None if the file did not exist. Raises OSError."""
    path = backup_of(content.path)
    for number in range(BACKUPS_MAX - 1, 0, -1):
        older = path if number == 1 else _numbered(path, number - 1)
        if older.exists():
            os.replace(older, _numbered(path, number))
    if content.data is None:
        return None
    mode = os.stat(content.path).st_mode & 0o7777
    place(path, content.data, mode)
    return path


def forget(path: Path) -> None:
    """Remove the newest backup, because the file has the same content. Raises OSError."""
    backup_of(path).unlink(missing_ok=True)


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
