"""Envelopes: what is read of a message before its contents.

Owns: the top level of a JSON-RPC message (`Envelope`), the id of a message too large or too broken
to decode (`glimpse`), the base of messages on the control sockets (`Message`). Never: decoding a
body (`codec`), JSON-RPC semantics.
"""

import re

from msgspec import Raw, Struct

_EMPTY = Raw()
ENDS_BYTES = 1024
"""Bytes that `glimpse` reads at each end of a message; an id and the members around it have
less."""
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


class Envelope(Struct, gc=False):
    """Top level of one JSON-RPC message; absent fields are empty bytes.

    `method` is None when absent. `id`, `params`, `result`, `error` are raw JSON.
    """

    jsonrpc: str = ""
    id: Raw = _EMPTY
    method: str | None = None
    params: Raw = _EMPTY
    result: Raw = _EMPTY
    error: Raw = _EMPTY


class ErrorObject(Struct):
    """Error in a JSON-RPC message."""

    code: int = 0
    message: str = ""
    data: Raw = Raw(b"null")


class KnownRequest(Envelope, gc=False):
    """Request whose envelope was recognized. `members`: its params, one level deep."""

    members: dict[str, Raw] = {}


class ScannedId(Struct, frozen=True):
    """Id of a message that was not decoded. `raw_id`: empty if it was not found; `answer`: the
    message answers a request of the other side."""

    raw_id: bytes = b""
    answer: bool = False


def glimpse(beginning: bytes, end: bytes) -> ScannedId:
    """Find the id of a message by its first and last bytes, without decoding the message."""
    first = _BEGINNING.match(beginning[:ENDS_BYTES])
    last = _END.search(end[-ENDS_BYTES:])
    raw_id = (first and first["id"]) or (last and last["id"]) or b""
    return ScannedId(raw_id, bool(first and first["answer"]))


class OverlongLine(Struct, frozen=True):
    """Line above the limit, passed over except for the glimpse that shows whom it is for."""

    size_bytes: int
    seen: ScannedId


class Message(Struct, frozen=True, kw_only=True, tag=True):
    """Base class of all messages; the tag is the class name."""
