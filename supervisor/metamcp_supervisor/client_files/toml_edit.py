"""A table in the TOML file of a client, added and removed as text.

Owns: the place of the table in the text, and which characters are removed together with it. Never:
the content of the table (`entries`), files.

The table gets its own header, `[mcp_servers.metamcp]`, at the end of the file, and is removed from
wherever it stands later. The result of each edit is decoded and compared with the expected values.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from metamcp_supervisor.client_files.edits import FileUnfit, at, changed
from metamcp_supervisor.config import toml_lines
from metamcp_supervisor.config.document import BrokenSyntax, list_of, printable, spelled, table_of

_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_KEYS = rf"{_KEY}(?:[ \t]*\.[ \t]*{_KEY})*"
_HEAD = re.compile(rf"[ \t]*\[\[?[ \t]*({_KEYS})[ \t]*\]")
_SETTING = re.compile(rf"[ \t]*({_KEYS})[ \t]*=")
_ONE_KEY = re.compile(_KEY)
_BARE = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}(?!")'
    r"|'''.*?'{3,5}(?!')"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class _Statement:
    """Header of a table, or a setting with all lines of its value. `head`: keys of the header, None
    for a setting; `keys`: keys of the setting in the table `under`."""

    start: int
    end: int
    head: tuple[str, ...] | None
    under: tuple[str, ...]
    keys: tuple[str, ...]


def values(text: str) -> Mapping[str, object]:
    """Return the decoded values. Raises BrokenSyntax."""
    return toml_lines.loads(text)


def put(text: str, place: Sequence[str], name: str, entry: Mapping[str, object]) -> str:
    """Return `text` with `entry` as the table `name` in the table at `place`. Raises BrokenSyntax
    and Unfit."""
    old = values(text)
    expected = changed(old, place, name, entry)
    if expected == old:
        return text
    path = (*place, name)
    newline = "\r\n" if "\r\n" in text else "\n"
    if at(old, path) is None:
        made = _appended(text, newline.join(table(path, entry)), newline)
    else:
        made = _replaced(text, path, entry, newline)
    return _proven(made, expected, path)


def drop(text: str, place: Sequence[str], name: str, before: str | None) -> str:
    """Return `text` without that table and the tables in it. Raises BrokenSyntax and Unfit."""
    del before  # tables need no table around them
    path = (*place, name)
    expected = changed(values(text), place, name, None)
    if at(expected, place) == {} and not _heads(text, tuple(place)):
        expected = changed(expected, place[:-1], place[-1], None)
    for region in reversed(_regions(text, path)):
        text = _without(text, *region)
    return _proven(text, expected, path)


def table(path: Sequence[str], entry: Mapping[str, object]) -> list[str]:
    """Return the lines of a table."""
    head = ".".join(map(_key, path))
    return [f"[{head}]", *(f"{_key(key)} = {dumped(value)}" for key, value in entry.items())]


def dumped(value: object) -> str:
    """Write a value on one line. A JSON string is a TOML string too, once characters that are not
    printable are escapes."""
    if (inner := table_of(value)) is not None:
        items = [f"{_key(key)} = {dumped(item)}" for key, item in inner.items()]
        return "{ " + ", ".join(items) + " }" if items else "{}"
    if (listed := list_of(value)) is not None:
        return "[" + ", ".join(map(dumped, listed)) + "]"
    return printable(json.dumps(value, ensure_ascii=False))


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else dumped(key)


def _proven(made: str, expected: Mapping[str, object], path: Sequence[str]) -> str:
    try:
        if values(made) == expected:
            return made
    except BrokenSyntax:
        pass
    head = ".".join(map(_key, path))
    raise FileUnfit(f"has it in a form that cannot be edited safely; write it as a table [{head}]")


def _appended(text: str, block: str, newline: str) -> str:
    if not text:
        return block + newline
    if text.endswith("\n"):
        return text + newline + block + newline
    return text + newline + newline + block


def _replaced(text: str, path: tuple[str, ...], entry: Mapping[str, object], newline: str) -> str:
    """Write the settings of a table again: a setting that is the same keeps its line, a setting
    that is gone loses its line."""
    old = table_of(at(values(text), path)) or {}
    missing = [key for key in entry if key not in old]
    own = [each for each in _statements(text) if each.under == path and each.keys]
    heads = _heads(text, path)
    if not heads:
        raise FileUnfit(f"has '{spelled(path)}' in a form that cannot be edited safely")
    end = max((each.end for each in own), default=heads[0].end)
    lines = "".join(f"{_key(key)} = {dumped(entry[key])}{newline}" for key in missing)
    if lines and not text[:end].endswith("\n"):
        lines = newline + lines.removesuffix(newline)
    text = text[:end] + lines + text[end:]
    for each in reversed(own):
        key = each.keys[0]
        if key in entry and entry[key] == old[key]:
            continue
        line = f"{_key(key)} = {dumped(entry[key])}" if key in entry and len(each.keys) == 1 else ""
        ending = newline if text[each.start : each.end].endswith("\n") else ""
        text = text[: each.start] + (line + ending if line else "") + text[each.end :]
    return text


def _without(text: str, start: int, end: int) -> str:
    """Remove a region, and the empty line that was added before it."""
    lines = 1 if text[:end].endswith("\n") else 2
    for _ in range(lines):
        if text[:start].endswith("\r\n") and (lines == 2 or _blank_before(text, start)):
            start -= 2
        elif text[:start].endswith("\n") and (lines == 2 or _blank_before(text, start)):
            start -= 1
    return text[:start] + text[end:]


def _blank_before(text: str, start: int) -> bool:
    line = text.rfind("\n", 0, start - 1) + 1
    return not text[line:start].strip()


def _regions(text: str, path: tuple[str, ...]) -> list[tuple[int, int]]:
    """Return the regions of the table at `path` and of the tables in it: from the header to the end
    of the last setting."""
    found: list[tuple[int, int]] = []
    for each in _statements(text):
        if each.head is not None:
            if each.head[: len(path)] == path:
                found.append((each.start, each.end))
        elif found and each.keys and each.under[: len(path)] == path:
            found[-1] = (found[-1][0], each.end)
    return found


def _heads(text: str, path: tuple[str, ...]) -> list[_Statement]:
    return [each for each in _statements(text) if each.head == path]


def _statements(text: str) -> Iterator[_Statement]:
    """Return every header and setting of a text, which must be valid."""
    under: tuple[str, ...] = ()
    at = 0
    while at < len(text):
        if head := _HEAD.match(text, at):
            under = _parts(head[1])
            end = _line_end(text, head.end())
            yield _Statement(at, end, under, under, ())
        elif setting := _SETTING.match(text, at):
            end = _value_end(text, setting.end())
            yield _Statement(at, end, None, under, _parts(setting[1]))
        else:
            end = _line_end(text, at)
        at = end


def _value_end(text: str, at: int) -> int:
    """Return the end of the line on which the value ends."""
    depth = 0
    while at < len(text):
        char = text[at]
        if char in "\"'" and (string := _STRING.match(text, at)):
            at = string.end()
            continue
        if char == "#":
            at = _line_end(text, at) - 1
        elif char in "[{":
            depth += 1
        elif char in "]}":
            depth -= 1
        if text[at : at + 1] == "\n" and depth <= 0:
            return at + 1
        at += 1
    return at


def _line_end(text: str, at: int) -> int:
    end = text.find("\n", at)
    return len(text) if end < 0 else end + 1


def _parts(keys: str) -> tuple[str, ...]:
    """Decode a dotted key: `a."b c"` gives a and b c."""
    (whole,) = [toml_lines.loads(f"{keys} = 0")]
    found: list[str] = []
    for _ in _ONE_KEY.finditer(keys):
        ((key, inner),) = whole.items()
        found.append(key)
        whole = table_of(inner) or {}
    return tuple(found)
