"""Front door: the application that finds the endpoint and the era of each HTTP request.

Owns: reading a body within its limit, which era answers, the HTTP form of refusals, telling clients
of changed lists, sessions of other fronts and connections to them, the end at a drain (`App`); the
notifications of servers that belong to no call (`Notices`). Never: the answers of an era, HTTP's
own rules.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial

from msgspec import Struct

from metamcp_worker.catalog.views import View
from metamcp_worker.front import client_questions, guard, jsonrpc_bytes, mcp_request, web_pages
from metamcp_worker.front.calls import Calls
from metamcp_worker.front.client_sessions import HANDSHAKE_VERSIONS, ClientSession, ClientSessions
from metamcp_worker.front.connection_moves import Elsewhere
from metamcp_worker.front.dialogue import Dialogue
from metamcp_worker.front.exchange import Declined, Exchange
from metamcp_worker.front.front_views import Changed
from metamcp_worker.front.guard import METHODS, Guard, GuardRefusal, RequestFacts, Route, too_large
from metamcp_worker.front.legacy import LegacyEra, Sse
from metamcp_worker.front.mcp_request import NotUpYet
from metamcp_worker.front.modern import STATE_BYTES, ModernEra
from metamcp_worker.front.resource_subscriptions import ResourceSubscriptions
from metamcp_worker.front.rest import Rest, is_rest, rest_error
from metamcp_worker.front.server_links import CallAnswer
from metamcp_worker.front.stats import Stats
from metamcp_worker.front.streams import LIST_CHANGED, Streams
from metamcp_worker.front.tasks import Tasks
from metamcp_worker.http.requests import HttpRequest, Pending
from metamcp_worker.ipc import codec, messages, process_names
from metamcp_worker.ipc.codec import Envelope
from metamcp_worker.ipc.disclosure import ViewOwner
from metamcp_worker.ipc.errors import HTTP_STATUS, Code, ProtocolError, TooLarge
from metamcp_worker.ipc.frames import BODY_BYTES_MAX
from metamcp_worker.ipc.messages import SessionRecord
from metamcp_worker.ipc.spec import EndpointSpec, FrontSpec

SESSION_ID_BYTES = 24
"""Random bytes in a session id; it cannot be guessed, although it opens nothing."""
NONCE_BYTES = 6
"""Random bytes of a front's nonce, which is part of its ids of requests and events; no two fronts
share a nonce."""
EARLY_BYTES_MAX = 64 * 1024
"""Maximum bytes of a request that waits for the first start of its server; a larger request is
refused, as many may wait."""
SWEEP_S = 60.0
"""Seconds between two searches for sessions that are over; requests for them are refused in time
anyway."""

_LEGACY = frozenset({None, *(version.encode() for version in HANDSHAKE_VERSIONS)})
_NO_FACTS = RequestFacts("", accepts_sse=False)
_NOT_YET = GuardRefusal(503, "This endpoint is not ready yet; try again in a moment.", "not_ready")
_STUCK = "The process of the gateway that has this cannot be reached; try again in a moment."
_POST_ONLY = GuardRefusal(
    405, "This revision has no sessions: everything is a POST.", "method", allow="POST, OPTIONS"
)


class Counts(Struct, frozen=True):
    """Number of open streams and sessions. `sessions`: by protocol revision."""

    streams: int
    sessions: dict[str, int]


class App:
    """Application of a front: serves everything over HTTP. `front`: its number; `on_kept`: called
    with the data of a session that another front needs; `on_over`: called with the ids of sessions
    that have ended; `move`: sends a connection, with the body of its request, to the front that can
    answer, or returns False."""

    def __init__(
        self,
        calls: Calls,
        stats: Stats,
        spec: FrontSpec,
        front: int = 0,
        on_kept: Callable[[SessionRecord], None] = lambda record: None,
        on_over: Callable[[tuple[str, ...]], None] = lambda ids: None,
        move: Callable[[HttpRequest, Elsewhere, bytes], bool] | None = None,
    ) -> None:
        self._calls = calls
        self._overhead = calls.overhead
        self._stats = stats
        self._on_kept = on_kept
        self._on_over = on_over
        self._move = move
        mint = partial(_name, SESSION_ID_BYTES, front)
        self._loop = asyncio.get_running_loop()
        now = self._loop.time
        self._streams = Streams(stats.refused)
        self._sessions = ClientSessions(secrets.token_hex(NONCE_BYTES), self._over)
        self._subscriptions = ResourceSubscriptions(calls)
        self._notices = Notices(calls, self._sessions)
        self._tasks = Tasks(calls)
        states = partial(_name, STATE_BYTES, front)
        self._modern = ModernEra(calls, self._subscriptions, self._tasks, states)
        self._rest = Rest(calls)
        self._dialogue = Dialogue(
            calls, self._subscriptions, self._tasks, stats.refused, self._kept, mint, now
        )
        self._legacy = LegacyEra(self._sessions, self._dialogue, mint, now, self._kept)
        self._sse = Sse(self._legacy, self._dialogue, self._sessions, mint)
        self._sweep = self._loop.call_later(SWEEP_S, self._expire)
        self._endpoints: frozenset[str] = frozenset()
        self._open = 0
        self._idle: asyncio.Future[None] | None = None
        self.reconfigure(spec)

    def reconfigure(self, spec: FrontSpec) -> None:
        """Serve this configuration from now on. Sessions and streams of endpoints that are gone
        end."""
        paths: dict[bytes, Route] = {}
        for endpoint in spec.endpoints:
            paths |= _paths(endpoint)
        self._guard = Guard(spec.hosts, paths)
        self._version, self._shown = spec.version, spec.endpoints
        servers = {endpoint.name: endpoint.servers for endpoint in spec.endpoints}
        self._dialogue.configure(servers)
        self._notices.configure(servers)
        names = frozenset(servers)
        self._streams.keep(names)
        self._sessions.keep(names)
        self._endpoints = names

    def lists_changed(self, changed: Changed) -> None:
        """Notify the clients whose lists have changed and that want to know."""

        def news(endpoint: str, principal: str, session: str = "") -> list[str]:
            kinds = self._calls.viewers.told(changed, ViewOwner(endpoint, principal, session))
            return _methods(kinds)

        self._sessions.listed(news)
        self._streams.announce(news)

    def adopt(self, records: Iterable[SessionRecord], *, untold: bool = False) -> None:
        """Go on with these sessions of another front. `untold`: their lists may have changed since
        their clients read them, so all clients are notified of all kinds."""
        known = {record.id: record for record in records}
        served = [one for one in known.values() if one.endpoint in self._endpoints]
        adopted = self._legacy.adopt(served)
        for session in adopted:
            view = self._calls.view(session.endpoint)
            if view is not None:
                for uri in session.watched:
                    self._subscriptions.adopt(view, uri, session)
                if untold:
                    for method in _methods(view.legacy.kinds):
                        session.listed(method)
        if lost := tuple(name for name in known if name not in self._sessions):
            self._on_over(lost)

    def counts(self) -> Counts:
        return Counts(self._streams.running, dict(self._sessions.by_protocol()))

    def leave(self, *, heirs: bool) -> None:
        """End the streams that wait for notifications, and begin no more. `heirs`: other fronts go
        on."""
        self._sweep.cancel()
        self._modern.close()
        self._streams.close(heirs=heirs)

    async def drain(self, grace_s: float, *, heirs: bool = False) -> None:
        """Call `leave`, and wait for open requests. Await it together with the drain of the HTTP
        server, which stops accepting connections."""
        self.leave(heirs=heirs)
        if self._open:
            self._idle = self._loop.create_future()
            await asyncio.wait([self._idle], timeout=grace_s)

    def __call__(self, exchange: HttpRequest) -> Pending:
        assert isinstance(exchange, Exchange), "the server of a front makes these"
        self._open += 1
        if self._overhead.armed:
            self._overhead.arrived()
        facts = self._guard.facts(exchange.head)
        exchange.streams, exchange.on_over = self._streams, self._done
        if isinstance(facts, GuardRefusal):
            exchange.facts = _NO_FACTS
            return exchange.attend(partial(self._refuse, exchange, facts))
        exchange.facts = facts
        return exchange.attend(partial(self._answer, exchange, exchange.head.method))

    def _done(self) -> None:
        self._open -= 1
        if self._idle is not None and not self._open and not self._idle.done():
            self._idle.set_result(None)

    def _answer(self, exchange: Exchange, method: str) -> Pending:
        facts = exchange.facts
        view = self._calls.view(facts.endpoint)
        legacy = facts.version in _LEGACY and facts.repeated != b"mcp-protocol-version"
        if method == "OPTIONS":
            exchange.empty(204, [(b"allow", ", ".join(METHODS[facts.kind]).encode())])
        elif view is None:
            self._refuse(exchange, _NOT_YET)
        elif facts.kind == guard.MCP:
            if method == "POST":
                era = self._legacy if legacy else self._modern
                return self._post(exchange, partial(self._said, exchange, era.post, view))
            if legacy:
                get = self._legacy.get if method == "GET" else self._legacy.delete
                return self._get(exchange, get, view)
            self._refuse(exchange, _POST_ONLY)
        elif facts.kind == guard.API:
            answer = partial(self._rest.answer, exchange, method, view, self._version)
            return answer(b"") if method == "GET" else self._post(exchange, answer)
        elif facts.kind == guard.SSE:
            return self._get(exchange, self._sse.get, view)
        else:
            return self._post(exchange, partial(self._said, exchange, self._sse.post, view))
        return None

    async def _get(
        self, exchange: Exchange, get: Callable[[Exchange, View], Awaitable[None]], view: View
    ) -> None:
        try:
            try:
                await get(exchange, view)
            except Elsewhere as where:
                body = await self._body(exchange)
                if body is not None:
                    self._go(exchange, where, body)
        except Declined as why:
            self._decline(exchange, jsonrpc_bytes.NO_ID, why)

    def _go(self, exchange: Exchange, where: Elsewhere, body: bytes) -> None:
        """Send the connection of a request with this body to the front that can answer. Raises the
        refusal for the client if the connection cannot move."""
        if self._move is None or exchange.hops >= messages.HOPS_MAX:
            raise where.otherwise from None
        if not self._move(exchange, where, body):
            raise Declined(503, _STUCK, "handover", Code.OVERLOADED) from None

    def _post(self, exchange: Exchange, answer: Callable[[bytes], Pending]) -> Pending:
        """Answer a request with a body, at once if the whole body is there, as most are."""
        if exchange.whole and exchange.size <= BODY_BYTES_MAX:
            return answer(exchange.take())
        return self._post_later(exchange, answer)

    async def _post_later(self, exchange: Exchange, answer: Callable[[bytes], Pending]) -> None:
        body = await self._body(exchange)
        if body is not None:
            rest = answer(body)
            # A call may wait for long; its body need not be kept as long.
            del body
            if rest is not None:
                await rest

    async def _body(self, exchange: Exchange) -> bytes | None:
        """Read the whole body; None if the client is gone, or the body was refused."""
        try:
            return await exchange.body(BODY_BYTES_MAX)
        except TooLarge:
            self._refuse(exchange, too_large())
            return None

    def _said(
        self,
        exchange: Exchange,
        post: Callable[[Exchange, Envelope, View, str], Pending],
        view: View,
        body: bytes,
    ) -> Pending:
        raw_id = jsonrpc_bytes.NO_ID
        try:
            message = mcp_request.read(body)
            if message.method is not None:
                raw_id = bytes(message.id) or jsonrpc_bytes.NO_ID
            try:
                rest = post(exchange, message, view, self._version)
            except Elsewhere as where:
                self._go(exchange, where, body)
                return None
        except NotUpYet as why:
            if len(body) > EARLY_BYTES_MAX:
                return self._refused(exchange, raw_id, why)
            call = self._calls.first_list(why.server)
            exchange.watch(partial(call.cancel, "the client went away"))
            again = partial(self._said, exchange, post, body=body)
            return exchange.expect(call, partial(self._up, exchange, view, again, raw_id, why))
        except ProtocolError as why:
            return self._refused(exchange, raw_id, why)
        except Declined as why:
            self._decline(exchange, raw_id, why)
            return None
        return None if rest is None else self._later(exchange, raw_id, rest)

    def _up(
        self,
        exchange: Exchange,
        before: View,
        again: Callable[[View], Pending],
        raw_id: bytes,
        why: NotUpYet,
        first: CallAnswer | None,
    ) -> Pending:
        """Answer the request again, now that its server has told what it offers; or refuse it with
        the reason why the server is not there."""
        exchange.unwatch()
        view = self._calls.view(before.endpoint)
        if view is not None and why.server not in view.merged.unknown:
            return again(view)
        if first is None or not first.code:
            return self._refused(exchange, raw_id, why)
        status = HTTP_STATUS.get(first.code, 200)
        return exchange.finish(status, jsonrpc_bytes.raw_error(raw_id, first.body))

    async def _later(self, exchange: Exchange, raw_id: bytes, rest: Awaitable[None]) -> None:
        try:
            await rest
        except ProtocolError as why:
            self._refused(exchange, raw_id, why)
        except Declined as why:
            self._decline(exchange, raw_id, why)
        finally:
            await exchange.settle()

    def _refused(self, exchange: Exchange, raw_id: bytes, why: ProtocolError) -> Pending:
        status = HTTP_STATUS.get(why.code, 200)
        if status != 200:
            self._stats.refused("message")
        return exchange.finish(status, jsonrpc_bytes.refused(raw_id, why))

    def _decline(self, exchange: Exchange, raw_id: bytes, why: Declined) -> None:
        self._stats.refused(why.reason)
        exchange.json(why.status, jsonrpc_bytes.error(raw_id, why.code, why.message))

    def _refuse(self, exchange: Exchange, why: GuardRefusal) -> None:
        asked = exchange.head
        if why.reason == "path" and web_pages.wanted(asked):
            host = dict(asked.headers)[b"host"]
            exchange.page(web_pages.page(self._version, host, self._shown))
            return
        self._stats.refused(why.reason)
        if is_rest(asked.target):
            body = rest_error(Code.INVALID_REQUEST, why.message)
        else:
            body = jsonrpc_bytes.error(jsonrpc_bytes.NO_ID, Code.INVALID_REQUEST, why.message)
        if why.close:
            exchange.last(why.status, body)
        else:
            allow = [(b"allow", why.allow.encode())] if why.allow else ()
            exchange.json(why.status, body, allow)

    def _kept(self, session: ClientSession) -> None:
        """Report the data of a session that may outlive this front, unless the session is over. A
        session over HTTP+SSE cannot outlive the front, because it ends with its stream."""
        if session.tapes is not None and not session.over:
            self._on_kept(session.record())

    def _over(self, sessions: list[ClientSession]) -> None:
        for session in sessions:
            self._subscriptions.forget(session)
            self._tasks.forget(session)
            self._dialogue.forget(session)
        self._on_over(tuple(session.id for session in sessions))

    def _expire(self) -> None:
        self._sessions.expire(self._loop.time())
        self._sweep = self._loop.call_later(SWEEP_S, self._expire)


def _methods(kinds: Iterable[str]) -> list[str]:
    """Return the methods of the notifications about changes of these kinds of lists."""
    return sorted({LIST_CHANGED[kind] for kind in kinds})


def _name(size_bytes: int, front: int) -> str:
    """Return a name that cannot be guessed and shows which front made it."""
    return messages.marked(secrets.token_urlsafe(size_bytes), front)


def _paths(endpoint: EndpointSpec) -> dict[bytes, Route]:
    """Return the routes of this endpoint by path."""
    name = endpoint.name
    kinds = {"mcp": guard.MCP}
    if endpoint.sse:
        kinds |= {"sse": guard.SSE, "messages": guard.MESSAGES}
    if endpoint.rest:
        kinds |= {"api": guard.API, "api/": guard.API}
    paths = {f"{endpoint.base}/{last}".encode(): Route(name, kind) for last, kind in kinds.items()}
    if endpoint.default:
        paths |= {f"/{last}".encode(): Route(name, kind) for last, kind in kinds.items()}
    return paths


ELICITED = "notifications/elicitation/complete"


class Notices:
    """Passes notifications of servers that belong to no call, and for which no other code is
    registered, to sessions."""

    def __init__(self, calls: Calls, sessions: ClientSessions) -> None:
        self._sessions = sessions
        self._servers: Mapping[str, Sequence[str]] = {}
        calls.on_notice(client_questions.MESSAGE, self._logged)
        calls.on_notice(ELICITED, self._elicited)
        calls.notified = self._other

    def configure(self, servers: Mapping[str, Sequence[str]]) -> None:
        """Set the servers that each endpoint exposes."""
        self._servers = servers

    def _logged(self, server: str, params: bytes) -> None:
        """Pass a log message to the sessions that asked for messages by setting a level."""
        message = jsonrpc_bytes.notification(client_questions.MESSAGE, params)
        for session in self._heard(server):
            wanted = session.level and process_names.base(server) in self._exposed(session)
            if wanted and client_questions.passes(session.level, params):
                session.tell(message)

    def _elicited(self, server: str, params: bytes) -> None:
        """Tell the client that was asked to visit a URL that the visit is over."""
        try:
            elicitation = codec.text(codec.level(params).get("elicitationId", b"null"))
        except codec.Malformed:
            return
        for session in self._heard(server):
            if elicitation is not None and (server, elicitation) in session.elicitations:
                session.tell(jsonrpc_bytes.notification(ELICITED, params))

    def _other(self, server: str, method: str, params: bytes) -> None:
        """Pass an unknown notification to the clients that have this server alone."""
        message = jsonrpc_bytes.notification(method, params)
        for session in self._heard(server):
            if tuple(self._exposed(session)) == (process_names.base(server),):
                session.tell(message)

    def _heard(self, server: str) -> Iterable[ClientSession]:
        """Return the sessions that may hear this server; a process for one client speaks to that
        client only."""
        who = process_names.whose(server)
        every = who in ("", process_names.LEGACY)
        return (one for one in self._sessions if every or one.who == who)

    def _exposed(self, session: ClientSession) -> Sequence[str]:
        return self._servers.get(session.endpoint, ())
