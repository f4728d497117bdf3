"""JSON with most of it left unread: the only place that decodes and encodes message bodies.

Owns: decoding of envelopes and of single levels of objects, encoding, and the rule for ids.
Never: JSON-RPC semantics, schemas, I/O.

`msgspec.Raw` keeps a value as the bytes that it came in, so what we only forward we do not open.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast, overload

import msgspec
from msgspec import Raw, Struct

T = TypeVar("T")

ID_BYTES_MAX = 256
ID_INT_MAX = 2**53
"""Above it JavaScript peers would give back another number."""

_INTEGER = re.compile(rb"-?(?:0|[1-9][0-9]{0,15})\Z")
_EMPTY = Raw()


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
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Malformed(_reason(error)) from None


def level(data: bytes | Raw) -> dict[str, Raw]:
    """One object, its values left raw, in order; of a repeated key the last. Raises Malformed."""
    try:
        return _decode_level(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Malformed(_reason(error)) from None


def items(data: bytes | Raw) -> list[Raw]:
    """One array, its items left raw. Raises Malformed."""
    try:
        return _decode_items(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Malformed(_reason(error)) from None


def check(data: bytes | Raw) -> None:
    """Raises Malformed unless this is JSON. Nothing is made of it, whatever its size."""
    try:
        _decode_raw(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Malformed(_reason(error)) from None


def value(data: bytes | Raw) -> Any:
    """The whole value as plain Python objects. Raises Malformed."""
    try:
        return _decode_any(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Malformed(_reason(error)) from None


def text(data: bytes | Raw) -> str | None:
    """The string in `data`, or None if it is no JSON string."""
    try:
        found = _decode_any(data)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    return found if isinstance(found, str) else None


def typed(kind: type[T], data: bytes | Raw) -> T:
    """`data` as a value of the given Struct or union. Raises Malformed."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise Malformed(_reason(error)) from None


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
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise Malformed(_reason(error)) from None

    return read


def dump(data: object) -> bytes:
    """Compact JSON. Raw parts stay the bytes they are."""
    return _encode(data)


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
    """Is this raw JSON a request id: a string of at most 256 bytes or an integer up to 2^53?

    Null, booleans, fractions and structures are not (JSON-RPC 2.0 section 4, narrowed by MCP).
    """
    if not raw or len(raw) > ID_BYTES_MAX:
        return False
    if raw[0] == 0x22:  # a double quote; the decoder has already checked the rest
        return True
    return bool(_INTEGER.match(raw)) and abs(int(raw)) <= ID_INT_MAX


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return str(error).replace("JSON is malformed: ", "")
