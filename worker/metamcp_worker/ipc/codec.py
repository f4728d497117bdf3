"""JSON with most of it left unread: the only place that decodes and encodes message bodies.

Owns: decoding of envelopes and of single levels of objects, encoding, the rule for ids. Never: the
fields of an envelope (`envelope`), JSON-RPC semantics, schemas, I/O.

`msgspec.Raw` keeps a value as the bytes that it came in, so a value that is only forwarded is not
opened. JavaScript cuts strings between two code units, so JSON may have half of a surrogate pair in
it, as `\\ud83d`, which the decoder refuses. Then stand-ins are decoded in place of the halves; raw
values get their own bytes back, and in decoded text each half becomes U+FFFD.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast, overload

import msgspec
from msgspec import Raw, Struct, structs

from metamcp_worker.ipc.envelope import Envelope

T = TypeVar("T")

ID_BYTES_MAX = 256

_INTEGER = re.compile(rb"-?(?:0|[1-9][0-9]*)\Z")
_HALVES = re.compile(
    rb"\\u([dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|[dD][c-fC-F][0-9a-fA-F]{2}(?<!\\u[dD][89abAB].{2}\\u[dD][c-fC-F].{2}))"
)
"""Halves of surrogate pairs, in text whose every backslash begins an escape."""
HALVES_MAX = 100_000
"""Maximum halves of surrogate pairs in one text; each costs a microsecond."""
_MARKS = tuple(chr(code).encode() for code in range(0xFDD0, 0xFDF0))
"""Characters that Unicode reserves for use within a program. A stand-in is one of these, four
digits, and the same character again; the text itself must not have this character."""
_FAILURES = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class Malformed(ValueError):
    """Raised for data that is not the JSON the caller asked for. The text says what is wrong,
    without the input."""


_decode_envelope = msgspec.json.Decoder(Envelope).decode
_decode_level = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_items = msgspec.json.Decoder(list[Raw]).decode
_decode_raw = msgspec.json.Decoder(Raw).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def envelope(data: bytes) -> Envelope:
    """Decode the top level of one message. Raises Malformed, also for JSON nested too deeply."""
    try:
        return _decode_envelope(data)
    except _FAILURES as error:
        return _mended(_decode_envelope, data, error)


def level(data: bytes | Raw) -> dict[str, Raw]:
    """Decode one object and leave its values raw, in order; the last of a repeated key counts.
    Raises Malformed."""
    try:
        return _decode_level(data)
    except _FAILURES as error:
        return _mended(_decode_level, data, error)


def items(data: bytes | Raw) -> list[Raw]:
    """Decode one array and leave its items raw. Raises Malformed."""
    try:
        return _decode_items(data)
    except _FAILURES as error:
        return _mended(_decode_items, data, error)


def check(data: bytes | Raw) -> None:
    """Raise Malformed unless this is JSON. No objects are built, whatever the size."""
    try:
        _decode_raw(data)
    except _FAILURES as error:
        _mended(_decode_raw, data, error)


def value(data: bytes | Raw) -> Any:
    """Decode the whole value as plain Python objects. Raises Malformed."""
    try:
        return _decode_any(data)
    except _FAILURES as error:
        return _mended(_decode_any, data, error)


def text(data: bytes | Raw) -> str | None:
    """Return the string in `data`, or None if `data` is not a JSON string."""
    try:
        found = _decode_any(data)
    except _FAILURES as error:
        try:
            found = _mended(_decode_any, data, error)
        except Malformed:
            return None
    return found if isinstance(found, str) else None


def typed(kind: type[T], data: bytes | Raw) -> T:
    """Decode `data` as a value of the given Struct or union. Raises Malformed."""
    try:
        return msgspec.json.decode(data, type=kind)
    except _FAILURES as error:
        return _mended(msgspec.json.Decoder(kind).decode, data, error)


@overload
def reader(kinds: type[T]) -> Callable[[bytes | Raw], T]: ...
@overload
def reader(kinds: object) -> Callable[[bytes | Raw], Any]: ...
def reader(kinds: object) -> Callable[[bytes | Raw], Any]:
    """Prepare `typed` for one Struct or a union of tagged ones. A reader that is made when a module
    is imported is shared by all workers that are forked after that."""
    decode = msgspec.json.Decoder(cast(type[Any], kinds)).decode

    def read(data: bytes | Raw) -> Any:
        try:
            return decode(data)
        except _FAILURES as error:
            return _mended(decode, data, error)

    return read


def _mended(decode: Callable[[bytes | Raw], T], data: bytes | Raw, error: Exception) -> T:
    """Decode `data` with stand-ins for the halves of surrogate pairs, if `data` has any. Raises
    Malformed."""
    whole = bytes(data)
    mark = next((mark for mark in _MARKS if mark not in whole), b"")
    plain, halves = _without(whole, lambda half: mark + half[1] + mark)
    if isinstance(error, RecursionError) or not mark or not 0 < halves <= HALVES_MAX:
        raise Malformed(_reason(error)) from None
    try:
        found = decode(plain)
    except _FAILURES as again:
        raise Malformed(_reason(again)) from None
    stands = mark + b"(.{4})" + mark
    return cast(T, _restored(found, re.compile(stands), re.compile(stands.decode())))


def _without(data: bytes, stand: Callable[[re.Match[bytes]], bytes]) -> tuple[bytes, int]:
    """Return `data` with another text for each half of a surrogate pair, and their number."""
    if b"\0" in data:  # which JSON never has, so it can stand for an escaped backslash
        return data, 0
    plain, halves = _HALVES.subn(stand, data.replace(rb"\\", b"\0\0"), HALVES_MAX + 1)
    return plain.replace(b"\0\0", rb"\\"), halves


def _restored(found: object, raw: re.Pattern[bytes], read: re.Pattern[str]) -> object:
    """Return `found` with its own bytes in raw values and U+FFFD in decoded text."""
    if isinstance(found, Raw):
        return Raw(raw.sub(lambda stand: rb"\u" + stand[1], bytes(found)))
    if isinstance(found, str):
        return read.sub("\N{REPLACEMENT CHARACTER}", found)
    if isinstance(found, dict):
        table = cast("dict[object, object]", found)
        return {_restored(k, raw, read): _restored(v, raw, read) for k, v in table.items()}
    if isinstance(found, list | tuple):
        parts = [_restored(one, raw, read) for one in cast("list[object]", found)]
        return parts if isinstance(found, list) else tuple(parts)
    if isinstance(found, Struct):
        members = structs.asdict(found).items()
        return type(found)(**{name: _restored(one, raw, read) for name, one in members})
    return found


dump: Callable[[object], bytes] = _encode
"""Encodes as compact JSON. Raw parts stay the bytes they are."""


def readable(data: bytes) -> bytes:
    """Return the same JSON for readers that refuse half of a surrogate pair: U+FFFD replaces it."""
    found = bytes(data)
    return _without(found, lambda _: rb"\ufffd")[0] if rb"\u" in found else found


def splice(data: bytes, extra: Mapping[str, Raw | bytes]) -> bytes:
    """Return the raw object `data` with `extra` members (raw values) behind its opening brace.

    Every byte of the members of `data` stays. The caller makes sure that `data` does not have the
    keys already.
    """
    if not extra:
        return data
    body = data.strip()
    added = b",".join(_encode(key) + b":" + bytes(raw) for key, raw in extra.items())
    if body[1:-1].strip():
        return b"{" + added + b"," + body[1:]
    return b"{" + added + b"}"


def id_ok(raw: bytes) -> bool:
    """Whether this raw JSON is a request id: a string or an integer, of at most 256 bytes.

    Null, booleans, fractions and structures are not (JSON-RPC 2.0 section 4, narrowed by MCP).
    """
    if not raw or len(raw) > ID_BYTES_MAX:
        return False
    if raw[0] == 0x22:  # a double quote; the decoder has already checked the rest
        return True
    return bool(_INTEGER.match(raw))


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return str(error).replace("JSON is malformed: ", "")
