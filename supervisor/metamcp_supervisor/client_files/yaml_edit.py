"""An entry in the YAML file of a client, added and removed as text.

Owns: the part of YAML that is understood, the refusal of the rest, the place and the layout of an
entry. Never: reading files (`disk`).

An entry is an item of a section: of the list or the mapping under a key at the top of the file. The
result of each edit is read again and compared with the expected items.

The parts that people and programs write into such files are understood: keys at the left margin,
block lists and mappings, values on one line, block scalars. Syntax that can change the meaning of
other lines (a document marker, a quote or bracket that is open at the end of its line, a tab for
indentation) is refused, wherever it stands.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from metamcp_supervisor.client_files.edits import FileUnfit
from metamcp_supervisor.config.document import BrokenSyntax, list_of, printable, table_of

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_NAME = (
    r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^\s"'#&*!|>%@`{}\[\],?:-][^#:]*?|-[^\s#:][^#:]*?)"""
)
_KEY = re.compile(rf"({_NAME})[ \t]*:(?=[ \t]|$)")
_DASHES = re.compile(r"(?:-(?:[ ]+|$))+")
_SCALAR = re.compile(r"(?:[&!]\S*[ \t]+)*[|>][-+0-9]{0,2}[ \t]*(?:[ \t]#.*)?")
_QUOTED = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*')[ \t]*(?:[ \t]#.*)?""")
_COMMENT = re.compile(r"[ \t]+#.*")
_INTEGER = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")
_PARTS = re.compile(r""""(?:[^"\\]|\\.)*"|'(?:[^']|'')*'|[^,\[\]{}"']+|.""")


@dataclass(frozen=True, slots=True)
class YamlLine:
    """Line with content. `start`, `end`: offsets in the file, the line end included; `text`: the
    line without indentation and line end."""

    number: int
    start: int
    end: int
    indent: int
    text: str


@dataclass(frozen=True, slots=True)
class YamlItem:
    """Item of a section. `start`, `end`: offsets of its lines."""

    name: str
    start: int
    end: int
    indent: str
    values: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Section:
    """Section of a file. `start`, `value`: start and end of the line with its key; `indent`: of its
    items."""

    start: int
    value: int
    indent: str
    items: tuple[YamlItem, ...]

    def item(self, name: str) -> YamlItem | None:
        return next((each for each in self.items if each.name == name), None)


def find_section(text: str, key: str) -> Section | None:
    """Find the section under `key` at the top of the file; None if it is missing. Raises
    BrokenSyntax and Unfit."""
    lines = _lines(text)
    _check_top(lines)
    tops = [at for at, line in enumerate(lines) if line.indent == 0 and _name(line.text) == key]
    if not tops:
        return None
    if len(tops) > 1:
        raise BrokenSyntax(f"the key '{key}' is written twice", lines[tops[1]].number)
    head = lines[tops[0]]
    value = _value(head.text[_end_of_key(head.text) :])
    inside: list[YamlLine] = []
    for line in lines[tops[0] + 1 :]:
        if line.indent == 0 and not _DASHES.match(line.text):
            break
        inside.append(line)
    if value not in (None, [], {}) or (value is not None and inside):
        raise FileUnfit(
            f"has '{key}' on one line (line {head.number}), which is not edited; give each item"
            " lines of its own"
        )
    if not inside:
        return Section(head.start, head.end, "  ", ())
    indent = inside[0].indent
    found = tuple(_item(group, key) for group in _groups(inside, indent, key))
    seen: set[str] = set()
    for item in found:
        if item.name in seen:
            number = text.count("\n", 0, item.start) + 1
            raise BrokenSyntax(f"there are two items named '{item.name}' under '{key}'", number)
        seen.add(item.name)
    return Section(head.start, head.end, " " * indent, found)


# Lines


def _lines(text: str) -> list[YamlLine]:
    """Return the lines with content, without comments. A block scalar is part of the line that
    opens it. Raises BrokenSyntax and Unfit."""
    found: list[YamlLine] = []
    at, scalar = 0, -1
    for number, whole in enumerate(_LINE.findall(text), 1):
        start, at = at, at + len(whole)
        body = whole.rstrip("\r\n")
        bare = body.lstrip(" ")
        indent = len(body) - len(bare)
        if not bare.strip():
            continue
        if found and indent > scalar >= 0:
            found[-1] = replace(found[-1], end=at)
            continue
        scalar = -1
        if bare.startswith("#") or (not found and body.rstrip() == "---"):
            continue
        _check(number, indent, bare)
        found.append(YamlLine(number, start, at, indent, bare.rstrip()))
        scalar = _opens_scalar(indent, bare)
    return found


def _check_top(lines: list[YamlLine]) -> None:
    """Refuse a file that is not a mapping with its keys at the left margin. Raises Unfit."""
    is_empty = False
    for line in lines:
        if line is lines[0] and line.indent:
            raise FileUnfit(f"begins with an indentation, in line {line.number}")
        if line.indent:
            continue
        if not _DASHES.match(line.text):
            is_empty = _value(line.text[_end_of_key(line.text) :]) is None
        elif not is_empty:
            raise FileUnfit(f"has a list without a key in line {line.number}")


def _check(number: int, indent: int, bare: str) -> None:
    if whole := next((mark for mark in ("---", "...") if bare.rstrip() == mark), None):
        raise FileUnfit(
            f"has '{whole}' in line {number}: a file with several documents is not edited"
        )
    if "\r" in bare.rstrip("\r\n"):
        raise BrokenSyntax("a carriage return stands in the middle of a line", number)
    if bare.startswith(("\t", "%")):
        raise BrokenSyntax("a line begins with a tab or '%'", number)
    dashes = _DASHES.match(bare)
    rest = bare[dashes.end() :] if dashes else bare
    end = _end_of_key(rest)
    if indent == 0 and not end and not dashes:
        raise FileUnfit(f"has no 'key:' at the left margin in line {number}")
    value = rest[end:].strip()
    if _is_open(value):
        raise FileUnfit(f"has a value over several lines in line {number}, which is not edited")


def _is_open(value: str) -> bool:
    """Whether a value in quotes or brackets goes on in the next line."""
    if value[:1] in ("'", '"'):
        return _QUOTED.fullmatch(value) is None
    if value[:1] not in ("[", "{"):
        return False
    depth = 0
    for part in _PARTS.findall(value):
        depth += (part in "[{") - (part in "]}") if len(part) == 1 else 0
        if part in ("'", '"'):
            return True
    return depth != 0


def _opens_scalar(indent: int, bare: str) -> int:
    """Return the indentation below which the lines of a block scalar stand; -1 if none begins."""
    dashes = _DASHES.match(bare)
    inner = dashes.end() if dashes else 0
    end = _end_of_key(bare[inner:])
    if _SCALAR.fullmatch(bare[inner + end :].strip()) is None:
        return -1
    if end:
        return indent + inner
    last = bare[:inner].rstrip().rfind("-") if dashes else 0
    return indent + last


def _end_of_key(text: str) -> int:
    found = _KEY.match(text)
    return found.end() if found else 0


def _name(text: str) -> str | None:
    found = _KEY.match(text)
    return str(_scalar(found[1])) if found else None


# Items


def _groups(lines: list[YamlLine], indent: int, key: str) -> Iterator[list[YamlLine]]:
    """Return the lines of each item. Raises Unfit."""
    group: list[YamlLine] = []
    for line in lines:
        if line.indent < indent:
            raise FileUnfit(f"has a strange indentation under '{key}', in line {line.number}")
        if line.indent == indent and group:
            yield group
            group = []
        group.append(line)
    yield group


def _item(group: list[YamlLine], key: str) -> YamlItem:
    first = group[0]
    start, end, indent = first.start, group[-1].end, " " * first.indent
    if dashes := _DASHES.match(first.text):
        rest = first.text[dashes.end() :]
        inner = YamlLine(first.number, start, first.end, first.indent + dashes.end(), rest)
        values = _mapping([inner, *group[1:]] if rest else group[1:])
        return YamlItem(str(values.get("name", "")), start, end, indent, values)
    name = _name(first.text)
    if name is None:
        raise FileUnfit(f"has no 'name:' under '{key}', in line {first.number}")
    written = table_of(_value(first.text[_end_of_key(first.text) :]))
    return YamlItem(name, start, end, indent, written or _mapping(group[1:]))


def _mapping(lines: list[YamlLine]) -> dict[str, object]:
    """Read the settings of an item: values on one line, and one level of lists and mappings."""
    found: dict[str, object] = {}
    at = 0
    while at < len(lines):
        line = lines[at]
        at += 1
        name = _name(line.text)
        if name is None:
            continue
        value = _value(line.text[_end_of_key(line.text) :])
        below: list[YamlLine] = []
        while at < len(lines) and (
            lines[at].indent > line.indent
            or (lines[at].indent == line.indent and _DASHES.match(lines[at].text))
        ):
            below.append(lines[at])
            at += 1
        found[name] = _nested(below) if value is None and below else value
    return found


def _nested(lines: list[YamlLine]) -> object:
    if _DASHES.match(lines[0].text):
        return [_value(line.text[2:]) for line in lines if line.text.startswith("- ")]
    return {
        name: _value(line.text[_end_of_key(line.text) :])
        for line in lines
        if (name := _name(line.text)) is not None
    }


def _value(text: str) -> object:
    """Read the value after a key: None for an empty one, and the plain text for syntax that is not
    understood."""
    text = text.strip()
    if text.startswith("#"):
        return None
    if text[:1] in ("[", "{"):
        bare = text[: max(text.rfind("]"), text.rfind("}")) + 1]
        try:
            found: object = json.loads(bare)
        except ValueError:
            return _flow(bare)
        return found
    if quoted := _QUOTED.fullmatch(text):
        return _scalar(quoted[1])
    return _scalar(_COMMENT.split(text, maxsplit=1)[0])


def _flow(text: str) -> object:
    """Read `[a, "b"]` or `{a: b}` without anything deeper; return the text for the rest."""
    parts = [part for part in _PARTS.findall(text[1:-1]) if part.strip()]
    if any(part in "[]{}" for part in parts):
        return text
    words = [part.strip() for part in parts if part != ","]
    if text.startswith("["):
        return [_scalar(word) for word in words]
    pairs = [word.partition(":") for word in words]
    return {str(_scalar(name.strip())): _scalar(value.strip()) for name, _, value in pairs}


def _scalar(text: str) -> object:
    if text.startswith('"'):
        try:
            found: object = json.loads(text, strict=False)
        except ValueError:
            return text
        return found
    if text.startswith("'"):
        return text[1:-1].replace("''", "'")
    if text in ("", "null", "~"):
        return None
    if text in ("true", "false"):
        return text == "true"
    return int(text) if _INTEGER.fullmatch(text) else text


Kind = Literal["list", "mapping"]
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*", re.ASCII)
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
_EMPTY = re.compile(r"(:[ \t]*)(?:\[[ \t]*\]|\{[ \t]*\}|null|~)?")


def items(text: str, key: str) -> Mapping[str, Mapping[str, object]]:
    """Return the items under `key`, by name. Raises BrokenSyntax and Unfit."""
    section = find_section(text, key)
    return {item.name: item.values for item in section.items} if section is not None else {}


def put(text: str, key: str, kind: Kind, name: str, entry: Mapping[str, object], new: str) -> str:
    """Return `text` with `entry` as the item `name` under `key`. `new`: text at the beginning of a
    file that was empty. Raises BrokenSyntax and Unfit."""
    old = items(text, key)
    if dict(old.get(name, {})) == dict(entry):
        return text
    newline = "\r\n" if "\r\n" in text else "\n"
    section = find_section(text, key)
    if section is None:
        block = newline.join([f"{key}:", *_new_lines(kind, name, entry, "  ")])
        made = _appended(text if text.strip() else new, block, newline)
    elif (item := section.item(name)) is not None:
        lines = newline.join(_new_lines(kind, name, entry, item.indent))
        ending = newline if text[: item.end].endswith("\n") else ""
        made = text[: item.start] + lines + ending + text[item.end :]
    else:
        made = _added(text, section, _new_lines(kind, name, entry, section.indent), newline)
    _prove(made, key, {**old, name: dict(entry)})
    return made


def drop(text: str, key: str, name: str, before: str | None) -> str:
    """Return `text` without that item. `before`: text before the first edit, which shows whether a
    section that is empty now existed then; None: the file did not exist. Raises BrokenSyntax and
    Unfit."""
    old = dict(items(text, key))
    section = find_section(text, key)
    item = section.item(name) if section is not None else None
    if section is None or item is None:
        raise FileUnfit(f"has no '{name}' under '{key}'")
    was = find_section(before, key) if before is not None else None
    if len(section.items) > 1:
        made = _without(text, item.start, item.end)
    elif was is None:
        made = _without(text, section.start, item.end)
        if text[section.value : item.start].strip():
            made = _without(text, item.start, item.end)  # a comment of the user is between
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


def _new_lines(kind: Kind, name: str, entry: Mapping[str, object], indent: str) -> list[str]:
    values = [f"{key}: {dumped(value)}" for key, value in entry.items()]
    if kind == "mapping":
        return [f"{indent}{dumped(name)}:", *(f"{indent}  {value}" for value in values)]
    first, *others = values
    return [f"{indent}- {first}", *(f"{indent}  {value}" for value in others)]


def dumped(value: object) -> str:
    """Write a value on one line. JSON is YAML too, once characters that are not printable are
    escapes."""
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
    """Return the line of a key without its empty value."""
    return _EMPTY.sub(lambda found: ":" if found[0].rstrip() != ":" else found[0], line, count=1)


# Taking out


def _without(text: str, start: int, end: int) -> str:
    if not text[:end].endswith("\n") and text[:start].endswith("\n"):
        start -= 2 if text[:start].endswith("\r\n") else 1
    return text[:start] + text[end:]


def _prove(made: str, key: str, expected: Mapping[str, Mapping[str, object]]) -> None:
    found = {name: dict(each) for name, each in items(made, key).items()}
    if found != {name: dict(each) for name, each in expected.items()}:
        raise FileUnfit("is laid out in a way that cannot be edited safely")
