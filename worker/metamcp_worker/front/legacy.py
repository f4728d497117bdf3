"""Revisions up to 2025-11-25: sessions, opened by a handshake.

Owns: which session a request belongs to, the handshake, the methods that the gateway answers by
itself in this era, cancellation by notification, the session's own stream. Never: the table of
sessions and its limits (`session`), the way to a server.

A client that goes away has cancelled nothing here: the session says who it is, and it may come
back. What it asked for is still finished.
"""

from collections.abc import Callable

from msgspec import Raw

from metamcp_worker import codec
from metamcp_worker.codec import Envelope
from metamcp_worker.errors import Code, Refused
from metamcp_worker.front import answers, inbound, modern
from metamcp_worker.front.calls import Calls, Request
from metamcp_worker.front.exchange import Declined, Exchange
from metamcp_worker.front.questions import Question
from metamcp_worker.front.session import (
    CALLER_BYTES_MAX,
    INFLIGHT_MAX,
    Session,
    Sessions,
    negotiated,
    request_key,
)
from metamcp_worker.front.streams import LIST_CHANGED
from metamcp_worker.front.views import LIST_METHODS, View

_NONE = Raw()
#: Capabilities to be asked by a server. There is no way back to a client of this era yet, so no
#: server may hear that it has one of them.
_TO_BE_ASKED = frozenset({"elicitation", "roots", "sampling", "tasks"})
_NEWS = {method: answers.event(answers.notification(method)) for method in LIST_CHANGED.values()}


class Legacy:
    """Answers the requests of this era. `on_refused`: counts what came to nothing; `mint`: makes
    session ids; `now`: the clock."""

    def __init__(
        self,
        calls: Calls,
        on_refused: Callable[[str], None],
        sessions: Sessions,
        mint: Callable[[], str],
        now: Callable[[], float],
    ) -> None:
        self._calls = calls
        self._on_refused = on_refused
        self._sessions = sessions
        self._mint = mint
        self._now = now

    async def post(self, exchange: Exchange, message: Envelope, view: View, version: str) -> None:
        """`version`: of the gateway. Raises Refused and Declined."""
        params, meta = inbound.parameters(message) if message.method else ({}, {})
        if codec.text(meta.get(modern.PROTOCOL_VERSION, b"null")) in modern.VERSIONS:
            raise Refused(
                Code.HEADER_MISMATCH,
                "MCP-Protocol-Version does not say the version in params._meta.",
            )
        for key in modern.STAMP:
            meta.pop(key, None)  # what a modern server is told of this client, the gateway says
        raw_id = bytes(message.id)
        if message.method == "initialize" and raw_id:
            await self._initialize(exchange, raw_id, params, view, version)
            return
        session = self._session(exchange)
        if message.method is None:
            self._on_refused("stray_answer")  # the gateway has asked this client nothing
            await exchange.empty(202)
        elif not raw_id:
            self._notified(session, message.method, params)
            await exchange.empty(202)
        elif message.method == "ping":
            await exchange.json(200, answers.result(raw_id, b"{}"))
        else:
            request = Request(message.method, params, meta, session.caller, modern=False)
            answering = self._request(exchange, raw_id, request, session, view)
            del message, params, meta, request  # they hold the body
            await answering

    async def get(self, exchange: Exchange) -> None:
        """The stream of a session, for what belongs to no request. Raises Declined."""
        session = self._session(exchange)
        exchange.check_stream()
        stream = exchange.stream()
        for method in sorted(session.attach(stream)):
            stream.announce(_NEWS[method])
        try:
            await exchange.stand(stream, session.endpoint, _NEWS)
        finally:
            session.detach(stream, self._now())

    async def delete(self, exchange: Exchange) -> None:
        """The client says goodbye. Raises Declined."""
        self._sessions.close(self._session(exchange))
        await exchange.empty(200)

    def _session(self, exchange: Exchange) -> Session:
        facts = exchange.facts
        if facts.session is None:
            message = "The header Mcp-Session-Id is missing; send initialize first."
            raise Declined(400, message, "session")
        now = self._now()
        session = self._sessions.find(facts.session.decode("latin-1"), facts.endpoint, now)
        if session is None:
            message = "There is no such session (any more); send initialize again."
            raise Declined(404, message, "session")
        if facts.version is not None and facts.version.decode("latin-1") != session.protocol:
            message = f"MCP-Protocol-Version must be {session.protocol} in this session."
            raise Declined(400, message, "session")
        return session

    async def _initialize(
        self, exchange: Exchange, raw_id: bytes, params: dict[str, Raw], view: View, version: str
    ) -> None:
        requested = codec.text(params.get("protocolVersion", b"null"))
        if requested is None:
            raise Refused(Code.INVALID_PARAMS, "initialize needs params.protocolVersion.")
        if exchange.facts.session is not None:
            self._session(exchange)
            raise Refused(Code.INVALID_REQUEST, "This session is initialized already.")
        caller = _caller(params)
        session = self._sessions.open(
            self._mint(), view.endpoint, negotiated(requested), caller, self._now()
        )
        if session is None:
            message = "There are as many sessions as there may be; try again later."
            raise Declined(503, message, "sessions", Code.OVERLOADED)
        result: dict[str, object] = {
            "protocolVersion": session.protocol,
            "capabilities": Raw(view.capabilities(modern=False)),
            "serverInfo": {"name": "metamcp", "version": version},
        }
        if view.instructions is not None:
            result["instructions"] = view.instructions
        await exchange.json(
            200,
            answers.result(raw_id, codec.dump(result)),
            [(b"mcp-session-id", session.id.encode())],
        )

    def _notified(self, session: Session, method: str, params: dict[str, Raw]) -> None:
        """A cancellation is carried out; what else a client may tell changes nothing here."""
        if method == "notifications/cancelled":
            call = session.inflight.get(request_key(bytes(params.get("requestId", _NONE))))
            if call is None:
                self._on_refused("stray_cancel")
            else:
                call.cancel(codec.text(params.get("reason", b"null")) or "the client cancelled it")

    async def _request(
        self, exchange: Exchange, raw_id: bytes, request: Request, session: Session, view: View
    ) -> None:
        key = request_key(raw_id)
        if key in session.inflight:
            raise Refused(Code.INVALID_REQUEST, "A request with this id is still in flight.")
        if len(session.inflight) >= INFLIGHT_MAX:
            raise Refused(Code.OVERLOADED, f"This session has {INFLIGHT_MAX} requests in flight.")
        token = bytes(request.meta.pop("progressToken", _NONE))
        if token and not codec.id_ok(token):
            raise Refused(Code.INVALID_PARAMS, "The progress token must be a string or an integer.")
        request.wants_progress = bool(token) and exchange.facts.accepts_sse
        try:
            if request.method in LIST_METHODS:
                body = view.page(request.method, request.params, modern=False)
                await exchange.json(200, answers.result(raw_id, body))
                return
            call = self._calls.start(view, request, _Client(exchange, token))
        except Refused as refused:  # of the method itself; in this era that is no matter of HTTP
            await exchange.json(200, answers.refused(raw_id, refused))
            return
        del request
        session.inflight[key] = call
        try:
            await exchange.relay(call, raw_id, {})
        finally:
            session.inflight.pop(key, None)
            session.used_at = self._now()


class _Client:
    """The client of one request: what comes before its answer goes on the same stream."""

    __slots__ = ("_exchange", "_token")

    def __init__(self, exchange: Exchange, token: bytes) -> None:
        self._exchange = exchange
        self._token = token

    def progressed(self, params: bytes) -> None:
        self._exchange.put(answers.event(answers.progress(self._token, params)))

    def told(self, method: str, params: bytes) -> None:
        self._exchange.put(answers.event(answers.notification(method, params)))

    def asked(self, question: Question) -> None:
        question.refuse("The client of this call cannot be asked.")


def _caller(params: dict[str, Raw]) -> bytes:
    """What servers are told of this client. Raises Refused."""
    try:
        capabilities = codec.level(params.get("capabilities", b"{}"))
    except codec.Malformed:
        raise Refused(Code.INVALID_PARAMS, "params.capabilities must be an object.") from None
    kept = {name: bytes(raw) for name, raw in capabilities.items() if name not in _TO_BE_ASKED}
    caller = {"clientCapabilities": answers.members(kept)}
    if "clientInfo" in params:
        caller["clientInfo"] = bytes(params["clientInfo"])
    whole = answers.members(caller)
    if len(whole) > CALLER_BYTES_MAX:
        what = "params.capabilities and params.clientInfo"
        raise Refused(Code.INVALID_PARAMS, f"{what} have more than {CALLER_BYTES_MAX} bytes.")
    return whole
