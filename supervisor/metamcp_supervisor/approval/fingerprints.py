"""What a tool's definition is, in one word: the same word as long as it says the same.

Owns: which members of a definition count, JSON in one spelling, and the fingerprint. Never: what a
difference means (`compat`), where fingerprints are kept.

A fingerprint is `v1:` and SHA-256 of the members in one spelling (RFC 8785: no spaces, members in
order of their UTF-16 code units, one way to write a string and a number), so another order of
members, `1.0` for `1` and `\\u0041` for `A` change nothing, and a character that nobody sees does.
Whole numbers keep all their digits, which RFC 8785 cuts to those of a double: two that differ never
look the same here.

`_meta` does not count: it is what programs tell each other about a definition (times, ids of a
deployment), the protocol gives it no meaning of its own, and a fingerprint that moves without cause
is approved without looking. A definition that has no one reading (a member written twice, which one
program reads first and another last; a number that no double holds; nested too deeply) goes by its
bytes: `raw:` and their SHA-256.

The decoder of bodies (`codec`) does not tell of members that are there twice and makes doubles of
long numbers, so this file has one of its own. It is not for the path of calls.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from typing import cast

from msgspec import Raw

from metamcp_worker.ipc.codec import Malformed

MEMBERS = (
    "name", "title", "description", "inputSchema", "outputSchema", "annotations", "icons",
    "execution",
)  # fmt: skip
"""Of a definition, those that count."""
SCHEME, RAW_SCHEME = "v1:", "raw:"
DEPTH_MAX = 100
"""Of nested values. Schemas that people write have less than twenty."""
_POINT_DIGITS_MAX = 6
"""Zeros behind the point before JavaScript writes an exponent."""


class Ambiguous(Malformed):
    """JSON that programs read in different ways. The text is the end of a sentence."""


def fingerprint(definition: bytes | Raw) -> str:
    """Of a tool's definition as it came. Never raises: what cannot be read goes by its bytes."""
    try:
        return fingerprint_of(read(definition))
    except Malformed:
        return RAW_SCHEME + hashlib.sha256(bytes(definition)).hexdigest()


def fingerprint_of(definition: Mapping[str, object]) -> str:
    """Of a definition that was read. Raises Ambiguous."""
    return SCHEME + hashlib.sha256(canonical(counted(definition))).hexdigest()


def counted(definition: Mapping[str, object]) -> dict[str, object]:
    """The members that count, in the order of MEMBERS."""
    return {name: definition[name] for name in MEMBERS if name in definition}


def read(definition: bytes | Raw) -> dict[str, object]:
    """A definition as plain values, whole numbers with all their digits. Raises codec.Malformed,
    of which Ambiguous is one kind."""
    try:
        found: object = json.loads(
            bytes(definition), object_pairs_hook=_once, parse_float=_double, parse_constant=_none
        )
    except Malformed:
        raise
    except RecursionError:
        raise Ambiguous("is nested too deeply") from None
    except ValueError as error:  # bytes that are no text, and more digits than Python converts
        raise Malformed(f"is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise Malformed("is no JSON object")
    return cast("dict[str, object]", found)


def canonical(value: object) -> bytes:
    """The one spelling of a JSON value. Raises Ambiguous for what has none."""
    parts: list[str] = []
    _write(value, parts, 0)
    return "".join(parts).encode("utf-8", "surrogatepass")


def same(one: object, other: object) -> bool:
    """Are they the same JSON value? Unlike in Python, true is not 1. Raises Ambiguous."""
    return one == other and canonical(one) == canonical(other)


def _write(value: object, parts: list[str], depth: int) -> None:
    if depth > DEPTH_MAX:
        raise Ambiguous("is nested too deeply")
    if isinstance(value, str):
        parts.append(json.dumps(value, ensure_ascii=False))
    elif value is None or isinstance(value, bool):
        parts.append({None: "null", True: "true", False: "false"}[value])
    elif isinstance(value, int | float):
        parts.append(number(value))
    elif isinstance(value, list):
        mark = "["
        for item in cast("list[object]", value):
            parts.append(mark)
            _write(item, parts, depth + 1)
            mark = ","
        parts.append("]" if mark == "," else "[]")
    elif isinstance(value, dict):
        mark = "{"
        table = cast("dict[str, object]", value)
        for key in sorted(table, key=_units):
            parts.append(f"{mark}{json.dumps(key, ensure_ascii=False)}:")
            _write(table[key], parts, depth + 1)
            mark = ","
        parts.append("}" if mark == "," else "{}")
    else:
        raise Ambiguous(f"has a {type(value).__name__} in it, which JSON does not have")


def number(value: float) -> str:
    """As RFC 8785 writes it, but a whole one with all its digits."""
    if isinstance(value, float) and not math.isfinite(value):
        raise Ambiguous("has a number in it that is none")
    try:
        if value == int(value):
            return str(int(value))
    except ValueError:  # more digits than Python converts
        raise Ambiguous("has a number with too many digits in it") from None
    digits, _, exponent = repr(value).partition("e")
    if not exponent:
        return digits
    zeros = -int(exponent) - 1
    if zeros >= _POINT_DIGITS_MAX:
        return f"{digits}e{int(exponent)}"
    sign, bare = ("-", digits[1:]) if digits.startswith("-") else ("", digits)
    return f"{sign}0.{'0' * zeros}{bare.replace('.', '')}"


def _units(key: str) -> bytes:
    """What RFC 8785 sorts by: the order of JavaScript."""
    return key.encode("utf-16-be", "surrogatepass")


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Ambiguous("has a member twice")
    return found


def _double(text: str) -> float:
    found = float(text)
    if math.isinf(found):
        raise Ambiguous("has a number in it that no double holds")
    return found


def _none(name: str) -> object:
    raise Malformed(f"is no JSON: {name}")
