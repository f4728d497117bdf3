"""An entry in the JSON file of a client, added and removed as text.

Owns: the place of an entry in the text, its layout, and which characters are removed together with
it. Never: the content of an entry (`clients`), files.

Everything else stays as it is, to the byte: comments, order, indentation, line ends. `texts`
decodes the result of each edit and refuses an edit with any other effect.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from metamcp_supervisor.client_files.clients import FileUnfit
from metamcp_supervisor.config import formats
from metamcp_supervisor.config.document import format_place, list_of, table_of

_TOKEN = re.compile(
    r"(?P<space>[ \t\r\n]+)"
    r"|(?P<comment>//(?:(?!\r?\n).)*+|/\*.*?\*/)"
    r'|(?P<text>"[^"\\]*+(?:\\.[^"\\]*+)*+")'
    r"|(?P<mark>[{}\[\],:])"
    r'|(?P<word>[^ \t\r\n{}\[\],:"/]+)',
    re.DOTALL,
)
_FIRST_INDENT = re.compile(r'^([ \t]{1,8})"', re.MULTILINE)
_INDENT = re.compile(r"[ \t]*")
_INLINE_CHARACTERS_MAX = 80
"""Maximum characters of a list on one line; a longer list gets a line for each item."""


class _Member(Struct):
    """Member of an object, as offsets in the text. `gap`: end of the last token before the key;
    `key`: start of the key; `start`, `end`: of the value; `comma`: the comma after it, -1 for
    none."""

    name: str
    gap: int
    key: int
    start: int = -1
    end: int = -1
    comma: int = -1


class _Table(Struct, frozen=True):
    """Object: the offsets of its braces, and the members between them."""

    open: int
    close: int
    members: tuple[_Member, ...]

    def member(self, name: str) -> _Member | None:
        return next((each for each in self.members if each.name == name), None)


def values(text: str) -> Mapping[str, object]:
    """Return the decoded values; empty for an empty file. Raises BrokenSyntax."""
    return formats.json_loads(text) if text.strip() else {}


def put(text: str, location: Sequence[str], name: str, entry: object) -> str:
    """Return `text` with `entry` under `name` in the object at `location`, which is created if it
    is missing. Raises FileUnfit."""
    return _put(text if text.strip() else "{}\n", (*location, name), entry)


def drop(text: str, location: Sequence[str], name: str, depth: int) -> str:
    """Return `text` without that entry, and without the objects around it that are empty then.
    `depth`: number of keys of `location` whose objects stay nevertheless. Raises FileUnfit."""
    path: tuple[str, ...] = (*location, name)
    while True:
        text = _cut(text, path)
        path = path[:-1]
        table, _ = _deepest(text, (*path, ""))
        if text[table.open + 1 : table.close].strip():
            return text
        if len(path) <= depth:
            return text[: table.open + 1] + text[table.close :]


def rename(text: str, path: Sequence[str], name: str) -> str:
    """Return `text` with another name for the entry at `path`. Raises FileUnfit."""
    table, depth = _deepest(text, path)
    member = table.member(path[-1])
    if depth != len(path) - 1 or member is None:
        raise FileUnfit(f"has no '{format_place(tuple(path))}'")
    written = next(end for _, start, end in _tokens(text, member.key) if start >= member.key)
    return text[: member.key] + json.dumps(name, ensure_ascii=False) + text[written:]


def format_value(value: object, newline: str = "\n", unit: str = "  ", indent: str = "") -> str:
    """Write JSON as people do: short lists on one line, everything else on its own lines."""
    flat = json.dumps(value, ensure_ascii=False)
    inner = indent + unit
    if table := table_of(value):
        lines = [
            inner
            + json.dumps(key, ensure_ascii=False)
            + ": "
            + format_value(item, newline, unit, inner)
            for key, item in table.items()
        ]
        return "{" + newline + f",{newline}".join(lines) + newline + indent + "}"
    if (items := list_of(value)) and (
        len(flat) > _INLINE_CHARACTERS_MAX or any(table_of(item) is not None for item in items)
    ):
        lines = [inner + format_value(item, newline, unit, inner) for item in items]
        return "[" + newline + f",{newline}".join(lines) + newline + indent + "]"
    return flat


# Putting in


def _put(text: str, path: Sequence[str], entry: object) -> str:
    table, depth = _deepest(text, path)
    name, *below = path[depth:]
    value = entry
    for key in reversed(below):
        value = {key: value}
    member = table.member(name)
    if member is None:
        added = _among(text, table, name, value) if table.members else None
        return added or _alone(text, table, name, value)
    laid_out = json.dumps(value, ensure_ascii=False)
    if "\n" in text:
        laid_out = format_value(value, *_style(text), _line_indent(text, member.key))
    return text[: member.start] + laid_out + text[member.end :]


def _alone(text: str, table: _Table, name: str, value: object) -> str:
    """Add a member at the beginning of an object, which is empty or has only comments."""
    newline, unit = _style(text)
    outer = _line_indent(text, table.open)
    at, _ = _after_comments(text, table.open + 1)
    member = newline + outer + unit + _format_member(name, value, newline, unit, outer + unit)
    if not text[table.open + 1 : table.close].strip(" \t"):
        return text[: table.open + 1] + member + newline + outer + text[table.close :]
    return text[:at] + member + text[at:]


def _among(text: str, table: _Table, name: str, value: object) -> str:
    """Add a member after the last one of an object, and after the comments on that line."""
    newline, unit = _style(text)
    first, last = table.members[0], table.members[-1]
    at, line_is_over = _after_comments(text, max(last.end, last.comma + 1))
    if line_is_over or "\n" in text[first.gap : first.key]:
        inner = _line_indent(text, first.key)
        if text[text.rfind("\n", 0, first.key) + 1 : first.key].strip():
            inner += unit  # its first key stands behind something else
        member = newline + inner + _format_member(name, value, newline, unit, inner)
    else:
        space = " " if text[first.start - 1] == " " else ""
        flat = json.dumps(value, ensure_ascii=False, separators=(f",{space}", f":{space}"))
        member = f"{space}{json.dumps(name, ensure_ascii=False)}:{space}{flat}"
    if last.comma >= 0:
        return text[:at] + member + "," + text[at:]
    return text[: last.end] + "," + text[last.end : at] + member + text[at:]


def _format_member(name: str, value: object, newline: str, unit: str, indent: str) -> str:
    return f"{json.dumps(name, ensure_ascii=False)}: {format_value(value, newline, unit, indent)}"


def _style(text: str) -> tuple[str, str]:
    """Return the line end and the unit of indentation of a text."""
    match = _FIRST_INDENT.search(text)
    return "\r\n" if "\r\n" in text else "\n", match[1] if match else "  "


def _line_indent(text: str, at: int) -> str:
    match = _INDENT.match(text, text.rfind("\n", 0, at) + 1)
    return match[0] if match else ""


def _after_comments(text: str, at: int) -> tuple[int, bool]:
    """Return the end of the comments on the same line, or `at` without any; and whether the last
    comment takes the rest of the line."""
    end, over = at, False
    for kind, start, stop in _tokens(text, at):
        if kind not in ("space", "comment") or "\n" in text[start:stop]:
            break
        if kind == "comment":
            end, over = stop, text.startswith("//", start)
    return end, over


# Taking out


def _cut(text: str, path: Sequence[str]) -> str:
    table, depth = _deepest(text, path)
    member = table.member(path[-1])
    if depth != len(path) - 1 or member is None:
        raise FileUnfit(f"has no '{format_place(tuple(path))}'")
    number = table.members.index(member)
    if member.comma >= 0:
        return text[: member.gap] + text[member.comma + 1 :]
    if number:
        comma = table.members[number - 1].comma
        return text[:comma] + text[comma + 1 : member.gap] + text[member.end :]
    return text[: member.gap] + text[member.end :]


# Where things stand


def _deepest(text: str, path: Sequence[str]) -> tuple[_Table, int]:
    """Return the innermost object on the way to the last key of `path`, and the number of keys that
    lead to it. Raises FileUnfit."""
    table, depth = _table(text, 0), 0
    while depth < len(path) - 1 and (member := table.member(path[depth])) is not None:
        if text[member.start] != "{":
            raise FileUnfit(f"has no object in '{format_place(tuple(path[: depth + 1]))}'")
        table, depth = _table(text, member.start), depth + 1
    return table, depth


def _tokens(text: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Return kind, start and end of each token; the text must be valid."""
    while match := _TOKEN.match(text, at):
        at = match.end()
        yield match.lastgroup or "", match.start(), at


def _table(text: str, start: int) -> _Table:
    """Find the object that begins at `start` or after the space and comments there. Raises
    FileUnfit."""
    members: list[_Member] = []
    depth, opened, gap, key_next = 0, -1, start, True
    for kind, begin, end in _tokens(text, start):
        if kind == "space":
            continue
        mark = text[begin] if kind == "mark" else ""
        if mark in ("{", "["):
            depth += 1
            if depth == 1:
                opened = begin
            elif depth == 2:
                members[-1].start = begin
        elif mark in ("}", "]"):
            depth -= 1
            if depth == 0:
                return _Table(opened, begin, tuple(members))
            if depth == 1:
                members[-1].end = end
        elif depth == 1 and mark == ",":
            key_next = True
            if members:
                members[-1].comma = begin
        elif depth == 1 and kind in ("text", "word"):
            if key_next:
                members.append(_Member(str(json.loads(text[begin:end])), gap, begin))
            else:
                members[-1].start, members[-1].end = begin, end
            key_next = False
        gap = end
    raise FileUnfit("is not a JSON object: { … }")
