"""Files of definitions: `metamcp.lock`, and the file of definitions that were seen first.

Owns: where the files are, reading a file if it exists, writing a whole file at once. Never: their
content (`lock`).
"""

import contextlib
import os
from pathlib import Path

from metamcp_supervisor.approval import lock
from metamcp_supervisor.approval.lock import Lock
from metamcp_supervisor.config import files
from metamcp_supervisor.config.config import Config, ConfigInvalid, Problem
from metamcp_supervisor.config.document import printable

FILE = "metamcp.lock"
SEEN = "definitions.lock"
"""File in the state directory with the definitions that servers without an entry in FILE offered
when they were first seen."""
LOCK_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes of a file; thousands of tools take a tenth of it."""
_MODE = 0o644
"""Mode of a new file, readable for all: the file is meant for version control, and definitions are
not secret, because every client gets them."""


def find_lock_path(config: Config) -> Path:
    """Return the path of this configuration's `metamcp.lock`: in the directory of its main file."""
    return (config.files[0].parent if config.files else Path.cwd()) / FILE


def load(path: Path) -> Lock | None:
    """Read a file; None if it does not exist. Raises ConfigInvalid with every mistake."""
    label = printable(str(path))
    if not os.path.lexists(path):
        return None
    try:
        return lock.read(files.text(path, LOCK_BYTES_MAX), label)
    except files.FileUnreadable as error:
        raise ConfigInvalid((Problem(label, "", str(error)),)) from None


def save(path: Path, content: Lock) -> bool:
    """Write a file beside `path` and rename it, so that a crash leaves the old or the new file.
    Return False if the file has this content already and is not touched. Raises OSError."""
    text = lock.text(content)
    with contextlib.suppress(files.FileUnreadable):
        if files.text(path, LOCK_BYTES_MAX) == text:
            return False
    target = Path(os.path.realpath(path))  # a link stays one
    files.replace_file(target, text.encode(), _mode(target))
    return True


def _mode(target: Path) -> int:
    """Return the mode of the file that is replaced, or _MODE for a new file."""
    try:
        return target.stat().st_mode & 0o777
    except OSError:
        return _MODE
