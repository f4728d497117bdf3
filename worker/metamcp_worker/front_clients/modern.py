"""Revision 2026-07-28: requests that stand alone.

Owns: the headers and members that such a request must have and the order of their checks,
discovery, which messages before the answer reach the client, and the rule that a client cancels a
call by going away. Never: sessions, lists, the way to a server, subscriptions
(`subscriptions_listen`), calls that wait for their client (`mrtr_io`).
"""

import asyncio
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from weakref import WeakKeyDictionary

from msgspec import Raw

from metamcp_worker.catalog.views import LIST_METHODS, View
from metamcp_worker.front_calls import client_questions, mcp_request, mrtr
from metamcp_worker.front_calls.calls import OWN, Call, Calls
from metamcp_worker.front_calls.client_questions import Question
from metamcp_worker.front_calls.mcp_request import METHODS, subject_of
from metamcp_worker.front_calls.request_facts import (
    CallAnswer,
    CheckedRequest,
    ClientStamp,
    McpRequest,
)
from metamcp_worker.front_calls.server_processes import Peers, RootsUnknown
from metamcp_worker.front_clients.client_sessions import CALLER_BYTES_MAX, HANDSHAKE_VERSIONS
from metamcp_worker.front_clients.exchange import Exchange
from metamcp_worker.front_clients.exchange import message as message_of
from metamcp_worker.front_clients.header_policy import RequestFacts
from metamcp_worker.front_clients.mrtr_io import InteractiveCall, ParkedCalls, wants_input
from metamcp_worker.front_clients.resource_subscriptions import ResourceSubscriptions
from metamcp_worker.front_clients.subscriptions_listen import SubscriptionsListen
from metamcp_worker.front_clients.tasks import Tasks
from metamcp_worker.http import mcp_headers
from metamcp_worker.http.mcp_headers import Wishes
from metamcp_worker.http.request_head import Headers
from metamcp_worker.http.requests import Pending
from metamcp_worker.ipc import codec, jsonrpc_bytes, process_names
from metamcp_worker.ipc.envelope import Envelope
from metamcp_worker.ipc.errors import HTTP_STATUS, Code, ProtocolError
from metamcp_worker.ipc.server_catalog import DISCOVER

VERSIONS: tuple[str, ...] = ("2026-07-28",)
SUPPORTED = (*VERSIONS, *HANDSHAKE_VERSIONS)
"""Revisions that clients read wherever revisions are listed, best first. The list shows a client
without a revision of this era that the gateway understands `initialize`."""

_PREFIX = "io.modelcontextprotocol/"
PROTOCOL_VERSION = _PREFIX + "protocolVersion"
_CAPABILITIES = _PREFIX + "clientCapabilities"
_CLIENT_INFO = _PREFIX + "clientInfo"
_LOG_LEVEL = _PREFIX + "logLevel"
STAMP = (PROTOCOL_VERSION, _CAPABILITIES, _CLIENT_INFO, _LOG_LEVEL)
"""Members of `_meta` in which a request of this era says who sends it."""
_SERVER_INFO = _PREFIX + "serverInfo"
STATE_BYTES = 32
"""Random bytes in a state that a client brings back: a client that could guess the state of another
client could go on with its call."""
KEPT_PARAMS_BYTES_MAX = 4096
"""Maximum bytes of a request whose parameters are kept until the answer, which may bind a state to
them; of a larger one a digest is computed at once."""
URL_REQUIRED = -32042
"""Code of a legacy server that answers nothing before a URL was visited; never sent to clients of
this era."""

#: Methods of the handshake era that this era does not have; no server may make them exist here.
_GONE = frozenset({
    "initialize", "logging/setLevel", "ping", "resources/subscribe", "resources/unsubscribe",
    "tasks/list", "tasks/result",
})  # fmt: skip
#: Notifications that never go to the client of a request: other streams have them, or other eras.
_ELSEWHERE = frozenset(
    {
        "notifications/cancelled",
        "notifications/elicitation/complete",
        "notifications/initialized",
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
        "notifications/resources/updated",
        "notifications/roots/list_changed",
        "notifications/subscriptions/acknowledged",
        "notifications/tasks",
        "notifications/tasks/status",
        "notifications/tools/list_changed",
    }
)
_NONE = Raw()


STAMPS_MAX = 256
"""Maximum number of clients whose `_meta` is recognized; beyond that all are forgotten."""
STAMP_BYTES_MAX = 4096
"""Maximum bytes of a `_meta` that is recognized."""

Stamps = dict[bytes, ClientStamp]


class ModernEra:
    """Answers the POSTs of this era."""

    def __init__(
        self,
        calls: Calls,
        subscriptions: ResourceSubscriptions,
        tasks: Tasks,
        mint: Callable[[], str] = lambda: secrets.token_urlsafe(STATE_BYTES),
    ) -> None:
        self._calls = calls
        self._listening = SubscriptionsListen(subscriptions, tasks)
        self._peers = Peers()
        self._stamps: Stamps = {}
        self._parking = ParkedCalls(asyncio.get_running_loop(), mint)
        self._wishes: WeakKeyDictionary[View, Mapping[str, Wishes]] = WeakKeyDictionary()

    def close(self) -> None:
        """Give up the calls that wait for their clients, because the front ends."""
        self._parking.close()

    def post(self, exchange: Exchange, message: Envelope, view: View, version: str) -> Pending:
        """Answer a message. `version`: of the gateway. Raises ProtocolError, Declined and
        Elsewhere; the last only before this method returns, never when the returned work is
        awaited."""
        if not message.id:
            check_version((exchange.facts.version or b"").decode("latin-1"))
            exchange.empty(202)
            return None
        if message.method is None:
            raise ProtocolError(Code.INVALID_REQUEST, "This revision has no requests to a client.")
        checked = check(message, exchange.facts, exchange.headers, self._stamps)
        if message.method == "subscriptions/listen":
            exchange.check_staying()
        if "requestState" in checked.params and message.method in mrtr.METHODS:
            self._parking.check_here(checked.params["requestState"])
        return self._answer(exchange, bytes(message.id), message.method, checked, view, version)

    def _answer(
        self,
        exchange: Exchange,
        raw_id: bytes,
        method: str,
        checked: CheckedRequest,
        view: View,
        version: str,
    ) -> Pending:
        if method in LIST_METHODS:
            if self._calls.states.unmet_s(view.spec.servers) or self._calls.traces is not None:
                return self._listed_later(exchange, raw_id, method, checked, view)
            return exchange.result(raw_id, view.page(method, checked.params, modern=True))
        if method == "server/discover":
            exchange.json(200, jsonrpc_bytes.result(raw_id, discovery(view, version)))
            return None
        if method == "subscriptions/listen":
            filters = checked.params.get("notifications", Raw())
            who = self._peers.find(view.principal, view.endpoint, checked.identity).who
            return self._listening.answer(exchange, raw_id, filters, checked.caller, view, who)
        if method in _GONE:
            raise ProtocolError(
                Code.METHOD_NOT_FOUND, f"{method} does not exist in revision {VERSIONS[0]}."
            )
        if method == "tools/call":
            self._check_arguments(checked, view)
        client = _Client(exchange, checked.token, checked.level)
        if "inputResponses" in checked.params:
            checked.params, client.roots = mrtr.extract_roots(checked.params)
        try:
            call = self._resume_call(client, method, checked, view)
            if call is None:
                call = self._start_call(client, method, checked, view, exchange.facts, raw_id)
        except RootsUnknown:
            return exchange.result(raw_id, mrtr.ask_roots())
        exchange.on_lost = partial(call.cancel, "the client went away")
        if exchange.size > KEPT_PARAMS_BYTES_MAX:
            apart = call.server != process_names.base(call.server)  # its era is not known yet
            if method in mrtr.METHODS and (apart or not call.legacy):
                checked.digest = mrtr.digest(checked.params)
            checked.params = {}
        return exchange.expect(
            call, partial(self._brought, exchange, raw_id, call, client, checked, view, method)
        )

    async def _listed_later(
        self,
        exchange: Exchange,
        raw_id: bytes,
        method: str,
        checked: CheckedRequest,
        view: View,
    ) -> None:
        """Answer with a page of a list, after the first start of its servers."""
        traces, began = self._calls.traces, monotonic()
        view = await self._calls.await_first_starts(view)
        page = view.page(method, checked.params, modern=True)
        if traces is not None:
            request = self._build_request(method, checked, view, exchange.facts, raw_id)
            traces.on_list(view.whole, request, began)
        pending = exchange.result(raw_id, page)
        if pending is not None:
            await pending

    def _check_arguments(self, checked: CheckedRequest, view: View) -> None:
        wishes = self._wishes.get(view)
        if wishes is None:
            tools = ((entry.key, entry.item.raw) for entry in view.merged.lists["tools"])
            wishes = self._wishes[view] = mcp_request.collect_wishes(tools)
        if wishes:
            tool_wishes = wishes.get(codec.text(checked.params.get("name", _NONE)) or "")
            if tool_wishes is not None:
                mcp_request.check(tool_wishes, checked.params.get("arguments"), checked.headers)

    # --- calls ----------------------------------------------------------------------------------

    def _start_call(
        self,
        client: "_Client",
        method: str,
        checked: CheckedRequest,
        view: View,
        facts: RequestFacts,
        raw_id: bytes,
    ) -> Call:
        """Send the request to its server, and return the call. Raises ProtocolError, and Unasked if
        the client has to be asked for its roots."""
        request = self._build_request(method, checked, view, facts, raw_id)
        request.wants_progress = client.reads_progress
        request.unasked = True
        try:
            call = self._calls.start(view, request, client)
        except RootsUnknown:
            if not mrtr.place_roots(request, view.principal, client.roots, facts.directory):
                raise
            call = self._calls.start(view, request, client)
        own = call.server == OWN and call.caller is not None
        is_held = call.frame is not None and self._calls.is_held(call)
        interactive = (call.legacy or own or is_held) and method in mrtr.METHODS
        if interactive and client_questions.may_be_asked_anything(checked.caller):
            subject = subject_of(METHODS[method], request)
            owner = METHODS[method].find(view.merged, subject)
            bound = _make_binding(
                view, method, owner.server if owner is not None else "", checked.params
            )
            client.talk = InteractiveCall(self._parking, call, bound, checked.caller)
        return call

    def _build_request(
        self, method: str, checked: CheckedRequest, view: View, facts: RequestFacts, raw_id: bytes
    ) -> McpRequest:
        peer = self._peers.find(view.principal, view.endpoint, checked.identity)
        return McpRequest(
            method, checked.params, checked.meta, checked.caller, modern=True, peer=peer.number,
            who=peer.who, version=VERSIONS[0], headers=checked.headers, principal=facts.principal,
            id=raw_id,
        )  # fmt: skip

    def _resume_call(
        self, client: "_Client", method: str, checked: CheckedRequest, view: View
    ) -> Call | None:
        """Return the call that this request goes on with; None if the request begins a call. Raises
        ProtocolError."""
        params = checked.params
        if (
            not ("requestState" in params or "inputResponses" in params)
            or method not in mrtr.METHODS
        ):
            return None
        rule = METHODS[method]
        subject = subject_of(rule, McpRequest(method, params, {}, checked.caller, modern=True))
        owner = rule.find(view.merged, subject)
        state = codec.text(params.get("requestState", _NONE))
        if mrtr.is_state(state):
            bound = _make_binding(view, method, owner.server if owner is not None else "", params)
            responses = _responses(params)
            talk = self._parking.take(state or "", bound)
            client.talk = talk
            talk.resume(client, checked.caller, responses)
            return talk.call
        if owner is not None and owner.legacy:
            # The server knows neither of the two: a client that visited a URL sends the call again.
            if bytes(params.get("requestState", b"null")) != b"null":
                raise ProtocolError(Code.INVALID_PARAMS, mrtr.OVER)
            checked.params = mrtr.original(params)
        elif owner is not None and bytes(params.get("requestState", b"null")) != b"null":
            bound = _make_binding(view, method, owner.server, params)
            own = mrtr.unseal_state(self._calls.handle_key, bound, params["requestState"])
            checked.params = {**params, "requestState": own}
        return None

    def _brought(
        self,
        exchange: Exchange,
        raw_id: bytes,
        call: Call,
        client: "_Client",
        checked: CheckedRequest,
        view: View,
        method: str,
        answer: CallAnswer | None,
    ) -> Pending:
        exchange.on_lost = None
        over = call.answer.is_done()
        if over:
            call.caller = None  # it may hold the call, and gets nothing any more
        if answer is not None and not answer.code:
            body, server = answer.body, process_names.base(call.server)
            if over and not call.legacy and method in mrtr.METHODS and wants_input(answer):
                bound = _make_binding(view, method, server, checked.params, checked.digest)
                body = mrtr.seal_state(self._calls.handle_key, bound, body)
            if client.roots and not call.legacy and call.server != server:
                body = mrtr.ask_roots_too(body)
            return exchange.result(raw_id, body)
        if answer is not None and answer.code == URL_REQUIRED and call.legacy:
            answer = visits(answer, checked.caller)
        status = 200 if answer is None else HTTP_STATUS.get(answer.code, 200)
        return exchange.finish(status, message_of(raw_id, answer))


class _Client:
    """Caller for one request: puts the messages before the answer on the stream of the same
    response. `talk`: set if the client can be asked something; `roots`: raw roots that the client
    sends, or empty."""

    __slots__ = ("_exchange", "_level", "_token", "roots", "talk")

    def __init__(self, exchange: Exchange, token: bytes, level: str | None) -> None:
        self._exchange = exchange
        self._token = token
        self._level = level
        self.talk: InteractiveCall | None = None
        self.roots = b""

    @property
    def reads_progress(self) -> bool:
        return bool(self._token) and self._exchange.facts.accepts_sse

    def on_progress(self, params: bytes) -> None:
        if self._token:
            self._exchange.put(jsonrpc_bytes.event(jsonrpc_bytes.progress(self._token, params)))

    def on_notification(self, method: str, params: bytes) -> None:
        if method == client_questions.MESSAGE:
            if self._level is None or not client_questions.passes(self._level, params):
                return
        elif method in _ELSEWHERE:
            return
        self._exchange.put(jsonrpc_bytes.event(jsonrpc_bytes.notification(method, params)))

    def on_question(self, question: Question) -> None:
        if self.talk is None:
            question.decline("The client of this call cannot be asked.")
        else:
            self.talk.on_question(question)


def check(
    message: Envelope, facts: RequestFacts, headers: Headers, stamps: Stamps
) -> CheckedRequest:
    """Check a request in the order of this era. `headers`: all headers of HTTP; `stamps`: raw
    `_meta` of earlier requests. Raises ProtocolError for the first check that fails."""
    if facts.repeated:
        raise mcp_request.mismatch(f"{facts.repeated.decode().title()} came more than once.")
    params = mcp_request.members(message)
    raw = params.pop("_meta", _NONE)
    stamp = stamps.get(bytes(raw))
    if stamp is not None:
        _check_headers(message, params, facts, stamp.version)
        return CheckedRequest(params, {}, stamp.caller, b"", stamp.level, stamp.identity, headers)
    meta = mcp_request.meta(raw) if raw else {}
    version = meta.pop(PROTOCOL_VERSION, _NONE)
    capabilities = meta.pop(_CAPABILITIES, _NONE)
    if not version or not capabilities:
        if not version and facts.version:
            # A client of another revision may leave these out.
            check_version(facts.version.decode("latin-1"))
        required = ((PROTOCOL_VERSION, version), (_CAPABILITIES, capabilities))
        missing = " and ".join(key for key, value in required if not value)
        raise ProtocolError(Code.INVALID_PARAMS, f"params._meta lacks {missing}.")
    if not bytes(capabilities).startswith(b"{"):
        raise ProtocolError(
            Code.INVALID_PARAMS, f"params._meta: {_CAPABILITIES} must be an object."
        )
    claimed_version = _check_headers(message, params, facts, codec.text(version))
    check_version(claimed_version)
    token = bytes(meta.pop("progressToken", b""))
    if token and not codec.id_ok(token):
        raise ProtocolError(
            Code.INVALID_PARAMS, "The progress token must be a string or an integer."
        )
    raw_level = meta.pop(_LOG_LEVEL, _NONE)
    level = codec.text(raw_level) if raw_level else None
    if raw_level and level not in client_questions.LEVELS:
        names = ", ".join(client_questions.LEVELS)
        raise ProtocolError(
            Code.INVALID_PARAMS, f"params._meta: {_LOG_LEVEL} must be one of {names}."
        )
    client_info = meta.pop(_CLIENT_INFO, _NONE)
    caller = _caller(client_info, capabilities, raw_level)
    if not token and not meta and len(raw) <= STAMP_BYTES_MAX:
        if len(stamps) >= STAMPS_MAX:
            stamps.clear()
        stamps[bytes(raw)] = ClientStamp(claimed_version, caller, level, bytes(client_info))
    return CheckedRequest(params, meta, caller, token, level, bytes(client_info), headers)


def _check_headers(
    message: Envelope, params: Mapping[str, Raw], facts: RequestFacts, version: str | None
) -> str:
    """Check that the headers say what the message says, and return the version. `version`: in
    `_meta`. Raises ProtocolError."""
    claimed = "" if facts.version is None else facts.version.decode("latin-1")
    if version != claimed:
        raise mcp_request.mismatch("MCP-Protocol-Version is not the version in params._meta.")
    if facts.method is None or facts.method.decode("latin-1") != message.method:
        raise mcp_request.mismatch("Mcp-Method is not the method of the message.")
    named = mcp_headers.NAMED.get(message.method or "")
    if named is not None:
        subject = params.get(named)
        if subject is not None and (
            facts.name is None or not mcp_request.same(subject, facts.name)
        ):
            raise mcp_request.mismatch(f"Mcp-Name is not params.{named}.")
    return claimed


def check_version(version: str) -> None:
    """Refuse a revision that is not of this era. Raises ProtocolError, which lists the revisions
    that the gateway speaks."""
    if version not in VERSIONS:
        raise ProtocolError(
            Code.UNSUPPORTED_VERSION,
            "Unsupported protocol version",
            codec.dump({"supported": SUPPORTED, "requested": version}),
        )


def discovery(view: View, version: str) -> bytes:
    """Return the raw result of `server/discover`."""
    result: dict[str, object] = {
        "resultType": "complete",
        "supportedVersions": SUPPORTED,
        "capabilities": Raw(view.capabilities(modern=True)),
    }
    if view.instructions is not None:
        result["instructions"] = view.instructions
    result |= view.hint(DISCOVER)
    result["_meta"] = {_SERVER_INFO: {"name": "metamcp", "version": version}}
    return codec.dump(result)


def visits(answer: CallAnswer, caller: bytes) -> CallAnswer:
    """Return the answer for a client of this era in place of the error that demands visits to URLs:
    a result that asks for the visits, or a different error if the client cannot be asked."""
    requests = mrtr.links(answer.body)
    if not requests:
        members = {**codec.level(answer.body), "code": Raw(b"%d" % Code.INTERNAL_ERROR)}
        return CallAnswer(codec.dump(members), Code.INTERNAL_ERROR)
    if all(
        client_questions.may_be_asked(caller, request.method, request.params)
        for request in requests.values()
    ):
        return CallAnswer(mrtr.result(requests, ""))
    error: dict[str, object] = {
        "code": int(Code.MISSING_CAPABILITY),
        "message": "The server needs visits to URLs first, which this request does not declare.",
        "data": Raw(b'{"requiredCapabilities":{"elicitation":{"url":{}}}}'),
    }
    return CallAnswer(codec.dump(error), Code.MISSING_CAPABILITY)


def _make_binding(
    view: View, method: str, server: str, params: Mapping[str, Raw], digest: bytes = b""
) -> mrtr.StateBinding:
    """Return the scope of a state. `params`: the parameters of the request, or their digest."""
    digest = digest or mrtr.digest(params)
    return mrtr.StateBinding(view.principal, view.whole, method, server, digest)


def _responses(params: Mapping[str, Raw]) -> dict[str, Raw]:
    """Return the raw answers of the client, by question. A value that cannot be an answer is left
    out, so its question is asked again. Raises ProtocolError."""
    raw = params.get("inputResponses")
    if raw is None:
        return {}
    try:
        return {
            key: response
            for key, response in codec.level(raw).items()
            if bytes(response).startswith(b"{")
        }
    except codec.Malformed:
        raise ProtocolError(
            Code.INVALID_PARAMS, "params.inputResponses must be an object."
        ) from None


def _caller(client_info: Raw, capabilities: Raw, log_level: Raw) -> bytes:
    """Return the raw JSON about this client that servers get. Raises ProtocolError."""
    caller = b'{"clientCapabilities":' + bytes(capabilities)
    if client_info:
        caller += b',"clientInfo":' + bytes(client_info)
    if log_level:
        caller += b',"logLevel":' + bytes(log_level)
    if len(caller) > CALLER_BYTES_MAX:
        subject = "params._meta: the client's capabilities and clientInfo"
        raise ProtocolError(
            Code.INVALID_PARAMS, f"{subject} have more than {CALLER_BYTES_MAX} bytes."
        )
    return caller + b"}"
