"""The file of a client on the disk: read as it is, written whole or not at all, a copy beside it.

Owns: bytes and modes, links, the backup and how many there are. Never: what a file says (`texts`).
"""

import contextlib
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from metamcp_supervisor.config import files

FILE_BYTES_MAX = 32 * 1024 * 1024
"""Some clients keep much more in theirs than servers."""
BACKUP = ".metamcp-backup"
BACKUPS_MAX = 3
"""The newest is NAME.metamcp-backup, an older one NAME.metamcp-backup.1 and so on."""
_BOM = b"\xef\xbb\xbf"
_NEW_MODE = 0o600
"""Of a file that we make: many of these files hold secrets sooner or later."""


class Changed(Exception):
    """Somebody else wrote to the file meanwhile."""


@dataclass(frozen=True, slots=True)
class Content:
    """`data`: the bytes, None for no file; `text`: what they say, without a byte order mark."""

    path: Path
    data: bytes | None
    text: str

    @property
    def exists(self) -> bool:
        return self.data is not None


def read(path: Path) -> Content:
    """Raises files.Unreadable."""
    if not path.exists():
        return Content(path, None, "")
    data = files.data(path, FILE_BYTES_MAX)
    try:
        return Content(path, data, data.removeprefix(_BOM).decode())
    except UnicodeDecodeError as error:
        raise files.Unreadable(f"is no UTF-8 text (byte {error.start})") from None


def write(content: Content, text: str | None) -> None:
    """Put `text` in the place of what was read; None removes the file. Links are followed, the
    mode is kept, and whoever looks sees the old file or the new one. Raises OSError and Changed."""
    path = Path(os.path.realpath(content.path))
    if read(content.path).data != content.data:
        raise Changed
    if text is None:
        path.unlink()
        return
    data = (_BOM if (content.data or b"").startswith(_BOM) else b"") + text.encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    place(path, data, path.stat().st_mode & 0o7777 if content.exists else _NEW_MODE)


def place(path: Path, data: bytes, mode: int) -> None:
    """A whole file at once. Raises OSError."""
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
    """Beside the file itself, not beside a link to it."""
    real = Path(os.path.realpath(path))
    return real.with_name(real.name + BACKUP)


def keep(content: Content) -> Path | None:
    """Copy what was read; an older backup moves on. None if there was no file. Raises OSError."""
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
    """Remove the newest backup, which says nothing that the file does not. Raises OSError."""
    backup_of(path).unlink(missing_ok=True)


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")
