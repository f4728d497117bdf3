"""Files of approved definitions: `metamcp.lock`, and what the gateway has seen first.

Owns: where they are, reading one if it is there, writing one whole. Never: what is in them
(`lock`).
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
"""In the state directory: what servers without an entry in FILE offered when first seen."""
LOCK_BYTES_MAX = 64 * 1024 * 1024
"""Thousands of tools have a tenth of it."""
_MODE = 0o644
"""It is for version control, and a definition is no secret: every client gets it."""


def beside(config: Config) -> Path:
    """Where `metamcp.lock` of this configuration is: in the directory of its main file."""
    return (config.files[0].parent if config.files else Path.cwd()) / FILE


def load(path: Path) -> Lock | None:
    """None: there is no such file. Raises ConfigInvalid with every mistake."""
    label = printable(str(path))
    if not os.path.lexists(path):
        return None
    try:
        return lock.read(files.text(path, LOCK_BYTES_MAX), label)
    except files.Unreadable as why:
        raise ConfigInvalid((Problem(label, "", str(why)),)) from None


def save(path: Path, content: Lock) -> bool:
    """Written beside and renamed, so that a crash leaves the old file or the new one. False: it
    says that already, and is left alone. Raises OSError."""
    text = lock.text(content)
    with contextlib.suppress(files.Unreadable):
        if files.text(path, LOCK_BYTES_MAX) == text:
            return False
    target = Path(os.path.realpath(path))  # a link stays one
    fd, name = files.beside(target)
    try:
        with open(fd, "w", encoding="utf-8", newline="\n") as made:
            os.fchmod(made.fileno(), _mode(target))
            made.write(text)
            made.flush()
            os.fsync(made.fileno())
        os.replace(name, target)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    return True


def _mode(target: Path) -> int:
    """As it was."""
    try:
        return target.stat().st_mode & 0o777
    except OSError:
        return _MODE
