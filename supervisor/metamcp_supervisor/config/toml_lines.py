"""TOML, with a line number for each key.

Owns: decoding, and finding the line of a key in the text. Never: the meaning of keys (`parse`).
"""

import re
import tomllib
from collections.abc import Mapping

from metamcp_supervisor.config.document import BrokenSyntax, Place

_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_KEYS = rf"{_KEY}(?:[ \t]*\.[ \t]*{_KEY})*"
_HEAD = re.compile(rf"\s*\[\[?[ \t]*({_KEYS})[ \t]*\]")
_SETTING = re.compile(rf"\s*({_KEYS})[ \t]*=")
_ONE_KEY = re.compile(_KEY)
_AT_LINE = re.compile(r" \(at line (\d+), column (\d+)\)\Z")
KEY_PARTS_MAX = 32
"""Maximum parts of a key; the time of Python's decoder grows with the square of the number of dots
in a key, and a file of 4 MiB would take days."""
_ENDLESS_KEY = re.compile(
    rf"""(?<![\w"'.-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{KEY_PARTS_MAX}}}"""
)
_LINE_CHARACTERS_MAX = 4096
"""Maximum characters of a line that is searched for a key; longer lines are data."""


def loads(text: str) -> Mapping[str, object]:
    """Decode a text. Raises BrokenSyntax."""
    if endless := _ENDLESS_KEY.search(text):
        line = text.count("\n", 0, endless.start()) + 1
        raise BrokenSyntax(f"a key has more than {KEY_PARTS_MAX} parts", line)
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise BrokenSyntax("nested too deeply") from None
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        if found := _AT_LINE.search(message):
            raise BrokenSyntax(
                f"{message[: found.start()]} at column {found[2]}", int(found[1])
            ) from None
        raise BrokenSyntax(message, text.rstrip().count("\n") + 1) from None
    except ValueError:  # of int(): more digits than Python converts
        raise BrokenSyntax("a number in it has too many digits") from None


def lines(text: str) -> Mapping[Place, int]:
    """Return the line of every table and key that begins a line. A key inside an inline table is
    not found; use the line of the key above it."""
    found: dict[Place, int] = {}
    head: Place = ()
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > _LINE_CHARACTERS_MAX:
            continue
        if match := _HEAD.match(line):
            place = head = _place(match[1])
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
