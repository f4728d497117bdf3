"""The front door: an ASGI application that finds the endpoint and the era of each HTTP request.

Owns: reading a body within its limit, which era answers, the HTTP form of refusals, telling clients
of changed lists, the end of everything at a drain. Never: what an era says, HTTP's own rules.
"""

import asyncio
import secrets
from collections.abc import Callable

from msgspec import Struct

from metamcp_worker.asgi import TARGET, Receive, Scope, Send
from metamcp_worker.errors import HTTP_STATUS, Code, Refused
from metamcp_worker.frames import BODY_BYTES_MAX
from metamcp_worker.front import answers, inbound
from metamcp_worker.front.calls import Calls
from metamcp_worker.front.exchange import Declined, Exchange
from metamcp_worker.front.guard import METHODS, Facts, Guard, Refusal, too_large
from metamcp_worker.front.legacy import Legacy
from metamcp_worker.front.modern import Modern
from metamcp_worker.front.session import HANDSHAKE_VERSIONS, Sessions
from metamcp_worker.front.stats import Stats
from metamcp_worker.front.streams import LIST_CHANGED, Streams
from metamcp_worker.front.views import View
from metamcp_worker.spec import FrontSpec

SESSION_ID_BYTES = 24
"""Of randomness: nobody guesses one, although it opens nothing."""
SWEEP_S = 60.0
"""Between two looks for sessions that are over; they are refused in time anyway."""

_LEGACY = frozenset({None, *(version.encode() for version in HANDSHAKE_VERSIONS)})
_ALLOW = (b"allow", ", ".join(METHODS).encode())
_NO_FACTS = Facts("", accepts_sse=False)
_NOT_YET = Refusal(503, "This endpoint is not ready yet; try again in a moment.", "not_ready")
_POST_ONLY = Refusal(
    405, "This revision has no sessions: everything is a POST.", "method", allow="POST, OPTIONS"
)


class Counts(Struct, frozen=True):
    """What is open now. `sessions`: by protocol revision."""

    streams: int
    sessions: dict[str, int]


class App:
    """Everything that a front serves over HTTP."""

    def __init__(
        self,
        calls: Calls,
        stats: Stats,
        spec: FrontSpec,
        mint: Callable[[], str] = lambda: secrets.token_urlsafe(SESSION_ID_BYTES),
    ) -> None:
        self._calls = calls
        self._stats = stats
        self._loop = asyncio.get_running_loop()
        self._streams = Streams(stats.refused)
        self._sessions = Sessions()
        self._modern = Modern(calls)
        self._legacy = Legacy(calls, stats.refused, self._sessions, mint, self._loop.time)
        self._sweep = self._loop.call_later(SWEEP_S, self._expire)
        self._endpoints: frozenset[str] = frozenset()
        self._open = 0
        self._idle: asyncio.Future[None] | None = None
        self.reconfigure(spec)

    def reconfigure(self, spec: FrontSpec) -> None:
        """Serve this from now on. Sessions and streams of endpoints that are gone end."""
        paths: dict[bytes, str] = {}
        for endpoint in spec.endpoints:
            paths[f"/metamcp/{endpoint.name}/mcp".encode()] = endpoint.name
            if endpoint.default:
                paths[b"/mcp"] = endpoint.name
        self._guard = Guard(spec.hosts, paths)
        self._version = spec.version
        names = frozenset(paths.values())
        self._streams.end(self._endpoints - names)
        self._sessions.keep(names)
        self._endpoints = names

    def lists_changed(self, endpoint: str, kinds: frozenset[str]) -> None:
        """Tell every client of this endpoint that wants to know. `kinds`: as in a catalogue."""
        methods = frozenset(LIST_CHANGED[kind] for kind in kinds)
        self._sessions.missed(endpoint, methods)
        self._streams.announce(endpoint, methods)

    def counts(self) -> Counts:
        return Counts(self._streams.running, dict(self._sessions.by_protocol()))

    async def drain(self, grace_s: float) -> None:
        """End the streams that wait for news, and wait for open requests. To be awaited together
        with the server's own drain, which lets no new requests in."""
        self._sweep.cancel()
        self._streams.close()
        if self._open:
            self._idle = self._loop.create_future()
            await asyncio.wait([self._idle], timeout=grace_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._open += 1
        try:
            facts = self._guard.check(scope["method"], scope[TARGET], scope["headers"])
            if isinstance(facts, Refusal):
                exchange = Exchange(scope, send, _NO_FACTS, self._streams)
                await self._refuse(exchange, facts, receive)
            else:
                exchange = Exchange(scope, send, facts, self._streams)
                await self._answer(exchange, scope["method"], receive)
        finally:
            self._open -= 1
            if self._idle is not None and not self._open and not self._idle.done():
                self._idle.set_result(None)

    async def _answer(self, exchange: Exchange, method: str, receive: Receive) -> None:
        facts = exchange.facts
        view = self._calls.view(facts.endpoint)
        legacy = facts.version in _LEGACY and facts.repeated != b"mcp-protocol-version"
        if method == "OPTIONS":
            await exchange.empty(204, [_ALLOW])
        elif view is None:
            await self._refuse(exchange, _NOT_YET, receive)
        elif method == "POST":
            await self._post(exchange, self._legacy if legacy else self._modern, view, receive)
        elif not legacy:
            await self._refuse(exchange, _POST_ONLY, receive)
        else:
            try:
                await (self._legacy.get if method == "GET" else self._legacy.delete)(exchange)
            except Declined as why:
                await self._decline(exchange, answers.NO_ID, why)

    async def _body(self, exchange: Exchange, receive: Receive) -> bytes | None:
        """The whole body; None if there is nobody or nothing left to answer."""
        event = await receive()
        if event.get("more_body") is False and len(event["body"]) <= BODY_BYTES_MAX:
            whole: bytes = event["body"]
            return whole
        parts: list[bytes] = []
        size = 0
        while event["type"] == "http.request":
            parts.append(event["body"])
            size += len(event["body"])
            if size > BODY_BYTES_MAX:
                await self._refuse(exchange, too_large(), receive)
                return None
            if not event["more_body"]:
                return b"".join(parts)
            event = await receive()
        return None

    async def _post(
        self, exchange: Exchange, era: Legacy | Modern, view: View, receive: Receive
    ) -> None:
        body = await self._body(exchange, receive)
        if body is None:
            return
        raw_id = answers.NO_ID
        try:
            message = inbound.read(body)
            if message.method is not None:
                raw_id = bytes(message.id) or answers.NO_ID
            answering = era.post(exchange, message, view, self._version)
            # A call may wait for long; what it was made of need not be kept as long as that.
            del body, message
            await answering
        except Refused as why:
            status = HTTP_STATUS.get(why.code, 200)
            if status != 200:
                self._stats.refused("message")
            await exchange.finish(status, answers.refused(raw_id, why))
        except Declined as why:
            await self._decline(exchange, raw_id, why)
        finally:
            await exchange.settle()

    async def _decline(self, exchange: Exchange, raw_id: bytes, why: Declined) -> None:
        self._stats.refused(why.reason)
        await exchange.json(why.status, answers.error(raw_id, why.code, why.message))

    async def _refuse(self, exchange: Exchange, why: Refusal, receive: Receive) -> None:
        self._stats.refused(why.reason)
        body = answers.error(answers.NO_ID, Code.INVALID_REQUEST, why.message)
        if why.close:
            await exchange.last(why.status, body, receive)
        else:
            allow = [(b"allow", why.allow.encode())] if why.allow else ()
            await exchange.json(why.status, body, allow)

    def _expire(self) -> None:
        self._sessions.expire(self._loop.time())
        self._sweep = self._loop.call_later(SWEEP_S, self._expire)
