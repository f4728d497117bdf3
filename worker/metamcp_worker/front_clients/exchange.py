"""HTTP request of a client and its one answer.

Owns: writing an answer as JSON, as an empty response, or as a stream once there is progress to send
(`Exchange`); what a server says and asks before the answer to a request in a session, on which
stream it goes, and what happens to a question that cannot be asked (`SessionRequest`). Never: eras,
methods, deciding what to answer, the way to a server, the events that are kept of a stream
(`http.resume`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from msgspec import Raw

from metamcp_worker.catalog.views import View
from metamcp_worker.front_calls import client_questions, front_recovery
from metamcp_worker.front_calls.client_questions import Question, may_be_asked
from metamcp_worker.front_calls.request_facts import CallAnswer, HttpRefused, McpRequest
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.front_clients.client_sessions import ClientSession
from metamcp_worker.front_clients.header_policy import RequestFacts
from metamcp_worker.front_clients.streams import Stream, Streams, WaitingStream
from metamcp_worker.http import request_head
from metamcp_worker.http.connection_moves import NOBODY, WrongFront
from metamcp_worker.http.request_head import Headers
from metamcp_worker.http.requests import COPY_BYTES_MAX, HttpRequest, Pending
from metamcp_worker.http.resume import EventLog, EventLogRef
from metamcp_worker.ipc import codec, jsonrpc_bytes
from metamcp_worker.ipc.codec import ID_FIRST
from metamcp_worker.ipc.errors import Code, ProtocolError

_OK: Final = request_head.head(200, [request_head.JSON])


class Exchange(HttpRequest):
    """Request of a client of a front. `facts`: as the header policy found them; `streams`: of the
    front; `on_over`: called once, when the request and all work for it are over."""

    waits = True
    facts: RequestFacts
    streams: Streams
    on_over: Callable[[], None]
    _then: Callable[[CallAnswer | None], Pending] | None = None
    _stream: Stream | None = None
    _running: asyncio.Task[None] | None = None

    @property
    def headers(self) -> Headers:
        return self.head.headers

    # --- its course -----------------------------------------------------------------------------

    def expect(self, call: Call, then: Callable[[CallAnswer | None], Pending]) -> Pending:
        """Call `then` with the answer of the call (None: it was cancelled). No task is needed,
        because nothing has to be awaited until then."""
        self._then = then
        call.answer.add_callback(self._brought)
        return None

    def _brought(self, answer: CallAnswer | None) -> None:
        then, self._then = self._then, None
        assert then is not None, "an answer comes once"
        self.run(then, answer)

    def on_step_end(self) -> None:
        if self._then is None:
            self._end_exchange()

    def _end_exchange(self) -> None:
        if self._stream is not None:
            self._stream.end()  # also if the code that was to answer has failed
            # The two refer to each other, and the answer may be large: the collector runs rarely.
            self._stream = self._running = None
        self.on_over()

    # --- the answer -----------------------------------------------------------------------------

    def json(self, status: int, body: bytes, headers: Headers = ()) -> None:
        usual = status == 200 and not headers
        head = _OK if usual else request_head.head(status, [request_head.JSON, *headers])
        self.answer(head, body)

    def page(self, body: bytes) -> None:
        """Answer with a page for a browser."""
        kind = (b"content-type", b"text/html; charset=utf-8")
        self.answer(request_head.head(200, [kind, (b"cache-control", b"no-store")]), body)

    def result(self, raw_id: bytes, body: bytes) -> Pending:
        """Answer with a raw result, as `finish` does, but without a copy of a large one."""
        if self._stream is not None:
            return self.finish(200, jsonrpc_bytes.result(raw_id, body))
        parts = ID_FIRST, raw_id, jsonrpc_bytes.MIDDLE, body, jsonrpc_bytes.TAIL
        if len(body) > COPY_BYTES_MAX:
            self.answer(_OK, *parts)
        else:
            self.answer(_OK, b"".join(parts))
        return None

    def empty(self, status: int, headers: Headers = ()) -> None:
        self.answer(request_head.head(status, headers))

    def stream(self, farewell: bytes = b"") -> Stream:
        return Stream(self.streams, self, farewell)

    def find_client(self) -> str:
        """Return the address of the client, also behind trusted proxies."""
        return self.streams.proxies.find_client(self.address, self.head.headers)

    async def stand(self, stream: Stream, view: View, news: Mapping[str, bytes]) -> None:
        """Answer with a stream of these notifications, until one side ends it."""
        self.on_lost = stream.end
        who = self.facts.principal
        standing = WaitingStream(
            stream, view.endpoint, view.principal, self.find_client(), news, who.key,
            view.whole, who.expires,
        )  # fmt: skip
        try:
            await self.streams.stand(standing)
        finally:
            self.on_lost = None

    async def follow(self, stream: Stream) -> None:
        """Answer with a stream that other code fills and ends."""
        self.on_lost = stream.end
        try:
            await stream.run()
        finally:
            self.on_lost = None

    def check_stream(self) -> None:
        """Raise Declined if this client cannot have a standing stream."""
        if not self.facts.accepts_sse:
            raise HttpRefused(406, "Accept must allow text/event-stream.", "accept")
        if self.streams.full(self.find_client()):
            message = "There are as many streams as there may be; try again later."
            raise HttpRefused(503, message, "streams", Code.OVERLOADED)
        if self.streams.is_over_limit(self.streams.limits(self.facts)):
            message = "The limit of standing streams is reached; close one, or try again later."
            raise HttpRefused(429, message, "streams", Code.OVERLOADED, [(b"retry-after", b"10")])

    def check_staying(self, *, movable: bool = True) -> None:
        """Raise Declined if this front ends, so no stream can stand here; or Elsewhere if another
        front may have the stream. `movable`: the stream belongs to nothing in this front."""
        if self.streams.closed:
            message = "This process of the gateway is ending; try again in a moment."
            declined = HttpRefused(503, message, "streams", Code.OVERLOADED)
            raise WrongFront("", NOBODY, declined) if movable and self.streams.heirs else declined

    def begin_stream(self) -> Stream | None:
        """Turn the answer into a stream, if it is not a stream yet, and return the stream; None if
        this client does not read streams."""
        if self._stream is None and self.facts.accepts_sse:
            self._stream = self.stream()
            self._running = asyncio.get_running_loop().create_task(self._stream.run())
        return self._stream

    def put(self, event: bytes) -> bool:
        """Send an event before the answer; the first event turns the answer into a stream. Returns
        False if this client does not read streams."""
        stream = self.begin_stream()
        if stream is None:
            return False
        stream.put(event)
        return True

    def finish(self, status: int, body: bytes) -> Pending:
        """Send the one answer to the request, after the events that were sent before it."""
        if self._stream is None:
            self.json(status, body)
            return None
        self._stream.close(jsonrpc_bytes.event(body))
        return self.settle()

    async def settle(self) -> None:
        """End the stream of a request that is over, and wait until it has ended."""
        if self._stream is not None and self._running is not None:
            self._stream.end()
            await self._running


def message(raw_id: bytes, answer: CallAnswer | None) -> bytes:
    """Return the JSON-RPC message for the answer of a call; None: the call was cancelled."""
    if answer is None:
        return jsonrpc_bytes.error(raw_id, jsonrpc_bytes.REQUEST_CANCELLED, "Request cancelled")
    if answer.code:
        return jsonrpc_bytes.raw_error(raw_id, answer.body)
    return jsonrpc_bytes.result(raw_id, answer.body)


ELICIT = "elicitation/create"
_WITHDRAWN = "nobody waits for the answer any more"
_NONE = Raw(b"null")


class AnswerOutlet(Protocol):
    """Outlet for the answer to one message: an `Exchange`, or a stream that is open already."""

    facts: RequestFacts
    waits: bool
    """Whether the request can be taken up again when its server has started for the first time."""
    on_lost: Callable[[], None] | None
    """Called if the client goes away before the answer."""

    @property
    def headers(self) -> Headers:
        """Headers of the HTTP request."""
        ...

    def json(
        self, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None: ...

    def result(self, raw_id: bytes, body: bytes) -> Pending: ...

    def empty(self, status: int) -> None: ...

    def expect(self, call: Call, then: Callable[[CallAnswer | None], Pending]) -> Pending: ...

    def begin_stream(self) -> Stream | None: ...

    def put(self, event: bytes) -> bool: ...

    def settle(self) -> Awaitable[None]: ...


class SessionRequest:
    """Takes what comes for one request; a `client_questions.Caller`. `raw_id`: of the request;
    `token`: its raw progress token, or empty; `key`: its place among the requests of the session;
    `call`: the call that answers it now. `as_task`: the client wants a task; `driven`: the server
    may answer with questions; `kept`: the request to send again then, None if it was too large to
    keep; `kept_bytes`: its size."""

    __slots__ = (
        "_event_log", "_gone", "_stream", "_token", "as_task", "call", "driven", "kept",
        "kept_bytes", "key", "outlet", "raw_id", "session", "view",
    )  # fmt: skip

    def __init__(
        self,
        outlet: AnswerOutlet,
        session: ClientSession,
        raw_id: bytes,
        token: bytes,
        key: bytes,
        view: View,
    ) -> None:
        self.outlet = outlet
        self.session = session
        self.raw_id = raw_id
        self.key = key
        self.view = view
        self.call: Call | None = None
        self.as_task = False
        self.driven = False
        self.kept: McpRequest | None = None
        self.kept_bytes = 0
        self._token = token
        self._gone = False
        self._stream: Stream | None = None
        self._event_log: EventLog | None = None

    def on_progress(self, params: bytes) -> None:
        self._put(jsonrpc_bytes.progress(self._token, params))

    def on_notification(self, method: str, params: bytes) -> None:
        if method != client_questions.MESSAGE or client_questions.passes(
            self.session.level, params
        ):
            self._put(jsonrpc_bytes.notification(method, params))

    def on_question(self, question: Question) -> None:
        if may_be_asked(self.session.caller, question.method, question.params):
            self.ask(question)
        else:
            question.decline(f"The client has not declared what {question.method} needs.")

    def ask(self, question: Question) -> None:
        """Ask the client a question that it has declared to understand."""
        session = self.session
        if session.asked.full:
            question.refuse(f"The client has {len(session.asked)} open questions already.")
            return
        raw_id, params = session.asked.put(question)
        question.on_withdrawn = partial(withdraw, session, raw_id, self._reach)
        if not self._reach(jsonrpc_bytes.request(raw_id, question.method, params)):
            session.asked.take(raw_id)
            question.refuse("The client reads no event stream now, so it cannot be asked.")
        elif question.method == ELICIT and b'"elicitationId"' in params:
            elicitation = codec.text(codec.level(params).get("elicitationId", _NONE))
            if elicitation is not None:
                session.note_elicitation(question.server, elicitation)

    def on_connection_lost(self) -> None:
        """Note that the connection is lost; the client may come back on another one."""
        self._gone = True
        if self._event_log is not None and self._stream is not None:
            self._event_log.lose(self._stream)
            self._stream.end()

    def begin(self) -> None:
        """Answer with a stream, although there is nothing to send yet."""
        self._open()

    def inherit(self, lost: EventLogRef) -> None:
        """Answer with a stream in place of the one that another front has lost."""
        event_log = self._open()
        if event_log is not None and self.session.event_logs is not None:
            self.session.event_logs.inherit(lost, event_log)

    def on_call_sent(self, call: Call) -> None:
        """Note the call that answers this request now."""
        self.call = call
        if self._event_log is not None:
            self._keep(self._event_log)

    def apply_note(self, note: front_recovery.CallRecoveryData) -> None:
        """Take over id and progress token of the request from another front's note."""
        self.raw_id = bytes(note.id)
        self._token = b"" if bytes(note.token) == b"null" else bytes(note.token)

    def refuse(self, error: ProtocolError, now: float) -> Pending:
        """Answer a request that no server gets with this error. The HTTP status shows nothing of it
        in this era."""
        body = jsonrpc_bytes.pack_refusal(self.raw_id, error)
        if self._event_log is None:
            self.outlet.json(200, body)
            return None
        self._event_log.end(jsonrpc_bytes.event(body), now)
        return self.outlet.settle()

    def finish(self, answer: CallAnswer | None, now: float) -> Pending:
        """Answer the request, after all that was sent before. None: it was cancelled."""
        if self._event_log is not None:
            self._event_log.end(jsonrpc_bytes.event(message(self.raw_id, answer)), now)
            return self.outlet.settle()
        if answer is None or answer.code:
            self.outlet.json(200, message(self.raw_id, answer))
            return None
        return self.outlet.result(self.raw_id, answer.body)

    def close(self) -> None:
        """Clean up after the request, whether it was answered or not."""
        self.call = None  # else the two would hold each other, and a large answer with them
        if self._event_log is not None and not self._event_log.over:
            self._event_log.forget()

    def _reach(self, body: bytes) -> bool:
        """Put a question where the client is likely to read it soonest."""
        heard = self._event_log is None or self._event_log.reader is not None
        return (heard and self._put(body)) or self.session.tell(body) or self._put(body)

    def _put(self, body: bytes) -> bool:
        """Put a message on the stream of the request. Returns False if there is none and can be
        none."""
        event = jsonrpc_bytes.event(body)
        if self.session.event_logs is None:
            return self.outlet.put(event)
        event_log = self._open()
        if event_log is not None:
            event_log.put(event)
        return event_log is not None

    def _open(self) -> EventLog | None:
        """Return the log of the request's own stream, and begin it if there is none yet; None if
        there can be none."""
        event_logs = self.session.event_logs
        if self._event_log is None and event_logs is not None and not self._gone:
            self._stream = self.outlet.begin_stream()
            if self._stream is not None:
                self._event_log = event_logs.open(self._stream, request=self.raw_id)
                self._keep(self._event_log)
                if self.session.can_be_primed:
                    self._event_log.prime()
        return self._event_log

    def _keep(self, event_log: EventLog) -> None:
        """Keep the call, because there are events now for which a client can come back to another
        front."""
        if self.call is not None:
            session = self.session
            front_recovery.keep(self.call, session.id, event_log.name, self.raw_id, self._token)


def withdraw(session: ClientSession, raw_id: bytes, tell: Callable[[bytes], bool]) -> None:
    """Close a question to a client, and tell the client not to answer it, unless it is closed.
    `tell`: sends a message where the client was asked."""
    if session.asked.take(raw_id) is not None:
        params = {"requestId": Raw(raw_id), "reason": _WITHDRAWN}
        tell(jsonrpc_bytes.notification("notifications/cancelled", codec.dump(params)))
