"""Bytes of HTTP/1.1: the head of a request, and the names of hosts in it.

Owns: `Head`, the heads of answers, the bytes of a request that moves to another process
(`MovedConnection`); how a host is written, with and without a port, and which hosts a list of names
allows. Never: a connection, an application, parsing, where the list comes from.
"""

import ipaddress
import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus

from msgspec import Struct

from metamcp_worker.ipc import codec

Headers = Sequence[tuple[bytes, bytes]]
JSON = (b"content-type", b"application/json")
_FRAMING = frozenset({b"content-length", b"expect", b"transfer-encoding"})


class Head(Struct, gc=False):
    """Head of a request: request line and headers. `target`: as it was sent; `headers`: in their
    order, their names in lower case; `keeps_alive`: the client wants the connection to stay open;
    `awaits`: the client sends the body when it is asked to (`Expect: 100-continue`).

    A client begins request after request with the same bytes, so the requests of a connection may
    share a head. `verdict`, `entry`: results of the application's checks of the head, `envelope`:
    of the last body, kept here for the next request.
    """

    method: str
    target: bytes
    headers: Headers
    version: str = "1.1"
    keeps_alive: bool = True
    awaits: bool = False
    verdict: object = None
    entry: object = None
    envelope: object = None


class MovedConnection(Struct, frozen=True):
    """Connection on its way to another process. `socket_fd`: a descriptor of its socket; `read`:
    bytes that were read and not answered; `last`: bytes that come after these do not count; `hops`:
    how often the connection has moved for its first request."""

    socket_fd: int
    read: bytes
    last: bool = False
    hops: int = 0


def head(status: int, headers: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    """Return status line and headers of an answer, still without those that frame the body."""
    lines = [b"%b: %b\r\n" % header for header in headers]
    return b"HTTP/1.1 %d %b\r\n%b" % (status, HTTPStatus(status).phrase.encode(), b"".join(lines))


def error_body(code: int, sentence: str) -> bytes:
    """Return a JSON-RPC error for a request whose id is not known."""
    error = {"code": code, "message": sentence}
    return codec.dump({"jsonrpc": "2.0", "id": None, "error": error})


def request(parsed: Head, body: bytes) -> bytes:
    """Return the request as bytes of HTTP/1.1 again; only its framing headers may differ."""
    headers = (header for header in parsed.headers if header[0] not in _FRAMING)
    lines = [b"%b: %b\r\n" % header for header in headers]
    if body or parsed.method == "POST":
        lines.append(b"content-length: %d\r\n" % len(body))
    first = b"%b %b HTTP/%b\r\n" % (parsed.method.encode(), parsed.target, parsed.version.encode())
    return b"".join([first, *lines, b"\r\n", body])


def is_absolute(target: bytes) -> bool:
    """Whether this is `http://host/path`. The application decides whether the host is allowed."""
    scheme, separator, host_and_path = target.partition(b"://")
    return bool(separator) and scheme.lower() in {b"http", b"https"} and b"/" in host_and_path


def path_and_query(target: bytes) -> tuple[bytes, bytes]:
    """Split a target that the server accepted into path and query."""
    if not target.startswith(b"/"):
        target = b"/" + target.partition(b"://")[2].partition(b"/")[2]
    path, _, query = target.partition(b"?")
    return path, query


BLANKS = b" \t"
"""Characters around the value of a header that are not part of it."""
PORT_MAX = 65535
_USUAL_PORTS = (80, 443)
"""Default ports, which URLs leave out."""
_HOST = re.compile(
    rb"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?::(?P<port>[0-9]{1,5}))?"
)
_BELOW = b"*."

Place = tuple[bytes, int | None]
"""Host in its usual spelling, and the port if there is one."""


class Hosts:
    """List of allowed names. A name without a port is allowed with every port; `*.example.com`
    stands for all names below example.com. Raises ValueError for anything else."""

    def __init__(self, names: Iterable[str]) -> None:
        self._whole: set[Place] = set()
        self._below: set[Place] = set()
        for name in names:
            written = name.encode()
            authority = place_of(written.removeprefix(_BELOW))
            if authority is None:
                raise ValueError(name)
            (self._below if written.startswith(_BELOW) else self._whole).add(authority)

    def allow(self, authority: Place) -> bool:
        host, port = authority
        ports = _USUAL_PORTS if port is None else (port,)
        parents = [host[at + 1 :] for at, byte in enumerate(host) if byte == ord(".")]
        return any(
            (host, listed_port) in self._whole
            or any((parent, listed_port) in self._below for parent in parents)
            for listed_port in (None, *ports)
        )


def place_of(value: bytes) -> Place | None:
    """Return the host in `host` or `host:port`, and the port; None for anything else."""
    match = _HOST.fullmatch(value.strip(BLANKS))
    if match is None or int(match["port"] or 0) > PORT_MAX:
        return None
    host, port = match["host"].lower(), int(match["port"]) if match["port"] else None
    if host.startswith(b"["):
        try:
            host = b"[%b]" % ipaddress.IPv6Address(host[1:-1].decode()).compressed.encode()
        except ValueError:
            return None
    return host, port
