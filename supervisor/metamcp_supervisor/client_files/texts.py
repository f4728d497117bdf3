"""The file of a client as text: its entries, and the text with or without our entry, or with ours
in place of all others.

Owns: which editor a format has, the proof that an edit changed our entry and nothing else, and the
file as a whole: when nothing is left in it, and when it gets its earlier text back; the record of
servers that were taken out. Never:
positions (`json_edit`, `toml_edit`, `yaml_edit`), files.
"""

import json
from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from metamcp_supervisor.client_files import json_edit, toml_edit
from metamcp_supervisor.client_files.clients import FileFormat, FileUnfit
from metamcp_supervisor.config import formats
from metamcp_supervisor.config.document import BrokenSyntax, format_place, list_of, table_of

_NEVER_A_SERVER = {"type", "command", "url", "enabled"}


def values(file_format: FileFormat, text: str) -> Mapping[str, object]:
    """Return all values of a file. Raises BrokenSyntax and FileUnfit."""
    if file_format.format == "json":
        return json_edit.values(text)
    if file_format.format == "toml":
        return formats.toml_loads(text)
    return formats.yaml_loads(text)


def entries(file_format: FileFormat, text: str) -> Mapping[str, object]:
    """Return the values at the place of servers, by name. Raises BrokenSyntax and FileUnfit."""
    value: object = values(file_format, text)
    for key in file_format.place:
        value = (table_of(value) or {}).get(key)
    listed = list_of(value)
    if file_format.format == "yaml-list" or (file_format.format == "json" and listed):
        # Each entry of a list says its name.
        tables = [table_of(each) or {} for each in listed or ()]
        return {str(each["name"]): each for each in tables if "name" in each}
    table = table_of(value)
    if value is not None and table is None:
        raise FileUnfit(f"has no table in '{'.'.join(file_format.place)}'")
    return {str(key): inner for key, inner in (table or {}).items()}  # YAML has numbers as keys


def native(file_format: FileFormat, text: str) -> FileFormat:
    """Return where this file keeps its servers: OpenCode 2 has them one table deeper, and reads
    both forms. Raises BrokenSyntax and FileUnfit."""
    if file_format.shape != "opencode":
        return file_format
    inner = table_of(entries(file_format, text).get("servers"))
    if inner is None or _NEVER_A_SERVER & set(inner):
        return file_format
    return FileFormat(
        file_format.shape, file_format.format, (*file_format.place, "servers"), file_format.new
    )


def put(file_format: FileFormat, text: str, name: str, entry: object) -> str:
    """Return `text` with `entry` under `name`: a table, or any value in a file of JSON. Raises
    BrokenSyntax and FileUnfit."""
    old = entries(file_format, text).get(name)
    if old == entry:
        return text
    text = text if text.strip() else file_format.new or text
    if file_format.format == "json":
        made = json_edit.put(text, file_format.place, name, entry)
    elif file_format.format == "toml":
        made = toml_edit.put(text, (*file_format.place, name), table_of(entry) or {}, table_of(old))
    else:
        from metamcp_supervisor.client_files import yaml_edit

        listed = file_format.format == "yaml-list"
        made = yaml_edit.put(text, file_format.place[0], name, table_of(entry) or {}, listed=listed)
    return _verify_edit(file_format, text, made, name, entry)


def drop(
    file_format: FileFormat, text: str, name: str, before: str | None, *, restore: bool = False
) -> str | None:
    """Return the text without the entry; None if the file may be removed. `before`: text before the
    first edit, None if the file did not exist; `restore`: an entry of that name in `before` is not
    ours and may come back. Raises BrokenSyntax and FileUnfit."""
    if before is not None:
        undone = _undone(file_format, text, name, before, restore=restore)
        if undone is not None:
            return undone
    depth = _depth(file_format, before)
    if file_format.format == "json":
        made = json_edit.drop(text, file_format.place, name, depth)
    elif file_format.format == "toml":
        made = toml_edit.drop(text, (*file_format.place, name))
    else:
        from metamcp_supervisor.client_files import yaml_edit

        made = yaml_edit.drop(text, file_format.place[0], name, with_section=not depth)
    made = _verify_edit(file_format, text, made, name, None)
    if not (before or "").strip() and made.strip() in ("", "{}", file_format.new.strip()):
        return before
    return made


def _depth(file_format: FileFormat, before: str | None) -> int:
    """Return the number of keys of the place that `before` has; all if it cannot be read."""
    try:
        value: object = values(file_format, before) if before is not None else {}
    except (BrokenSyntax, FileUnfit):
        return len(file_format.place)
    for depth, key in enumerate(file_format.place):
        table = table_of(value) or {}
        if key not in table:
            return depth
        value = table[key]
    return len(file_format.place)


def _undone(
    file_format: FileFormat, text: str, name: str, before: str, *, restore: bool
) -> str | None:
    """Return `text` with the part that our entry changed in `before` as it was there; None if that
    part is not found."""
    try:
        entry = table_of(entries(file_format, text).get(name))
        was = entries(file_format, before).get(name)
        if entry is None or (was is not None and not restore):
            return None
        after = put(file_format, before, name, entry)
        if after == text:
            return before
        undone = revert_change(text, after, before)
        return None if undone is None else _verify_edit(file_format, text, undone, name, was)
    except (BrokenSyntax, FileUnfit):
        return None


def revert_change(text: str, new: str, old: str) -> str | None:
    """Return `text` with the part in which `new` differs from `old` as it is in `old`; None if that
    part is not found once."""
    start = _alike(old, new)
    end = _alike(old[start:][::-1], new[start:][::-1])
    was, now = old[start : len(old) - end], new[start : len(new) - end]
    return text.replace(now, was) if text.count(now) == 1 else None


def _alike(text: str, other: str) -> int:
    """Return the number of characters at the beginning that are the same."""
    pairs = enumerate(zip(text, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(text), len(other)))


def _verify_edit(file_format: FileFormat, text: str, made: str, name: str, entry: object) -> str:
    """Return `made`, if it differs from `text` in what stands under `name` alone, and that is
    `entry`. Raises FileUnfit."""
    try:
        # A block of YAML has another value without a line end behind it.
        terminated = (each if each.endswith("\n") else each + "\n" for each in (text, made))
        was, now = (
            _others(values(file_format, each), file_format.place, name) for each in terminated
        )
        if was == now and entries(file_format, made).get(name) == entry:
            return made
    except (BrokenSyntax, FileUnfit):
        pass
    way = f"; write it as a table [{format_place((*file_format.place, name))}]" * (
        file_format.format == "toml"
    )
    raise FileUnfit(f"is laid out in a way that cannot be edited safely{way}")


def _others(value: object, location: Sequence[str], name: str) -> object:
    """Return a copy of `value` without what stands under `name` at `location`, and without what is
    empty on the way to it."""
    table = table_of(value)
    if table is None:
        return [x for x in list_of(value) or () if (table_of(x) or {}).get("name") != name]
    others = {key: inner for key, inner in table.items() if key != (*location, name)[0]}
    if location and (inner := _others(table.get(location[0]), location[1:], name)):
        others[location[0]] = inner
    return others


# Servers that a client no longer starts itself, because the gateway has them

Entries = Mapping[str, Mapping[str, object]]


class TakenServers(Struct, frozen=True):
    """Entries that were taken out of one table of a client's file, by name. `kept`: that table;
    `name`: of our entry in it."""

    kept: FileFormat
    name: str
    entries: Entries


def without_servers(text: str, taken: TakenServers, entry: Mapping[str, object]) -> str:
    """Return `text` with our entry in place of the servers. Raises BrokenSyntax and FileUnfit."""
    made = put(taken.kept, text, taken.name, entry)
    for name in taken.entries:
        if name != taken.name:
            made = drop(taken.kept, made, name, made) or ""
    return made


def put_back(text: str, before: str, taken: Sequence[TakenServers]) -> tuple[str, tuple[str, ...]]:
    """Return `text` with the servers in place of our entries, and the names of servers that it has
    by now with other settings, which stay. `before`: the text before the first edit. Edits since
    then stay; a table that has none gets its old bytes. Raises BrokenSyntax and FileUnfit."""
    steps, ours = [before], [entries(each.kept, text).get(each.name) for each in taken]
    for each, entry in zip(taken, ours, strict=True):
        there = entries(each.kept, steps[-1])
        unchanged = {
            name: values for name, values in each.entries.items() if there.get(name) == values
        }
        made = replace(each, entries=unchanged)
        steps.append(
            without_servers(steps[-1], made, table_of(entry) or {}) if entry else steps[-1]
        )
    conflicting: list[str] = []
    for at in reversed(range(len(taken))):
        expected = dict(entries(taken[at].kept, text))
        if ours[at] is not None and taken[at].name not in taken[at].entries:
            del expected[taken[at].name]
        for name, values in taken[at].entries.items():
            if name != taken[at].name and expected.setdefault(name, values) != values:
                conflicting.append(name)
            elif name == taken[at].name:
                expected[name] = values
        undone = revert_change(text, steps[at + 1], steps[at])
        if undone is None or not _has(taken[at].kept, undone, expected):
            undone = _one_by_one(text, steps[at], taken[at], expected)
        text = undone
    return text, tuple(reversed(conflicting))


def _has(file_format: FileFormat, text: str, expected: Mapping[str, object]) -> bool:
    try:
        return entries(file_format, text) == expected
    except (BrokenSyntax, FileUnfit):
        return False


def _one_by_one(text: str, before: str, taken: TakenServers, expected: Mapping[str, object]) -> str:
    """Put back each server by itself, then remove our entry."""
    for name in taken.entries:
        text = put(taken.kept, text, name, table_of(expected[name]) or {})
    if taken.name not in expected and taken.name in entries(taken.kept, text):
        text = drop(taken.kept, text, taken.name, before) or ""
    return text


# The record


def record(taken: Sequence[TakenServers]) -> str:
    """Return the record as JSON: place, name of our entry and entries, for each table."""
    tables = [
        {"place": each.kept.place, "name": each.name, "entries": each.entries} for each in taken
    ]
    return json.dumps(tables, indent=1, ensure_ascii=False, default=str) + "\n"


def read_record(text: str, file_format: FileFormat) -> tuple[TakenServers, ...]:
    """Return what a record says. `file_format`: how the file keeps servers. Raises ValueError."""
    taken: list[TakenServers] = []
    for value in list_of(json.loads(text)) or ():
        table = table_of(value) or {}
        location = tuple(map(str, list_of(table.get("place")) or ()))
        entries = {
            name: entry
            for name, each in (table_of(table.get("entries")) or {}).items()
            if (entry := table_of(each)) is not None
        }
        taken.append(
            TakenServers(replace(file_format, place=location), str(table.get("name")), entries)
        )
    return tuple(taken)


def merge_records(
    old: Sequence[TakenServers], new: Sequence[TakenServers]
) -> tuple[TakenServers, ...]:
    """Return what both records say: servers of one table together."""
    by_place = {each.kept.place: each for each in old}
    for each in new:
        entries = (
            {**by_place[each.kept.place].entries, **each.entries}
            if each.kept.place in by_place
            else each.entries
        )
        by_place[each.kept.place] = replace(each, entries=entries)
    return tuple(by_place.values())
