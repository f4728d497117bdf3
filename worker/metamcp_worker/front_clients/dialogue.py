"""Messages of clients in sessions, and their answers; questions to such a client for its roots.

Owns: what the gateway answers by itself, limits of requests in flight, the course of a request to a
server from begin to end, going on with a request of a front that is gone (`Dialogue`); asking for
roots before a call goes on (`RootsRequest`); notifications of servers that belong to no call
(`Notices`). Never: which session a message belongs to (`legacy`), the
stream of a request (`exchange`), which server has to know roots (`server_processes`).
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Final

from msgspec import Raw

from metamcp_worker.catalog.views import LIST_METHODS, View
from metamcp_worker.front_calls import call_faults, client_questions, mrtr, task_ids
from metamcp_worker.front_calls.calls import Calls
from metamcp_worker.front_calls.client_questions import Question
from metamcp_worker.front_calls.mcp_request import ServerNotReady
from metamcp_worker.front_calls.request_facts import CallAnswer, McpRequest
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.front_calls.server_processes import RootsUnknown
from metamcp_worker.front_clients.client_sessions import (
    INFLIGHT_MAX,
    ClientSession,
    ClientSessions,
    request_key,
)
from metamcp_worker.front_clients.exchange import AnswerOutlet, SessionRequest, withdraw
from metamcp_worker.front_clients.mrtr_io import CallRoundTrips, ParkedBudget, wants_input
from metamcp_worker.front_clients.resource_subscriptions import (
    SUBSCRIBE,
    UNSUBSCRIBE,
    ResourceSubscriptions,
)
from metamcp_worker.front_clients.tasks import WATCH, Tasks
from metamcp_worker.http.requests import Pending
from metamcp_worker.http.resume import EventLogRef
from metamcp_worker.ipc import codec, jsonrpc_bytes, process_names, roots
from metamcp_worker.ipc.envelope import Envelope
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.spec import EndpointSpec

ROOTS_S_MAX = 10.0
"""Seconds for a client to answer with its roots. Programs answer this without asking their user, so
a client that takes longer counts as one that does not answer."""

log = logging.getLogger("metamcp.front")


class RootsRequest:
    """Question to a client for its roots. `ask`: puts the question to the client; `over`: called
    when the session knows the roots, or the client did not give them; `wait_s`: see ROOTS_S_MAX."""

    def __init__(
        self,
        session: ClientSession,
        ask: Callable[[Question], None],
        over: Callable[[], None],
        wait_s: float = ROOTS_S_MAX,
    ) -> None:
        self.cancelled = False
        self._session = session
        self._over: Callable[[], None] | None = over
        self._question = Question("", 0, 0, roots.METHOD, b"{}", self._on_reply)
        self._wait_s = wait_s
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(wait_s, self._on_timeout)
        ask(self._question)

    def cancel(self, reason: str) -> None:
        """Withdraw the question, because its call is cancelled."""
        self.cancelled = True
        self._question.withdraw()
        self._end()

    def _on_timeout(self) -> None:
        log.warning("a client did not say its roots within %g s", self._wait_s)
        self._question.withdraw()
        self._end()

    def _on_reply(self, question: Question, body: bytes, failed: bool) -> None:
        try:
            if not failed:
                self._session.has_roots(body)
        except roots.RootsUnfit as error:
            log.warning("what a client says of its roots counts as nothing: %s", error)
        self._end()

    def _end(self) -> None:
        self._timer.cancel()
        over, self._over = self._over, None
        if over is not None:
            over()


def ask_aside(session: ClientSession, question: Question) -> None:
    """Put a question to the client on the stream that belongs to no request."""
    if session.asked.full:
        question.refuse(f"The client has {len(session.asked)} open questions already.")
        return
    raw_id, params = session.asked.put(question)
    question.on_withdrawn = partial(withdraw, session, raw_id, session.tell)
    if not session.tell(jsonrpc_bytes.request(raw_id, question.method, params)):
        session.asked.take(raw_id)
        question.refuse("The client reads no event stream now, so it cannot be asked.")


_NONE: Final = Raw()
_NULL = Raw(b"null")
_OK = CallAnswer(b"{}")
_INITIALIZED = "notifications/initialized"
#: Requests that the gateway answers by itself.
OURS: Final = frozenset({*LIST_METHODS, client_questions.SET_LEVEL, SUBSCRIBE, UNSUBSCRIBE})
#: Notifications that a worker trusts as the gateway's own; no client may send them.
_RESERVED = frozenset({client_questions.SET_LEVEL, WATCH, roots.TOLD})


class Uncancellable:
    """Request whose cancellation has no effect, because its answer comes in a moment."""

    def cancel(self, reason: str) -> None:
        pass


_STEADY = Uncancellable()


class Dialogue:
    """Answers messages in sessions. `on_refused`: counts messages without effect, by reason;
    `on_kept`: called when the data of a session that another front would need have changed;
    `mint`: makes ids that cannot be guessed; `now`: the clock."""

    def __init__(
        self,
        calls: Calls,
        subscriptions: ResourceSubscriptions,
        tasks: Tasks,
        on_refused: Callable[[str], None],
        on_kept: Callable[[ClientSession], None],
        mint: Callable[[], str],
        now: Callable[[], float],
    ) -> None:
        self._calls = calls
        self._subscriptions = subscriptions
        self._tasks = tasks
        self._on_refused = on_refused
        self._on_kept = on_kept
        self._mint = mint
        self._now = now
        self._kept = ParkedBudget()
        self._servers: Mapping[str, Sequence[str]] = {}

    def configure(self, servers: Mapping[str, Sequence[str]]) -> None:
        """Set the servers that each endpoint exposes."""
        self._servers = servers

    def answer(
        self,
        outlet: AnswerOutlet,
        envelope: Envelope,
        params: dict[str, Raw],
        meta: dict[str, Raw],
        session: ClientSession,
        view: View,
    ) -> Pending:
        """Let a message take effect, and return the rest of the work. `params`, `meta`: of the
        message. Raises ProtocolError."""
        facts = outlet.facts
        if facts.directory and facts.directory != session.directory:
            session.work_in(facts.directory)
        if view.spec.per_session:
            view = self._calls.viewers.own(view, session.who)
        raw_id, method = bytes(envelope.id), envelope.method
        if method is None:
            self._on_answer(session, raw_id, bytes(envelope.result), bytes(envelope.error))
            outlet.empty(202)
            return None
        if not raw_id:
            self._on_notification(session, view, method, params, bytes(envelope.params))
            outlet.empty(202)
            return None
        if method == "ping":
            outlet.json(200, jsonrpc_bytes.result(raw_id, b"{}"))
            return None
        key = request_key(raw_id) if codec.BACKSLASH in raw_id else raw_id
        if key in session.inflight:
            raise ProtocolError(Code.INVALID_REQUEST, "A request with this id is still in flight.")
        if len(session.inflight) >= INFLIGHT_MAX:
            raise ProtocolError(
                Code.OVERLOADED, f"This session has {INFLIGHT_MAX} requests in flight."
            )
        token = bytes(meta.pop("progressToken", _NONE)) if meta else b""
        if token and not codec.id_ok(token):
            raise ProtocolError(
                Code.INVALID_PARAMS, "The progress token must be a string or an integer."
            )
        at_once = method in LIST_METHODS and not self._calls.states.unmet_s(view.spec.servers)
        if at_once and not facts.prefers_sse and self._calls.traces is None:
            return _send_list_page(outlet, raw_id, method, params, view)
        request = McpRequest(
            method, params, meta, session.caller, modern=False, peer=session.number,
            who=session.who, rooted=session.rooted, project=session.project,
            unasked=session.unasked, roots=session.roots, version=session.protocol,
            headers=outlet.headers, principal=facts.principal, id=raw_id,
            wants_progress=bool(token) and facts.accepts_sse and method not in OURS,
        )  # fmt: skip
        client = SessionRequest(outlet, session, raw_id, token, key, view)
        if facts.prefers_sse:
            client.begin()
        if method in OURS:
            return self._own(client, request)
        return self._call(client, request)

    # --- what needs no answer -------------------------------------------------------------------

    def _on_answer(
        self, session: ClientSession, raw_id: bytes, result: bytes, error: bytes
    ) -> None:
        """Take the answer to a question; count an answer to no open question of this session."""
        question = session.asked.take(request_key(raw_id))
        if question is None:
            self._on_refused("stray_answer")
        elif error:
            question.fail(error)
        else:
            question.answer(result)

    def _on_notification(
        self, session: ClientSession, view: View, method: str, params: dict[str, Raw], raw: bytes
    ) -> None:
        """Pass on a notification of the client to the request, the question or the only server that
        it concerns."""
        if method == "notifications/cancelled":
            call = session.inflight.get(request_key(bytes(params.get("requestId", _NONE))))
            if call is None:
                self._on_refused("stray_cancel")
            else:
                call.cancel(codec.text(params.get("reason", b"null")) or "the client cancelled it")
        elif method == "notifications/progress":
            question_progress = session.asked.progress(params)
            if question_progress is None:
                self._on_refused("stray_progress")
            else:
                question, progress = question_progress
                self._calls.tell(question.server, method, progress)
        elif method in _RESERVED:
            self._on_refused("reserved_notification")
        elif method == roots.CHANGED and self._knows_roots(session):
            session.has_roots(b"")
            RootsRequest(
                session, partial(ask_aside, session), partial(self._calls.send_roots, session)
            )
        elif method != _INITIALIZED and view.merged.only is not None:
            server = self._calls.process(view.merged.only.server, session)
            self._calls.tell(server, method, raw if raw[:1] == b"{" else b"")

    def _knows_roots(self, session: ClientSession) -> bool:
        """Whether the client was asked for its roots, by the gateway or perhaps by a server that
        has a process for this client alone."""
        return bool(session.answer or self._calls.processes.update_roots(session))

    # --- requests -------------------------------------------------------------------------------

    async def _own(self, client: SessionRequest, request: McpRequest) -> None:
        """Answer a request that the gateway handles by itself: a list, the log level, or a
        subscription."""
        session, view = client.session, client.view
        session.inflight[client.key] = _STEADY
        try:
            try:
                pending = client.finish(await self._answer(request, session, view), self._now())
            except ProtocolError as refused:
                pending = client.refuse(refused, self._now())
            if pending is not None:
                await pending
        finally:
            client.close()
            session.inflight.pop(client.key, None)
            session.used_at = self._now()

    async def _answer(
        self, request: McpRequest, session: ClientSession, view: View
    ) -> CallAnswer | None:
        method, params = request.method, request.params
        if method in LIST_METHODS:
            traces, began = self._calls.traces, monotonic()
            view = (
                self._calls.find_sender_view(await self._calls.await_first_starts(view), request)
                or view
            )
            page = view.page(method, params, modern=False)
            if traces is not None:
                traces.on_list(view.whole, request, began)
            return CallAnswer(page)
        if method == client_questions.SET_LEVEL:
            self._set_level(codec.text(params.get("level", _NULL)), session, view)
            return _OK
        uri = codec.text(params.get("uri", _NULL))
        if uri is None:
            raise ProtocolError(Code.INVALID_PARAMS, f"{method} needs params.uri, a string.")
        if method == SUBSCRIBE:
            answer = await self._subscriptions.watch(view, uri, session)
            if answer is not None and not answer.code:
                session.watched[uri] = None
        else:
            answer = await self._subscriptions.unwatch(view, uri, session)
            session.watched.pop(uri, None)
        self._on_kept(session)
        return answer

    def _set_level(self, level: str | None, session: ClientSession, view: View) -> None:
        if level not in client_questions.LEVELS:
            levels = ", ".join(client_questions.LEVELS)
            raise ProtocolError(Code.INVALID_PARAMS, f"params.level must be one of {levels}.")
        session.set_level(level)
        self._on_kept(session)
        for server in self._servers.get(view.endpoint, ()):
            process = self._calls.process(server, session)
            self._calls.tell(process, client_questions.SET_LEVEL, codec.dump({"level": level}))

    def _call(self, client: SessionRequest, request: McpRequest) -> Pending:
        """Send the request to its server, and answer with the result."""
        client.as_task = "task" in request.params
        try:
            call = self._start_call(client, request)
        except ServerNotReady as early:
            if client.outlet.waits and not client.outlet.facts.prefers_sse:
                self._close(client)
                raise
            if self._calls.traces is not None:
                self._calls.traces.on_server_missing(early, client.view.whole)
            pending = client.refuse(early, self._now())
            self._close(client)
            return pending
        except ProtocolError as refused:
            pending = client.refuse(refused, self._now())
            self._close(client)
            return pending
        except RootsUnknown:
            return self._inquire(client, request)
        return client.outlet.expect(call, partial(self._brought, client))

    def _start_call(self, client: SessionRequest, request: McpRequest) -> Call:
        """Begin the call of a request. Raises ProtocolError and Unasked."""
        call = self._calls.start(client.view, request, client)
        client.session.inflight[client.key] = call
        client.on_call_sent(call)
        # A call that is not sent yet may still go to a different process than it was meant for.
        modern = not call.legacy or call.wire is None
        client.driven = modern and request.method in mrtr.METHODS
        if client.driven and (size := self._kept.take(request)) is not None:
            client.kept, client.kept_bytes = request, size
        client.outlet.on_lost = client.on_connection_lost
        return call

    async def _inquire(self, client: SessionRequest, request: McpRequest) -> None:
        """Ask the client for its roots, which decide on the process that serves it; then go on."""
        session = client.session
        client.outlet.on_lost = client.on_connection_lost
        roots_known = asyncio.Event()
        inquiry = RootsRequest(session, client.ask, roots_known.set)
        session.inflight[client.key] = inquiry
        brought = False
        try:
            await roots_known.wait()
            self._calls.send_roots(session)
            _copy_client_data(request, session)
            request.unasked = False
            answer = (
                None if inquiry.cancelled else await self._start_call(client, request).answer.wait()
            )
            brought = True
            pending = self._brought(client, answer)
        except ProtocolError as refused:
            pending = client.refuse(refused, self._now())
        finally:
            if not brought:
                self._close(client)
        if pending is not None:
            await pending

    def _brought(self, client: SessionRequest, answer: CallAnswer | None) -> Pending:
        pending: Pending = None
        try:
            driven = client.driven and client.call is not None and not client.call.legacy
            if driven and answer is not None and wants_input(answer):
                pending = self._drive(client, answer)
            else:
                pending = self._finish(client, answer)
        finally:
            if pending is None:
                self._close(client)
        return None if pending is None else self._close_after(client, pending)

    async def _drive(self, client: SessionRequest, answer: CallAnswer) -> None:
        call = client.call
        assert call is not None
        start = partial(self._resend, client)
        drive = CallRoundTrips(call, client.kept, start, client.ask, self._mint)
        client.session.inflight[client.key] = drive
        try:
            pending = self._finish(client, await drive.finish(answer))
        except ProtocolError as refused:
            pending = client.refuse(refused, self._now())
        if pending is not None:
            await pending

    def _finish(self, client: SessionRequest, answer: CallAnswer | None) -> Pending:
        session = client.session
        if client.as_task and answer is not None and not answer.code and not session.over:
            self._tasks.watch_new_task(client.view, answer.body, session)
        return client.finish(answer, self._now())

    async def _close_after(self, client: SessionRequest, pending: Awaitable[None]) -> None:
        try:
            await pending
        finally:
            self._close(client)

    def _close(self, client: SessionRequest) -> None:
        """Forget a request that is over, answered or not."""
        client.outlet.on_lost = None
        client.close()
        client.session.inflight.pop(client.key, None)
        client.session.used_at = self._now()
        if client.kept_bytes:
            self._kept.give(client.kept_bytes)

    def _resend(self, client: SessionRequest, request: McpRequest) -> Call:
        """Send a request again, with the endpoint as it is now. Raises ProtocolError."""
        view = self._calls.refresh_view(client.view)
        if view is None:
            raise ProtocolError(Code.INVALID_REQUEST, "This endpoint is not served any more.")
        call = self._calls.start(view, request, client)
        client.on_call_sent(call)
        return call

    def forget(self, session: ClientSession) -> None:
        """Drop the calls that another front has left of a session that is over."""
        if session.inherits(self._now()):
            self._calls.release(self._servers.get(session.endpoint, ()), session.id)

    async def go_on(
        self, outlet: AnswerOutlet, session: ClientSession, lost: EventLogRef, view: View
    ) -> None:
        """Answer with the rest of a request whose stream was in a front that is gone: the messages
        of its server since then, and the answer, or an error if the call is lost."""
        client, key, call = SessionRequest(outlet, session, lost.request, b"", b"", view), b"", None
        outlet.on_lost = client.on_connection_lost
        try:
            client.inherit(lost)
            call = await self._calls.claim(
                view,
                self._servers.get(session.endpoint, ()),
                session.id,
                lost.name,
                session.number,
                client,
            )
            answer: CallAnswer | None = call_faults.build_front_lost_error()
            if call is not None:
                key = request_key(client.raw_id)
                session.inflight.setdefault(key, call)
                client.on_call_sent(call)
                if session.over:
                    call.cancel("the session has ended")
                answer = await call.answer.wait()
                # The request that would have to be sent again was in the other front.
                if not call.legacy and answer is not None and wants_input(answer):
                    answer = call_faults.build_front_lost_error()
            pending = client.finish(answer, self._now())
            if pending is not None:
                await pending
        finally:
            outlet.on_lost = None
            client.close()
            if session.inflight.get(key) is call:
                session.inflight.pop(key, None)
            session.used_at = self._now()
            await outlet.settle()


def _copy_client_data(request: McpRequest, session: ClientSession) -> None:
    """Write into the request the data of its client that decide on the process of a server."""
    request.rooted, request.project = session.rooted, session.project
    request.unasked, request.roots = session.unasked, session.roots


def _send_list_page(
    outlet: AnswerOutlet, raw_id: bytes, method: str, params: Mapping[str, Raw], view: View
) -> Pending:
    """Answer with a page of a list. No task is needed, because the bytes are there."""
    try:
        page = view.page(method, params, modern=False)
    except ProtocolError as error:
        outlet.json(200, jsonrpc_bytes.pack_refusal(raw_id, error))
        return None
    return outlet.result(raw_id, page)


ELICITED = "notifications/elicitation/complete"


class Notices:
    """Passes notifications of servers that belong to no call, and for which no other code is
    registered, to sessions."""

    def __init__(self, calls: Calls, sessions: ClientSessions, tasks: Tasks) -> None:
        self._sessions = sessions
        self._tasks = tasks
        self._servers: Mapping[str, Sequence[str]] = {}
        self._between: frozenset[str] = frozenset()
        calls.on_notice(client_questions.MESSAGE, self._on_log_message)
        calls.on_notice(ELICITED, self._on_elicitation_complete)
        calls.notified = self._other

    def configure(self, endpoints: Sequence[EndpointSpec]) -> None:
        """Set the servers that each endpoint exposes. Notifications without a call of a server that
        several workspaces share reach no client: they could be about another workspace."""
        self._servers = {endpoint.name: endpoint.servers for endpoint in endpoints}
        seen = {
            (server, endpoint.workspace) for endpoint in endpoints for server in endpoint.servers
        }
        count = Counter(server for server, _ in seen)
        self._between = frozenset(server for server, places in count.items() if places > 1)

    def _on_log_message(self, server: str, params: bytes) -> None:
        """Pass a log message to the sessions that asked for messages by setting a level."""
        if self._tell_owner(server, client_questions.MESSAGE, params):
            return
        if process_names.base(server) in self._between:
            return
        message = jsonrpc_bytes.notification(client_questions.MESSAGE, params)
        for session in self._find_listeners(server):
            may_hear = session.level and process_names.base(server) in self._get_servers(session)
            if may_hear and client_questions.passes(session.level, params):
                session.tell(message)

    def _on_elicitation_complete(self, server: str, params: bytes) -> None:
        """Notify the client that was asked to visit a URL that the visit is over."""
        elicitation = codec.text(codec.members(params).get("elicitationId", b"null"))
        for session in self._find_listeners(server):
            if elicitation is not None and (server, elicitation) in session.elicitations:
                session.tell(jsonrpc_bytes.notification(ELICITED, params))

    def _other(self, server: str, method: str, params: bytes) -> None:
        """Pass an unknown notification to the clients that have this server alone."""
        if self._tell_owner(server, method, params):
            return
        if process_names.base(server) in self._between:
            return
        message = jsonrpc_bytes.notification(method, params)
        for session in self._find_listeners(server):
            if tuple(self._get_servers(session)) == (process_names.base(server),):
                session.tell(message)

    def _tell_owner(self, server: str, method: str, params: bytes) -> bool:
        """Pass a notification that belongs to a task to the session that began the task, and to no
        other. Returns False if it belongs to none."""
        task = task_ids.find_related_task(params)
        if task is None:
            return False
        for session, exposed in self._tasks.watchers(server, task):
            if not isinstance(session, ClientSession):
                continue
            wants_messages = session.level and client_questions.passes(session.level, params)
            if wants_messages or method != client_questions.MESSAGE:
                own = task_ids.in_params(params, {task: exposed}.__getitem__)
                session.tell(jsonrpc_bytes.notification(method, own))
        return True

    def _find_listeners(self, server: str) -> Iterable[ClientSession]:
        """Return the sessions that may hear this server; a process for one client, or for the
        clients with the same roots, speaks to these only."""
        who = process_names.parse_client(server)
        every = who in ("", process_names.LEGACY)
        return (
            session for session in self._sessions if every or who in (session.who, session.project)
        )

    def _get_servers(self, session: ClientSession) -> Sequence[str]:
        return self._servers.get(session.endpoint, ())
