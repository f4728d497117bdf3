"""A crowd of clients that listen, each on a socket of its own and with every byte counted.

Owns: connecting, subscribing, counting what every one of them hears. Never: what they should hear.
"""

import re
import select
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Self

from metamcp_worker.ipc import codec
from tests.live.client import LEGACY, MODERN

WAIT_S = 20.0
READ_BYTES = 1 << 16
_METHOD = re.compile(rb'"method":"([^"]+)"')
_SESSION = re.compile(rb"(?i)\r\nmcp-session-id: ([^\r]+)\r\n")
_LENGTH = re.compile(rb"(?i)\r\ncontent-length: (\d+)\r\n")
_PREFIX = "io.modelcontextprotocol/"


class Ear:
    """One client. `key`: its API key; `session`: of the revisions with a handshake; `heard`: the
    methods of what it was told, in order; `ended_s`: when its stream was over, by the clock of
    `perf_counter`, 0 before."""

    def __init__(self, port: int, era: str, path: str, key: str = "") -> None:
        self.era, self.path, self.key = era, path, key
        self.session = b""
        self.heard: list[bytes] = []
        self.ended_s = 0.0
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
        self._rest = b""

    def begin(self) -> None:
        """Send the first request: it opens a session, or subscribes."""
        if self.era == MODERN:
            wanted = {"notifications": {"toolsListChanged": True}}
            self._post("subscriptions/listen", {**wanted, "_meta": _meta()})
        else:
            info = {"name": "ear", "version": "1"}
            params = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": info}
            self._post("initialize", params)

    def listen(self) -> None:
        """With the stream of its own, once the session is open."""
        if self.era != MODERN:
            found = _SESSION.search(self.answer())
            assert found is not None
            self.session = found[1]
            head = self._head("GET", b"Accept: text/event-stream\r\n")
            self.sock.sendall(head + b"\r\n")

    def ready(self) -> None:
        """The stream stands."""
        mark = b"subscriptions/acknowledged" if self.era == MODERN else b"\r\n\r\n"
        while mark not in self._rest:
            self._rest += self._read()
        assert self._rest.startswith(b"HTTP/1.1 200 "), self._rest
        self._rest = self._rest.partition(mark)[2]
        self.sock.setblocking(False)

    def take(self) -> None:
        """What there is to read."""
        try:
            data = self.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.heard += _METHOD.findall(line)
        if not data or b"0\r" in lines:  # the last piece is empty
            self.ended_s = time.perf_counter()

    def names(self) -> list[str]:
        """The tools that are in the list now, by the same connection; before `listen`."""
        self._post("tools/list", {})
        body = self.answer().partition(b"\r\n\r\n")[2]
        tools = codec.value(codec.envelope(body).result)["tools"]
        return [tool["name"] for tool in tools]

    def opened(self) -> Self:
        """With a session, and no stream."""
        self.begin()
        found = _SESSION.search(self.answer())
        assert found is not None
        self.session = found[1]
        return self

    def goodbye(self) -> None:
        """End the session; on a connection without a stream."""
        self.sock.sendall(self._head("DELETE", b"Content-Length: 0\r\n") + b"\r\n")
        assert b" 200 " in self.answer().partition(b"\r\n")[0]

    def answer(self) -> bytes:
        whole = self._rest
        while not (found := _LENGTH.search(whole)) or len(whole) < _size(whole, found):
            whole += self._read()
        size = _size(whole, found)
        self._rest = whole[size:]
        return whole[:size]

    def _read(self) -> bytes:
        data = self.sock.recv(READ_BYTES)
        assert data, "the gateway closed the connection"
        return data

    def _post(self, method: str, params: Mapping[str, object]) -> None:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        body = codec.dump(message)
        about = b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
        if self.era == MODERN:
            about += b"Mcp-Method: %b\r\n" % method.encode()
        about += b"Accept: application/json, text/event-stream\r\n"
        self.sock.sendall(self._head("POST", about) + b"\r\n" + body)

    def _head(self, verb: str, about: bytes) -> bytes:
        first = f"{verb} {self.path} HTTP/1.1\r\nHost: localhost\r\n".encode()
        if self.era == MODERN or self.session:
            first += b"MCP-Protocol-Version: %b\r\n" % self.era.encode()
        if self.session:
            first += b"Mcp-Session-Id: %b\r\n" % self.session
        if self.key:
            first += b"Authorization: Bearer %b\r\n" % self.key.encode()
        return first + about


class Crowd:
    """All of them listen when the `with` block begins."""

    def __init__(self, ears: Iterable[Ear]) -> None:
        self.ears = list(ears)
        self._poll = select.epoll()

    def __enter__(self) -> Self:
        for step in (Ear.begin, Ear.listen, Ear.ready):
            for ear in self.ears:
                step(ear)
        for ear in self.ears:
            self._poll.register(ear.sock, select.EPOLLIN)
        return self

    def hear(self, enough: Callable[[Ear], bool], first: Callable[[], None] = lambda: None) -> None:
        """Until each has heard enough. `first`: called as soon as any of them heard something."""
        by_fd = {ear.sock.fileno(): ear for ear in self.ears}
        missing = {fd for fd, ear in by_fd.items() if not enough(ear)}
        end = time.monotonic() + WAIT_S
        while missing:
            left = end - time.monotonic()
            assert left > 0, f"{len(missing)} of {len(by_fd)} have not heard enough"
            for fd, _ in self._poll.poll(left):
                ear = by_fd[fd]
                before = len(ear.heard)
                ear.take()
                if len(ear.heard) > before:
                    first()
                    first = _nothing
                if ear.ended_s:
                    self._poll.unregister(fd)
                if enough(ear):
                    missing.discard(fd)

    def __exit__(self, *_: object) -> None:
        self._poll.close()
        for ear in self.ears:
            ear.sock.close()


def _nothing() -> None:
    pass


def _size(whole: bytes, length: re.Match[bytes]) -> int:
    return whole.index(b"\r\n\r\n") + 4 + int(length[1])


def _meta() -> dict[str, object]:
    return {
        f"{_PREFIX}protocolVersion": MODERN,
        f"{_PREFIX}clientCapabilities": {},
        f"{_PREFIX}clientInfo": {"name": "ear", "version": "1"},
    }
