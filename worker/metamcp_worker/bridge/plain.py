"""Connections to a gateway at `http://`: few layers, for that is the way of nearly every bridge.

Owns: which connection takes a request, how many there are, the addresses of a name. Never: a
request under way (`line`), what HTTP looks like (`answers`), what a status means, retries.

It does what `fetch.Origin` does, with a tenth of the work, as long as nothing is unusual: TLS, a
redirect or a URL that wants mending go through that one. A request that finds a free connection is
written in the same turn of the loop (`at_once`), and its answer calls back.
"""

import asyncio
import os
import re
import resource
import socket
from collections.abc import Callable, Mapping
from urllib.parse import quote

from metamcp_worker.bridge.answers import Unfit, request
from metamcp_worker.bridge.line import Line, Redirected, Reply, Then
from metamcp_worker.http import tcp
from metamcp_worker.http.fetch import Limits, Origin, Response, Unreachable
from metamcp_worker.ipc.errors import MetaMCPError

IDLE_CONNECTIONS_MAX = 64
"""For the calls that a busy client has at once; further ones are closed behind their answer."""
ADDRESS_S = 2.0
"""For one address of a name to take a connection, while it has others."""

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""Hosts of a gateway that has the same folders."""
DIRECTORY = "Metamcp-Directory"
"""The header with the folder that the client works in, percent-encoded."""
DESCRIPTORS = 4096
"""More than one bridge has connections."""

_PLAIN = re.compile(
    r"http://(?P<host>[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::(?P<port>[1-9]\d{0,4}))?"
    r"(?P<target>/[A-Za-z0-9\-._~:/?@!$&'()*+,;=%]*)?"
)
"""URLs that need no mending."""


def opened(url: str, limits: Limits | None = None, directory: str = "") -> "Plain | Origin":
    """The client of the gateway at `url`. `directory`: the folder that the client works in; a
    gateway on this machine is told it with each request. Raises Unreachable for a URL that is
    none."""
    limits = limits or Limits()
    found = _PLAIN.fullmatch(url)
    here = found is not None and found["host"] in LOOPBACK
    told = {DIRECTORY: quote(os.fsencode(directory))} if here and directory else {}
    origin = Origin(url, limits=limits, headers=told)
    return origin if found is None else Plain(found, origin, limits, told)


def allow() -> None:
    """Let this process have a connection for each request at once, as far as it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))


class Plain:
    """The client of one origin, as `fetch.Origin`. `found`: its URL; `origin`: for the unusual;
    `told`: headers that go with every request."""

    def __init__(
        self, found: re.Match[str], origin: Origin, limits: Limits, told: Mapping[str, str]
    ) -> None:
        host, port, target = found.group("host", "port", "target")
        self._limits = limits
        self._told = told
        self._idle: list[Line] = []  # the newest one last
        self._open: set[Line] = set()
        self._origin = origin
        self._address = host.strip("[]"), int(port or 80)
        self._host = f"{host}:{port}" if int(port or 80) != 80 else host
        self._target = target or "/"
        self._loop = asyncio.get_running_loop()
        self._connecting = 0
        self._elsewhere = False
        self._sweep: asyncio.TimerHandle | None = None

    def __str__(self) -> str:
        return str(self._origin)

    def at_once(
        self,
        verb: str,
        headers: Mapping[str, str | bytes],
        body: bytes,
        *,
        answer_s: float,
        then: Then,
        written: Callable[[], None] | None = None,
    ) -> Reply | None:
        """Write a request now, if a connection is free; otherwise nothing has happened. `then` is
        called when the head of the answer is there, later than this returns. `written`: called as
        in `send`. Raises Unreachable."""
        if not self._idle or self._elsewhere:
            return None
        said = self._said(verb, headers, body)
        while self._idle:
            line = self._idle.pop()
            if not line.stale:
                return line.send(said, answer_s, then, written)
            line.abort()
        return None

    async def send(
        self,
        method: str,
        headers: Mapping[str, str | bytes],
        body: bytes = b"",
        *,
        answer_s: float,
        written: Callable[[], None] | None = None,
    ) -> Reply | Response:
        """One request; returns with the head of the answer, whatever its status is. `answer_s`: how
        long that may take. `written`: called when the body is on its way. Raises Unreachable and
        Broken."""
        if not self._elsewhere:
            try:
                return await self._send(method, headers, body, answer_s, written)
            except Redirected:
                self._elsewhere = True
        return await self._origin.send(method, headers, body, answer_s=answer_s, written=written)

    async def close(self) -> None:
        """Close all connections; answers that are still read break."""
        for line in list(self._open):
            line.drop()
        if self._sweep is not None:
            self._sweep.cancel()
        await self._origin.close()

    # What connections call

    def made(self, line: Line) -> None:
        self._open.add(line)

    def gone(self, line: Line) -> None:
        self._open.discard(line)
        if line in self._idle:
            self._idle.remove(line)

    def rest(self, line: Line) -> None:
        if len(self._idle) >= IDLE_CONNECTIONS_MAX:
            line.abort()
            return
        line.idle_since = self._loop.time()
        self._idle.append(line)
        if self._sweep is None:
            self._sweep = self._loop.call_later(self._limits.idle_s, self._close_idle)

    async def _send(
        self,
        verb: str,
        headers: Mapping[str, str | bytes],
        body: bytes,
        answer_s: float,
        written: Callable[[], None] | None,
    ) -> Reply:
        head: asyncio.Future[Reply | MetaMCPError] = self._loop.create_future()

        def then(got: Reply | MetaMCPError) -> None:
            if not head.done():
                head.set_result(got)

        reply = self.at_once(verb, headers, body, answer_s=answer_s, then=then, written=written)
        if reply is None:
            said = self._said(verb, headers, body)
            line = await self._connect()
            if line.stale:
                line.abort()
                raise Unreachable(f"{self} closes new connections at once")
            reply = line.send(said, answer_s, then, written)
        try:
            got = await head
        except asyncio.CancelledError:
            reply.cancel()
            raise
        if isinstance(got, MetaMCPError):
            raise got
        return got

    def _said(self, verb: str, headers: Mapping[str, str | bytes], body: bytes) -> bytes:
        try:
            return request(verb, self._target, self._host, {**headers, **self._told}, body)
        except Unfit as why:
            raise Unreachable(f"{self} cannot be asked: {why}") from None

    async def _connect(self) -> Line:
        """A new connection. Raises Unreachable."""
        active = len(self._open) + self._connecting - len(self._idle)
        if active >= self._limits.requests_max:
            raise Unreachable(f"{self} already has {active} requests to answer at once")
        self._connecting += 1
        try:
            async with asyncio.timeout(self._limits.connect_s):
                sock = await self._reached()
            _, line = await self._loop.create_connection(lambda: Line(self), sock=sock)
        except TimeoutError:
            text = f"{self} could not be reached in {self._limits.connect_s:g} s"
            raise Unreachable(text) from None
        except OSError as error:
            raise Unreachable(f"{self} cannot be reached: {_reason(error)}") from None
        finally:
            self._connecting -= 1
        return line

    async def _reached(self) -> socket.socket:
        """A socket to one of the addresses, tried one after the other. Raises OSError and
        TimeoutError."""
        host, port = self._address
        found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for left, (family, kind, protocol, _, address) in enumerate(found, 1 - len(found)):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                for option in tcp.OPTIONS:
                    sock.setsockopt(*option)
                async with asyncio.timeout(ADDRESS_S if left else None):
                    await self._loop.sock_connect(sock, address)
            except asyncio.CancelledError:
                sock.close()
                raise
            except OSError:  # a timeout is one
                sock.close()
                if not left:
                    raise
            else:
                return sock
        raise OSError("its name has no address")

    def _close_idle(self) -> None:
        now, idle_s = self._loop.time(), self._limits.idle_s
        while self._idle and self._idle[0].idle_since + idle_s <= now:
            self._idle.pop(0).abort()
        self._sweep = None
        if self._idle:
            at = self._idle[0].idle_since + idle_s
            self._sweep = self._loop.call_at(at, self._close_idle)


def _reason(error: OSError) -> str:
    """The system's words for it; those of the loop hold the address instead."""
    number = error.errno or 0
    return os.strerror(number) if number > 0 else tcp.words(error)
