"""The bytes of what goes to a client: JSON-RPC answers, notifications, and their SSE frames.

Owns: the envelope around bodies that stay as they came. Never: deciding what to answer, sending.
"""

from collections.abc import Mapping

from msgspec import Raw

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Refused

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


def refused(raw_id: bytes, why: Refused) -> bytes:
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
