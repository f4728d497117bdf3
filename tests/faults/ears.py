"""Streams of events as bare sockets: read when the test wants to."""

import contextlib
import json
import socket
from collections.abc import Generator, Mapping

from tests.live.raw import MODERN, Raw
from tests.waiting import until

CHANGED = b"notifications/tools/list_changed"
PIECE_BYTES = 65536


class Stream:
    """The stream of a client for what belongs to no request. `came`: all bytes of it so far."""

    def __init__(self, client: Raw) -> None:
        self.came = b""
        self._sock = socket.create_connection(("127.0.0.1", client.port))
        self._sock.sendall(_modern(client) if client.era == MODERN else _legacy(client))
        self._sock.setblocking(False)

    def changes(self) -> int:
        """How many announcements of another list of tools have come so far."""
        return self.read().count(CHANGED)

    def read(self) -> bytes:
        """All that has come so far."""
        with contextlib.suppress(BlockingIOError):
            while piece := self._sock.recv(PIECE_BYTES):
                self.came += piece
        return self.came

    def close(self) -> None:
        self._sock.close()


@contextlib.contextmanager
def hearing(port: int, era: str) -> Generator[Stream]:
    """The stream of a new client, once it has begun."""
    stream = Stream(Raw(port, era))
    with contextlib.closing(stream):
        until(lambda: b"\r\n\r\n" in stream.read(), "the head of the stream")
        assert b"200" in stream.came.split(b"\r\n")[0], stream.came
        yield stream


def _legacy(client: Raw) -> bytes:
    lines = (
        "GET /mcp HTTP/1.1",
        f"Host: 127.0.0.1:{client.port}",
        "Accept: text/event-stream",
        f"MCP-Protocol-Version: {client.era}",
        f"Mcp-Session-Id: {client.session}",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def _modern(client: Raw) -> bytes:
    params = {"notifications": {"toolsListChanged": True}, "_meta": client.stamp}
    message = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}
    return request(client.port, message)


def request(port: int, message: Mapping[str, object], name: str = "") -> bytes:
    """A whole modern request, as bytes. `name`: of a tool that it calls."""
    body = json.dumps(message).encode()
    lines = (
        "POST /mcp HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        f"MCP-Protocol-Version: {MODERN}",
        f"Mcp-Method: {message['method']}",
        *([f"Mcp-Name: {name}"] if name else []),
        f"Content-Length: {len(body)}",
    )
    return ("\r\n".join(lines) + "\r\n\r\n").encode() + body
