"""Confirmed commands: asking the user, and keeping the answer on disk.

Owns: `confirmed.json` in the state directory, and the order of reading, asking and writing. Never:
the content of a confirmation and when to ask (`confirmation`), the terminal (the caller's `ask`).
"""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from metamcp_supervisor.config import confirmation, files
from metamcp_supervisor.config.config import Config
from metamcp_supervisor.config.document import printable, table_of
from metamcp_worker.ipc import codec

FILE = "confirmed.json"
FILE_BYTES_MAX = 1024 * 1024
PATHS_MAX = 1000
"""Maximum number of remembered files; the oldest is dropped first, and its user asked again."""
_VERSION = 1


def ensure(
    config: Config, path: Path, state_dir: Path, *, yes: bool, ask: Callable[[str], bool] | None
) -> str | None:
    """Let a configuration that was found pass only when its commands are confirmed.

    `state_dir`: directory for the answers, not chosen by the file in question. `ask`: shows a text
    and returns the answer; None when no user can answer. Return a warning when the answer could not
    be written to disk. Raises confirmation.NotConfirmed.
    """
    if not confirmation.needed(config):
        return None
    file = printable(os.path.realpath(path))
    digest = confirmation.digest(config, file)
    known = read(state_dir).get(file) == digest
    decision = confirmation.decide(known=known, yes=yes, terminal=ask is not None)
    if decision == "refuse":
        raise confirmation.NotConfirmed(confirmation.refusal(file))
    if decision == "ask" and ask is not None and not ask(confirmation.question(config, file)):
        raise confirmation.NotConfirmed("not confirmed: nothing is started")
    if known:
        return None
    try:
        remember(state_dir, file, digest)
    except OSError as error:
        return (
            f"{state_dir / FILE} cannot be written: {error.strerror}; the"
            " commands will have to be confirmed again"
        )
    return None


def check(new: Config, path: Path, state_dir: Path, *, running: Config, yes: bool = False) -> None:
    """Let a reload pass only when its commands run already, were confirmed since, or are confirmed
    by the caller with `yes`. Raises confirmation.NotConfirmed."""
    if not confirmation.needed(new):
        return
    file = printable(os.path.realpath(path))
    digest = confirmation.digest(new, file)
    if digest in {confirmation.digest(running, file), read(state_dir).get(file)}:
        return
    if not yes:
        raise confirmation.NotConfirmed(
            confirmation.changed(file), confirmation.question(new, file)
        )
    with contextlib.suppress(OSError):  # it is asked about again, then
        remember(state_dir, file, digest)


def read(state_dir: Path) -> dict[str, str]:
    """Return the confirmed digests by path, the oldest first; empty if the file cannot be read."""
    try:
        found = table_of(codec.value(files.data(state_dir / FILE, FILE_BYTES_MAX)))
    except (files.FileUnreadable, codec.Malformed):
        return {}
    entries = table_of((found or {}).get("confirmed")) or {}
    return {path: digest for path, digest in entries.items() if isinstance(digest, str)}


def remember(state_dir: Path, file: str, digest: str) -> None:
    """Write the digest to disk: in a new file that is renamed, so that a crash leaves the old or
    the new file. Raises OSError."""
    entries = read(state_dir)
    entries.pop(file, None)
    entries[file] = digest
    kept = dict(list(entries.items())[-PATHS_MAX:])
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd, name = files.beside(state_dir / FILE)
    try:
        with open(fd, "wb") as made:
            made.write(codec.dump({"v": _VERSION, "confirmed": kept}))
            made.flush()
            os.fsync(made.fileno())
        os.replace(name, state_dir / FILE)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
