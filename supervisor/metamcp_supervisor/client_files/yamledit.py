"""One entry in a YAML file of somebody else's, put in and taken out as text.

Owns: where in the text an entry goes, how it is laid out to fit, and what exactly goes with it when
it leaves. Never: reading lines (`yamlread`), what an entry says (`entries`), files.

An entry is an item of a section: of the list or the mapping under one key at the top of the file.
Each edit is read afterwards and compared with what it was to do.
"""

import json
import re
from collections.abc import Mapping
from typing import Literal

from metamcp_supervisor.client_files import yamlread
from metamcp_supervisor.client_files.edits import Unfit
from metamcp_supervisor.client_files.yamlread import Section
from metamcp_supervisor.config.document import list_of, printable, table_of

Kind = Literal["list", "mapping"]
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*", re.ASCII)
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
_EMPTY = re.compile(r"(:[ \t]*)(?:\[[ \t]*\]|\{[ \t]*\}|null|~)?")


def items(text: str, key: str) -> Mapping[str, Mapping[str, object]]:
    """What stands under `key`, by name. Raises BrokenSyntax and Unfit."""
    section = yamlread.section(text, key)
    return {item.name: item.values for item in section.items} if section is not None else {}


def put(text: str, key: str, kind: Kind, name: str, entry: Mapping[str, object], new: str) -> str:
    """`text` with `entry` as the item `name` under `key`. `new`: what a file begins with that was
    empty. Raises BrokenSyntax and Unfit."""
    old = items(text, key)
    if dict(old.get(name, {})) == dict(entry):
        return text
    newline = "\r\n" if "\r\n" in text else "\n"
    section = yamlread.section(text, key)
    if section is None:
        block = newline.join([f"{key}:", *_lines(kind, name, entry, "  ")])
        made = _appended(text if text.strip() else new, block, newline)
    elif (item := section.item(name)) is not None:
        lines = newline.join(_lines(kind, name, entry, item.indent))
        ending = newline if text[: item.end].endswith("\n") else ""
        made = text[: item.start] + lines + ending + text[item.end :]
    else:
        made = _added(text, section, _lines(kind, name, entry, section.indent), newline)
    _prove(made, key, {**old, name: dict(entry)})
    return made


def drop(text: str, key: str, name: str, before: str | None) -> str:
    """`text` without that item. `before`: the file as it was before the first edit, which tells
    whether a section that is empty now was there; None: there was no file. Raises BrokenSyntax and
    Unfit."""
    old = dict(items(text, key))
    section = yamlread.section(text, key)
    item = section.item(name) if section is not None else None
    if section is None or item is None:
        raise Unfit(f"has no '{name}' under '{key}'")
    was = yamlread.section(before, key) if before is not None else None
    if len(section.items) > 1:
        made = _without(text, item.start, item.end)
    elif was is None:
        made = _without(text, section.start, item.end)
        if text[section.value : item.start].strip():
            made = _without(text, item.start, item.end)  # somebody's comment is between
    else:
        line = (before or "")[was.start : was.value].rstrip("\r\n")
        ending = text[section.start : section.value].removeprefix(
            text[section.start : section.value].rstrip("\r\n")
        )
        made = _without(text, item.start, item.end)
        now = made[section.start : section.value].rstrip("\r\n")
        if _filled(line) == now:
            tail = made[section.value :] if made[: section.value].endswith("\n") else ""
            ending = ending if made[: section.value].endswith("\n") else ""
            made = made[: section.start] + line + ending + tail
    del old[name]
    _prove(made, key, old)
    return made


# Putting in


def _lines(kind: Kind, name: str, entry: Mapping[str, object], indent: str) -> list[str]:
    values = [f"{key}: {dumped(value)}" for key, value in entry.items()]
    if kind == "mapping":
        return [f"{indent}{dumped(name)}:", *(f"{indent}  {value}" for value in values)]
    first, *others = values
    return [f"{indent}- {first}", *(f"{indent}  {value}" for value in others)]


def dumped(value: object) -> str:
    """A value on one line. JSON is YAML, once what is not printable is an escape."""
    if isinstance(value, str):
        if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
            return value
        return printable(json.dumps(value, ensure_ascii=False))
    if (listed := list_of(value)) is not None:
        return "[" + ", ".join(printable(json.dumps(x, ensure_ascii=False)) for x in listed) + "]"
    if (table := table_of(value)) is not None:
        pairs = [f"{json.dumps(key)}: {json.dumps(item)}" for key, item in table.items()]
        return "{" + ", ".join(pairs) + "}"
    return json.dumps(value)


def _appended(text: str, block: str, newline: str) -> str:
    if not text or text.endswith("\n"):
        return text + block + newline
    return text + newline + block


def _added(text: str, section: Section, lines: list[str], newline: str) -> str:
    block = newline.join(lines)
    if section.items:
        at = section.items[-1].end
    else:
        line = text[section.start : section.value]
        bare = line.rstrip("\r\n")
        text = text[: section.start] + _filled(bare) + line[len(bare) :] + text[section.value :]
        at = section.start + len(_filled(bare)) + len(line) - len(bare)
    if text[:at].endswith("\n"):
        return text[:at] + block + newline + text[at:]
    return text[:at] + newline + block + text[at:]


def _filled(line: str) -> str:
    """The line of a key without its empty value."""
    return _EMPTY.sub(lambda found: ":" if found[0].rstrip() != ":" else found[0], line, count=1)


# Taking out


def _without(text: str, start: int, end: int) -> str:
    if not text[:end].endswith("\n") and text[:start].endswith("\n"):
        start -= 2 if text[:start].endswith("\r\n") else 1
    return text[:start] + text[end:]


def _prove(made: str, key: str, expected: Mapping[str, Mapping[str, object]]) -> None:
    found = {name: dict(each) for name, each in items(made, key).items()}
    if found != {name: dict(each) for name, each in expected.items()}:
        raise Unfit("is laid out in a way that cannot be edited safely")
