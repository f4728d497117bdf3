"""Bytes of the messages to a client: JSON-RPC answers, notifications, and their SSE frames.

Owns: the envelope around bodies, which stay as they came, and the conversion of results and errors
between the eras (`convert_answer`). Never: deciding what to answer, sending.
"""

import re
from collections.abc import Mapping
from typing import Final

from msgspec import Raw

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.codec import ID_FIRST
from metamcp_worker.ipc.errors import Code, ProtocolError

NO_ID: Final = b"null"
"""Raw id of an answer to a message whose id could not be read."""
REQUEST_CANCELLED = -32800
"""Code of the answer to a cancelled request, as the SDKs of the session era send it: a response
over HTTP needs some end."""
COMMENT = b": keep-alive\n\n"
MIDDLE: Final = b',"result":'
TAIL: Final = b"}"
"""Raw pieces around the body of a result; `codec.ID_FIRST` is the one before the id."""


def result(raw_id: bytes, body: bytes) -> bytes:
    # Joined and not formatted: formatting grows its buffer step by step, which makes a large body
    # fifty times as slow.
    return b"".join((ID_FIRST, raw_id, MIDDLE, body, TAIL))


def raw_error(raw_id: bytes, body: bytes) -> bytes:
    """Return an error message. `body`: the whole error object, as it came."""
    return b"".join((ID_FIRST, raw_id, b',"error":', body, TAIL))


def error(raw_id: bytes, code: int, message: str, data: bytes = b"") -> bytes:
    """Return an error message. `data`: raw JSON, or empty."""
    members: dict[str, object] = {"code": code, "message": message}
    if data:
        members["data"] = Raw(data)
    return raw_error(raw_id, codec.dump(members))


def pack_refusal(raw_id: bytes, refusal: ProtocolError) -> bytes:
    return error(raw_id, refusal.code, refusal.message, refusal.data)


def notification(method: str, params: bytes = b"") -> bytes:
    name = codec.dump(method)
    if params:
        return b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (name, params)
    return b'{"jsonrpc":"2.0","method":%b}' % name


def request(raw_id: bytes, method: str, params: bytes) -> bytes:
    """Return a request. `params`: raw, perhaps empty."""
    name = codec.dump(method)
    if params:
        return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (raw_id, name, params)
    return b'{"jsonrpc":"2.0","id":%b,"method":%b}' % (raw_id, name)


def progress(token: bytes, params: bytes) -> bytes:
    """Return a progress notification. `token`: of the client, raw; `params`: of the server, without
    a token."""
    return notification(
        "notifications/progress", codec.splice(params, {"progressToken": Raw(token)})
    )


def event(message: bytes) -> bytes:
    """Return a message as an SSE event. Line ends inside an event would end its data. In JSON they
    stand only between tokens, never inside a string, so blanks in their place change nothing."""
    if b"\n" in message or b"\r" in message:
        message = message.replace(b"\r", b" ").replace(b"\n", b" ")
    return b"".join((b"event: message\ndata: ", message, b"\n\n"))


def members(fields: Mapping[str, bytes]) -> bytes:
    """Return a raw object with these raw values."""
    return codec.dump({name: Raw(value) for name, value in fields.items()})


NOT_FOUND_LEGACY = -32002
"""Code for a resource that does not exist; only the revisions before 2026-07-28 have the code."""

READ = "resources/read"
_CALL = "tools/call"
_COMPLETE = b'"complete"'
_COMPLETED = b'{"resultType":"complete",'
#: Members of a result that was read, if its server does not say how long the result is valid.
_NOT_KEPT = {"ttlMs": b"0", "cacheScope": b'"private"'}
_CONTENT = b'"structuredContent"'
_NO_OBJECT = re.compile(rb'"structuredContent"\s*:\s*[^\s{]')


def convert_answer(method: str, body: bytes, code: int, *, modern: bool) -> tuple[bytes, int]:
    """Return the answer to a request of this method, and its code (0 for a result), in the form of
    the client's era. The server is of the other era. `modern`: the client is of the modern era."""
    if modern:
        return _modern_error(body, code) if code else (_modern_result(method, body), 0)
    if code:
        return _legacy_error(method, body, code)
    return (_legacy_result(body) if method == _CALL else body), 0


def _modern_result(method: str, body: bytes) -> bytes:
    """Add the members that a modern result must have: its type, and, after `resources/read`, how
    long it is valid."""
    if method == _CALL and b'"resultType"' not in body and body[:2] == b'{"':
        return _COMPLETED + body[1:]
    added: dict[str, Raw | bytes] = {"resultType": _COMPLETE}
    if method == READ:
        added |= _NOT_KEPT
    if any(b'"' + key.encode() + b'"' in body for key in added):
        try:
            members = codec.level(body)
        except codec.Malformed:
            return body
        added = {key: raw for key, raw in added.items() if key not in members}
    return codec.splice(body, added) if body[:1] == b"{" else body


def _modern_error(body: bytes, code: int) -> tuple[bytes, int]:
    if code == NOT_FOUND_LEGACY:
        return _replace_code(body, code, Code.INVALID_PARAMS)
    return body, code


def _legacy_result(body: bytes) -> bytes:
    """Remove structured content that is not an object: clients of the earlier revisions would
    refuse the whole result. The text of the result says the same."""
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
        return _replace_code(body, code, NOT_FOUND_LEGACY)
    return body, code


def _replace_code(body: bytes, before: int, after: int) -> tuple[bytes, int]:
    """Return the same error with another code; if it is malformed, as it came."""
    try:
        members = codec.level(body)
    except codec.Malformed:
        return body, before
    members["code"] = Raw(b"%d" % after)
    return codec.dump(members), after


_WELL: Final = b'"isError":false}'
_IS_ERROR: Final = re.compile(rb'"isError"\s*:\s*true')
_ENDS_WELL: Final = re.compile(rb'"isError"\s*:\s*false\s*\}\s*\Z')


def is_error(body: bytes) -> bool:
    """Whether this result of a tool is a failure. The result is decoded only if its bytes make a
    failure likely, and searched from its end, because most servers write `isError` last."""
    if body.endswith(_WELL):  # as most servers write it
        return False
    at = body.rfind(b'"isError"')
    if at < 0 or _ENDS_WELL.match(body, at) or _IS_ERROR.search(body) is None:
        return False
    return bytes(codec.members(body).get("isError", b"")) == b"true"
