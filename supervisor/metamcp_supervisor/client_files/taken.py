"""Servers that a client no longer starts itself, because the gateway has them: taken out of its
file, and put back.

Owns: the text without these servers and with our entry, the way back, and the record that it needs.
Never: reading and writing files, what a server means here (`transfer`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from metamcp_supervisor.client_files import texts
from metamcp_supervisor.client_files.clients import FileFormat, FileUnfit
from metamcp_supervisor.config.document import BrokenSyntax, list_of, table_of

Entries = Mapping[str, Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class TakenServers:
    """Entries that were taken out of one table of a client's file, by name. `kept`: that table;
    `name`: of our entry in it."""

    kept: FileFormat
    name: str
    entries: Entries


def without(text: str, taken: TakenServers, entry: Mapping[str, object]) -> str:
    """Return `text` with our entry in place of the servers. Raises BrokenSyntax and FileUnfit."""
    made = texts.put(taken.kept, text, taken.name, entry)
    for name in taken.entries:
        if name != taken.name:
            made = texts.drop(taken.kept, made, name, made) or ""
    return made


def put_back(text: str, before: str, taken: Sequence[TakenServers]) -> tuple[str, tuple[str, ...]]:
    """Return `text` with the servers in place of our entries, and the names of servers that it has
    by now with other settings, which stay. `before`: the text before the first edit. Edits made
    meanwhile stay; a table that has none gets its old bytes. Raises BrokenSyntax and FileUnfit."""
    steps, ours = [before], [texts.entries(each.kept, text).get(each.name) for each in taken]
    for each, entry in zip(taken, ours, strict=True):
        there = texts.entries(each.kept, steps[-1])
        known = {name: values for name, values in each.entries.items() if there.get(name) == values}
        made = replace(each, entries=known)
        steps.append(without(steps[-1], made, table_of(entry) or {}) if entry else steps[-1])
    left: list[str] = []
    for at in reversed(range(len(taken))):
        wanted = dict(texts.entries(taken[at].kept, text))
        if ours[at] is not None and taken[at].name not in taken[at].entries:
            del wanted[taken[at].name]
        for name, values in taken[at].entries.items():
            if name != taken[at].name and wanted.setdefault(name, values) != values:
                left.append(name)
            elif name == taken[at].name:
                wanted[name] = values
        spliced = texts.spliced(text, steps[at + 1], steps[at])
        if spliced is None or not _has(taken[at].kept, spliced, wanted):
            spliced = _one_by_one(text, steps[at], taken[at], wanted)
        text = spliced
    return text, tuple(reversed(left))


def _has(kept: FileFormat, text: str, wanted: Mapping[str, object]) -> bool:
    try:
        return texts.entries(kept, text) == wanted
    except (BrokenSyntax, FileUnfit):
        return False


def _one_by_one(text: str, before: str, taken: TakenServers, wanted: Mapping[str, object]) -> str:
    """Put back each server by itself, then remove our entry."""
    for name in taken.entries:
        text = texts.put(taken.kept, text, name, table_of(wanted[name]) or {})
    if taken.name not in wanted and taken.name in texts.entries(taken.kept, text):
        text = texts.drop(taken.kept, text, taken.name, before) or ""
    return text


# The record


def written(taken: Sequence[TakenServers]) -> str:
    """Return the record as JSON: place, name of our entry and entries, for each table."""
    tables = [
        {"place": each.kept.place, "name": each.name, "entries": each.entries} for each in taken
    ]
    return json.dumps(tables, indent=1, ensure_ascii=False, default=str) + "\n"


def read(text: str, kept: FileFormat) -> tuple[TakenServers, ...]:
    """Return what a record says. `kept`: how the file keeps servers. Raises ValueError."""
    found: list[TakenServers] = []
    for value in list_of(json.loads(text)) or ():
        table = table_of(value) or {}
        place = tuple(map(str, list_of(table.get("place")) or ()))
        entries = {
            name: entry
            for name, each in (table_of(table.get("entries")) or {}).items()
            if (entry := table_of(each)) is not None
        }
        found.append(TakenServers(replace(kept, place=place), str(table.get("name")), entries))
    return tuple(found)


def joined(old: Sequence[TakenServers], new: Sequence[TakenServers]) -> tuple[TakenServers, ...]:
    """Return what both records say: servers of one table together."""
    found = {each.kept.place: each for each in old}
    for each in new:
        entries = (
            {**found[each.kept.place].entries, **each.entries}
            if each.kept.place in found
            else each.entries
        )
        found[each.kept.place] = replace(each, entries=entries)
    return tuple(found.values())
