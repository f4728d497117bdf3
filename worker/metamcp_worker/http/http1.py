"""The bytes of HTTP/1.1, and what a request says before its body.

Owns: `Head`, the heads of answers, the bytes of an answer that is sent at once, of one that the
server gives without the application, and of a request that is sent on. Never: a connection, an
application, parsing.
"""

from collections.abc import Iterable, Sequence
from http import HTTPStatus

from msgspec import Struct

from metamcp_worker.ipc import codec

COPY_BYTES_MAX = 64 * 1024
"""Parts of more than this are not copied together: sending them one by one costs less."""

Headers = Sequence[tuple[bytes, bytes]]
JSON = (b"content-type", b"application/json")
_FRAMING = frozenset({b"content-length", b"expect", b"transfer-encoding"})
#: Whoever sends one of these says more than a length, or what is nobody else's business.
_UNLIKE = frozenset({
    b"authorization", b"cookie", b"proxy-authorization", b"transfer-encoding", b"upgrade",
})  # fmt: skip


class Head(Struct, gc=False):
    """What a request says before its body. `target`: as it was sent; `headers`: in their order,
    their names in lower case; `keeps_alive`: the client wants the connection to go on; `awaits`: it
    sends the body when it is told to.

    Clients begin request after request with the same bytes, so one head may belong to many.
    `length`: of the body of each of them; `verdict`: what the application thinks of the head, kept
    here for the next one.
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
    """A connection on its way to another process: a descriptor of its socket, and what was read of
    it and is not answered. `last`: nothing counts that comes behind that; `hops`: how often it was
    on the way for its first request."""

    socket_fd: int
    read: bytes
    last: bool = False
    hops: int = 0


def length(said: Head) -> int:
    """Of the body behind this head, if the head may be known by its bytes; else below zero. What is
    secret in a head is not kept for longer than its request."""
    found = dict(said.headers)
    if said.version != "1.1" or said.awaits or not said.keeps_alive:
        return -1
    if not _UNLIKE.isdisjoint(found) or not found.get(b"content-length", b"0").isdigit():
        return -1
    return int(found.get(b"content-length", b"0"))


def head(status: int, headers: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """Status line and headers of an answer; what frames its body is still to come."""
    lines = [b"%b: %b\r\n" % header for header in headers]
    return b"HTTP/1.1 %d %b\r\n%b" % (status, HTTPStatus(status).phrase.encode(), b"".join(lines))


def whole(head: bytes, body: Sequence[bytes], *, last: bool, bare: bool = False) -> Sequence[bytes]:
    """A whole HTTP answer: one part if it is small, else as many as it came in. `head`: without the
    length; `last`: the connection closes behind it; `bare`: the body is only spoken of, as HEAD
    wants it."""
    size = sum(map(len, body))
    end = b"connection: close\r\n\r\n" if last else b"\r\n"
    if not size and head.startswith(b"HTTP/1.1 204 "):
        return (head + end,)
    parts = (head, b"content-length: %d\r\n" % size, end, *(() if bare else body))
    return parts if size > COPY_BYTES_MAX else (b"".join(parts),)


def error_body(code: int, sentence: str) -> bytes:
    """A JSON-RPC error for a request whose id is not known."""
    error = {"code": code, "message": sentence}
    return codec.dump({"jsonrpc": "2.0", "id": None, "error": error})


def last_words(status: int, body: bytes) -> bytes:
    """A whole HTTP answer after which the connection closes."""
    return b"".join(whole(head(status, [JSON]), (body,), last=True))


def request(said: Head, body: bytes) -> bytes:
    """The request, whole again, as the bytes of HTTP/1.1; of its headers, only the framing may be
    another one."""
    kept = (header for header in said.headers if header[0] not in _FRAMING)
    lines = [b"%b: %b\r\n" % header for header in kept]
    if body or said.method == "POST":
        lines.append(b"content-length: %d\r\n" % len(body))
    first = b"%b %b HTTP/%b\r\n" % (said.method.encode(), said.target, said.version.encode())
    return b"".join([first, *lines, b"\r\n", body])


def is_absolute(target: bytes) -> bool:
    """Is this `http://host/path`? Whether the host may be, the application decides."""
    scheme, found, rest = target.partition(b"://")
    return bool(found) and scheme.lower() in {b"http", b"https"} and b"/" in rest


def path_and_query(target: bytes) -> tuple[bytes, bytes]:
    """Of a target that the server let in."""
    if not target.startswith(b"/"):
        target = b"/" + target.partition(b"://")[2].partition(b"/")[2]
    path, _, query = target.partition(b"?")
    return path, query
