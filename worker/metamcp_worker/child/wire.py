"""The messages that go to a server, as bytes: one line each.

Owns: the JSON-RPC frame around a request, `_meta` as each era wants it, the rule that a message is
one line. Never: which request is sent, what becomes of it, I/O.

Parameters are never opened: `_meta` is put in front of their members, every other byte stays what
the client sent. Only line ends are replaced by blanks, because a line is what frames a message
here; in valid JSON they stand between tokens, where one blank is as good as another.
"""

import re

from msgspec import Raw, Struct

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.frames import Call

MODERN = "2026-07-28"
"""The revision that needs no handshake: every request says who asks and what that client can."""
LEGACY = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Revisions with `initialize`, the newest first."""

_PREFIX = "io.modelcontextprotocol/"
_EMPTY_OBJECT = re.compile(rb"\{\s*\}\Z")
_STAMPS_MAX = 256
"""Clients whose stamp is remembered; beyond that all are forgotten and made anew."""
_STAMP_BYTES_MAX = 4096
"""A client with a longer description of itself is stamped anew at each call."""


class Ask(Struct, frozen=True):
    """A request that the gateway itself makes. `params`: a raw object without `_meta`. `caller`:
    the client for whose sake, as in `frames.Call`, or empty."""

    method: str
    params: bytes = b"{}"
    caller: bytes = b""


def request(key: bytes, method: str, params: bytes, meta: bytes = b"") -> bytes:
    """One line. `key` is the id as it stands on the wire, `meta` a raw object or empty."""
    return b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}\n' % (
        key, codec.dump(method), _one_line(with_meta(params, meta)),
    )  # fmt: skip


def notification(method: str, params: bytes = b"") -> bytes:
    if not params:
        return b'{"jsonrpc":"2.0","method":%b}\n' % codec.dump(method)
    return _line(b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (codec.dump(method), params))


def cancelled(key: bytes, reason: bytes) -> bytes:
    """The notification that nobody waits for the request `key` any more."""
    params: dict[str, object] = {"requestId": Raw(key)}
    if reason:
        params["reason"] = reason.decode(errors="replace")
    return notification("notifications/cancelled", codec.dump(params))


def answer(id: bytes, result: bytes) -> bytes:  # noqa: A002 - the wire's own name
    return _line(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (id, result))


def refusal(id: bytes, error: bytes) -> bytes:  # noqa: A002 - the wire's own name
    return _line(b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (id, error))


def error(code: int, message: str, data: object = None) -> bytes:
    """A raw error object of the gateway's own."""
    body: dict[str, object] = {"code": int(code), "message": message}
    if data is not None:
        body["data"] = data
    return codec.dump(body)


def with_meta(params: bytes, meta: bytes) -> bytes:
    """`params` with `meta` as its `_meta`, in front of the members that are there."""
    body = params.strip() or b"{}"
    if not meta:
        return body
    if _EMPTY_OBJECT.match(body):
        return b'{"_meta":' + meta + b"}"
    return b"".join((b'{"_meta":', meta, b",", body[1:]))


class Stamp:
    """Builds `_meta`. A modern server is told the protocol and the client that asks, a legacy
    server knows both from the handshake."""

    def __init__(self, protocol: str, gateway_version: str) -> None:
        self._modern = protocol == MODERN
        self._protocol = codec.dump(protocol)
        self._gateway = gateway_info(gateway_version)
        self._stamps: dict[bytes, bytes] = {}

    def of(self, call: Call, key: bytes) -> bytes:
        """`_meta` of this call, or nothing if there is nothing to say."""
        if not (self._modern or call.wants_progress or call.meta):
            return b""
        parts: list[bytes] = []
        if self._modern:
            parts.append(self._stamp(call.caller))
        if call.wants_progress:
            parts.append(b'"progressToken":' + key)
        others = call.meta.strip()[1:-1].strip()
        if others:
            parts.append(others)
        return b"{" + b",".join(parts) + b"}" if parts else b""

    def own(self, caller: bytes = b"") -> bytes:
        """`_meta` of a request that the gateway itself makes, for this client or for nobody."""
        return b"{" + self._stamp(caller) + b"}" if self._modern else b""

    def _stamp(self, caller: bytes) -> bytes:
        stamp = self._stamps.get(caller)
        if stamp is None:
            stamp = self._describe(caller)
            if len(self._stamps) >= _STAMPS_MAX:
                self._stamps.clear()
            if len(caller) <= _STAMP_BYTES_MAX:
                self._stamps[caller] = stamp
        return stamp

    def _describe(self, caller: bytes) -> bytes:
        try:
            known = codec.level(caller) if caller else {}
        except codec.Malformed:
            known = {}
        members: dict[str, Raw | bytes] = {
            "protocolVersion": self._protocol,
            "clientInfo": known.get("clientInfo", self._gateway),
            "clientCapabilities": known.get("clientCapabilities", b"{}"),
        }
        if "logLevel" in known:
            members["logLevel"] = known["logLevel"]
        return b",".join(
            codec.dump(_PREFIX + name) + b":" + bytes(value) for name, value in members.items()
        )


def gateway_info(version: str) -> bytes:
    """The gateway as an MCP client: its `clientInfo`."""
    return codec.dump({"name": "metamcp", "version": version})


def server_info(result_meta: Raw | bytes) -> Raw:
    """`serverInfo` as a modern server gives it, in the `_meta` of its results; {} if absent."""
    try:
        found = codec.level(result_meta).get(_PREFIX + "serverInfo", Raw(b"{}"))
        codec.level(found)
    except codec.Malformed:
        return Raw(b"{}")
    return found


def _line(message: bytes) -> bytes:
    return _one_line(message) + b"\n"


def _one_line(message: bytes) -> bytes:
    return message.replace(b"\n", b" ").replace(b"\r", b" ")
