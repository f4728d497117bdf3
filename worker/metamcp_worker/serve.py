"""HTTP/1.1 on listening sockets: connections, their limits and their end, for any ASGI application.

Owns: how much a client may send before its request is whole and how slowly, what happens to a
connection that breaks HTTP, the news that a client went away, the graceful end. Never: a path, a
header's meaning, MCP.

The server is uvicorn's httptools protocol with the limits that it lacks. One connection walks
through three stages:

    IDLE --first byte--> HEAD --blank line--> BODY --last byte--> IDLE

IDLE may last `idle_s`. HEAD may last `head_s`. BODY must bring `BODY_RATE` once `body_grace_s` have
passed. Time is looked at only where a request did not arrive whole in one read, and once per
`idle_s`, so a client that behaves costs no timer.
"""

import asyncio
import logging
import resource
import socket
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import httptools
from msgspec import Struct
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from metamcp_worker import asgi, bounds
from metamcp_worker.accepting import Acceptor
from metamcp_worker.asgi import CONNECTION, TARGET, App, Scope
from metamcp_worker.contained import contained
from metamcp_worker.errors import Code

_IDLE, _HEAD, _BODY = range(3)


class Limits(Struct, frozen=True, kw_only=True):
    """Seconds and counts that an operator or a test may want otherwise."""

    head_s: float = 10.0
    body_grace_s: float = 10.0
    idle_s: float = 60.0
    connections_max: int = 10_000


class Connection(HttpToolsProtocol):
    """One client connection, the application's `asgi.Peer`."""

    hops = 0
    url: bytes
    _watch: asyncio.TimerHandle
    _running: RequestResponseCycle | None = None

    def __init__(self, server: "HttpServer", config: Config) -> None:
        super().__init__(config, server.state, {}, asyncio.get_running_loop())
        self.on_lost: Callable[[], None] | None = None
        self._server = server
        self._limits = server.limits
        self._stage = _IDLE
        self._heard = 0.0
        self._deaf = False  # nothing that still comes in counts any more
        self._refusal: tuple[int, str, str] | None = None
        self._header_bytes = 0  # of whole headers
        self._trickled = 0  # of a head that comes in pieces
        self._body_bytes = 0
        self._body_since = 0.0
        self._discarded = 0
        self._unread = 0, 0  # at the last look: bytes that waited for the client, answers so far
        self._begun = 0
        self._answered = 0
        self._slow: asyncio.TimerHandle | None = None

    def abort(self) -> None:
        self.transport.abort()

    def answer(self, head: bytes, *body: bytes) -> bool:
        cycle = self._running
        assert cycle is not None
        if self.flow.write_paused or cycle.response_started:
            return False
        if not cycle.disconnected:
            cycle.response_started = cycle.response_complete = True
            self.transport.writelines(asgi.whole(head, body, last=not cycle.keep_alive))
            if not cycle.keep_alive:
                self.transport.close()
            self.on_response_complete()
        return True

    @property
    def _whole(self) -> bool:
        """Is all that came part of a whole request, and does more count?"""
        return self._stage == _IDLE and not self._deaf

    @property
    def _unanswered(self) -> int:
        """Requests that have begun."""
        return self._begun - self._answered

    # What the event loop calls

    def connection_made(  # type: ignore[override] # uvicorn narrows the transport as well
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(transport)
        self._heard = self.loop.time()
        self._watch = self.loop.call_later(self._limits.idle_s, self._look)
        if self._server.full(transport.get_extra_info("socket").fileno()):
            sentence = "This gateway has as many connections as it may have; try again later."
            self._refuse(503, sentence, "connections")
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._running is not None:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)
        self._stop_slow()
        self._watch.cancel()
        on_lost, self.on_lost = self.on_lost, None
        if on_lost is not None:
            on_lost()
        self._server.gone()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            self._discard(len(data))
            return
        assert self.parser is not None
        whole_head = self._stage == _HEAD
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # Nobody here agreed to another protocol: this request is answered, nothing after it.
            self._deaf = True
            self.cycle.keep_alive = False
        except httptools.HttpParserError as error:
            self._refuse(*(self._refusal or (400, f"Malformed HTTP: {error}.", "framing")))
            return
        self._heard = self.loop.time()
        if self._stage != _IDLE:
            self._pace(len(data) if whole_head and self._stage == _HEAD else 0)

    # What the parser calls

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._stage = _HEAD
        self._header_bytes = self._trickled = 0

    def on_url(self, url: bytes) -> None:
        self.url += url
        if len(self.url) > bounds.URL_BYTES_MAX:
            self._stop(414, f"The URL has more than {bounds.URL_BYTES_MAX} bytes.", "url")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > bounds.HEAD_BYTES_MAX:
            self._stop(431, f"The headers have more than {bounds.HEAD_BYTES_MAX} bytes.", "headers")
        if self._stage == _BODY:
            return  # a trailer: it comes too late to be checked, so it counts for nothing
        headers = self.headers
        headers.append((name.lower(), value))
        if len(headers) > bounds.HEADERS_MAX:
            self._stop(431, f"There are more than {bounds.HEADERS_MAX} headers.", "headers")
        if len(name) == 6 and name.lower() == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True

    def on_headers_complete(self) -> None:
        assert self.parser is not None
        self._stop_slow()
        version = self.parser.get_http_version()
        if version not in {"1.1", "1.0"}:
            self._stop(505, "Only HTTP/1.1 is served here.", "version")
        target = self.url
        if not target.startswith(b"/") and not asgi.is_absolute(target):
            self._stop(400, "The request target must be a path.", "target")
        if not target.isascii():
            self._stop(400, "The request target must be ASCII.", "target")
        self._stage = _BODY
        self._begun += 1
        self._body_bytes = 0
        cast(Scope, self.scope).update({CONNECTION: self, TARGET: target})
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self.cycle.response_complete:
            self._discard(len(body))
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()  # else nobody would see that the client goes away
        self._stage = _IDLE
        self._discarded = 0
        self._stop_slow()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def on_response_complete(self) -> None:
        self._answered += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        self._heard = self.loop.time()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    # Limits

    def _stop(self, status: int, sentence: str, reason: str) -> None:
        """Leave the parser: `data_received` finds the refusal."""
        self._refusal = (status, sentence, reason)
        raise ValueError(sentence)

    def _refuse(self, status: int, sentence: str, reason: str) -> None:
        """Answer what cannot be a request, then close as soon as the client stops sending."""
        if self._deaf:
            return
        self._deaf = True
        self._stop_slow()
        self._server.refused(reason)
        open_requests = self._unanswered
        if self._stage == _BODY:
            if open_requests != 1 or self.cycle.response_started:
                self.transport.close()
                return
            self.cycle.disconnected = True  # so that the application stops waiting for the rest
            self.cycle.message_event.set()
        elif open_requests:
            self.cycle.keep_alive = False  # the requests before this one are still answered
            return
        self.transport.write(
            asgi.last_words(status, asgi.error_body(Code.INVALID_REQUEST, sentence))
        )
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._slow = self.loop.call_later(bounds.LINGER_S, self.transport.abort)
        else:
            self.transport.close()

    def _discard(self, size: int) -> None:
        self._discarded += size
        if self._discarded > bounds.LINGER_BYTES_MAX:
            self.transport.abort()

    def _pace(self, trickled: int) -> None:
        """A request that has not arrived whole: bound its head, and the time for the rest."""
        if self._stage == _HEAD:
            self._trickled += trickled
            if self._trickled > bounds.HEAD_BYTES_MAX + bounds.URL_BYTES_MAX:
                sentence = f"The headers have more than {bounds.HEAD_BYTES_MAX} bytes."
                self._refuse(431, sentence, "headers")
            elif self._slow is None:
                self._slow = self.loop.call_later(self._limits.head_s, self._head_late)
        elif self._slow is None:
            self._body_since = self._heard
            self._slow = self.loop.call_later(self._limits.body_grace_s, self._body_late)

    def _head_late(self) -> None:
        limit = f"{self._limits.head_s:g} seconds"
        self._refuse(408, f"The head of the request did not arrive within {limit}.", "slow_head")

    def _body_late(self) -> None:
        if self.flow.read_paused:  # not the client's fault: we do not read
            self._body_since += bounds.BODY_CHECK_S
        else:
            counted = self.loop.time() - self._body_since - self._limits.body_grace_s
            if self._body_bytes <= counted * bounds.BODY_RATE:
                sentence = f"The body came with less than {bounds.BODY_RATE} bytes per second."
                self._refuse(408, sentence, "slow_body")
                return
        self._slow = self.loop.call_later(bounds.BODY_CHECK_S, self._body_late)

    def _look(self) -> None:
        """Once per `idle_s`: end what is idle, and what does not read its answers."""
        wait = self._limits.idle_s
        unread, before = self.transport.get_write_buffer_size(), self._unread
        self._unread = unread, self._answered
        if 0 < before[0] <= unread and before[1] == self._answered:
            self.transport.abort()
            return
        if not unread and self._begun == self._answered:
            wait = self._heard + self._limits.idle_s - self.loop.time()
            if wait <= 0:
                self.transport.close()
                return
        self._watch = self.loop.call_later(wait, self._look)

    def _stop_slow(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None


class HttpServer:
    """Serves one application on listening sockets. `on_refused` gets a word for every request that
    is turned away before the application sees it. `kind`, `config`: of its connections, the latter
    once it is started; `draining`: it accepts no more; `ended`: nothing is open, or time is up."""

    def __init__(
        self,
        app: App,
        *,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        on_refused: Callable[[str], None] | None = None,
        kind: type[Connection] = Connection,
    ) -> None:
        self.limits = limits
        self.kind = kind
        self._fd_max = sys.maxsize
        self._app = app
        self._on_refused = on_refused
        self.state = ServerState()
        self.config: Config | None = None
        self.draining = False
        self.ended = False
        self._acceptors: list[Acceptor] = []
        self._quiet: asyncio.Future[None] | None = None

    @property
    def connections(self) -> int:
        return len(self.state.connections)

    def full(self, fd: int) -> bool:
        """Is the newest connection, with this descriptor, one too many? A new descriptor has the
        lowest number that is free, so it tells how many there are, pipes and all."""
        return self.connections > self.limits.connections_max or fd >= self._fd_max

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Accept on these sockets; the server owns them now. They may be shared with others."""
        config = self.config = Config(
            contained(self._app),
            interface="asgi3", ws="none", lifespan="off", proxy_headers=False,
            server_header=False, date_header=False, access_log=False, log_config=None,
            log_level=logging.WARNING,
        )  # fmt: skip
        config.load()
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files != resource.RLIM_INFINITY:
            self._fd_max = max(files - bounds.DESCRIPTORS_KEPT, files // 2)
        for sock in sockets:
            make = partial(self.kind, self, config)
            self._acceptors.append(Acceptor(sock, make))

    async def drain(self, grace_s: float) -> None:
        """Accept no more, let open requests finish for `grace_s`, then cut what is left.

        The listening sockets are closed here, never shut down: they live on in other processes.
        """
        self.draining = True
        while self._acceptors:
            await self._acceptors.pop().close()
        for connection in list(self.state.connections):
            connection.shutdown()
        if not await self._emptied(grace_s):
            for connection in list(self.state.connections):
                connection.transport.abort()
            await self._emptied(bounds.END_S)
        tasks = list(self.state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=bounds.END_S)

    def refused(self, reason: str) -> None:
        if self._on_refused is not None:
            self._on_refused(reason)

    def gone(self) -> None:
        """A connection has ended."""
        if self._quiet is not None and self._empty():
            self.ended = True  # at this very moment: nothing can come in between
            if not self._quiet.done():
                self._quiet.set_result(None)

    def _empty(self) -> bool:
        return not self.state.connections

    async def _emptied(self, wait_s: float) -> bool:
        self._quiet = asyncio.get_running_loop().create_future()
        self.gone()
        done, _ = await asyncio.wait([self._quiet], timeout=wait_s)
        self.ended = True
        return bool(done)
