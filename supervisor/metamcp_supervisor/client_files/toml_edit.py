"""A table in a TOML file, added, changed and removed as text.

Owns: where a table stands in the text, and which characters are removed together with it. Never:
the content of the table (`clients`), the proof that nothing else changed (`texts`).

The table gets its own header, `[mcp_servers.metamcp]`, at the end of the file, and is found
wherever it stands later. tomlkit reads and writes this table alone: it writes a whole file again
with arrays of tables in another order. The functions that need tomlkit import it, because a gateway
reads files of other formats with this package, and keeps what it has loaded.
"""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from metamcp_supervisor.client_files.clients import FileUnfit
from metamcp_supervisor.config import formats
from metamcp_supervisor.config.document import BrokenSyntax, printable, table_of

if TYPE_CHECKING:
    from tomlkit import TOMLDocument
    from tomlkit.items import Item, Table

_HEAD = re.compile(r"^[ \t]*\[.*", re.MULTILINE)
_BLANK_LINE = re.compile(r"(?:(?<=\n)|\A)\r?\n\Z")


def put(
    text: str, path: tuple[str, ...], entry: Mapping[str, object], old: Mapping[str, object] | None
) -> str:
    """Return `text` with `entry` as the table at `path`. `old`: the table there now; a setting that
    is the same keeps its line, and a table in it that has a header keeps that. Raises FileUnfit."""
    import tomlkit

    newline = "\r\n" if "\r\n" in text else "\n"
    was = old or {}
    own_heads = {keys[len(path)] for _, _, keys in _tables(text, path) if len(keys) > len(path)}
    for key in sorted(own_heads):
        inner, before = table_of(entry.get(key)), table_of(was.get(key))
        if key not in entry:
            text = drop(text, (*path, key))
        elif entry[key] != was.get(key):
            if inner is None or before is None:
                raise _unfit()
            text = put(text, (*path, key), inner, before)
    settings = {key: value for key, value in entry.items() if key not in own_heads}
    for start, end, keys in _tables(text, path):
        if keys == path:
            return (
                text[:start] + _change_table(text[start:end], path, settings, newline) + text[end:]
            )
    if old is not None and not own_heads:
        raise _unfit()
    if own_heads and not settings:
        return text
    lines = [f"[{tomlkit.key(list(path)).as_string()}]", *_lines(settings)]
    return _append_block(text, newline.join(lines), newline)


def _unfit() -> FileUnfit:
    return FileUnfit("is laid out in a way that cannot be edited safely")


def drop(text: str, path: tuple[str, ...]) -> str:
    """Return `text` without that table, the tables in it, and the empty line that was put before
    it. Comments after its last setting stay."""
    for start, end, _ in reversed(list(_tables(text, path))):
        above = _BLANK_LINE.sub("", text[:start])
        if not text[:end].endswith("\n"):
            above = above.removesuffix("\n").removesuffix("\r")
        text = above + text[end:]
    return text


def move(text: str, path: tuple[str, ...], target: tuple[str, ...]) -> str:
    """Return `text` with the table at `path`, and the tables in it, under other headers. Raises
    FileUnfit."""
    import tomlkit

    tables = list(_tables(text, path))
    for start, _, keys in reversed(tables):
        end = start
        while _keys(text[start:end]) != keys:
            end = text.index("]", end) + 1
        head = tomlkit.key([*target, *keys[len(path) :]]).as_string()
        indent = text[start:end].partition("[")[0]
        text = f"{text[:start]}{indent}[{head}]{text[end:]}"
    if not tables:
        raise _unfit()
    return text


def format_value(value: object) -> str:
    """Write a value on one line."""
    return printable(_item(value).as_string())


def _lines(entry: Mapping[str, object]) -> list[str]:
    import tomlkit

    return [
        f"{printable(tomlkit.key(key).as_string())} = {format_value(value)}"
        for key, value in entry.items()
    ]


def _item(value: object) -> "Item":
    import tomlkit

    if (table := table_of(value)) is not None:
        inline = tomlkit.inline_table()
        for key, inner in table.items():
            inline.append(key, _item(inner))
        return inline
    return tomlkit.item(value)


def _append_block(text: str, block: str, newline: str) -> str:
    if not text:
        return block + newline
    if text.endswith("\n"):
        return text + newline + block + newline
    return text + newline + newline + block


def _change_table(
    text: str, path: tuple[str, ...], entry: Mapping[str, object], newline: str
) -> str:
    """Return the text of one table with other settings. New ones come last."""
    import tomlkit

    document, table = _parse_table(text, path)
    old = table.unwrap()
    for key, value in old.items():
        if key not in entry:
            table.remove(key)
        elif entry[key] != value:
            _update(table, key, value, entry[key])
    made = tomlkit.dumps(document)
    lines = _lines({key: value for key, value in entry.items() if key not in old})
    if not lines or made.endswith("\n"):
        return made + "".join(line + newline for line in lines)
    return newline.join([made, *lines])


def _update(container: Any, key: Any, old: object, new: object) -> None:
    """Put a value in the place of another one. Parts that are the same in both keep their place and
    their comments."""
    old_table, new_table = table_of(old), table_of(new)
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for at, (before, after) in enumerate(zip(old, new, strict=True)):
            if before != after:
                _update(container[key], at, before, after)
    elif old_table is not None and new_table and old_table.keys() & new_table.keys():
        for name, value in old_table.items():
            if name not in new_table:
                container[key].remove(name)
            elif new_table[name] != value:
                _update(container[key], name, value, new_table[name])
        for name, value in new_table.items():
            if name not in old_table:
                container[key].append(name, _item(value))
    else:
        container[key] = _item(new)


def _tables(text: str, path: tuple[str, ...]) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """Return start, end and keys of each table at or below `path`: from the header to the last
    setting, without comments after that."""
    heads = list(_HEAD.finditer(text))
    ends = [*(head.start() for head in heads), len(text)]
    for at, head in enumerate(heads):
        start, keys = head.start(), _keys(head[0])
        if keys[: len(path)] != path:
            continue
        for end in ends[at + 1 :]:  # a line of a value may begin with a bracket, too
            if (size := _size(text[start:end], keys)) is not None:
                yield start, start + size, keys
                break


def _keys(line: str) -> tuple[str, ...]:
    """Return the keys of a header; none for a line that is not one."""
    try:
        value = formats.toml_loads(line.strip())
    except BrokenSyntax:
        return ()
    keys: list[str] = []
    while value:
        ((key, inner),) = value.items()
        keys.append(key)
        value = table_of(inner) or {}
    return tuple(keys)


def _size(text: str, keys: tuple[str, ...]) -> int | None:
    """Return the number of characters of one table up to its last setting; None if `text` ends in
    the middle of a value."""
    from tomlkit.exceptions import TOMLKitError

    try:
        _, table = _parse_table(text, keys)
    except TOMLKitError:
        return None
    size = len(text)
    for key, item in reversed(table.value.body):
        if key is not None:
            break
        size -= len(item.as_string())
    return size


def _parse_table(text: str, keys: tuple[str, ...]) -> "tuple[TOMLDocument, Table]":
    """Parse the text of one table. Raises TOMLKitError."""
    import tomlkit

    document = tomlkit.parse(text)
    table = _table(document[keys[0]])
    for key in keys[1:]:
        table = _table(table[key])
    return document, table


def _table(item: object) -> "Table":
    from tomlkit.items import AoT, Table

    table = item[-1] if isinstance(item, AoT) else item
    assert isinstance(table, Table)
    return table
