"""Server-sent events: streams to clients, their limits, and news of changed lists.

Owns: `Stream` (one response that goes on), `Streams` (all of this front, by endpoint). Never: which
session or request a stream belongs to, the wording of messages.
"""

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Protocol

from msgspec import Struct

from metamcp_worker.access.use_limits import Owner
from metamcp_worker.front_calls.mcp_request import LIST_CHANGED
from metamcp_worker.front_clients.header_policy import RequestFacts, TrustedProxies
from metamcp_worker.http import request_head
from metamcp_worker.ipc import jsonrpc_bytes
from metamcp_worker.ipc.frames import BODY_BYTES_MAX

QUEUE_EVENTS_MAX = 1000
QUEUE_BYTES_MAX = 1024 * 1024
"""Maximum number and bytes of events that wait for a client that does not read; beyond that its
stream is cut, and the client may come back."""
ANSWERS_BYTES_MAX = 2 * BODY_BYTES_MAX + QUEUE_BYTES_MAX
"""Maximum bytes of answers that wait on a stream that goes on behind them, if another one waits
already."""
KEEPALIVE_S = 15.0
"""Seconds between two signs of life: less than proxies call idle."""
STREAMS_MAX = 10_000
"""Maximum number of standing streams of one front; as many as it may have connections."""
PEER_STREAMS_MAX = 128
"""Maximum number of standing streams from one address. Loopback has no limit of its own: all local
clients share it, and so do all clients behind a local reverse proxy."""

_HEAD = request_head.head(
    200,
    [
        (b"content-type", b"text/event-stream"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
    ],
)


def methods(kinds: Iterable[str]) -> list[str]:
    """Return the methods of the notifications about changes of these kinds of lists."""
    return sorted({LIST_CHANGED[kind] for kind in kinds})


class StreamOutlet(Protocol):
    """Request that is answered piece by piece, as in `requests.HttpRequest`."""

    def begin(self, head: bytes) -> None: ...

    def send(self, piece: bytes) -> Awaitable[None]: ...

    def end(self) -> None: ...

    def abort(self) -> None: ...


class Stream:
    """Response as a stream of events. The code that answers the request awaits `run`; all other
    code calls the other methods, which never wait. `farewell`: event that the stream ends with;
    `owed`: number of answers that are still to come on it."""

    def __init__(self, streams: "Streams", outlet: StreamOutlet, farewell: bytes = b"") -> None:
        self.farewell = farewell
        self.owed = 0
        self._leaving = False
        self._streams = streams
        self._outlet = outlet
        self._queue: list[bytes] = []
        self._waiting_events = 0
        self._waiting_bytes = 0
        self._queued_answers_bytes = 0
        self._waiting_answers_bytes = 0
        self._ended = False
        self._blocked = False
        self._turn: asyncio.Future[None] | None = None

    def put(self, event: bytes) -> None:
        """Queue one event; a client that does not read loses its stream instead. Events that come
        within one turn of the loop, before any could be sent, do not count against the client."""
        if self._ended:
            return
        full = self._waiting_bytes + len(event) > QUEUE_BYTES_MAX
        if self._blocked and (full or self._waiting_events >= QUEUE_EVENTS_MAX):
            self._cut()
        else:
            self._append(event)
        self._wake()

    @property
    def has_ended(self) -> bool:
        """Whether the stream takes no more events."""
        return self._ended

    def answer(self, event: bytes) -> None:
        """Queue an answer on a stream that goes on behind it. An answer may be large, so answers
        have a limit of their own."""
        if self._ended:
            return
        waiting = self._waiting_answers_bytes
        if waiting and waiting + len(event) > ANSWERS_BYTES_MAX:
            self._cut()
        else:
            self._append(event)
            self._waiting_bytes -= len(event)
            self._queued_answers_bytes += len(event)
            self._waiting_answers_bytes += len(event)
        self._wake()

    def close(self, event: bytes) -> None:
        """Queue the last event, however large it is."""
        self.farewell = event
        self.end()

    def announce(self, event: bytes) -> None:
        """Queue one event, unless the same event is in the queue already."""
        if event not in self._queue:
            self.put(event)

    def end(self) -> None:
        """End the stream behind the events that wait and its farewell, however large that is."""
        if not self._ended:
            self._ended = True
            if self.farewell:
                self._append(self.farewell)
            self._wake()

    def leave(self) -> None:
        """End the stream as soon as it owes no answer any more."""
        self._leaving = True
        if not self.owed:
            self.end()

    def paid(self) -> None:
        """Count off an answer that was owed, which has come or will never come."""
        self.owed -= 1
        if self._leaving:
            self.leave()

    async def run(self) -> None:
        """Send the events, until the end."""
        self._streams.running += 1
        try:
            self._outlet.begin(_HEAD)
            while True:
                while self._queue:
                    events, self._queue = self._queue, []
                    large, self._queued_answers_bytes = self._queued_answers_bytes, 0
                    chunk = b"".join(events)
                    count, size = len(events), len(chunk)
                    events.clear()
                    sent = self._send_chunk(chunk)
                    del chunk  # it may be large, and sending may take long
                    await sent
                    self._waiting_events -= count
                    self._waiting_bytes -= size - large
                    self._waiting_answers_bytes -= large
                if self._ended:
                    break
                await self._wait()
            self._outlet.end()
        finally:
            self._streams.running -= 1

    async def _send_chunk(self, chunk: bytes) -> None:
        self._blocked = True
        await self._outlet.send(chunk)
        self._blocked = False

    def _cut(self) -> None:
        self._streams.on_refused("slow_reader")
        self._queue.clear()
        self._ended = True
        self._outlet.abort()

    def _append(self, event: bytes) -> None:
        self._queue.append(event)
        self._waiting_events += 1
        self._waiting_bytes += len(event)

    def _wake(self) -> None:
        if self._turn is not None and not self._turn.done():
            self._turn.set_result(None)

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._turn = loop.create_future()
        timer = loop.call_later(KEEPALIVE_S, self._sign_of_life)
        try:
            await self._turn
        finally:
            timer.cancel()
            self._turn = None

    def _sign_of_life(self) -> None:
        self._append(jsonrpc_bytes.COMMENT)
        self._wake()


class Counts(Struct, frozen=True):
    """Number of open streams and sessions. `sessions`: by protocol revision."""

    streams: int
    sessions: dict[str, int]


class WaitingStream(Struct, frozen=True):
    """Stream that waits for news. `key`: id of the API key that it was opened with, or empty;
    `whole`: the endpoint, if `endpoint` is a part of it; `news`: the event for each notification
    that the stream wants; `expires`: when its credential ends, in seconds since the epoch, 0 for
    never."""

    stream: Stream
    endpoint: str
    principal: str
    address: str
    news: Mapping[str, bytes]
    key: str = ""
    whole: str = ""
    expires: float = 0.0


class Streams:
    """Streams of one front. `running`: their number; `closed`: the front ends and takes no more;
    `heirs`: then other fronts can take them. `limits`: returns the maximum of standing streams by
    owner, for requests with these facts; `on_limited`: called with the owner of a limit that
    refuses a stream; `proxies`: say where a client is."""

    def __init__(
        self,
        on_refused: Callable[[str], None],
        limits: Callable[[RequestFacts], Mapping[Owner, int]] = lambda facts: {},
        on_limited: Callable[[Owner], None] = lambda owner: None,
    ) -> None:
        self.on_refused = on_refused
        self.on_limited = on_limited
        self.limits = limits
        self.proxies = TrustedProxies()
        self.running = 0
        self._standing: dict[Stream, WaitingStream] = {}
        self._addresses: dict[str, int] = {}
        self._owners: Counter[Owner] = Counter()
        self._endpoints: frozenset[str] | None = None
        self.closed = False
        self.heirs = False

    def full(self, address: str) -> bool:
        """Whether a client at `address` may have no further standing stream."""
        if len(self._standing) >= STREAMS_MAX:
            return True
        return self._addresses.get(address, 0) >= PEER_STREAMS_MAX and not _is_loopback(address)

    def is_over_limit(self, limits: Mapping[Owner, int]) -> bool:
        """Whether one more standing stream is too much for one of these owners; then it counts as
        refused."""
        for owner, most in limits.items():
            if self._owners[owner] >= most:
                self.on_limited(owner)
                return True
        return False

    async def stand(self, standing: WaitingStream) -> None:
        """Run this stream, and send it the news, until it ends."""
        self._standing[standing.stream] = standing
        address = standing.address
        self._addresses[address] = self._addresses.get(address, 0) + 1
        owners = ("endpoint", standing.whole), ("key", standing.key)
        self._owners.update(owners)
        # A close or a new configuration may have come before this stream was ready to stand.
        if self.closed or (
            self._endpoints is not None and standing.endpoint not in self._endpoints
        ):
            standing.stream.leave()
        try:
            await standing.stream.run()
        finally:
            del self._standing[standing.stream]
            self._owners.subtract(owners)
            for owner in owners:
                if not self._owners[owner]:
                    del self._owners[owner]
            self._addresses[address] -= 1
            if not self._addresses[address]:
                del self._addresses[address]

    def announce(self, news: Callable[[str, str], Iterable[str]]) -> None:
        """Send news to the streams that want them. `news`: returns the notifications for an
        endpoint and a principal."""
        for standing in list(self._standing.values()):
            if standing.news:
                for method in news(standing.endpoint, standing.principal):
                    if method in standing.news:
                        standing.stream.announce(standing.news[method])

    def endpoints(self) -> set[str]:
        """Return the endpoints with standing streams."""
        return {standing.endpoint for standing in self._standing.values()}

    def keep(self, endpoints: frozenset[str]) -> None:
        """End the standing streams of all endpoints but these."""
        self._endpoints = endpoints
        for standing in list(self._standing.values()):
            if standing.endpoint not in endpoints:
                standing.stream.end()

    def revoke(self, keys: frozenset[str]) -> None:
        """End the standing streams that were opened with one of these API keys."""
        for standing in list(self._standing.values()):
            if standing.key in keys:
                standing.stream.end()

    def count_for_key(self, key: str) -> int:
        """Return the number of standing streams that were opened with an API key."""
        return sum(standing.key == key for standing in self._standing.values())

    def expire(self, date: float) -> None:
        """End the standing streams with expired credentials. `date`: seconds since the epoch."""
        for standing in list(self._standing.values()):
            if 0 < standing.expires <= date:
                standing.stream.end()

    def close(self, *, heirs: bool = False) -> None:
        """End all standing streams when they owe nothing, and take no more."""
        self.closed, self.heirs = True, heirs
        for standing in list(self._standing.values()):
            standing.stream.leave()


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return True  # a local socket has no address
