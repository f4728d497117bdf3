"""JSON and TOML as people write them, with a line number for each key.

Owns: decoding; removing comments and trailing commas from JSON without moving anything else;
finding what a decoder hides: keys written twice, and the line of a key. Never: the meaning of keys
(`parse`, `foreign_files`).
"""

import json
import re
import tomllib
from collections import Counter
from collections.abc import Mapping

from metamcp_supervisor.config.document import BrokenSyntax, Place, shown, table_of

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
    whole = True
    while found := _QUOTE_OR_SLASH.search(text, at):
        start = found.start()
        if text[start] == '"':
            string = _STRING.match(text, start)
            if string is None:
                whole = False  # no end: the decoder says so, with its place
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
    return _TRAILING_COMMA.sub(lambda match: match[1] or " ", bare) if whole else bare


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
        found: object = json.loads(bare, object_pairs_hook=pairs, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise BrokenSyntax(f"{error.msg} at column {error.colno}", error.lineno) from None
    except RecursionError:
        raise BrokenSyntax("nested too deeply") from None
    except _NoNumber as error:
        raise BrokenSyntax(str(error)) from None
    except ValueError:  # of int(): more digits than Python converts
        raise BrokenSyntax("a number in it has too many digits") from None
    if twice and (first := _walk(bare)[1]) is not None:
        raise BrokenSyntax(f"the key '{shown(first[0])}' is written twice", first[1])
    table = table_of(found)
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
    found: dict[Place, int] = {}
    twice: tuple[str, int] | None = None
    path: list[str | int] = []
    keys_seen: list[set[str] | None] = []
    line, key_next = 1, False
    for match in _TOKEN.finditer(bare):
        mark = match[0]
        if mark[0] in '{["' and path and isinstance(path[-1], int):
            _note(found, path, line)  # the item itself, which may stand below its comma
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
                _note(found, path, line)
                if key in seen and twice is None:
                    twice = (key, line)
                seen.add(key)
                key_next = False
            line += mark.count("\n")
    return found, twice


def _note(found: dict[Place, int], path: list[str | int], line: int) -> None:
    if len(path) <= _DEPTH_MAX:
        found.setdefault(tuple(path), line)


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
        if found := _AT_LINE.search(message):
            raise BrokenSyntax(
                f"{message[: found.start()]} at column {found[2]}", int(found[1])
            ) from None
        raise BrokenSyntax(message, text.rstrip().count("\n") + 1) from None
    except ValueError:  # of int(): more digits than Python converts
        raise BrokenSyntax("a number in it has too many digits") from None


def _as_written(found: re.Match[str]) -> str:
    return f"the table [{'.'.join(_QUOTED.findall(found[1]))}] is written twice"


def toml_lines(text: str) -> Mapping[Place, int]:
    """Return the line of every table and key that begins a line. A key inside an inline table is
    not found; use the line of the key above it."""
    found: dict[Place, int] = {}
    head: Place = ()
    counts: Counter[Place] = Counter()
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > _LINE_CHARACTERS_MAX:
            continue
        if match := _HEAD.match(line):
            place = head = _place(match[2])
            if match[1]:  # one more of a list of tables
                place = head = (*head, counts[head])
                counts[place[:-1]] += 1
        elif match := _SETTING.match(line):
            place = head + _place(match[1])
        else:
            continue
        for length in range(1, len(place) + 1):
            found.setdefault(place[:length], number)
    return found


def _place(keys: str) -> Place:
    return tuple(
        key[1:-1] if key[0] in "\"'" else key for key in (m[0] for m in _ONE_KEY.finditer(keys))
    )
