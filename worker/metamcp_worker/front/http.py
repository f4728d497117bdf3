"""Application of a front: finds the endpoint, the principal and the era of each HTTP request.

Owns: reading a body within its limit, which era answers, the HTTP form of refusals, parts of
endpoints for credentials that may use some servers only, the end of what belongs to a revoked key,
notifying clients of changed lists, sessions of other fronts and connections to them, the end at a
drain (`App`). Never: the answers of an era, HTTP's own rules, judging a credential (`access.door`).
"""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Unpack

from metamcp_worker.access import gate
from metamcp_worker.access.door import (
    UNAUTHORIZED,
    AuthenticatedPrincipal,
    Authenticator,
    AuthRequest,
    Credential,
    Denial,
    Found,
)
from metamcp_worker.access.gate import USER, Principal
from metamcp_worker.access.use_limits import Owner
from metamcp_worker.catalog.views import View
from metamcp_worker.front_calls import mcp_request, request_facts
from metamcp_worker.front_calls.calls import Calls
from metamcp_worker.front_calls.front_views import Changed
from metamcp_worker.front_calls.mcp_request import ServerNotReady
from metamcp_worker.front_calls.request_facts import CallAnswer, HttpRefused
from metamcp_worker.front_calls.stats import Stats
from metamcp_worker.front_clients import header_policy, streams
from metamcp_worker.front_clients.client_sessions import (
    HANDSHAKE_VERSIONS,
    ClientSession,
    ClientSessions,
)
from metamcp_worker.front_clients.dialogue import Dialogue, Notices
from metamcp_worker.front_clients.exchange import Exchange
from metamcp_worker.front_clients.header_policy import HeaderPolicy, RequestFacts, TrustedProxies
from metamcp_worker.front_clients.legacy import LegacyEra, Sse
from metamcp_worker.front_clients.modern import STATE_BYTES, ModernEra
from metamcp_worker.front_clients.resource_subscriptions import ResourceSubscriptions
from metamcp_worker.front_clients.rest import Rest, is_rest, rest_error, rest_methods
from metamcp_worker.front_clients.streams import Counts, Streams
from metamcp_worker.front_clients.tasks import Tasks
from metamcp_worker.guard.policies import Policies
from metamcp_worker.http import request_head, web_pages
from metamcp_worker.http.connection_moves import WrongFront
from metamcp_worker.http.requests import Given, HttpRequest, Pending
from metamcp_worker.ipc import jsonrpc_bytes, messages
from metamcp_worker.ipc.disclosure import ViewOwner
from metamcp_worker.ipc.envelope import Envelope
from metamcp_worker.ipc.errors import HTTP_STATUS, Code, ProtocolError, TooLarge
from metamcp_worker.ipc.frames import BODY_BYTES_MAX
from metamcp_worker.ipc.key_table import KeyChanges
from metamcp_worker.ipc.messages import SessionRecord
from metamcp_worker.ipc.spec import EndpointSpec, FrontSpec

if TYPE_CHECKING:
    from metamcp_worker.access.token_issuers import TokenIssuers

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
_NOT_YET = Denial(503, "This endpoint is not ready yet; try again in a moment.", "not_ready")
_STUCK = "The process of the gateway that has this cannot be reached; try again in a moment."
_POST_ONLY = Denial(
    405, "This revision has no sessions: everything is a POST.", "method",
    headers=((b"allow", b"POST, OPTIONS"),),
)  # fmt: skip
_TOO_MANY_PARTS = "Too many clients that see different things are connected; try again later."
_REVOKED = "the API key was revoked"


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
        move: Callable[[HttpRequest, WrongFront, bytes], bool] | None = None,
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
        limited = partial(calls.meters.count_refusal, limit="streams")
        self._streams = Streams(stats.count_refusal, self._stream_limits, limited)
        self._sessions = ClientSessions(secrets.token_hex(NONCE_BYTES), self._on_sessions_ended)
        self._subscriptions = ResourceSubscriptions(calls)
        self._tasks = Tasks(calls)
        self._notices = Notices(calls, self._sessions, self._tasks)
        states = partial(_name, STATE_BYTES, front)
        self._modern = ModernEra(calls, self._subscriptions, self._tasks, states)
        self._rest = Rest(calls, self._refuse_if_expired)
        self._dialogue = Dialogue(
            calls,
            self._subscriptions,
            self._tasks,
            stats.count_refusal,
            self._report_session,
            mint,
            now,
        )
        self._legacy = LegacyEra(self._sessions, self._dialogue, mint, now, self._report_session)
        self._sse = Sse(self._legacy, self._dialogue, self._sessions, mint)
        self._sweep = self._loop.call_later(SWEEP_S, self._expire)
        self.door = Authenticator()
        self._issuers: TokenIssuers | None = None
        self._parts = gate.EndpointParts()
        self._served: dict[str, EndpointSpec] = {}
        self._open = 0
        self._idle: asyncio.Future[None] | None = None
        self.reconfigure(self.with_parts(spec))

    def reconfigure(self, spec: FrontSpec) -> None:
        """Serve this configuration, which `with_parts` returned, from now on. Sessions and streams
        of endpoints that are gone, or now ask for other credentials, end."""
        paths: dict[bytes, request_facts.Route] = {}
        for endpoint in spec.endpoints:
            if not endpoint.part_of:
                paths |= header_policy.paths_of(endpoint)
        unlocked = [endpoint.name for endpoint in spec.endpoints if not endpoint.auth]
        self._policy = HeaderPolicy(spec.hosts, paths, unlocked)
        self._streams.proxies = TrustedProxies(spec.trusted_proxies)
        self.door.configure(spec.endpoints)
        if self._issuers is None and any(endpoint.oauth for endpoint in spec.endpoints):
            from metamcp_worker.access.token_issuers import TokenIssuers  # loads a lot

            self._issuers = TokenIssuers()
            self.door.verify = self._issuers.verify
        if self._issuers is not None:
            self._issuers.configure(spec.endpoints)
        self._version, self._spec = spec.version, spec
        served = {endpoint.name: endpoint for endpoint in spec.endpoints}
        self._dialogue.configure({name: endpoint.servers for name, endpoint in served.items()})
        self._notices.configure(spec.endpoints)
        for endpoints in (gate.admitting_alike(self._served, served), frozenset(served)):
            self._streams.keep(endpoints)
            self._sessions.keep(endpoints)
        self._served = served

    def with_parts(self, spec: FrontSpec) -> FrontSpec:
        """Return the configuration with the parts of endpoints that clients use."""
        return self._parts.join_parts(spec, Policies(spec.policies).reads)

    def part(self, endpoint: str, principal: Principal) -> str:
        """Return the name of the part of this endpoint that this principal sees, the endpoint if
        that is all of it; the first request makes the part, in place of parts without streams and
        sessions. Raises Declined."""
        endpoint_spec = self._served.get(endpoint)  # None: gone while an issuer was asked
        endpoint_part = None if endpoint_spec is None else self._parts.of(endpoint_spec, principal)
        if endpoint_part is None:
            return endpoint
        if endpoint_part not in self._parts:
            used = self._streams.endpoints
            if not self._parts.add(
                endpoint_part, lambda: {session.endpoint for session in self._sessions} | used()
            ):
                raise HttpRefused(503, _TOO_MANY_PARTS, "parts", Code.OVERLOADED)
            spec = self._parts.join_parts(self._spec, self._parts.reads)
            self._calls.viewers.configure(spec)
            self._calls.refresh()
            self.reconfigure(spec)
        return endpoint_part.name

    def keys_changed(self, changes: KeyChanges) -> None:
        """Use this table of API keys from now on. Streams and sessions of keys that are gone end,
        and their calls are cancelled."""
        revoked_ids = self.door.change(changes)
        self._calls.meters.configure_keys(self.door.limits())
        if revoked_ids:
            self._streams.revoke(revoked_ids)
            self._sessions.revoke(revoked_ids)
            for call, _ in list(self._calls.under_way()):
                if call.origin is not None and call.origin.principal.key in revoked_ids:
                    call.cancel(_REVOKED)

    def count_for_key(self, key: str) -> tuple[int, int]:
        """Return the numbers of streams and of sessions that an API key has."""
        return self._streams.count_for_key(key), self._sessions.count_for_key(key)

    def lists_changed(self, changed: Changed) -> None:
        """Notify the clients whose lists have changed and that want to know."""

        def news(endpoint: str, principal: str, session: str = "") -> list[str]:
            kinds = self._calls.viewers.find_changed_kinds(
                changed, ViewOwner(endpoint, principal, session)
            )
            return streams.methods(kinds)

        self._sessions.notify_list_changes(news)
        self._streams.announce(news)

    def adopt(self, records: Iterable[SessionRecord], *, untold: bool = False) -> None:
        """Go on with these sessions of another front. `untold`: their lists may have changed since
        their clients read them, so all clients are notified of all kinds."""
        by_id = {record.id: record for record in records}
        for session_record in by_id.values():
            if session_record.key and (holder := self.door.holder(session_record.key)) is not None:
                with contextlib.suppress(HttpRefused):
                    self.part(gate.whole_name(session_record.endpoint), holder)
        served = [
            record
            for record in by_id.values()
            if record.endpoint in self._served and (not record.key or self.door.has(record.key))
        ]
        for session in self._legacy.adopt(served):
            view = self._calls.viewers.get(session.endpoint, session.principal)
            if view is not None:
                for uri in session.watched:
                    self._subscriptions.adopt(view, uri, session)
                if untold:
                    for method in streams.methods(view.legacy.kinds):
                        session.send_list_changed(method)
        if lost := tuple(name for name in by_id if name not in self._sessions):
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
            self._overhead.on_request()
        facts = self._policy.facts(exchange)
        exchange.streams, exchange.on_over = self._streams, self._on_exchange_end
        if self.door.guarded:
            return self._enter(exchange, facts)
        if isinstance(facts, Denial):
            exchange.facts = _NO_FACTS
            self._refuse(exchange, facts)
            return None
        exchange.facts = facts
        return self._answer(exchange, exchange.head.method)

    def _enter(self, exchange: Exchange, facts: RequestFacts | Denial) -> Pending:
        """Let the request in if its credential is valid, before anything of an endpoint shows."""
        refusal = facts if isinstance(facts, Denial) else None
        exchange.facts = _NO_FACTS if isinstance(facts, Denial) else facts
        head, date = exchange.head, time.time_ns() / 1e9
        entry = head.entry
        if exchange.facts.kind == request_facts.METADATA:
            return self._answer(exchange, head.method)
        if (
            isinstance(entry, request_facts.KnownEntry)
            and entry.version == self.door.version
            and date < entry.until
        ):
            exchange.facts.principal = entry.principal
            return self._answer(exchange, head.method)
        if refusal is not None and not header_policy.is_telling(head.target, refusal):
            self._refuse(exchange, refusal)
            return None
        query = head.target.partition(b"?")[2]
        # A head that came before may lead to a part of the endpoint.
        endpoint = gate.whole_name(facts.endpoint or "")
        arrival = AuthRequest(
            endpoint, head.headers, query, exchange.find_client(), date, self._loop.time()
        )
        outcome = self.door.enter(arrival)
        if isinstance(outcome, Credential):
            try:
                outcome = self._poster(exchange, outcome, arrival)
            except WrongFront as elsewhere:
                return self._post_elsewhere(exchange, elsewhere, arrival)
        if isinstance(outcome, AuthenticatedPrincipal | Denial):
            return self._on_verdict(exchange, refusal, outcome)
        return self._enter_later(exchange, refusal, outcome, arrival)

    async def _enter_later(
        self,
        exchange: Exchange,
        refusal: Denial | None,
        pending_verdict: Awaitable[Found],
        arrival: AuthRequest,
    ) -> None:
        after = self.door.answer_verdict(await pending_verdict, arrival)
        if isinstance(
            after, AuthenticatedPrincipal
        ):  # the door may have changed: look again next time
            if exchange.lost:  # the client has left, so its call must not run
                return
            after = AuthenticatedPrincipal(after.principal)
        pending = self._on_verdict(exchange, refusal, after)
        if pending is not None:
            await pending

    def _on_verdict(self, exchange: Exchange, refusal: Denial | None, result: Found) -> Pending:
        if isinstance(result, Denial):
            if self._calls.audit is not None:
                self._calls.audit.on_denial(exchange.facts.endpoint, result)
            self._refuse(exchange, result)
            return None
        if refusal is not None:
            self._refuse(exchange, refusal)
            return None
        facts, principal = exchange.facts, result.principal
        facts.principal = principal
        version = self.door.version  # a part that is built below changes the facts of this head
        if principal is not USER:
            try:
                facts.endpoint = self.part(gate.whole_name(facts.endpoint), principal)
            except HttpRefused as declined:
                self._decline(exchange, jsonrpc_bytes.NO_ID, declined)
                return None
        if result.until:
            exchange.head.entry = request_facts.KnownEntry(version, result.until, result.principal)
        return self._answer(exchange, exchange.head.method)

    def _poster(
        self, exchange: Exchange, token: Credential, arrival: AuthRequest
    ) -> AuthenticatedPrincipal | Denial:
        """Return who posts to a stream of HTTP+SSE. Raises Elsewhere for one of another front."""
        posts = exchange.facts.kind == request_facts.MESSAGES
        endpoint = arrival.endpoint or ""
        poster = self._sse.poster(endpoint, arrival.query, token.text) if posts else None
        if poster is None or not self.door.still(poster, endpoint, arrival.date):
            return self.door.deny_credential(arrival)
        return AuthenticatedPrincipal(poster)

    async def _post_elsewhere(
        self, exchange: Exchange, error: WrongFront, arrival: AuthRequest
    ) -> None:
        """Let the front that has the stream of this post judge its token."""
        body = await self._body(exchange)
        try:
            if body is not None:
                self._go(exchange, error, body)
        except HttpRefused:
            self._on_verdict(exchange, None, self.door.deny_credential(arrival))

    def _on_exchange_end(self) -> None:
        self._open -= 1
        if self._idle is not None and not self._open and not self._idle.done():
            self._idle.set_result(None)

    def _answer(self, exchange: Exchange, method: str) -> Pending:
        facts = exchange.facts
        principal = facts.principal
        view = self._calls.view(facts.endpoint) if principal is USER else None
        if view is None:
            view = self._calls.viewers.get(facts.endpoint, principal.name)
        kind = facts.kind
        if method == "OPTIONS":
            at_all = ", ".join(header_policy.METHODS[kind]).encode()
            allowed = rest_methods(facts.rest) if kind == request_facts.API else at_all
            exchange.empty(204, [(b"allow", allowed)])
        elif view is None:
            self._refuse(exchange, _NOT_YET)
        elif kind == request_facts.MCP:
            legacy = facts.version in _LEGACY and facts.repeated != b"mcp-protocol-version"
            if method == "POST":
                era = self._legacy if legacy else self._modern
                return self._post(exchange, self._handle_message, era.post, view)
            if legacy:
                get = self._legacy.get if method == "GET" else self._legacy.delete
                return self._get(exchange, get, view)
            self._refuse(exchange, _POST_ONLY)
        elif kind == request_facts.METADATA:
            assert self._issuers is not None
            exchange.json(200, self._issuers.document(view.spec))
        elif kind == request_facts.API:
            if method == "GET":
                return self._rest.answer(exchange, method, view, self._version, b"")
            return self._post(exchange, self._rest.answer, method, view, self._version)
        elif kind == request_facts.SSE:
            return self._get(exchange, self._sse.get, view)
        else:
            return self._post(exchange, self._handle_message, self._sse.post, view)
        return None

    async def _get(
        self, exchange: Exchange, get: Callable[[Exchange, View], Awaitable[None]], view: View
    ) -> None:
        try:
            try:
                await get(exchange, view)
            except WrongFront as elsewhere:
                body = await self._body(exchange)
                if body is not None:
                    self._go(exchange, elsewhere, body)
        except HttpRefused as declined:
            self._decline(exchange, jsonrpc_bytes.NO_ID, declined)

    def _go(self, exchange: Exchange, elsewhere: WrongFront, body: bytes) -> None:
        """Send the connection of a request with this body to the front that can answer. Raises the
        refusal for the client if the connection cannot move."""
        if self._move is None or exchange.hops >= messages.HOPS_MAX or exchange.is_encrypted:
            raise elsewhere.otherwise from None
        if not self._move(exchange, elsewhere, body):
            raise HttpRefused(503, _STUCK, "handover", Code.OVERLOADED) from None

    def _post(
        self,
        exchange: Exchange,
        answer: Callable[[Exchange, Unpack[Given], bytes], Pending],
        *arguments: *Given,
    ) -> Pending:
        """Answer a request with a body, at once if the whole body is there, as most are."""
        limited = self._calls.meters.bodies
        most = self._body_max(exchange.facts) if limited else BODY_BYTES_MAX
        if exchange.whole and exchange.size <= most:
            return answer(exchange, *arguments, exchange.take())
        return self._post_later(exchange, lambda body: answer(exchange, *arguments, body))

    async def _post_later(self, exchange: Exchange, answer: Callable[[bytes], Pending]) -> None:
        body = await self._body(exchange)
        if body is not None:
            if self._refuse_if_expired(exchange):
                return
            pending = answer(body)
            # A call may wait for long; its body need not be kept as long.
            del body
            if pending is not None:
                await pending

    def _refuse_if_expired(self, exchange: Exchange) -> bool:
        """Refuse a request whose credential ended while it waited; False if it may go on."""
        facts = exchange.facts
        still = self.door.still(facts.principal, facts.endpoint, time.time_ns() / 1e9)
        if not still:
            self._refuse(exchange, UNAUTHORIZED)
        return not still

    def _body_max(self, facts: RequestFacts) -> int:
        """Maximum bytes of the body of this request."""
        if not self._calls.meters.bodies:
            return BODY_BYTES_MAX
        most = self._calls.meters.body_max(facts.principal, gate.whole_name(facts.endpoint))
        return min(most, BODY_BYTES_MAX)

    def _stream_limits(self, facts: RequestFacts) -> Mapping[Owner, int]:
        return self._calls.meters.streams(facts.principal, gate.whole_name(facts.endpoint))

    async def _body(self, exchange: Exchange) -> bytes | None:
        """Read the whole body; None if the client is gone, or the body was refused."""
        try:
            return await exchange.body(self._body_max(exchange.facts))
        except TooLarge as error:
            if self._calls.meters.bodies:
                facts, endpoint = exchange.facts, gate.whole_name(exchange.facts.endpoint)
                self._calls.meters.too_large(facts.principal, endpoint, error.limit_bytes)
            self._refuse(exchange, header_policy.too_large(bytes_max=error.limit_bytes))
            return None

    def _handle_message(
        self,
        exchange: Exchange,
        post: Callable[[Exchange, Envelope, View, str], Pending],
        view: View,
        body: bytes,
    ) -> Pending:
        message: Envelope | None = None
        try:
            message = mcp_request.read_again(body, exchange.head)
            principal = exchange.facts.principal
            if principal is not USER or self._calls.audit is not None:
                method = gate.ANSWER if message.method is None else message.method
                self._calls.authorize(view, principal, method)
            try:
                pending = post(exchange, message, view, self._version)
            except WrongFront as elsewhere:
                self._go(exchange, elsewhere, body)
                return None
        except ServerNotReady as early:
            raw_id = mcp_request.answer_id(message)
            if len(body) > EARLY_BYTES_MAX:
                if self._calls.traces is not None:
                    self._calls.traces.on_server_missing(early, view.whole)
                return self._send_error(exchange, raw_id, early)
            call = self._calls.first_list(early, view.whole)
            exchange.on_lost = partial(call.cancel, "the client went away")
            again = partial(self._handle_message, exchange, post, body=body)
            return exchange.expect(
                call, partial(self._on_server_up, exchange, view, again, raw_id, early)
            )
        except ProtocolError as error:
            return self._send_error(exchange, mcp_request.answer_id(message), error)
        except HttpRefused as declined:
            self._decline(exchange, mcp_request.answer_id(message), declined)
            return None
        if pending is None:
            return None
        return self._await_pending(exchange, mcp_request.answer_id(message), pending)

    def _on_server_up(
        self,
        exchange: Exchange,
        before: View,
        again: Callable[[View], Pending],
        raw_id: bytes,
        early: ServerNotReady,
        first: CallAnswer | None,
    ) -> Pending:
        """Answer the request again, now that its server has reported what it offers; or refuse it
        with the reason why the server is not there."""
        exchange.on_lost = None
        if self._refuse_if_expired(exchange):
            return None
        view = self._calls.refresh_view(before)
        if view is not None and early.server not in view.merged.unknown:
            return again(view)
        if first is None or not first.code:
            return self._send_error(exchange, raw_id, early)
        status = HTTP_STATUS.get(first.code, 200)
        return exchange.finish(status, jsonrpc_bytes.raw_error(raw_id, first.body))

    async def _await_pending(
        self, exchange: Exchange, raw_id: bytes, pending: Awaitable[None]
    ) -> None:
        try:
            await pending
        except ProtocolError as error:
            self._send_error(exchange, raw_id, error)
        except HttpRefused as declined:
            self._decline(exchange, raw_id, declined)
        finally:
            await exchange.settle()

    def _send_error(self, exchange: Exchange, raw_id: bytes, error: ProtocolError) -> Pending:
        if isinstance(error, gate.ScopeMissing):
            headers = [error.challenge(self.door.metadata(exchange.facts.endpoint))]
            self._decline(
                exchange, raw_id, HttpRefused(403, error.message, "scope", headers=headers)
            )
            return None
        status = HTTP_STATUS.get(error.code, 200)
        if status != 200:
            self._stats.count_refusal("message")
        return exchange.finish(status, jsonrpc_bytes.pack_refusal(raw_id, error))

    def _decline(self, exchange: Exchange, raw_id: bytes, declined: HttpRefused) -> None:
        self._stats.count_refusal(declined.reason)
        body = jsonrpc_bytes.error(raw_id, declined.code, declined.message)
        exchange.json(declined.status, body, declined.headers)

    def _refuse(self, exchange: Exchange, refusal: Denial) -> None:
        head = exchange.head
        if refusal.reason == "path" and web_pages.is_page_request(head):
            spec = self._spec
            scheme = "https" if spec.tls is not None or spec.behind_proxy else "http"
            base = f"{scheme}://{dict(head.headers)[b'host'].decode()}"
            open_endpoints = [endpoint for endpoint in spec.endpoints if not endpoint.auth]
            exchange.page(web_pages.page(self._version, base, open_endpoints))
            return
        self._stats.count_refusal(refusal.reason)
        if is_rest(head.target):
            body = rest_error(Code.INVALID_REQUEST, refusal.message)
        else:
            body = jsonrpc_bytes.error(jsonrpc_bytes.NO_ID, Code.INVALID_REQUEST, refusal.message)
        if refusal.close:
            exchange.last(request_head.head(refusal.status, [request_head.JSON]), body)
        else:
            exchange.json(refusal.status, body, refusal.headers)

    def _report_session(self, session: ClientSession) -> None:
        """Report the data of a session that may outlive this front, unless the session is over. A
        session over HTTP+SSE cannot outlive the front, because it ends with its stream."""
        if session.event_logs is not None and not session.over:
            self._on_kept(session.record())

    def _on_sessions_ended(self, sessions: list[ClientSession]) -> None:
        for session in sessions:
            self._subscriptions.forget(session)
            self._tasks.forget(session)
            self._dialogue.forget(session)
        self._on_over(tuple(session.id for session in sessions))

    def _expire(self) -> None:
        self._sessions.expire(self._loop.time())
        self._streams.expire(time.time_ns() / 1e9)
        self._sweep = self._loop.call_later(SWEEP_S, self._expire)


def _name(size_bytes: int, front: int) -> str:
    """Return a name that cannot be guessed and shows which front created it."""
    return messages.with_front_number(secrets.token_urlsafe(size_bytes), front)
