"""JSON with most of it left unread: the only place that decodes and encodes message bodies.

Owns: decoding of envelopes and of single levels of objects, envelopes that are recognized because
they come again, encoding, the rule for ids. Never: the fields of an envelope (`envelope`), JSON-RPC
semantics, schemas, I/O.

`msgspec.Raw` keeps a value as the bytes that it came in, so a value that is only forwarded is not
opened. JavaScript cuts strings between two code units, so JSON may have half of a surrogate pair in
it, as `\\ud83d`, which the decoder refuses. Then stand-ins are decoded in place of the halves; raw
values get their own bytes back, and in decoded text each half becomes U+FFFD. For the judge
of what another program gets there are `exact` and `exact_level`, which refuse what readers of JSON
take differently.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeGuard, TypeVar, cast, overload

import msgspec
from msgspec import Raw, Struct, structs

from metamcp_worker.ipc.envelope import Envelope, ErrorObject, KnownRequest

T = TypeVar("T")

ID_BYTES_MAX: Final = 256

BACKSLASH: Final = 0x5C
"""Byte that begins an escape. Looking for a number in bytes costs a tenth of looking for bytes, for
which Python raises and drops an error first."""

KNOWN_BYTES_MAX = 1024
"""Maximum bytes of an envelope that is recognized."""
KNOWN_BODY_BYTES_MAX: Final = 16 * 1024
"""Maximum bytes of a body whose envelope is recognized; a larger one would be copied twice."""
ID_DIGITS_MAX: Final = 18
"""Maximum digits of an id in an envelope that is recognized."""

_PARAMS = re.compile(rb'"params"\s*:\s*')
_NUMBER = re.compile(rb'"id"\s*:\s*([0-9]+)')
_ZERO: Final = 0x30
_INTEGER: Final = re.compile(rb"-?(?:0|[1-9][0-9]*)\Z")
_HALVES = re.compile(
    rb"\\u([dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])"
    rb"|[dD][c-fC-F][0-9a-fA-F]{2}(?<!\\u[dD][89abAB].{2}\\u[dD][c-fC-F].{2}))"
)
"""Halves of surrogate pairs, in text whose every backslash begins an escape."""
HALVES_MAX = 100_000
"""Maximum halves of surrogate pairs in one text; each costs a microsecond."""
_MARKS = tuple(chr(code).encode() for code in range(0xFDD0, 0xFDF0))
"""Characters that Unicode reserves for use within a program. A stand-in is one of these, four
digits, and the same character again; the text itself must not have this character, nor its
escape."""
HALF: Final = "a text has half of a surrogate pair"
TWICE: Final = "an object has a name twice"
UNCLEAR: Final = (HALF, TWICE)
"""Reasons of `exact` for what readers of JSON take differently."""
_SPELLED_MARKS = re.compile(rb"\\u[fF][dD][dDeE][0-9a-fA-F]")
_TEXTS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"')
_FAILURES = (msgspec.DecodeError, RecursionError, UnicodeDecodeError)


class Malformed(ValueError):
    """Raised for data that is not the JSON the caller asked for. The text says what is wrong,
    without the input."""


_decode_envelope: Final = msgspec.json.Decoder(Envelope).decode
_decode_error: Final = msgspec.json.Decoder(ErrorObject).decode
_decode_level: Final = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_items = msgspec.json.Decoder(list[Raw]).decode
_decode_raw: Final = msgspec.json.Decoder(Raw).decode
_decode_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def envelope(data: bytes) -> Envelope:
    """Decode the top level of one message. Raises Malformed, also for JSON nested too deeply."""
    try:
        return _decode_envelope(data)
    except _FAILURES as error:
        return _decode_surrogates(_decode_envelope, data, error)


def error_object(data: bytes | Raw) -> ErrorObject:
    """Decode an error. The message of one that cannot be read says so."""
    try:
        return _decode_error(data)
    except _FAILURES as error:
        try:
            return _decode_surrogates(_decode_error, data, error)
        except Malformed:
            return ErrorObject(message="an error that cannot be read")


ID_FIRST: Final = b'{"jsonrpc":"2.0","id":'
"""How messages of the gateway begin."""
_RESULT: Final = b',"result":'
_RESULT_FIRST: Final = b'{"result":'
_ID: Final = b',"jsonrpc":"2.0","id":'


def plain_answer(line: bytes) -> tuple[bytes, bytes]:
    """Return raw id and result of an answer as the SDKs for Python and TypeScript write it:
    compact, with an id in digits and an object as its result. Empty for any other message.
    `envelope` reads the same, and takes longer."""
    if len(line) > KNOWN_BODY_BYTES_MAX or not line.endswith(b"}"):
        return b"", b""
    if line.startswith(ID_FIRST):
        front, _, back = line.partition(_RESULT)
        first = len(ID_FIRST)
    elif line.startswith(_RESULT_FIRST):
        front, _, back = line.rpartition(_ID)
        first = len(_RESULT_FIRST)
    else:
        return b"", b""
    # Compiled, a slice of bytes that ends before it begins is an error.
    if len(front) <= first or not back:
        return b"", b""
    raw_id, result = front[first:], back[:-1]
    if first == len(_RESULT_FIRST):
        raw_id, result = result, raw_id
    if not raw_id.isdigit() or raw_id[0] == _ZERO or not result.startswith(b"{"):
        return b"", b""
    try:
        _decode_raw(result)
    except _FAILURES:
        return b"", b""
    return raw_id, result


class KnownEnvelope:
    """Envelope that is recognized by its bytes, so that it is not decoded and checked again.
    `before`, `middle`, `behind`: its bytes around params and id; `id_first`: the id stands before
    the params. `method`: of the request."""

    __slots__ = ("before", "behind", "id_first", "method", "middle")

    def __init__(
        self, method: str, before: bytes, middle: bytes, behind: bytes, *, id_first: bool
    ) -> None:
        self.method = method
        self.before = before
        self.middle = middle
        self.behind = behind
        self.id_first = id_first

    def request(self, body: bytes) -> Envelope | None:
        """Return the request if the body has this envelope around an id in digits and params that
        are an object, else None."""
        if len(body) > KNOWN_BODY_BYTES_MAX:
            return None
        before, behind = self.before, self.behind
        first, last = len(before), len(behind)
        if self.id_first:
            front, _, back = body.partition(self.middle)
        else:
            front, _, back = body.rpartition(self.middle)
        # Compiled, a slice of bytes that ends before it begins is an error.
        if len(front) <= first or len(back) <= last:
            return None
        raw_id, params = front[first:], back[:-last]
        if not self.id_first:
            raw_id, params = params, raw_id
        if front[:first] != before or back[-last:] != behind or not raw_id.isdigit():
            return None
        if len(raw_id) > ID_DIGITS_MAX or raw_id[0] == _ZERO:
            return None
        try:
            members = level(params)
        except Malformed:
            return None
        return KnownRequest("2.0", Raw(raw_id), self.method, Raw(params), members=members)


def known_envelope(body: bytes, message: Envelope) -> KnownEnvelope | None:
    """Return how to recognize the envelope of this checked request when it comes again, with
    another id and other params; None if its members could be mistaken for others. `body`: its
    bytes."""
    raw_id, params, method = bytes(message.id), bytes(message.params), message.method
    match = _PARAMS.search(body)
    if method is None or match is None or not raw_id.isdigit() or params[:1] != b"{":
        return None
    first = match.end()
    last = first + len(params)
    if body[first:last] != params or len(body) - len(params) > KNOWN_BYTES_MAX:
        return None
    outside = b"%b0%b" % (body[:first], body[last:])
    once = all(outside.count(b'"%b"' % key) == 1 for key in (b"id", b"method", b"params"))
    numbered = _NUMBER.search(outside)
    if not once or BACKSLASH in outside or numbered is None or numbered[1] != raw_id:
        return None
    at, stop = numbered.span(1)
    if at < first:
        return KnownEnvelope(method, body[:at], body[stop:first], body[last:], id_first=True)
    behind = len(outside) - stop
    end = len(body) - behind
    return KnownEnvelope(
        method, body[:first], body[last : end - len(raw_id)], body[end:], id_first=False
    )


def level(data: bytes | Raw) -> dict[str, Raw]:
    """Decode one object and leave its values raw, in order; the last of a repeated key counts.
    Raises Malformed."""
    try:
        return _decode_level(data)
    except _FAILURES as error:
        return _decode_surrogates(_decode_level, data, error)


def members(data: bytes | Raw) -> dict[str, Raw]:
    """Decode one object as `level` does; anything else has no members."""
    try:
        return level(data) if data else {}
    except Malformed:
        return {}


def items(data: bytes | Raw) -> list[Raw]:
    """Decode one array and leave its items raw. Raises Malformed."""
    try:
        return _decode_items(data)
    except _FAILURES as error:
        return _decode_surrogates(_decode_items, data, error)


def check(data: bytes | Raw) -> None:
    """Raise Malformed unless this is JSON. No objects are built, whatever the size."""
    try:
        _decode_raw(data)
    except _FAILURES as error:
        _decode_surrogates(_decode_raw, data, error)


def value(data: bytes | Raw) -> Any:
    """Decode the whole value as plain Python objects. Raises Malformed."""
    try:
        return _decode_any(data)
    except _FAILURES as error:
        return _decode_surrogates(_decode_any, data, error)


def exact(data: bytes | Raw) -> Any:
    """Decode the whole value as every reader of JSON takes it. Raises Malformed, also for half of a
    surrogate pair, and for an object with a name twice."""
    try:
        decoded = _decode_any(data)
    except _FAILURES as error:
        halves = _without(bytes(data), lambda half: half[0])[1]
        raise Malformed(HALF if halves else _reason(error)) from None
    raw = bytes(data)
    if _encode(decoded) != raw and _names_written(raw) != _names_read(decoded):
        raise Malformed(TWICE)
    return decoded


def exact_level(data: bytes | Raw) -> dict[str, Raw]:
    """Decode one object as every reader of JSON takes it, and leave its values raw and unread.
    Raises Malformed, as `exact` does."""
    members, raw = level(data), bytes(data)
    if _encode(members) == raw:
        return members
    inside = sum(_names_written(bytes(value)) for value in members.values())
    if _names_written(raw) - inside != len(members):
        raise Malformed(TWICE)
    if any("\N{REPLACEMENT CHARACTER}" in name for name in members):
        raise Malformed(HALF)
    return members


def _names_written(data: bytes) -> int:
    """Return the number of names of all objects in this JSON, as it is written."""
    return _TEXTS.sub(b"", data).count(b":")


def _names_read(value: object) -> int:
    """Return the number of names of all objects in this value."""
    names = 0
    waiting: list[object] = [value]
    while waiting:
        current = waiting.pop()
        if isinstance(current, dict):
            members = cast("dict[str, object]", current)
            names += len(members)
            waiting.extend(members.values())
        elif isinstance(current, list):
            waiting.extend(cast("list[object]", current))
    return names


def text(data: bytes | Raw) -> str | None:
    """Return the string in `data`, or None if `data` is not a JSON string."""
    try:
        decoded = _decode_any(data)
    except _FAILURES as error:
        try:
            decoded = _decode_surrogates(_decode_any, data, error)
        except Malformed:
            return None
    return decoded if isinstance(decoded, str) else None


def is_table(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether a decoded value is a JSON object."""
    return isinstance(value, dict)


def is_list(value: object) -> TypeGuard[list[Any]]:
    """Whether a decoded value is a JSON array."""
    return isinstance(value, list)


def decode_as(kind: type[T], data: bytes | Raw) -> T:
    """Decode `data` as a value of the given Struct or union. Raises Malformed."""
    try:
        return msgspec.json.decode(data, type=kind)
    except _FAILURES as error:
        return _decode_surrogates(msgspec.json.Decoder(kind).decode, data, error)


@overload
def reader(kinds: type[T]) -> Callable[[bytes | Raw], T]: ...
@overload
def reader(kinds: object) -> Callable[[bytes | Raw], Any]: ...
def reader(kinds: object) -> Callable[[bytes | Raw], Any]:
    """Prepare `decode_as` for one Struct or a union of tagged ones. A reader that is created when a
    module is imported is shared by all workers that are forked after that."""
    decode = msgspec.json.Decoder(cast(type[Any], kinds)).decode

    def read(data: bytes | Raw) -> Any:
        try:
            return decode(data)
        except _FAILURES as error:
            return _decode_surrogates(decode, data, error)

    return read


def _decode_surrogates(
    decode: Callable[[bytes | Raw], T], data: bytes | Raw, error: Exception
) -> T:
    """Decode `data` with stand-ins for the halves of surrogate pairs, if `data` has any. Raises
    Malformed."""
    raw = bytes(data)
    spelled = {chr(int(escape[2:], 16)).encode() for escape in _SPELLED_MARKS.findall(raw)}
    mark = next((mark for mark in _MARKS if mark not in raw and mark not in spelled), b"")
    plain, halves = _without(raw, lambda half: mark + half[1] + mark)
    if isinstance(error, RecursionError) or not mark or not 0 < halves <= HALVES_MAX:
        raise Malformed(_reason(error)) from None
    try:
        stands = mark + b"(.{4})" + mark
        return cast(
            T, _restore_halves(decode(plain), re.compile(stands), re.compile(stands.decode()))
        )
    except _FAILURES as again:
        raise Malformed(_reason(again)) from None


def _without(data: bytes, stand: Callable[[re.Match[bytes]], bytes]) -> tuple[bytes, int]:
    """Return `data` with another text for each half of a surrogate pair, and their number."""
    if b"\0" in data:  # which JSON never has, so it can stand for an escaped backslash
        return data, 0
    plain, halves = _HALVES.subn(stand, data.replace(rb"\\", b"\0\0"), HALVES_MAX + 1)
    return plain.replace(b"\0\0", rb"\\"), halves


def _restore_halves(decoded: object, raw: re.Pattern[bytes], read: re.Pattern[str]) -> object:
    """Return `decoded` with its own bytes in raw values and U+FFFD in decoded text."""
    if isinstance(decoded, Raw):
        return Raw(raw.sub(lambda stand: rb"\u" + stand[1], bytes(decoded)))
    if isinstance(decoded, str):
        return read.sub("\N{REPLACEMENT CHARACTER}", decoded)
    if isinstance(decoded, dict):
        table = cast("dict[object, object]", decoded)
        return {
            _restore_halves(k, raw, read): _restore_halves(v, raw, read) for k, v in table.items()
        }
    if isinstance(decoded, list | tuple):
        parts = [_restore_halves(element, raw, read) for element in cast("list[object]", decoded)]
        return parts if isinstance(decoded, list) else tuple(parts)
    if isinstance(decoded, Struct):
        members = structs.asdict(decoded).items()
        return type(decoded)(
            **{name: _restore_halves(member, raw, read) for name, member in members}
        )
    return decoded


dump: Final[Callable[[object], bytes]] = _encode
"""Encodes as compact JSON. Raw parts stay the bytes they are."""


def readable(data: bytes) -> bytes:
    """Return the same JSON for readers that refuse half of a surrogate pair: U+FFFD replaces it."""
    raw = bytes(data)
    return _without(raw, lambda _: rb"\ufffd")[0] if rb"\u" in raw else raw


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
