"""Bytes of HTTP/1.1, and the head of a request.

Owns: `Head`, the heads of answers, the bytes of whole answers, of answers that the server gives
without the application, and of a request that moves to another process (`MovedConnection`). Never:
a connection, an application, parsing.
"""

from collections.abc import Iterable, Sequence
from http import HTTPStatus

from msgspec import Struct

from metamcp_worker.ipc import codec

COPY_BYTES_MAX = 64 * 1024
"""Maximum bytes of parts that are copied together; sending larger parts apart costs less."""

Headers = Sequence[tuple[bytes, bytes]]
JSON = (b"content-type", b"application/json")
_FRAMING = frozenset({b"content-length", b"expect", b"transfer-encoding"})
#: A head with one of these says more than a length of the body, or has a secret.
_UNLIKE = frozenset({
    b"authorization", b"cookie", b"proxy-authorization", b"transfer-encoding", b"upgrade",
})  # fmt: skip


class Head(Struct, gc=False):
    """Head of a request: request line and headers. `target`: as it was sent; `headers`: in their
    order, their names in lower case; `keeps_alive`: the client wants the connection to stay open;
    `awaits`: the client sends the body when it is told to (`Expect: 100-continue`).

    Clients begin request after request with the same bytes, so many requests may share a head.
    `length`: of the body of each of these, below zero if the head is not shared; `verdict`: result
    of the application's checks of the head, kept here for the next request.
    """

    method: str
    target: bytes
    headers: Headers
    version: str = "1.1"
    keeps_alive: bool = True
    awaits: bool = False
    length: int = -1
    verdict: object = None


class MovedConnection(Struct, frozen=True):
    """Connection on its way to another process. `socket_fd`: a descriptor of its socket; `read`:
    bytes that were read and not answered; `last`: bytes that come after these do not count; `hops`:
    how often the connection has moved for its first request."""

    socket_fd: int
    read: bytes
    last: bool = False
    hops: int = 0


def length(said: Head) -> int:
    """Return the length of the body if requests may share this head, else a number below zero. A
    head with a secret is not shared, so that it is not kept for longer than its request."""
    found = dict(said.headers)
    if said.version != "1.1" or said.awaits or not said.keeps_alive:
        return -1
    if not _UNLIKE.isdisjoint(found) or not found.get(b"content-length", b"0").isdigit():
        return -1
    return int(found.get(b"content-length", b"0"))


def head(status: int, headers: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """Return status line and headers of an answer, still without those that frame the body."""
    lines = [b"%b: %b\r\n" % header for header in headers]
    return b"HTTP/1.1 %d %b\r\n%b" % (status, HTTPStatus(status).phrase.encode(), b"".join(lines))


def whole(head: bytes, body: Sequence[bytes], *, last: bool, bare: bool = False) -> Sequence[bytes]:
    """Return a whole HTTP answer: one part if it is small, else the parts that it came in. `head`:
    without the length; `last`: the connection closes after it; `bare`: leave out the body, for a
    HEAD request."""
    size = sum(map(len, body))
    end = b"connection: close\r\n\r\n" if last else b"\r\n"
    if not size and head.startswith(b"HTTP/1.1 204 "):
        return (head + end,)
    parts = (head, b"content-length: %d\r\n" % size, end, *(() if bare else body))
    return parts if size > COPY_BYTES_MAX else (b"".join(parts),)


def error_body(code: int, sentence: str) -> bytes:
    """Return a JSON-RPC error for a request whose id is not known."""
    error = {"code": code, "message": sentence}
    return codec.dump({"jsonrpc": "2.0", "id": None, "error": error})


def last_words(status: int, body: bytes) -> bytes:
    """Return a whole HTTP answer after which the connection closes."""
    return b"".join(whole(head(status, [JSON]), (body,), last=True))


def request(said: Head, body: bytes) -> bytes:
    """Return the request as bytes of HTTP/1.1 again; only its framing headers may differ."""
    kept = (header for header in said.headers if header[0] not in _FRAMING)
    lines = [b"%b: %b\r\n" % header for header in kept]
    if body or said.method == "POST":
        lines.append(b"content-length: %d\r\n" % len(body))
    first = b"%b %b HTTP/%b\r\n" % (said.method.encode(), said.target, said.version.encode())
    return b"".join([first, *lines, b"\r\n", body])


def is_absolute(target: bytes) -> bool:
    """Whether this is `http://host/path`. The application decides whether the host is allowed."""
    scheme, found, rest = target.partition(b"://")
    return bool(found) and scheme.lower() in {b"http", b"https"} and b"/" in rest


def path_and_query(target: bytes) -> tuple[bytes, bytes]:
    """Split a target that the server accepted into path and query."""
    if not target.startswith(b"/"):
        target = b"/" + target.partition(b"://")[2].partition(b"/")[2]
    path, _, query = target.partition(b"?")
    return path, query
