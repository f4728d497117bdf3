"""What an HTTP server and an application say to each other.

Owns: the names of ASGI's types, the two keys that our scopes have beyond ASGI, and the bytes of an
answer that the server gives without the application. Never: a connection, an application.
"""

from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from typing import Any, Protocol

from msgspec import Struct

from metamcp_worker import codec

COPY_BYTES_MAX = 64 * 1024
"""Parts of more than this are not copied together: sending them one by one costs less."""

Scope = dict[str, Any]
Event = dict[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

CONNECTION = "metamcp.connection"
"""A `Peer`."""
TARGET = "metamcp.target"
"""The request target, as it was sent."""


_FRAMING = frozenset({b"content-length", b"expect", b"transfer-encoding"})


class Left(Struct, frozen=True):
    """A connection on its way to another process: a descriptor of its socket, and what was read of
    it and is not answered. `last`: nothing counts that comes behind that; `hops`: how often it was
    on the way for its first request."""

    socket_fd: int
    read: bytes
    last: bool = False
    hops: int = 0


class Peer(Protocol):
    """The connection to a client. `on_lost` is called once if the client goes; whoever sets it
    clears it when the request is answered. `hops`: how often it has moved for this request."""

    hops: int
    on_lost: Callable[[], None] | None

    def abort(self) -> None:
        """Cut the connection without sending what waits."""

    def answer(self, head: bytes, *body: bytes) -> bool:
        """Send a whole answer at once. `head`: status line and headers, without the length; `body`:
        in as many parts as it is in. False: the client has not read what was sent before, so `send`
        has to wait for it."""
        ...

    def leave(self, body: bytes) -> Left | None:
        """Take the connection away from here before the request is answered, whose whole body this
        is. None: it cannot go now."""
        ...


def error_body(code: int, sentence: str) -> bytes:
    """A JSON-RPC error for a request whose id is not known."""
    error = {"code": code, "message": sentence}
    return codec.dump({"jsonrpc": "2.0", "id": None, "error": error})


def whole(head: bytes, body: Sequence[bytes], *, last: bool) -> Sequence[bytes]:
    """A whole HTTP answer: one part if it is small, else as many as it came in. `head`: without the
    length; `last`: the connection closes behind it."""
    size = sum(map(len, body))
    end = b"connection: close\r\n\r\n" if last else b"\r\n"
    parts = (head, b"content-length: %d\r\n" % size, end, *body)
    return parts if size > COPY_BYTES_MAX else (b"".join(parts),)


def request(scope: Scope, body: bytes) -> bytes:
    """The request, whole again, as the bytes of HTTP/1.1; of its headers, only the framing may be
    another one."""
    kept = (header for header in scope["headers"] if header[0] not in _FRAMING)
    lines = [b"%b: %b\r\n" % header for header in kept]
    if body or scope["method"] == "POST":
        lines.append(b"content-length: %d\r\n" % len(body))
    method, version = scope["method"].encode(), scope["http_version"].encode()
    first = b"%b %b HTTP/%b\r\n" % (method, scope[TARGET], version)
    return b"".join([first, *lines, b"\r\n", body])


def last_words(status: int, body: bytes) -> bytes:
    """A whole HTTP answer after which the connection closes."""
    head = (
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


def is_absolute(target: bytes) -> bool:
    """Is this `http://host/path`? Whether the host may be, the application decides."""
    scheme, found, rest = target.partition(b"://")
    return bool(found) and scheme.lower() in {b"http", b"https"} and b"/" in rest
