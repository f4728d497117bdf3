"""The bytes of what goes to a client: JSON-RPC answers, notifications, and their SSE frames.

Owns: the envelope around bodies that stay as they came. Never: deciding what to answer, sending.
"""

import re
from collections.abc import Mapping

from msgspec import Raw

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code, ProtocolError

NO_ID = b"null"
"""The id of an answer to something whose id could not be read."""
REQUEST_CANCELLED = -32800
"""What the SDKs of the session era answer a cancelled request with: over HTTP a response has to end
somehow, and this is what ends it."""
COMMENT = b": keep-alive\n\n"
HEAD, MIDDLE, TAIL = b'{"jsonrpc":"2.0","id":', b',"result":', b"}"
"""What stands around the id and the body of a result."""


def result(raw_id: bytes, body: bytes) -> bytes:
    # Joined and not formatted: formatting grows its buffer step by step, which makes a large body
    # fifty times as slow.
    return b"".join((HEAD, raw_id, MIDDLE, body, TAIL))


def raw_error(raw_id: bytes, body: bytes) -> bytes:
    """`body`: the whole error object, as it came."""
    return b"".join((HEAD, raw_id, b',"error":', body, TAIL))


def error(raw_id: bytes, code: int, message: str, data: bytes = b"") -> bytes:
    """`data`: raw JSON, or nothing."""
    members: dict[str, object] = {"code": code, "message": message}
    if data:
        members["data"] = Raw(data)
    return raw_error(raw_id, codec.dump(members))


def refused(raw_id: bytes, why: ProtocolError) -> bytes:
    return error(raw_id, why.code, why.message, why.data)


def notification(method: str, params: bytes = b"") -> bytes:
    name = codec.dump(method)
    if params:
        return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (name, params)
    return b'{"jsonrpc":"2.0","method":%b}' % name


def request(raw_id: bytes, method: str, params: bytes) -> bytes:
    """`params`: raw, perhaps empty."""
    name = codec.dump(method)
    if params:
        return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (raw_id, name, params)
    return b'{"jsonrpc":"2.0","id":%b,"method":%b}' % (raw_id, name)


def progress(token: bytes, params: bytes) -> bytes:
    """`token`: the client's own, raw; `params`: those of the server, without a token."""
    return notification(
        "notifications/progress", codec.splice(params, {"progressToken": Raw(token)})
    )


def event(message: bytes) -> bytes:
    """One message as an SSE event. Line ends can stand between JSON tokens only, never inside a
    string, so blanks in their place change nothing; inside an event they would end the data."""
    if b"\n" in message or b"\r" in message:
        message = message.replace(b"\r", b" ").replace(b"\n", b" ")
    return b"".join((b"event: message\ndata: ", message, b"\n\n"))


def members(fields: Mapping[str, bytes]) -> bytes:
    """An object of raw values."""
    return codec.dump({name: Raw(value) for name, value in fields.items()})


NOT_FOUND_LEGACY = -32002
"""A resource that is not there, in the revisions before 2026-07-28, and only in those."""

READ = "resources/read"
_CALL = "tools/call"
_COMPLETE = b'"complete"'
#: What nobody has said of how long a result holds.
_NOT_KEPT = {"ttlMs": b"0", "cacheScope": b'"private"'}
_CONTENT = b'"structuredContent"'
_NO_OBJECT = re.compile(rb'"structuredContent"\s*:\s*[^\s{]')


def converted(method: str, body: bytes, code: int, *, modern: bool) -> tuple[bytes, int]:
    """The answer to a request of this method, with its code (0: it is a result), as a client of its
    era knows it; the server is of the other era. `modern`: the client's."""
    if modern:
        return _modern_error(body, code) if code else (_modern_result(method, body), 0)
    if code:
        return _legacy_error(method, body, code)
    return (_legacy_result(body) if method == _CALL else body), 0


def _modern_result(method: str, body: bytes) -> bytes:
    """Every result says of what kind it is, and what was read, for how long it holds."""
    wanted: dict[str, Raw | bytes] = {"resultType": _COMPLETE}
    if method == READ:
        wanted |= _NOT_KEPT
    if any(b'"' + key.encode() + b'"' in body for key in wanted):
        try:
            members = codec.level(body)
        except codec.Malformed:
            return body
        wanted = {key: raw for key, raw in wanted.items() if key not in members}
    return codec.splice(body, wanted) if body[:1] == b"{" else body


def _modern_error(body: bytes, code: int) -> tuple[bytes, int]:
    if code == NOT_FOUND_LEGACY:
        return _recoded(body, code, Code.INVALID_PARAMS)
    return body, code


def _legacy_result(body: bytes) -> bytes:
    """Structured content was an object in every earlier revision, and its clients refuse a result
    in which it is none. What it says stands in the text as well."""
    if _CONTENT not in body or _NO_OBJECT.search(body) is None:
        return body
    try:
        members = codec.level(body)
    except codec.Malformed:
        return body
    content = members.get("structuredContent")
    if content is None or bytes(content).startswith(b"{"):
        return body
    del members["structuredContent"]
    return codec.dump(members)


def _legacy_error(method: str, body: bytes, code: int) -> tuple[bytes, int]:
    if code == Code.INVALID_PARAMS and method == READ:
        return _recoded(body, code, NOT_FOUND_LEGACY)
    return body, code


def _recoded(body: bytes, before: int, after: int) -> tuple[bytes, int]:
    """The same error under another code."""
    try:
        members = codec.level(body)
    except codec.Malformed:
        return body, before
    members["code"] = Raw(b"%d" % after)
    return codec.dump(members), after
