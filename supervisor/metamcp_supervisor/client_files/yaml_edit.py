"""An entry in the YAML file of a client, added, changed and removed as text.

Owns: the place and the layout of an entry. Never: reading files (`disk`), the proof that nothing
else changed (`texts`).

An entry is an item of a section: of the list or the mapping under a key at the top of the file.
ruamel.yaml says what a file means and where each item begins, and writes ours. The text between
stays as it is: no library writes a whole YAML file again in the layout that it had.
"""

import io
import re
import textwrap
from collections.abc import Mapping
from typing import Any, Protocol

from msgspec import Struct
from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from metamcp_supervisor.client_files.clients import FileUnfit
from metamcp_supervisor.config.document import list_of, printable, table_of
from metamcp_supervisor.config.formats import yaml_reader

_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*", re.ASCII)
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n"}
_DASH = re.compile(r" *-(?=\s)")


class _Mark(Protocol):
    index: int
    line: int


class _Node(Protocol):
    """Node of a file. `id`: scalar, sequence or mapping; `value`: a text, nodes, or pairs of
    them."""

    id: str
    value: Any
    start_mark: _Mark
    end_mark: _Mark
    flow_style: bool | None


class _Section(Struct, frozen=True):
    """Section of a file. `start`: of the line with its key; `key`: end of the key; `value`: offsets
    of a value that is empty; `items`: name, start and end of each; `indent`: of the items."""

    start: int
    key: int
    value: tuple[int, int]
    items: tuple[tuple[str, int, int], ...]
    indent: str


def put(text: str, key: str, name: str, entry: Mapping[str, object], *, listed: bool) -> str:
    """Return `text` with `entry` as the item `name` under `key`. Raises FileUnfit."""
    newline = "\r\n" if "\r\n" in text else "\n"
    item: object = [entry] if listed else {name: entry}
    section = _section(text, key)
    if section is None:
        return _insert_block(text, len(text), _dump_item({key: item}, "", newline), newline)
    block = _dump_item(item, section.indent, newline)
    for other, start, end in section.items:
        if other == name:
            return _insert_block(_without(text, start, end), start, block, newline)
    if section.items:
        return _insert_block(text, section.items[-1][2], block, newline)
    start, end = section.value
    text = text[:start].rstrip(" \t") + text[end:]
    at = text.find("\n", section.key) + 1
    return _insert_block(text, at or len(text), block, newline)


def drop(text: str, key: str, name: str, *, with_section: bool) -> str:
    """Return `text` without that item. `with_section`: without the section too, if it is empty then
    and has no comment. Raises FileUnfit."""
    section = _section(text, key)
    spans = {} if section is None else {item: span for item, *span in section.items}
    if section is None or name not in spans:
        raise FileUnfit(f"has no '{name}' under '{key}'")
    start, end = spans[name]
    if len(section.items) > 1:
        return _without(text, start, end)
    if with_section and not text[text.find("\n", section.key) : start].strip():
        return _without(text, section.start, end)
    colon = text.index(":", section.key) + 1
    empty = " []" if _DASH.match(text, start) else " {}"
    return text[:colon] + empty + _without(text, start, end)[colon:]


# Where things stand


def _section(text: str, key: str) -> _Section | None:
    """Find the section under `key`; None if it is missing. Raises FileUnfit."""
    root: _Node | None = yaml_reader().compose(text)
    pairs = _pairs(root)
    at = next((at for at, (name, _) in enumerate(pairs) if name.value == key), None)
    if root is None or at is None:
        return None
    name, node = pairs[at]
    start, end = _line_start(text, name.start_mark.index), name.end_mark.index
    if node.id == "scalar" or not node.value:
        span = (node.start_mark.index, node.end_mark.index)
        return _Section(start, end, span if span[0] < span[1] else (end, end), (), "  ")
    if node.flow_style:
        raise FileUnfit(
            f"has '{key}' in brackets (line {name.start_mark.line + 1}), which is not edited; give"
            " each item lines of its own"
        )
    limit = pairs[at + 1][0].start_mark if at + 1 < len(pairs) else root.end_mark
    return _Section(start, end, (end, end), *_items(text, node, limit.index))


def _items(text: str, node: _Node, limit: int) -> tuple[tuple[tuple[str, int, int], ...], str]:
    """Return name, start and end of each item of a section that ends at `limit`, and their
    indentation. Comments after an item belong to it if they stand deeper than it."""
    if node.id == "mapping":
        heads = [
            (str(key.value), _line_start(text, key.start_mark.index)) for key, _ in _pairs(node)
        ]
    else:
        items: list[_Node] = node.value
        heads = [(_name(item), _dash(text, item.start_mark.index)) for item in items]
    first = text[heads[0][1] :]
    indent = len(first) - len(first.lstrip(" "))
    spans: list[tuple[str, int, int]] = []
    for (name, start), (_, stop) in zip(heads, [*heads[1:], ("", limit)], strict=True):
        lines = text[start:stop].splitlines(keepends=True)
        while lines and _is_outside(lines[-1], indent):
            lines.pop()
        spans.append((name, start, start + sum(map(len, lines))))
    return tuple(spans), " " * indent


def _is_outside(line: str, indent: int) -> bool:
    bare = line.lstrip(" ")
    return not bare.strip() or (bare.startswith("#") and len(line) - len(bare) <= indent)


def _pairs(node: _Node | None) -> list[tuple[_Node, _Node]]:
    return node.value if node is not None and node.id == "mapping" else []


def _name(item: _Node) -> str:
    return next((str(value.value) for key, value in _pairs(item) if key.value == "name"), "")


def _dash(text: str, at: int) -> int:
    """Return the start of the line with the dash of an item that begins at `at`."""
    start = _line_start(text, at)
    while start and not _DASH.match(text, start):
        start = _line_start(text, start - 1)
    return start


def _line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


# Putting in and taking out


def _dump_item(item: object, indent: str, newline: str) -> str:
    writer: Any = YAML()
    stream = io.StringIO()
    writer.width = 1 << 20
    writer.indent(mapping=2, sequence=4, offset=2)
    writer.dump(_quote_texts(item), stream)
    made = textwrap.indent(textwrap.dedent(stream.getvalue()), indent).removesuffix("\n")
    return newline.join(map(printable, made.split("\n")))


def _quote_texts(value: object) -> object:
    """Return a copy in which texts that could be read as another value, or that have invisible
    characters, are in quotes."""
    if isinstance(value, str):
        is_plain = _PLAIN.fullmatch(value) and value.lower() not in _WORDS
        return value if is_plain else DoubleQuotedScalarString(value)
    if (table := table_of(value)) is not None:
        return {_quote_texts(key): _quote_texts(inner) for key, inner in table.items()}
    listed = list_of(value)
    return value if listed is None else [_quote_texts(inner) for inner in listed]


def _insert_block(text: str, at: int, block: str, newline: str) -> str:
    if not text[:at] or text[:at].endswith("\n"):
        return text[:at] + block + newline + text[at:]
    return text[:at] + newline + block + text[at:]


def _without(text: str, start: int, end: int) -> str:
    if not text[:end].endswith("\n") and text[:start].endswith("\n"):
        start -= 2 if text[:start].endswith("\r\n") else 1
    return text[:start] + text[end:]
