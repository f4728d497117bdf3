"""Upgrade notes: what changed since a version, and the places of a configuration that it concerns.

Owns: reading the notes that this version ships (`upgrade_notes.toml`), and which of them concern a
configuration. Never: the notes, loading the configuration (`sources`), the words of `doctor`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources

from msgspec import Struct

from metamcp_supervisor import VERSION
from metamcp_supervisor.config import files
from metamcp_supervisor.config.config import Config
from metamcp_supervisor.config.document import list_of, shorten, table_of
from metamcp_supervisor.config.formats import toml_loads
from metamcp_worker.ipc import codec

_VERSION = re.compile(r"v?(\d+(?:\.\d+)*)[.-]?((?:dev|a|b|rc)\d*)?")
NAMED_MAX = 5
"""Maximum number of places that a finding names; the rest is counted."""


class UpgradeNote(Struct, frozen=True, forbid_unknown_fields=True):
    """Change that users notice; its members are explained in `upgrade_notes.toml`."""

    version: str
    what: str
    text: str
    advice: str
    uses: str = ""
    unless: str = ""


def changes(config: Config, since: str) -> list[tuple[UpgradeNote, str]]:
    """Return each note that concerns this configuration, with its sentence. Raises ValueError for
    a version that is not one, or not an earlier one."""
    before = _order(since)
    if before > _order(VERSION):
        text = f"'{shorten(since)}' is newer than this version, {VERSION}"
        raise ValueError(f"{text}; name the version that ran before")
    tables = read_tables(config)
    return [
        (note, _sentence(note, places))
        for note in notes()
        if _order(note.version) > before and (places := find_places(note, tables))
    ]


def notes() -> list[UpgradeNote]:
    """Return all notes of this version."""
    file = resources.files("metamcp_supervisor") / "upgrade_notes.toml"
    listed = list_of(toml_loads(file.read_text(encoding="utf-8"))["note"])
    return codec.decode_as(list[UpgradeNote], codec.dump(listed))


def read_tables(config: Config) -> list[Mapping[str, object]]:
    """Return the files of a configuration as tables. Servers of another program's file have no more
    than a command or a URL here."""
    tables = [toml_loads(files.text(path)) for path in config.files if path.suffix == ".toml"]
    own = {name for table in tables for name in table_of(table.get("servers")) or {}}
    others = {
        name: {"command" if server.command else "url": ""}
        for name, server in config.servers.items()
        if name not in own
    }
    return [*tables, {"servers": others}]


def find_places(note: UpgradeNote, tables: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the places that a note is about; a note about every configuration has the place ""."""
    if note.uses:
        return [
            location
            for table in tables
            for location, beside in _places(table, note.uses.split("."), "")
            if note.unless not in beside
        ]
    path = note.unless.split(".")
    return [] if any(note.unless and any(_places(table, path, "")) for table in tables) else [""]


def _places(
    table: Mapping[str, object], path: Sequence[str], at: str
) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the place of each table that has the key at the end of the path, and the table."""
    step, *remaining = path
    if not remaining:
        if step in table:
            yield at or step, table
        return
    for name in table if step == "*" else [step]:
        if (inner := table_of(table.get(name))) is not None:
            yield from _places(inner, remaining, f"{at}.{name}" if at else name)


def _sentence(note: UpgradeNote, places: Sequence[str]) -> str:
    if places == [""]:
        return note.text
    more = len(places) - NAMED_MAX
    named = ", ".join(places[:NAMED_MAX]) + (f" and {more} more" if more > 0 else "")
    return f"{named}: {note.text}"


def _order(version: str) -> tuple[tuple[int, ...], bool]:
    """Return a key that sorts versions, one before a release before the release."""
    match = _VERSION.fullmatch(version)
    if match is None:
        raise ValueError(f"'{shorten(version)}' is not a version like 1.2.0")
    numbers = [int(number) for number in match[1].split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers), not match[2]
