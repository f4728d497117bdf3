"""Confirmed commands: asking the user, and keeping the answer on disk.

Owns: `confirmed.json` in the state directory, and the order of reading, asking and writing. Never:
the content of a confirmation and when to ask (`confirmation`), the terminal (the caller's `ask`).
"""

import contextlib
import os
from collections.abc import Callable, Collection
from pathlib import Path

from metamcp_supervisor.config import confirmation, files
from metamcp_supervisor.config.config import Config
from metamcp_supervisor.config.document import list_of, printable, table_of
from metamcp_worker.ipc import codec

FILE = "confirmed.json"
FILE_BYTES_MAX = 1024 * 1024
PATHS_MAX = 1000
"""Maximum number of remembered files; the oldest is dropped first, and its user asked again. So it
is where they have more than FILE_BYTES_MAX."""
_VERSION = 1


def ensure(
    config: Config, path: Path, state_dir: Path, *, yes: bool, ask: Callable[[str], bool] | None
) -> str | None:
    """Let a configuration that was found pass only when its commands are confirmed.

    `state_dir`: directory for the answers, not chosen by the file in question. `ask`: shows a text
    and returns the answer; None when no user can answer. Return a warning when the answer could not
    be written to disk. Raises confirmation.NotConfirmed.
    """
    parts = set(confirmation.parts(config).values())
    if not parts:
        return None
    file = printable(os.path.realpath(path))
    confirmed = read(state_dir).get(file, frozenset())
    is_confirmed = parts <= confirmed or confirmation.digest(config, file) in confirmed
    decision = confirmation.decide(is_confirmed=is_confirmed, yes=yes, terminal=ask is not None)
    if decision == "refuse":
        raise confirmation.NotConfirmed(confirmation.refusal(file))
    text = confirmation.question(config, file, parts & confirmed)
    if decision == "ask" and ask is not None and not ask(text):
        raise confirmation.NotConfirmed("not confirmed: nothing is started")
    if parts == confirmed:
        return None
    try:
        remember(state_dir, file, parts)
    except OSError as error:
        return (
            f"{state_dir / FILE} cannot be written: {error.strerror}; the"
            " commands will have to be confirmed again"
        )
    return None


def check(new: Config, path: Path, state_dir: Path, *, running: Config, yes: bool = False) -> None:
    """Let a reload pass only when each of its commands runs already, was confirmed since, or is
    confirmed by the caller with `yes`: one that only stops something passes. Raises
    confirmation.NotConfirmed."""
    parts = set(confirmation.parts(new).values())
    file = printable(os.path.realpath(path))
    confirmed = read(state_dir).get(file, frozenset())
    permitted = parts & (confirmed | set(confirmation.parts(running).values()))
    if parts - permitted and not yes and confirmation.digest(new, file) not in confirmed:
        raise confirmation.NotConfirmed(
            confirmation.explain_change(file), confirmation.question(new, file, permitted)
        )
    if parts and parts != confirmed:
        with contextlib.suppress(OSError):  # it is asked about again, then
            remember(state_dir, file, parts)


def read(state_dir: Path) -> dict[str, frozenset[str]]:
    """Return the digests of confirmed parts by path of the file, the oldest first; empty if they
    cannot be read. A file that an earlier version confirmed has one digest, of all parts."""
    try:
        table = table_of(codec.value(files.data(state_dir / FILE, FILE_BYTES_MAX)))
    except (files.FileUnreadable, codec.Malformed):
        return {}
    entries = table_of((table or {}).get("confirmed")) or {}
    confirmed: dict[str, frozenset[str]] = {}
    for path, value in entries.items():
        digests = [value] if isinstance(value, str) else list_of(value)
        if digests:
            confirmed[path] = frozenset(map(str, digests))
    return confirmed


def remember(state_dir: Path, file: str, parts: Collection[str]) -> None:
    """Write the digests of these parts to disk, in place of those of the file: in a new file that
    is renamed, so that a crash leaves the old or the new one. Raises OSError."""
    entries = read(state_dir)
    entries.pop(file, None)
    entries[file] = frozenset(parts)
    newest = [(each, sorted(digests)) for each, digests in entries.items()][-PATHS_MAX:]
    while len(data := codec.dump({"v": _VERSION, "confirmed": dict(newest)})) > FILE_BYTES_MAX:
        del newest[0]
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    files.replace_file(state_dir / FILE, data)
