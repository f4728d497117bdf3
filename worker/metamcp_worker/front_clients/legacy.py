"""Revisions up to 2025-11-25, over streamable HTTP and HTTP+SSE: sessions, opened by a handshake.

Owns: which session a request belongs to, the handshake, the session's own stream, going on with a
stream after a lost connection, taking over sessions of another front (`LegacyEra`); the streams of
HTTP+SSE and their sessions (`Sse`). Never: the table of sessions and its limits
(`client_sessions`), messages in a session (`dialogue`). A client that goes away cancels nothing in
streamable HTTP: its session identifies it, it may come back, and its requests are still finished.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from hmac import compare_digest
from urllib.parse import parse_qs, quote

from msgspec import Raw

from metamcp_worker.access import door, gate
from metamcp_worker.access.gate import Principal
from metamcp_worker.catalog.views import View
from metamcp_worker.front_calls import mcp_request
from metamcp_worker.front_calls.request_facts import CallAnswer, HttpRefused
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.front_clients import modern
from metamcp_worker.front_clients.client_sessions import (
    CALLER_BYTES_MAX,
    ClientSession,
    ClientSessions,
    negotiate_version,
)
from metamcp_worker.front_clients.dialogue import Dialogue
from metamcp_worker.front_clients.exchange import Exchange
from metamcp_worker.front_clients.header_policy import RequestFacts
from metamcp_worker.front_clients.streams import Stream
from metamcp_worker.http.connection_moves import WrongFront, build_unknown_error
from metamcp_worker.http.request_head import Headers
from metamcp_worker.http.requests import Pending
from metamcp_worker.http.resume import NEWS_EVENTS_MAX, EventLog
from metamcp_worker.ipc import codec, jsonrpc_bytes
from metamcp_worker.ipc.envelope import Envelope
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.messages import SessionRecord

_GONE = "This stream has ended, or was never opened; open a new one."


class LegacyEra:
    """Answers the requests of this era. `mint`: makes session ids; `now`: the clock; `on_kept`:
    called with a new session, because another front may have to continue it."""

    def __init__(
        self,
        sessions: ClientSessions,
        dialogue: Dialogue,
        mint: Callable[[], str],
        now: Callable[[], float],
        on_kept: Callable[[ClientSession], None],
    ) -> None:
        self._sessions = sessions
        self._dialogue = dialogue
        self._mint = mint
        self._now = now
        self._on_kept = on_kept

    def post(self, exchange: Exchange, message: Envelope, view: View, version: str) -> Pending:
        """Answer a message. `version`: of the gateway. Raises ProtocolError and Declined, and
        Elsewhere at once, never while the rest is awaited."""
        params, meta = parameters(message)
        if message.method == "initialize" and message.id:
            if exchange.facts.session is not None:
                self._session(exchange, view)
                raise ProtocolError(Code.INVALID_REQUEST, "This session is initialized already.")
            self._initialize(exchange, bytes(message.id), params, view, version)
            return None
        session = self._session(exchange, view)
        return self._dialogue.answer(exchange, message, params, meta, session, view)

    async def get(self, exchange: Exchange, view: View) -> None:
        """Answer with the stream of a session for messages that belong to no request, or with the
        rest of a stream whose connection was lost. Raises Declined and Elsewhere."""
        session = self._session(exchange, view)
        exchange.check_stream()
        assert session.event_logs is not None  # a session without logs is not found by its id
        resume = exchange.facts.resume
        event_log, events = (resume and session.event_logs.find(resume)) or (None, [])
        if event_log is not None and event_log is not session.news:
            await self._go_on(exchange, session, event_log, events)
            return
        lost = (
            session.event_logs.find_lost_tape(resume)
            if resume and session.adopted_at is not None
            else None
        )
        if lost is not None and event_log is None:
            await self._dialogue.go_on(exchange, session, lost, view)
            return
        exchange.check_staying(movable=False)
        stream = exchange.stream()
        if session.news is None:
            session.news = session.event_logs.open(stream, NEWS_EVENTS_MAX)
        else:
            session.news.resume(stream, events)
        session.attach(stream)
        if session.can_be_primed:
            session.news.prime()
        session.catch_up()
        try:
            await exchange.stand(stream, view, {})
        finally:
            session.news.lose(stream)
            session.detach(stream, self._now())

    async def delete(self, exchange: Exchange, view: View) -> None:
        """Close the session, as its client wishes. Raises Declined and Elsewhere."""
        self._sessions.close(self._session(exchange, view))
        exchange.empty(200)

    def open(
        self,
        params: dict[str, Raw],
        view: View,
        version: str,
        key: str,
        *,
        resumable: bool = True,
    ) -> tuple[ClientSession, bytes]:
        """Open a session for a client with these params of `initialize`, and return it and the raw
        result. `key`: id of the client's API key. Raises ProtocolError and Declined."""
        requested = codec.text(params.get("protocolVersion", b"null"))
        if requested is None:
            raise ProtocolError(Code.INVALID_PARAMS, "initialize needs params.protocolVersion.")
        record = SessionRecord(
            id=self._mint(),
            endpoint=view.endpoint,
            protocol=negotiate_version(requested),
            caller=_caller(params).decode(),
            principal=view.principal,
            key=key,
        )
        session = self._sessions.open(record, self._now(), resumable=resumable)
        if session is None:
            message = "There are as many sessions as there may be; try again later."
            raise HttpRefused(503, message, "sessions", Code.OVERLOADED)
        self._on_kept(session)
        result: dict[str, object] = {
            "protocolVersion": session.protocol,
            "capabilities": Raw(view.capabilities(modern=False)),
            "serverInfo": {"name": "metamcp", "version": version},
        }
        if (instructions := view.legacy.instructions) is not None:
            result["instructions"] = instructions
        return session, codec.dump(result)

    def adopt(self, records: Iterable[SessionRecord]) -> list[ClientSession]:
        """Go on with these sessions of another front, as far as there is room, and return them."""
        opened = (
            self._sessions.open(record, self._now())
            for record in records
            if record.id not in self._sessions
        )
        adopted = [session for session in opened if session is not None]
        for session in adopted:
            session.adopted_at = self._now()
        return adopted

    def _initialize(
        self, exchange: Exchange, raw_id: bytes, params: dict[str, Raw], view: View, version: str
    ) -> None:
        key = exchange.facts.principal.key
        session, result = self.open(params, view, version, key)
        header = (b"mcp-session-id", session.id.encode())
        exchange.json(200, jsonrpc_bytes.result(raw_id, result), [header])

    def _session(self, exchange: Exchange, view: View) -> ClientSession:
        facts = exchange.facts
        if facts.session is None:
            message = "The header Mcp-Session-Id is missing; send initialize first."
            raise HttpRefused(400, message, "session")
        name = facts.session.decode("latin-1")
        session = self._sessions.find(name, facts.endpoint, view.principal, self._now())
        if session is None:
            message = "There is no such session (any more); send initialize again."
            raise build_unknown_error(name, HttpRefused(404, message, "session"))
        if facts.version is not None and facts.version.decode("latin-1") != session.protocol:
            message = f"MCP-Protocol-Version must be {session.protocol} in this session."
            raise HttpRefused(400, message, "session")
        return session

    async def _go_on(
        self, exchange: Exchange, session: ClientSession, event_log: EventLog, events: list[bytes]
    ) -> None:
        """Answer with the rest of the stream of a request."""
        stream = exchange.stream()
        event_log.resume(stream, events)
        if session.can_be_primed and not event_log.over:
            event_log.prime()
        try:
            await exchange.follow(stream)
        finally:
            event_log.lose(stream)


def parameters(message: Envelope) -> tuple[dict[str, Raw], dict[str, Raw]]:
    """Return `params` of a message of this era, without `_meta`, and `_meta`. Raises
    ProtocolError."""
    if message.method is None:
        return {}, {}
    params, meta = mcp_request.parameters(message)
    if meta:
        if codec.text(meta.get(modern.PROTOCOL_VERSION, b"null")) in modern.VERSIONS:
            problem = "MCP-Protocol-Version does not say the version in params._meta."
            raise ProtocolError(Code.HEADER_MISMATCH, problem)
        for key in modern.STAMP:
            meta.pop(key, None)  # the gateway itself describes this client to the server
    return params, meta


def _caller(params: dict[str, Raw]) -> bytes:
    """Return the raw JSON about this client that servers get. Raises ProtocolError."""
    try:
        capabilities = codec.level(params.get("capabilities", b"{}"))
    except codec.Malformed:
        raise ProtocolError(Code.INVALID_PARAMS, "params.capabilities must be an object.") from None
    caller = {"clientCapabilities": Raw(codec.dump(capabilities))}
    if "clientInfo" in params:
        caller["clientInfo"] = params["clientInfo"]
    encoded = codec.dump(caller)
    if len(encoded) > CALLER_BYTES_MAX:
        members = "params.capabilities and params.clientInfo"
        raise ProtocolError(
            Code.INVALID_PARAMS, f"{members} have more than {CALLER_BYTES_MAX} bytes."
        )
    return encoded


class SseSession:
    """Stream of HTTP+SSE, and its session after the handshake. `open`: the client reads it;
    `token`: lets its client post without a credential, because it came with a key in its URL; empty
    if the client sends its credential with every post."""

    __slots__ = ("endpoint", "open", "principal", "session", "stream", "token")

    def __init__(self, stream: Stream, endpoint: str, principal: Principal, token: str) -> None:
        self.stream = stream
        self.endpoint = endpoint
        self.principal = principal
        self.token = token
        self.session: ClientSession | None = None
        self.open = True


class PostedMessage:
    """Posted message whose answer goes on the stream; a `exchange.AnswerOutlet`. `on_lost` is not
    called: the session, and its calls, end with the stream."""

    waits = False
    headers: Headers = ()
    on_lost: Callable[[], None] | None = None

    def __init__(self, stream: Stream, endpoint: str, principal: Principal) -> None:
        self.facts = RequestFacts(endpoint, accepts_sse=True, principal=principal)
        self._stream = stream

    def json(self, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        self._stream.answer(jsonrpc_bytes.event(body))

    def result(self, raw_id: bytes, body: bytes) -> Pending:
        self._stream.answer(jsonrpc_bytes.event(jsonrpc_bytes.result(raw_id, body)))
        return None

    def empty(self, status: int) -> None:
        pass  # the post was answered when it came

    def begin_stream(self) -> Stream:
        return self._stream

    def put(self, event: bytes) -> bool:
        self._stream.put(event)
        return True

    async def settle(self) -> None:
        pass  # the stream outlives this message

    async def expect(self, call: Call, then: Callable[[CallAnswer | None], Pending]) -> None:
        pending = then(await call.answer.wait())
        if pending is not None:
            await pending


class Sse:
    """Streams of HTTP+SSE. `mint`: makes the names under which clients post."""

    def __init__(
        self,
        legacy: LegacyEra,
        dialogue: Dialogue,
        sessions: ClientSessions,
        mint: Callable[[], str],
    ) -> None:
        self._legacy = legacy
        self._dialogue = dialogue
        self._sessions = sessions
        self._mint = mint
        self._lines: dict[str, SseSession] = {}

    async def get(self, exchange: Exchange, view: View) -> None:
        """Answer with a new stream. Raises Declined and Elsewhere."""
        exchange.check_staying()
        exchange.check_stream()
        stream = exchange.stream()
        name = self._mint()
        in_url = door.QUERY_KEY in exchange.facts.query and view.spec.url_keys
        token = self._mint() if in_url else ""
        line = SseSession(stream, view.endpoint, exchange.facts.principal, token)
        self._lines[name] = line
        url = f"{view.spec.base}/messages?session_id={quote(name)}"
        if token:
            url += f"&{door.QUERY_TOKEN.decode()}={quote(token)}"
        stream.put(b"event: endpoint\ndata: %b\n\n" % url.encode())
        try:
            await exchange.stand(stream, view, {})
        finally:
            del self._lines[name]
            line.open = False
            stream.end()
            if line.session is not None:
                self._sessions.close(line.session)

    def post(
        self, exchange: Exchange, message: Envelope, view: View, version: str
    ) -> Awaitable[None]:
        """Answer a message on its stream, also if the message is wrong. Raises Declined and
        Elsewhere if the stream is not here or has ended."""
        return self._take(self._line(exchange, view), exchange, message, view, version)

    async def _take(
        self, line: SseSession, exchange: Exchange, message: Envelope, view: View, version: str
    ) -> None:
        raw_id = bytes(message.id) if message.method is not None else b""
        posted = PostedMessage(line.stream, line.endpoint, line.principal)
        line.stream.owed += 1  # from now on the stream waits for it
        try:
            exchange.empty(202)
            pending = self._answer(posted, line, message, view, version)
            message = Envelope()  # the other one holds the body
            if pending is not None:
                await pending
        except (ProtocolError, HttpRefused) as error:
            if raw_id:
                posted.json(200, jsonrpc_bytes.error(raw_id, error.code, error.message))
        finally:
            line.stream.paid()

    def _answer(
        self, posted: PostedMessage, line: SseSession, message: Envelope, view: View, version: str
    ) -> Pending:
        params, meta = parameters(message)
        raw_id = bytes(message.id)
        if message.method == "initialize" and raw_id:
            if line.session is not None:
                raise ProtocolError(Code.INVALID_REQUEST, "This session is initialized already.")
            key = line.principal.key
            session, result = self._legacy.open(params, view, version, key, resumable=False)
            line.session = session
            session.attach(line.stream)
            posted.json(200, jsonrpc_bytes.result(raw_id, result))
            return None
        if line.session is None:
            raise ProtocolError(Code.INVALID_REQUEST, "Send initialize first.")
        return self._dialogue.answer(posted, message, params, meta, line.session, view)

    def poster(self, endpoint: str, query: bytes, token: bytes) -> Principal | None:
        """Return who may post with this token to the stream that the query names; None if nobody
        may. `endpoint`: the whole one that the post is sent to. Raises Elsewhere for a stream of
        another front."""
        names = parse_qs(query.decode("latin-1")).get("session_id", [])
        line = self._lines.get(names[0]) if len(names) == 1 else None
        if line is None and len(names) == 1:
            error = build_unknown_error(names[0], HttpRefused(404, _GONE, "session"))
            if isinstance(error, WrongFront):
                raise error
        if line is None or not line.token or not compare_digest(line.token.encode(), token):
            return None
        if gate.whole_name(line.endpoint) != endpoint:  # others have to look like nothing
            return None
        return line.principal

    def _line(self, exchange: Exchange, view: View) -> SseSession:
        names = parse_qs(exchange.facts.query.decode("latin-1")).get("session_id", [])
        if len(names) != 1:
            message = "The query needs session_id, as the endpoint event gave it."
            raise HttpRefused(400, message, "session")
        line = self._lines.get(names[0])
        is_here = line is not None and line.endpoint == view.endpoint
        if line is None or not is_here or line.principal.name != view.principal:
            raise build_unknown_error(names[0], HttpRefused(404, _GONE, "session"))
        if line.stream.has_ended:  # an answer on it would not reach the client
            raise HttpRefused(404, _GONE, "session")
        return line
