"""From the body of a POST to one JSON-RPC message that everybody reads alike.

Owns: what is refused before anyone looks at the method: broken JSON, batches, repeated keys, ids
that peers would mangle, parameters that are no object. Never: eras, sending.

A message that two readers could understand differently is refused, because what was checked here
would not be what a server does.
"""

import re

from msgspec import Raw

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.codec import Envelope
from metamcp_worker.ipc.errors import Code, Refused
from metamcp_worker.ipc.frames import METHOD_BYTES_MAX

BESIDE_BYTES_MAX = 64 * 1024
"""Of a message without its params, where a repeated member has to be looked for: nothing that the
protocol knows is large there, and the search is slow."""

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:]', re.DOTALL)
_NONE = Raw()


def read(body: bytes) -> Envelope:
    """The message in `body`. Raises Refused.

    It is a request (`method`, `id`), a notification (`method` alone) or a response (no `method`).
    """
    if not body.isascii():
        _check_utf8(body)
    try:
        message = codec.envelope(body)
    except codec.Malformed as error:
        raise _unreadable(body, error) from None
    count = body.count
    if count(b'"id"') > 1 or count(b'"method"') > 1 or count(b'"params"') > 1 or b"\\" in body:
        _check_keys(_beside(body, message))
    if message.jsonrpc != "2.0":
        raise Refused(Code.INVALID_REQUEST, 'The member "jsonrpc" must be "2.0".')
    if message.id and not codec.id_ok(bytes(message.id)):
        raise Refused(
            Code.INVALID_REQUEST,
            f"The id must be a string or an integer of at most {codec.ID_BYTES_MAX} bytes.",
        )
    method = message.method
    answered = message.result or message.error
    if method is None:
        if not (answered and message.id):
            raise Refused(
                Code.INVALID_REQUEST, "The message is not a request, notification or answer."
            )
    elif answered:
        raise Refused(Code.INVALID_REQUEST, "The message is a request and an answer at once.")
    elif len(method) > METHOD_BYTES_MAX // 4 and len(method.encode()) > METHOD_BYTES_MAX:
        raise Refused(Code.INVALID_REQUEST, f"The method has more than {METHOD_BYTES_MAX} bytes.")
    return message


def parameters(message: Envelope) -> tuple[dict[str, Raw], dict[str, Raw]]:
    """`params` without `_meta`, and `_meta`, one level deep. Raises Refused."""
    raw = message.params
    if not raw or (len(raw) == 4 and bytes(raw) == b"null"):
        return {}, {}
    params = _level(raw, "params")
    meta = params.pop("_meta", _NONE)
    return params, _level(meta, "params._meta") if meta else {}


def _level(raw: Raw, what: str) -> dict[str, Raw]:
    try:
        return codec.level(raw)
    except codec.Malformed:
        raise Refused(Code.INVALID_PARAMS, f"{what} must be an object.") from None


def _check_utf8(body: bytes) -> None:
    try:
        body.decode()
    except UnicodeDecodeError:
        raise Refused(Code.PARSE_ERROR, "The body is not UTF-8.") from None


def _unreadable(body: bytes, error: codec.Malformed) -> Refused:
    """JSON that is not one message, or no JSON at all: two codes."""
    first = body.lstrip()[:1]
    try:
        codec.check(body)
        if first == b"[":
            return Refused(Code.INVALID_REQUEST, "Batches are not served; send one message.")
        if first == b"{":
            return Refused(Code.INVALID_REQUEST, f"The message is malformed: {error}.")
    except codec.Malformed as broken:
        return Refused(Code.PARSE_ERROR, f"The body is not JSON: {broken}.")
    return Refused(Code.INVALID_REQUEST, "The body must be one JSON-RPC object.")


def _beside(body: bytes, message: Envelope) -> bytes:
    """The message without its params, in which names of members are common."""
    params = bytes(message.params)
    return body.replace(params, b"0", 1) if len(params) > 2 else body


def _check_keys(body: bytes) -> None:
    """Refuse a repeated member of the message itself, however its name is spelled."""
    count = body.count
    if b"\\" not in body and max(count(b'"id"'), count(b'"method"'), count(b'"params"')) <= 1:
        return
    if len(body) > BESIDE_BYTES_MAX:
        raise Refused(
            Code.INVALID_REQUEST, f"There are more than {BESIDE_BYTES_MAX} bytes beside params."
        )
    depth = 0
    last = b""
    seen: set[str] = set()
    for found in _TOKEN.finditer(body):
        token = found[0]
        if token == b":":
            if depth == 1:
                key = codec.text(last) or ""
                if key in seen:
                    raise Refused(Code.INVALID_REQUEST, "A member of the message is repeated.")
                seen.add(key)
        elif token in b"{[":
            depth += 1
        elif token in b"}]":
            depth -= 1
        else:
            last = token
