"""HTTP/1.1 connection of a client.

Owns: how much a client may send before its request is whole, heads that come again, refusing a
connection that breaks HTTP, the order of answers, noticing that a client went away, how the
connection leaves for another process and begins here with the bytes that another process has read.
Never: listening sockets (`serve`), the answers themselves (the application), the meaning of a
header, how slowly a request may come (`client_limits`), which process is the right one for a
request.

A connection walks through three stages:

    IDLE --first byte--> HEAD --blank line--> BODY --last byte--> IDLE

IDLE may last `idle_s`. HEAD may last `head_s`. BODY must bring `BODY_RATE` once `body_grace_s` have
passed. Time is looked at only where a request did not arrive whole in one read, and once per
`idle_s`, so a client that behaves costs no timer.

Most requests come whole in one read, behind the head of the request before them; only the length of
the body, and perhaps the id of a trace, differ. The connection does not parse such a head again
(`KnownHead`).
"""

import asyncio
import os
import re
import sys
from collections import deque
from collections.abc import Callable
from hmac import compare_digest
from typing import Final, Protocol, cast

import httptools

from metamcp_worker.http import client_limits, request_head
from metamcp_worker.http.client_limits import ClientLimits, SenderTimer
from metamcp_worker.http.request_head import Head, MovedConnection
from metamcp_worker.http.requests import Handler, HttpRequest, whole
from metamcp_worker.ipc.errors import Code, MetaMCPError

_IDLE: Final = 0
_HEAD: Final = 1
_BODY: Final = 2

KNOWN_BYTES_MAX = 4096
"""Maximum bytes of a head that a connection remembers."""
LENGTH_DIGITS_MAX: Final = 10
"""Maximum digits of Content-Length in a head that is recognized."""

#: A head with one of these says more than a length of the body.
_UNLIKE = frozenset({b"transfer-encoding", b"upgrade"})
#: Headers with a credential.
_SECRET = frozenset({b"authorization", b"cookie", b"proxy-authorization"})
_TRACEPARENT = b"traceparent"
_TRACE = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACED = re.compile(rb"\r\ntraceparent: *(%b)\r\n" % _TRACE.pattern, re.IGNORECASE)
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]{1,10})\r\n", re.IGNORECASE)

AGAIN_S = 0.05
"""Seconds until the next try of a connection that could not move to another process, because its
client reads slowly or too many connections are on their way."""


class KnownHead:
    """Head that a connection recognizes by its bytes, so that it is not parsed again. `before`,
    `behind`: its bytes on both sides of the digits of Content-Length; `secret`: the head has a
    credential, so it is compared in constant time. `trace`: value of the header `traceparent`, in
    which each request may have its own, empty without one; `trace_at`: where it stands in `before`,
    or below 0, where it stands in `behind`, counted from its end."""

    __slots__ = ("before", "behind", "head", "secret", "trace", "trace_at")

    def __init__(
        self,
        head: Head,
        before: bytes,
        behind: bytes,
        secret: bool,
        trace: bytes = b"",
        trace_at: int = 0,
    ) -> None:
        self.head = head
        self.before = before
        self.behind = behind
        self.secret = secret
        self.trace = trace
        self.trace_at = trace_at

    def request(self, read: bytes) -> tuple[Head, bytes] | None:
        """Return head and body of the request if these bytes are one whole request with this head,
        else None."""
        before, behind = self.before, self.behind
        first = len(before)
        last = read.find(b"\r", first, first + LENGTH_DIGITS_MAX + 1)
        if last < 0:  # compiled, a slice of bytes that ends before it begins is an error
            return None
        start = last + len(behind)
        digits = read[first:last]
        if not digits.isdigit() or int(digits) != len(read) - start:
            return None
        head, compared = self.head, read
        if self.trace:
            at = self.trace_at if self.trace_at >= 0 else start + self.trace_at
            own = read[at : at + len(self.trace)]
            if own != self.trace:
                if _TRACE.fullmatch(own) is None:
                    return None
                head = _with_trace(head, own)
                compared = b"%b%b%b" % (read[:at], self.trace, read[at + len(own) : start])
        if self.secret:
            same = compare_digest(compared[:first] + compared[last:start], before + behind)
        else:
            same = compared[:first] == before and compared[last:start] == behind
        return (head, read[start:]) if same else None


def known_head(read: bytes, head: Head, size: int) -> KnownHead | None:
    """Return how to recognize this head when it comes again; None if it says more than a length.
    `read`: the bytes of one request that came alone; `size`: bytes of its body."""
    start = read.find(b"\r\n\r\n") + 4
    # Only if this is the head that stands before the body, whatever the parser lets pass.
    if start > KNOWN_BYTES_MAX or len(read) - start != size:
        return None
    if head.version != "1.1" or head.awaits or not head.keeps_alive:
        return None
    names = [name for name, _ in head.headers]
    secret = not _SECRET.isdisjoint(names)
    length_match = _LENGTH.search(read, 0, start)
    if length_match is None or names.count(b"content-length") != 1 or not _UNLIKE.isdisjoint(names):
        return None
    first, last = length_match.span(1)
    before, behind = read[:first], read[last:start]
    traced = _TRACED.search(read, 0, start) if names.count(_TRACEPARENT) == 1 else None
    if traced is None:
        return KnownHead(head, before, behind, secret)
    at = traced.start(1)
    return KnownHead(head, before, behind, secret, traced[1], at if at < first else at - start)


def _with_trace(head: Head, trace: bytes) -> Head:
    """Return the same head with another value of `traceparent`."""
    headers = [(name, trace if name == _TRACEPARENT else value) for name, value in head.headers]
    return Head(
        head.method, head.target, headers, head.version, head.keeps_alive, head.awaits,
        head.verdict, head.entry, head.envelope,
    )  # fmt: skip


class ConnectionBusy(MetaMCPError):
    """Raised if a connection cannot be sent to another process at this moment."""


class ConnectionServer(Protocol):
    """Server of a connection. The members are described at `HttpServer`."""

    app: Handler
    request: type[HttpRequest]
    limits: ClientLimits
    open: "set[Connection]"
    tasks: set[asyncio.Task[None]]
    draining: bool
    away: Callable[[Callable[[], MovedConnection | None]], None] | None

    def full(self, fd: int) -> tuple[str, str] | None: ...

    def report_refusal(self, reason: str) -> None: ...

    def on_connection_end(self) -> None: ...


class Connection(asyncio.Protocol):
    """Connection of a client. Also the `requests.RequestConnection` of its requests, and a
    `client_limits.Sender`. `known`: the head of its last request, if it may come again."""

    transport: asyncio.Transport
    _watch: asyncio.TimerHandle
    __deletable__ = ("_parser", "_patience")

    def __init__(self, server: ConnectionServer, moved: MovedConnection | None = None) -> None:
        self.loop = asyncio.get_running_loop()
        self.hops = 0 if moved is None else moved.hops
        self.tasks = server.tasks
        self.address = ""
        self.read_paused = False
        self.body_bytes = 0
        self._server = server
        self._left = moved
        self._limits = server.limits
        self._patience = SenderTimer(server.limits, self)
        self._parser = httptools.HttpRequestParser(self)
        # In one read with a request that closes the connection; `on_message_complete` for the rest.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._queue: deque[HttpRequest] = deque()  # whose turn has not come
        self._running: HttpRequest | None = None
        self._newest: HttpRequest | None = None
        self._starting = False
        self._write_paused = False
        self._may_write: asyncio.Future[None] | None = None
        self._stage = _IDLE
        self._heard = 0.0
        self._deaf = False  # nothing that still comes in counts any more
        self._refusal: tuple[int, str, str] | None = None
        self._url = b""
        self.known: KnownHead | None = None
        self._lines = b""  # of a head that has not ended, and what came with it
        self._headers: list[tuple[bytes, bytes]] = []
        self._header_bytes = 0  # of whole headers
        self._trickled = 0  # of a head that comes in pieces
        self._discarded = 0
        self._discarded_max = client_limits.LINGER_BYTES_MAX
        # At the last look: bytes that waited for the client, answers, bytes in pieces of the next.
        self._unread = 0, 0, 0
        self._begun = 0
        self._answered = 0

    @property
    def dispensable(self) -> bool:
        """Whether no whole request waits for its answer here."""
        running = self._running
        return not self._queue and (running is None or not running.whole)

    @property
    def heard_at(self) -> float:
        """When the client sent something last, in seconds of the loop's clock."""
        return self._heard

    @property
    def _whole(self) -> bool:
        """Whether all bytes that came are of whole requests, and further bytes would count."""
        return self._stage == _IDLE and not self._deaf

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's, so no isinstance here.
        self.transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address = str(cast("tuple[object, ...]", peer)[0]) if isinstance(peer, tuple) else ""
        self._server.open.add(self)
        self._heard = self.loop.time()
        self._watch = self.loop.call_later(self._limits.idle_s, self._look)
        if full := self._server.full(transport.get_extra_info("socket").fileno()):
            reason, sentence = full
            self.refuse(503, sentence, reason)
            self.transport.close()
        if self._left is not None:
            self._arrive(self._left)
            self._left = None  # it may be large

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.open.discard(self)
        self._patience.stop()
        self._watch.cancel()
        self._queue.clear()
        self._wake()
        running, self._running = self._running, None
        if running is not None:
            running.was_lost()
        self._server.on_connection_end()
        # These refer to the connection as well, and the collector runs rarely.
        self._newest = None
        del self._parser, self._patience

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            self._discard(len(data))
            return
        self._heard = self.loop.time()
        head = self.known
        request = head.request(data) if head is not None and self._stage == _IDLE else None
        if request is None:
            self._parse(data)
        else:
            self._began(*request)
        self._advance()

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._wake()
        self._advance()

    # Incoming bytes

    def _parse(self, data: bytes) -> None:
        stage, begun = self._stage, self._begun
        self._lines = self._lines + data if stage == _HEAD else data
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The server does not change protocols: it answers this request and nothing after it.
            self._deaf = True
            self._last_one()
            return
        except httptools.HttpParserError as error:
            self.refuse(*(self._refusal or (400, f"Malformed HTTP: {error}.", "framing")))
            return
        if self._stage != _HEAD:
            self._lines = b""
        if self._stage != _IDLE:
            self._pace(len(data) if stage == self._stage == _HEAD else 0)
        elif stage == _IDLE and self._begun == begun + 1 and self._newest is not None:
            self.known = known_head(data, self._newest.head, self._newest.size)

    def _began(self, head: Head, body: bytes | None = None) -> None:
        """Put a request in the queue. `body`: all of it, if it came with the head."""
        self._begun += 1
        self._newest = request = self._server.request(self, head, body)
        self._queue.append(request)

    def _last_one(self) -> None:
        """Close the connection after the answer to the newest request."""
        if self._newest is not None:
            self._newest.keeps_alive = False

    # Called by the parser

    def on_message_begin(self) -> None:
        self._stage = _HEAD
        self._url = b""
        self._headers = []
        self._header_bytes = self._trickled = 0

    def on_url(self, url: bytes) -> None:
        self._url += url
        if len(self._url) > client_limits.URL_BYTES_MAX:
            self._stop(414, f"The URL has more than {client_limits.URL_BYTES_MAX} bytes.", "url")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > client_limits.HEAD_BYTES_MAX:
            self._stop(
                431, f"The headers have more than {client_limits.HEAD_BYTES_MAX} bytes.", "headers"
            )
        if self._stage == _BODY:
            return  # a trailer: it comes too late to be checked, so it counts for nothing
        self._headers.append((name.lower(), value))
        if len(self._headers) > client_limits.HEADERS_MAX:
            self._stop(431, f"There are more than {client_limits.HEADERS_MAX} headers.", "headers")

    def on_headers_complete(self) -> None:
        self._patience.stop()
        parser, target, headers = self._parser, self._url, self._headers
        version = parser.get_http_version()
        if version not in {"1.1", "1.0"} or not self._is_http():
            self._stop(505, "Only HTTP/1.1 is served here.", "version")
        codings = [value for name, value in headers if name == b"transfer-encoding"]
        if codings and [coding.lower() for coding in codings] != [b"chunked"]:
            self._stop(501, "The only transfer coding that is served here is chunked.", "coding")
        if not target.startswith(b"/") and not request_head.is_absolute(target):
            self._stop(400, "The request target must be a path.", "target")
        if not target.isascii():
            self._stop(400, "The request target must be ASCII.", "target")
        keeps_alive = version != "1.0" and parser.should_keep_alive()
        awaits = any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in headers
        )
        self._stage = _BODY
        self.body_bytes = 0
        self._began(
            Head(parser.get_method().decode(), target, headers, version, keeps_alive, awaits)
        )

    def _is_http(self) -> bool:
        """Whether the protocol is HTTP: the parser also accepts RTSP, and does not report it."""
        self._lines = self._lines.partition(b" %b " % self._url)[2]
        return self._lines.lstrip(b" ").startswith(b"HTTP/")

    def on_body(self, body: bytes) -> None:
        self.body_bytes += len(body)
        assert self._newest is not None
        if self._newest.complete:
            self._discard(len(body))
        else:
            self._newest.came(body)

    def on_message_complete(self) -> None:
        assert self._newest is not None
        self._newest.came_to_its_end()
        self._stage = _IDLE
        self._discarded = 0
        if not self._newest.keeps_alive:  # what comes behind it is the client's own affair
            self._deaf, self._discarded_max = True, sys.maxsize
        self._patience.stop()

    # Called by requests

    def on_answer_sent(self) -> None:
        self._answered += 1
        self._running = None
        self.hops = 0  # they were for this request
        if not self.transport.is_closing():
            self._heard = self.loop.time()
            if self._queue or self.read_paused:
                self._advance()
        if self._server.draining and self._server.away is not None:
            self.loop.call_soon(self._go)

    def throttle(self) -> None:
        """Read on, unless what was read has to wait."""
        newest = self._newest
        wait = bool(self._queue)
        if newest is not None and not newest.whole and not newest.wanted and not newest.complete:
            wait = wait or newest.size > client_limits.UNWANTED_BYTES_MAX
        wait = wait and not self._deaf
        if wait != self.read_paused and not self.transport.is_closing():
            self.read_paused = wait
            if wait:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()
            if self._stage == _HEAD:  # what is not read cannot come too late
                (self._patience.stop if wait else self._patience.head)()

    async def writable(self) -> None:
        if self._write_paused:
            self._may_write = self._may_write or self.loop.create_future()
            await self._may_write

    def last_words(self, head: bytes, body: bytes) -> None:
        self._discarded_max = sys.maxsize  # it may have much on its way, and there is little time
        self._close_slowly(head, body)

    # The order of requests

    def _advance(self) -> None:
        """Begin with the next request if its turn has come: all earlier answers are given, and the
        client reads them."""
        if self._starting:
            return
        self._starting = True
        queue = self._queue
        while queue and self._running is None and not self._write_paused:
            if self.transport.is_closing():
                break
            request = self._running = queue.popleft()
            request.run(self._server.app, request)
        self._starting = False
        if queue or self.read_paused or self._stage != _IDLE:  # else nothing has to wait
            self.throttle()

    def _wake(self) -> None:
        may_write, self._may_write = self._may_write, None
        if may_write is not None and not may_write.done():
            may_write.set_result(None)

    # The way to another process

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection speaks TLS; its state cannot move to another process."""
        return self.transport.get_extra_info("sslcontext") is not None

    def leave(self, request: HttpRequest, body: bytes) -> MovedConnection | None:
        if request.begun or request.lost or self.is_encrypted:
            return None
        read = [request_head.request(request.head, body)]
        read += [
            request_head.request(queued.head, queued.came_so_far)
            for queued in self._queue
            if queued.whole
        ]
        # A request that has come in part cannot be written again: it will not be answered.
        moved = self._let_go(b"".join(read), last=not self._whole)
        if moved is not None:
            request.lost = True
        return moved

    def shutdown(self) -> None:
        """Move or close the connection for a server that drains, after the answers under way."""
        if self._server.away is not None and not self.is_encrypted:
            self._go()
        elif self._begun > self._answered:
            self._last_one()
        else:
            self.transport.close()

    def _go(self) -> None:
        """Move to another process, if no request is under way here."""
        busy = self._begun > self._answered or not self._whole
        if busy or self.transport.is_closing() or self._server.away is None:
            return  # after the answer, or not at all
        try:
            if self.transport.get_write_buffer_size():
                raise ConnectionBusy("the client has not read its answer")
            self._server.away(lambda: self._let_go(b"", last=False))
        except ConnectionBusy:
            self.loop.call_later(AGAIN_S, self._go)

    def _let_go(self, read: bytes, *, last: bool) -> MovedConnection | None:
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            return None
        try:
            socket_fd = os.dup(self.transport.get_extra_info("socket").fileno())
        except OSError:
            return None
        self._deaf = True
        self.transport.abort()  # this end of it: the socket has another descriptor now
        return MovedConnection(socket_fd, read, last=last)

    def _arrive(self, moved: MovedConnection) -> None:
        """Take the bytes that another process has read of this connection."""
        if moved.read and not self._deaf:
            self._parse(moved.read)
        if moved.last and not self._deaf:
            self._deaf = True
            self._last_one()
        if self._server.draining:
            self.shutdown()
        self._advance()

    # Limits

    def _stop(self, status: int, sentence: str, reason: str) -> None:
        """Leave the parser by an exception; `_parse` finds the refusal."""
        self._refusal = (status, sentence, reason)
        raise ValueError(sentence)

    def refuse(self, status: int, sentence: str, reason: str) -> None:
        """Answer bytes that cannot be a request, then close as soon as the client stops sending."""
        if self._deaf:
            return
        self._deaf = True
        self._patience.stop()
        self._server.report_refusal(reason)
        broken = self._newest if self._stage == _BODY else None
        open_requests = self._begun - self._answered
        if broken in self._queue:  # it will not begin
            self._queue.pop()
            self._newest = self._queue[-1] if self._queue else self._running
            open_requests -= 1
        elif broken is not None and (broken is not self._running or broken.begun):
            self.transport.close()
            return
        elif broken is not None:
            broken.was_lost()  # so that the application stops waiting for the rest
            open_requests = 0
        if open_requests:
            self._last_one()  # the requests before this one are still answered
            return
        head = request_head.head(status, [request_head.JSON])
        self._close_slowly(head, request_head.error_body(Code.INVALID_REQUEST, sentence))

    def _close_slowly(self, head: bytes, body: bytes) -> None:
        self._deaf = True
        self.throttle()
        self.transport.write(b"".join(whole(head, (body,), last=True)))
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._patience.linger(self.transport.abort)
        else:
            self.transport.close()

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > self._discarded_max:
            self.transport.abort()

    def _pace(self, trickled: int) -> None:
        """Bound the head of a request that has not arrived whole, and the time for the rest."""
        if self._stage == _HEAD:
            self._trickled += trickled
            if self._trickled > client_limits.HEAD_BYTES_MAX + client_limits.URL_BYTES_MAX:
                sentence = f"The headers have more than {client_limits.HEAD_BYTES_MAX} bytes."
                self.refuse(431, sentence, "headers")
            else:
                self._patience.head()
        else:
            self._patience.body(self._heard)

    def _look(self) -> None:
        """Once per `idle_s`: end the connection if it is idle or does not read its answers."""
        wait = self._limits.idle_s
        unread, (before, answered, pieces) = self.transport.get_write_buffer_size(), self._unread
        sent = 0 if self._running is None else self._running.sent
        self._unread = unread, self._answered, sent
        if 0 < before <= unread - (sent - pieces) and answered == self._answered:
            self.transport.abort()
            return
        if not unread and self._begun == self._answered:
            wait = self._heard + self._limits.idle_s - self.loop.time()
            if wait <= 0:
                self.transport.close()
                return
        self._watch = self.loop.call_later(wait, self._look)
