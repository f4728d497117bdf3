"""JSON, TOML and YAML as people write them, with a line number for each key.

Owns: which format a file has; decoding; removing comments and trailing commas from JSON without
moving anything else; finding what a decoder hides: keys written twice, and the line of a key.
Never: the meaning of keys (`parse`, `foreign_files`).
"""

import functools
import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from metamcp_supervisor.config.document import (
    BrokenSyntax,
    ConfigDocument,
    Place,
    list_of,
    printable,
    shorten,
    table_of,
)

Format = Literal["json", "toml", "yaml"]

_QUOTE_OR_SLASH = re.compile(r'["/]')
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_TRAILING_COMMA = re.compile(r'("[^"\\]*+(?:\\.[^"\\]*+)*+")|,(?=\s*[\]}])', re.DOTALL)
_NOT_NEWLINE = re.compile(r"[^\n]")
_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\]:,\n]', re.DOTALL)
_DEPTH_MAX = 6
"""Maximum depth of keys whose lines are kept; no setting is deeper, and deeper keys get the line of
the key above."""


def strip(text: str) -> str:
    """Return `text` with spaces in place of comments and trailing commas: same length, same lines,
    strings unchanged. Raises BrokenSyntax for a comment without an end."""
    pieces: list[str] = []
    done = at = 0
    is_complete = True
    while opening := _QUOTE_OR_SLASH.search(text, at):
        start = opening.start()
        if text[start] == '"':
            string = _STRING.match(text, start)
            if string is None:
                is_complete = False  # no end: the decoder says so, with its place
                break
            at = string.end()
            continue
        end = _comment_end(text, start)
        if end == start:
            at = start + 1
            continue
        pieces += (text[done:start], _NOT_NEWLINE.sub(" ", text[start:end]))
        done = at = end
    pieces.append(text[done:])
    bare = "".join(pieces)
    return _TRAILING_COMMA.sub(lambda match: match[1] or " ", bare) if is_complete else bare


def _comment_end(text: str, start: int) -> int:
    """Return the end of the comment that begins at `start`; `start` if none begins there."""
    two = text[start : start + 2]
    if two == "//":
        end = text.find("\n", start)
        return len(text) if end < 0 else end
    if two == "/*":
        end = text.find("*/", start + 2)
        if end < 0:
            raise BrokenSyntax("the comment '/*' has no end '*/'", text.count("\n", 0, start) + 1)
        return end + 2
    return start


def json_loads(text: str) -> Mapping[str, object]:
    """Decode the object in `text`. Raises BrokenSyntax, also for a key that is written twice."""
    bare = strip(text)
    twice = False

    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        nonlocal twice
        made = dict(items)
        twice = twice or len(made) != len(items)
        return made

    try:
        value: object = json.loads(bare, object_pairs_hook=pairs, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise BrokenSyntax(f"{error.msg} at column {error.colno}", error.lineno) from None
    except RecursionError:
        raise BrokenSyntax("nested too deeply") from None
    except _NoNumber as error:
        raise BrokenSyntax(str(error)) from None
    except ValueError:  # of int(): more digits than Python converts
        raise BrokenSyntax("a number in it has too many digits") from None
    if twice and (first := _walk(bare)[1]) is not None:
        raise BrokenSyntax(f"the key '{shorten(first[0])}' is written twice", first[1])
    table = table_of(value)
    if table is None:
        raise BrokenSyntax("must be a JSON object: { … }")
    return table


class _NoNumber(Exception):
    """NaN or Infinity, which Python accepts as JSON."""


def _no_constant(name: str) -> object:
    raise _NoNumber(f"{name} is not a JSON number")


def json_lines(text: str) -> Mapping[Place, int]:
    """Return the line of every key, and of every list item except numbers and the like.

    `text` must be a text that `loads` accepts.
    """
    return _walk(strip(text))[0]


def _walk(bare: str) -> tuple[Mapping[Place, int], tuple[str, int] | None]:
    """Return lines by place, and the first key that is written twice in its object.

    The text is valid, so brackets and keys are enough to know the current place: `path` holds the
    current key or index of every open object or list; an object expects a key after `{` and `,`.
    """
    lines: dict[Place, int] = {}
    twice: tuple[str, int] | None = None
    path: list[str | int] = []
    keys_seen: list[set[str] | None] = []
    line, key_next = 1, False
    for match in _TOKEN.finditer(bare):
        mark = match[0]
        if mark[0] in '{["' and path and isinstance(path[-1], int):
            _note(lines, path, line)  # the item itself, which may stand below its comma
        if mark == "\n":
            line += 1
        elif mark == "{":
            path.append("")
            keys_seen.append(set())
            key_next = True
        elif mark == "[":
            path.append(0)
            keys_seen.append(None)
            key_next = False
        elif mark in "}]":
            path.pop()
            keys_seen.pop()
            key_next = False
        elif mark == ",":
            last = path[-1]
            key_next = isinstance(last, str)
            if isinstance(last, int):
                path[-1] = last + 1
        elif mark[0] == '"':
            if key_next and (seen := keys_seen[-1]) is not None:
                path[-1] = key = str(json.loads(mark))
                _note(lines, path, line)
                if key in seen and twice is None:
                    twice = (key, line)
                seen.add(key)
                key_next = False
            line += mark.count("\n")
    return lines, twice


def _note(lines: dict[Place, int], path: list[str | int], line: int) -> None:
    if len(path) <= _DEPTH_MAX:
        lines.setdefault(tuple(path), line)


_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_KEYS = rf"{_KEY}(?:[ \t]*\.[ \t]*{_KEY})*"
_HEAD = re.compile(rf"\s*\[(\[?)[ \t]*({_KEYS})[ \t]*\]")
_SETTING = re.compile(rf"\s*({_KEYS})[ \t]*=")
_ONE_KEY = re.compile(_KEY)
_AT_LINE = re.compile(r" \(at line (\d+), column (\d+)\)\Z")
_TWICE = re.compile(r"Cannot declare (\(.*\)) twice")
_QUOTED = re.compile(r"'([^']*)'")
KEY_PARTS_MAX = 32
"""Maximum parts of a key; the time of Python's decoder grows with the square of the number of dots
in a key, and a file of 4 MiB would take days."""
_ENDLESS_KEY = re.compile(
    rf"""(?<![\w"'.-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{KEY_PARTS_MAX}}}"""
)
_LINE_CHARACTERS_MAX = 4096
"""Maximum characters of a line that is searched for a key; longer lines are data."""


def toml_loads(text: str) -> Mapping[str, object]:
    """Decode a text. Raises BrokenSyntax."""
    if endless := _ENDLESS_KEY.search(text):
        line = text.count("\n", 0, endless.start()) + 1
        raise BrokenSyntax(f"a key has more than {KEY_PARTS_MAX} parts", line)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise BrokenSyntax("nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        message = _TWICE.sub(_as_written, str(error))
        if match := _AT_LINE.search(message):
            raise BrokenSyntax(
                f"{message[: match.start()]} at column {match[2]}", int(match[1])
            ) from None
        raise BrokenSyntax(message, text.rstrip().count("\n") + 1) from None
    except ValueError:  # of int(): more digits than Python converts
        raise BrokenSyntax("a number in it has too many digits") from None


def _as_written(match: re.Match[str]) -> str:
    return f"the table [{'.'.join(_QUOTED.findall(match[1]))}] is written twice"


def toml_lines(text: str) -> Mapping[Place, int]:
    """Return the line of every table and key that begins a line. A key inside an inline table is
    not found; use the line of the key above it."""
    lines: dict[Place, int] = {}
    head: Place = ()
    counts: Counter[Place] = Counter()
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > _LINE_CHARACTERS_MAX:
            continue
        if match := _HEAD.match(line):
            location = head = _place(match[2])
            if match[1]:  # one more of a list of tables
                location = head = (*head, counts[head])
                counts[location[:-1]] += 1
        elif match := _SETTING.match(line):
            location = head + _place(match[1])
        else:
            continue
        for length in range(1, len(location) + 1):
            lines.setdefault(location[:length], number)
    return lines


def _place(keys: str) -> Place:
    return tuple(
        key[1:-1] if key[0] in "\"'" else key for key in (m[0] for m in _ONE_KEY.finditer(keys))
    )


_DATE = "tag:yaml.org,2002:timestamp"
NODES_MAX = 200_000
"""Maximum values of a YAML document with its aliases written out; a few lines can stand for
billions."""


def yaml_reader() -> Any:
    """Return what reads values of YAML as clients do: dates and values with other tags are texts.
    ruamel.yaml is loaded for a file in YAML only."""
    from ruamel.yaml import YAML

    reader: Any = YAML(typ="safe", pure=True)
    reader.composer.warn_double_anchors = False
    made = reader.constructor
    text = made.__class__.construct_yaml_str
    made.yaml_constructors = {**made.yaml_constructors, _DATE: text, None: text}
    return reader


@functools.lru_cache(maxsize=8)
def yaml_loads(text: str) -> Mapping[str, object]:
    """Decode a text; empty for an empty text. Raises BrokenSyntax.

    An edit asks again and again for the same few texts, and ruamel.yaml needs 4 ms for 1 KiB."""
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.scanner import ScannerError

    try:
        value: object = yaml_reader().load(text)
    except MarkedYAMLError as error:
        raise _broken_yaml(error, is_late=isinstance(error, ScannerError)) from None
    except YAMLError as error:
        raise BrokenSyntax(printable(str(error).partition("\n")[0])) from None
    except RecursionError:
        raise BrokenSyntax("nested too deeply") from None
    except (LookupError, TypeError, ValueError):  # of the library, for a value unlike its tag
        raise BrokenSyntax("a value in it cannot be read") from None
    table = table_of(value)
    if table is None and value is not None:
        raise BrokenSyntax("has no 'key: value' at its top")
    return table or {}


def _broken_yaml(error: Any, *, is_late: bool) -> BrokenSyntax:
    """`is_late`: the scanner notices late that an end is missing, and says where it began."""
    phrases = [
        phrase for phrase in (error.context, error.problem) if phrase and phrase[:6] != "while "
    ]
    problem = " ".join(phrases).partition(" with value ")[0]  # which may be a secret
    mark = (error.context_mark if is_late else None) or error.problem_mark
    return BrokenSyntax(printable(problem), None if mark is None else mark.line + 1)


def yaml_document(text: str) -> Mapping[str, object]:
    """Decode a text whose keys are texts, as those of JSON. Raises BrokenSyntax."""
    remaining = NODES_MAX

    def copy_value(value: object) -> object:
        nonlocal remaining
        remaining -= 1
        if remaining < 0:
            raise BrokenSyntax(f"has more than {NODES_MAX} values, with its aliases written out")
        if (table := table_of(value)) is not None:
            return {str(key): copy_value(inner) for key, inner in table.items()}
        items = list_of(value)
        return value if items is None else [copy_value(inner) for inner in items]

    try:
        return table_of(copy_value(yaml_loads(text))) or {}
    except RecursionError:
        raise BrokenSyntax("nested too deeply") from None


def yaml_lines(text: str) -> Mapping[Place, int]:
    """Return the line of every key and of every item of a list."""
    lines: dict[Place, int] = {}
    _note_nodes(lines, (), yaml_reader().compose(text))
    return lines


def _note_nodes(lines: dict[Place, int], location: Place, node: Any) -> None:
    if node is None or len(location) >= _DEPTH_MAX or len(lines) >= NODES_MAX:
        return
    if node.id == "mapping":
        pairs = [(key.value, key, inner) for key, inner in node.value]
    else:
        pairs = [(at, item, item) for at, item in enumerate(node.value)]
    for key, marked, inner in pairs:
        below = (*location, key if isinstance(key, int) else str(key))
        lines[below] = marked.start_mark.line + 1
        if inner.id != "scalar":
            _note_nodes(lines, below, inner)


# The format of a file


def format_of(path: Path, text: str) -> Format:
    """Return the format of a file: by the suffix of its name, or else by its first character."""
    if path.suffix in {".yaml", ".yml"}:
        return "yaml"
    if path.suffix in {".json", ".jsonc", ".json5"}:
        return "json"
    return (
        "json" if path.suffix != ".toml" and text.lstrip().startswith(("{", "//", "/*")) else "toml"
    )


_READERS: Mapping[
    Format, tuple[Callable[[str], Mapping[str, object]], Callable[[str], Mapping[Place, int]]]
] = {
    "json": (json_loads, json_lines),
    "toml": (toml_loads, toml_lines),
    "yaml": (yaml_document, yaml_lines),
}


def document(path: Path, text: str, base: Path) -> tuple[Format, ConfigDocument]:
    """Decode a file. `base`: where its relative paths start. Raises BrokenSyntax."""
    kind = format_of(path, text)
    loads, lines = _READERS[kind]
    decoded = loads(text)
    line_of = functools.cache(functools.partial(lines, text))
    return kind, ConfigDocument(printable(str(path)), base, decoded, line_of)
