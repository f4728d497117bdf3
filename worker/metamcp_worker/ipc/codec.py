"""JSON with most of it left unread: the only place that decodes and encodes message bodies.

Owns: decoding of envelopes and of single levels of objects, encoding, and the rule for ids.
Never: JSON-RPC semantics, schemas, I/O.

`msgspec.Raw` keeps a value as the bytes that it came in, so what we only forward we do not open.

JavaScript cuts strings between two code units, so JSON may have half of a surrogate pair in it, as
`\\ud83d`. The decoder refuses such text. When it does, it gets stand-ins to read, and every raw
value gets its own bytes back; in what is read as text each half becomes U+FFFD.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast, overload

import msgspec
from msgspec import Raw, Struct, structs

T = TypeVar("T")

ID_BYTES_MAX = 256

_INTEGER = re.compile(rb"-?(?:0|[1-9][0-9]*)\Z")
_EMPTY = Raw()
_HALVES = re.compile(
    rb"\\u([dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|[dD][c-fC-F][0-9a-fA-F]{2}(?<!\\u[dD][89abAB].{2}\\u[dD][c-fC-F].{2}))"
)
"""In text whose every backslash begins an escape."""
HALVES_MAX = 100_000
"""Of one text. Each takes a microsecond."""
_MARKS = tuple(chr(code).encode() for code in range(0xFDD0, 0xFDF0))
"""Characters that Unicode keeps for use within a program. A stand-in is one, four digits, and it
again; the text must not have that one itself."""
_FAILURES = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class Envelope(Struct, gc=False):
    """The top level of one JSON-RPC message; absent fields are empty bytes.

    `method` is None when absent. `id`, `params`, `result`, `error` are raw JSON.
    """

    jsonrpc: str = ""
    id: Raw = _EMPTY
    method: str | None = None
    params: Raw = _EMPTY
    result: Raw = _EMPTY
    error: Raw = _EMPTY


class Malformed(ValueError):
    """Not the JSON that was asked for. The text says what is wrong, without the input."""


_decode_envelope = msgspec.json.Decoder(Envelope).decode
_decode_level = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_items = msgspec.json.Decoder(list[Raw]).decode
_decode_raw = msgspec.json.Decoder(Raw).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def envelope(data: bytes) -> Envelope:
    """The top level of one message. Raises Malformed, also for JSON nested too deeply."""
    try:
        return _decode_envelope(data)
    except _FAILURES as error:
        return _mended(_decode_envelope, data, error)


def level(data: bytes | Raw) -> dict[str, Raw]:
    """One object, its values left raw, in order; of a repeated key the last. Raises Malformed."""
    try:
        return _decode_level(data)
    except _FAILURES as error:
        return _mended(_decode_level, data, error)


def items(data: bytes | Raw) -> list[Raw]:
    """One array, its items left raw. Raises Malformed."""
    try:
        return _decode_items(data)
    except _FAILURES as error:
        return _mended(_decode_items, data, error)


def check(data: bytes | Raw) -> None:
    """Raises Malformed unless this is JSON. Nothing is made of it, whatever its size."""
    try:
        _decode_raw(data)
    except _FAILURES as error:
        _mended(_decode_raw, data, error)


def value(data: bytes | Raw) -> Any:
    """The whole value as plain Python objects. Raises Malformed."""
    try:
        return _decode_any(data)
    except _FAILURES as error:
        return _mended(_decode_any, data, error)


def text(data: bytes | Raw) -> str | None:
    """The string in `data`, or None if it is no JSON string."""
    try:
        found = _decode_any(data)
    except _FAILURES as error:
        try:
            found = _mended(_decode_any, data, error)
        except Malformed:
            return None
    return found if isinstance(found, str) else None


def typed(kind: type[T], data: bytes | Raw) -> T:
    """`data` as a value of the given Struct or union. Raises Malformed."""
    try:
        return msgspec.json.decode(data, type=kind)
    except _FAILURES as error:
        return _mended(msgspec.json.Decoder(kind).decode, data, error)


@overload
def reader(kinds: type[T]) -> Callable[[bytes | Raw], T]: ...
@overload
def reader(kinds: object) -> Callable[[bytes | Raw], Any]: ...
def reader(kinds: object) -> Callable[[bytes | Raw], Any]:
    """What `typed` does, prepared once: for one Struct or a union of tagged ones. Made when a
    module is imported, it is shared by all workers that are forked after that."""
    decode = msgspec.json.Decoder(cast(type[Any], kinds)).decode

    def read(data: bytes | Raw) -> Any:
        try:
            return decode(data)
        except _FAILURES as error:
            return _mended(decode, data, error)

    return read


def _mended(decode: Callable[[bytes | Raw], T], data: bytes | Raw, error: Exception) -> T:
    """What `decode` makes of `data` without the halves of surrogate pairs, if `data` has any.
    Raises Malformed."""
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
    """`data` with another text for each half of a surrogate pair, and how many there were."""
    if b"\0" in data:  # which JSON never has, so it can stand for an escaped backslash
        return data, 0
    plain, halves = _HALVES.subn(stand, data.replace(rb"\\", b"\0\0"), HALVES_MAX + 1)
    return plain.replace(b"\0\0", rb"\\"), halves


def _restored(found: object, raw: re.Pattern[bytes], read: re.Pattern[str]) -> object:
    """`found`: where it is raw with the bytes that it came in, where it was read with U+FFFD."""
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


def dump(data: object) -> bytes:
    """Compact JSON. Raw parts stay the bytes they are."""
    return _encode(data)


def readable(data: bytes) -> bytes:
    """The same JSON for readers that refuse half of a surrogate pair: U+FFFD stands for it."""
    found = bytes(data)
    return _without(found, lambda _: rb"\ufffd")[0] if rb"\u" in found else found


def splice(data: bytes, extra: Mapping[str, Raw | bytes]) -> bytes:
    """The raw object `data` with `extra` members (raw values) put behind its opening brace.

    Nothing else moves: every byte of the members of `data` stays. The caller sees to it that the
    keys are not there already.
    """
    if not extra:
        return data
    body = data.strip()
    added = b",".join(_encode(key) + b":" + bytes(raw) for key, raw in extra.items())
    if body[1:-1].strip():
        return b"{" + added + b"," + body[1:]
    return b"{" + added + b"}"


def id_ok(raw: bytes) -> bool:
    """Is this raw JSON a request id: a string or an integer, of at most 256 bytes?

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


ENDS_BYTES = 1024
"""Of a message at each of its ends; an id and what is around it have less."""

_ID = rb'"id"\s*:\s*(?P<id>-?\d+|"(?:[^"\\\x00-\x1f]|\\.)*")'
_JSONRPC = rb'"jsonrpc"\s*:\s*"2\.0"'
_BEGINNING = re.compile(
    rb"\s*\{\s*(?:"
    + _JSONRPC
    + rb'\s*,\s*|"method"\s*:\s*"[^"\\]*"\s*,\s*|'
    + _ID
    + rb'\s*,\s*)*(?P<answer>"result"|"error")?'
)
_END = re.compile(
    rb",\s*(?:" + _JSONRPC + rb"\s*,\s*)?" + _ID + rb"\s*(?:,\s*" + _JSONRPC + rb"\s*)?\}\s*\Z"
)


class Glimpse(Struct, frozen=True):
    """`raw_id`: empty if it is not seen; `answer`: it belongs to a request of the other side."""

    raw_id: bytes = b""
    answer: bool = False


def glimpse(beginning: bytes, end: bytes) -> Glimpse:
    """Of a message of which these are the first and last bytes."""
    first = _BEGINNING.match(beginning[:ENDS_BYTES])
    last = _END.search(end[-ENDS_BYTES:])
    raw_id = (first and first["id"]) or (last and last["id"]) or b""
    return Glimpse(raw_id, bool(first and first["answer"]))
