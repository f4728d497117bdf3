"""HTTP client of the bridge: its connections to one gateway, and the request on each of them.

Owns: opening, reusing and closing connections and their number, the header with the client's
folder, whether a failed request may have been processed, back-pressure towards the gateway, how
long an answer may take. Never: the form of HTTP (`http_requests`), requests that are redirected and
URLs with TLS (`http.fetch`), retries.
"""

import asyncio
import os
import re
import resource
import select
import socket
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, cast
from urllib.parse import quote

from metamcp_supervisor.bridge.http_requests import (
    HeaderUnfit,
    HttpAnswer,
    HttpAnswerReader,
    MalformedAnswer,
    request,
)
from metamcp_worker.http import tcp
from metamcp_worker.http.fetch import (
    ConnectionBroken,
    FetchLimits,
    IncomingResponse,
    Origin,
    Response,
    Unreachable,
)
from metamcp_worker.ipc.errors import MetaMCPError

AHEAD_BYTES = 64 * 1024
"""Bytes of an answer that wait for the caller; above them the connection is not read."""

_REDIRECTS = frozenset({301, 302, 307, 308})

Then = Callable[["GatewayReply | MetaMCPError"], None]
"""Callback that is called once: with the head of an answer, or with Unreachable or Broken. The
callback does not raise."""


class Redirected(Unreachable):
    """Raised if the gateway redirects the request to another address; nothing was processed."""


class ConnectionOwner(Protocol):
    """Owner of connections. `str` of the owner is its name in sentences."""

    def on_connection_made(self, line: "GatewayConnection") -> None: ...

    def rest(self, line: "GatewayConnection") -> None:
        """Keep the connection for another request, or close it."""

    def on_connection_lost(self, line: "GatewayConnection") -> None:
        """Forget the connection; may be called more than once for it."""


class GatewayReply(IncomingResponse):
    """Answer to one request, from the moment the request is sent."""

    def __init__(self, line: "GatewayConnection", answer: HttpAnswer) -> None:
        self.answer = answer
        self._line: GatewayConnection | None = line
        self._origin = str(line.owner)
        self._failure: ConnectionBroken | None = None
        self._more: asyncio.Future[None] | None = None

    @property
    def status(self) -> int:
        return self.answer.status

    @property
    def whole(self) -> bool:
        """Whether all of the body has come."""
        return self.answer.whole

    @property
    def origin(self) -> str:
        return self._origin

    def header(self, name: str) -> str:
        return self.answer.header(name)

    async def piece(self, *, wait_s: float | None) -> bytes:
        while not self.answer.held:
            if self._failure is not None:
                raise self._failure
            if self.answer.whole:
                return b""
            self._more = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(wait_s):
                    await self._more
            except TimeoutError:
                raise ConnectionBroken(f"{self._origin} sent nothing for {wait_s:g} s") from None
        data = self.answer.take()
        if self._line is not None:
            self._line.resume_reading()
        return data

    def cancel(self) -> None:
        """Give up the answer. Before its end this closes the connection, so that the gateway learns
        of it, and `then` is not called any more."""
        line, self._line = self._line, None
        if line is not None:
            line.abort()

    async def close(self) -> None:
        self.cancel()

    # What its connection calls

    def came(self) -> None:
        more, self._more = self._more, None
        if more is not None and not more.done():
            more.set_result(None)

    def on_end(self, failure: ConnectionBroken | None) -> None:
        """Let go of the connection, which is free for another request or gone."""
        self._line = None
        self._failure = failure
        self.came()


class GatewayConnection(asyncio.Protocol):
    """Connection to a gateway, with at most one request under way."""

    _transport: asyncio.Transport

    def __init__(self, owner: ConnectionOwner) -> None:
        self.owner = owner
        self.idle_since = 0.0
        self._reader = HttpAnswerReader()
        self._readable = select.poll()
        self._reply: GatewayReply | None = None
        self._then: Then | None = None
        self._written: Callable[[], None] | None = None
        self._sent = False  # whether the kernel has all of the request
        self._paused = False
        self._late: asyncio.TimerHandle | None = None

    @property
    def stale(self) -> bool:
        """Whether the gateway has closed the connection, perhaps before the loop has looked."""
        return self._transport.is_closing() or bool(self._readable.poll(0))

    def send(
        self, message: bytes, answer_s: float, then: Then, written: Callable[[], None] | None
    ) -> GatewayReply:
        reply = self._reply = GatewayReply(self, self._reader.expect())
        self._then = then
        self._written = written
        self._sent = False
        self._late = asyncio.get_running_loop().call_later(answer_s, self._too_late, answer_s)
        self._transport.write(message)
        if not self._transport.get_write_buffer_size():
            self.resume_writing()
        return reply

    def resume_reading(self) -> None:
        """Read on, because the caller has taken the part that was there."""
        if self._paused:
            self._paused = False
            self._transport.resume_reading()

    def abort(self) -> None:
        """Close the connection without calling the caller back."""
        self._forget()
        self._transport.abort()

    def drop(self) -> None:
        """Close the connection; the request under way breaks."""
        self._fail(f"the connection to {self.owner} was closed")

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's, so no isinstance here.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)  # then it says when all is written
        self._readable.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        self.owner.on_connection_made(self)

    def resume_writing(self) -> None:
        written, self._written = self._written, None
        self._sent = True
        if written is not None:
            written()

    def eof_received(self) -> None:
        if not self._sent:
            self._transport.abort()  # else the rest would be sent, and the request be whole

    def data_received(self, data: bytes) -> None:
        reply = self._reply
        if reply is None:
            self.abort()
            return
        try:
            self._reader.feed(data)
        except MalformedAnswer as error:
            self._fail(str(error))
            return
        answer = reply.answer
        if answer.begun:
            self._deliver_head(reply)
        if answer.whole:  # after its head: an owner with enough connections closes this one
            self._on_reply_end(reply)
        elif answer.held_bytes > AHEAD_BYTES and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        reply.came()

    def connection_lost(self, exc: Exception | None) -> None:
        reply = self._reply
        try:
            self._reader.on_eof()
        except MalformedAnswer as error:
            self._fail(tcp.words(exc) if exc else str(error))
        else:
            if reply is not None:
                self._on_reply_end(reply)
        self._forget()

    # The request under way

    def _deliver_head(self, reply: GatewayReply) -> None:
        """Call back with the head of the answer, once."""
        then, self._then = self._then, None
        if self._late is not None:
            self._late.cancel()
            self._late = None
        if then is None:
            return
        coding = reply.header("content-encoding").lower()
        if reply.status in _REDIRECTS and reply.header("location"):
            reply.cancel()
            then(Redirected(f"{self.owner} redirects"))
        elif coding not in {"", "identity"}:
            reply.cancel()
            problem = "it compresses its answer, which it was not asked to"
            then(ConnectionBroken(f"the connection to {self.owner} broke: {problem}"))
        else:
            then(reply)

    def _on_reply_end(self, reply: GatewayReply) -> None:
        self._reply = None
        reply.on_end(None)
        if self._reader.reusable and self._sent and not self._transport.is_closing():
            self.owner.rest(self)
        else:
            self._transport.abort()

    def _fail(self, reason: str) -> None:
        """Close the connection; the request under way gets no answer, or only a part of it."""
        reply, then, sent = self._reply, self._then, self._sent
        self.abort()
        if reply is None:
            return
        if then is None:
            problem = f"the connection to {self.owner} broke in the middle of an answer"
            reply.on_end(ConnectionBroken(f"{problem}: {reason}"))
        elif sent:
            then(ConnectionBroken(f"the connection to {self.owner} broke: {reason}"))
        else:
            then(Unreachable(f"the connection to {self.owner} broke before it had all: {reason}"))

    def _too_late(self, answer_s: float) -> None:
        then = self._then
        self.abort()
        if then is not None:
            then(ConnectionBroken(f"{self.owner} gave no answer in {answer_s:g} s"))

    def _forget(self) -> None:
        self._reply = self._then = self._written = None
        if self._late is not None:
            self._late.cancel()
            self._late = None
        self.owner.on_connection_lost(self)


IDLE_CONNECTIONS_MAX = 64
"""Maximum idle connections, for the calls that a busy client has at once; further connections are
closed after their answer."""
ADDRESS_S = 2.0
"""Seconds for one address of a host name to accept a connection, while other addresses are left."""

LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]"})
"""Hosts of a gateway on this machine, which has the same folders."""
DIRECTORY = "Metamcp-Directory"
"""Header with the folder that the client works in, percent-encoded."""
DESCRIPTORS = 4096
"""Open files that the bridge asks the system for; more than it has connections."""

_PLAIN = re.compile(
    r"http://(?P<host>[a-z0-9.-]+|\[[0-9a-f:.]+\])(?::(?P<port>[1-9]\d{0,4}))?"
    r"(?P<target>/[A-Za-z0-9\-._~:/?@!$&'()*+,;=%]*)?"
)
"""URLs that `PlainHttpClient` can use as they are."""


class Trust(NamedTuple):
    """Credential for the gateway and trust in it. `key`: API key, sent with every request, or
    empty; `ca`: file of the certificates to trust, empty for those of the system."""

    key: str = ""
    ca: str = ""


def build_client(
    url: str,
    limits: FetchLimits | None = None,
    directory: str = "",
    trust: Trust = Trust(),  # noqa: B008 - frozen
) -> "PlainHttpClient | Origin":
    """Return the HTTP client for the gateway at `url`. `directory`: folder that the bridge's client
    works in; each request to a gateway on this machine has a header with it. Raises Unreachable for
    an invalid URL, Untrusted for a file of `trust` without certificates."""
    limits = limits or FetchLimits()
    match = _PLAIN.fullmatch(url)
    here = match is not None and match["host"] in LOOPBACK
    headers = {DIRECTORY: quote(os.fsencode(directory))} if here and directory else {}
    if trust.key:
        headers["Authorization"] = f"Bearer {trust.key}"
    origin = Origin(url, limits=limits, headers=headers, ca_file=trust.ca or None)
    return origin if match is None else PlainHttpClient(match, origin, limits, headers)


def allow() -> None:
    """Raise this process's limit of open files towards DESCRIPTORS, as far as it may, so that every
    request at once can have a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))


class PlainHttpClient:
    """HTTP client of one origin, used as `fetch.Origin` is. `match`: match of the URL; `origin`:
    client that takes over if the gateway redirects; `headers`: headers of every request."""

    def __init__(
        self, match: re.Match[str], origin: Origin, limits: FetchLimits, headers: Mapping[str, str]
    ) -> None:
        host, port, target = match.group("host", "port", "target")
        self._limits = limits
        self._told = headers
        self._idle: list[GatewayConnection] = []  # the newest one last
        self._open: set[GatewayConnection] = set()
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
    ) -> GatewayReply | None:
        """Write a request now if a connection is free; otherwise do nothing and return None. `then`
        is called when the head of the answer is there, after this has returned. `written`: called
        as in `send`. Raises Unreachable."""
        if not self._idle or self._elsewhere:
            return None
        message = self._build_request(verb, headers, body)
        while self._idle:
            line = self._idle.pop()
            if not line.stale:
                return line.send(message, answer_s, then, written)
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
    ) -> GatewayReply | Response:
        """Send one request, and return when the head of the answer is there, whatever its status.
        `answer_s`: seconds for that. `written`: called when the body is on its way. Raises
        Unreachable and Broken."""
        if not self._elsewhere:
            try:
                return await self._send(method, headers, body, answer_s, written)
            except Redirected:
                self._elsewhere = True
        return await self._origin.send(method, headers, body, answer_s=answer_s, written=written)

    async def close(self) -> None:
        """Close all connections; answers that are still being read break."""
        for line in list(self._open):
            line.drop()
        if self._sweep is not None:
            self._sweep.cancel()
        await self._origin.close()

    # What connections call

    def on_connection_made(self, line: GatewayConnection) -> None:
        self._open.add(line)

    def on_connection_lost(self, line: GatewayConnection) -> None:
        self._open.discard(line)
        if line in self._idle:
            self._idle.remove(line)

    def rest(self, line: GatewayConnection) -> None:
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
    ) -> GatewayReply:
        head: asyncio.Future[GatewayReply | MetaMCPError] = self._loop.create_future()

        def on_reply(got: GatewayReply | MetaMCPError) -> None:
            if not head.done():
                head.set_result(got)

        reply = self.at_once(verb, headers, body, answer_s=answer_s, then=on_reply, written=written)
        if reply is None:
            message = self._build_request(verb, headers, body)
            line = await self._connect()
            if line.stale:
                line.abort()
                raise Unreachable(f"{self} closes new connections at once")
            reply = line.send(message, answer_s, on_reply, written)
        try:
            got = await head
        except asyncio.CancelledError:
            reply.cancel()
            raise
        if isinstance(got, MetaMCPError):
            raise got
        return got

    def _build_request(self, verb: str, headers: Mapping[str, str | bytes], body: bytes) -> bytes:
        try:
            return request(verb, self._target, self._host, {**headers, **self._told}, body)
        except HeaderUnfit as error:
            raise Unreachable(f"{self} cannot be asked: {error}") from None

    async def _connect(self) -> GatewayConnection:
        """Open a new connection. Raises Unreachable."""
        active = len(self._open) + self._connecting - len(self._idle)
        if active >= self._limits.requests_max:
            raise Unreachable(f"{self} already has {active} requests to answer at once")
        self._connecting += 1
        try:
            async with asyncio.timeout(self._limits.connect_s):
                sock = await self._connect_socket()
            _, line = await self._loop.create_connection(lambda: GatewayConnection(self), sock=sock)
        except TimeoutError:
            text = f"{self} could not be reached in {self._limits.connect_s:g} s"
            raise Unreachable(text) from None
        except OSError as error:
            raise Unreachable(f"{self} cannot be reached: {_reason(error)}") from None
        finally:
            self._connecting -= 1
        return line

    async def _connect_socket(self) -> socket.socket:
        """Return a socket connected to one of the addresses, which are tried one after the other.
        Raises OSError and TimeoutError."""
        host, port = self._address
        addresses = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        for from_last, (family, kind, protocol, _, address) in enumerate(
            addresses, 1 - len(addresses)
        ):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setblocking(False)
                for option in tcp.OPTIONS:
                    sock.setsockopt(*option)
                async with asyncio.timeout(ADDRESS_S if from_last else None):
                    await self._loop.sock_connect(sock, address)
            except asyncio.CancelledError:
                sock.close()
                raise
            except OSError:  # a timeout is one
                sock.close()
                if not from_last:
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
    """Return the system's words for an error; the loop's words have the address instead."""
    number = error.errno or 0
    return os.strerror(number) if number > 0 else tcp.words(error)
