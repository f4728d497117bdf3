"""Caller for one request in a session: takes what the server says and asks before the answer.

Owns: the stream on which this goes, which log messages the client does not want, and what happens
to a question that cannot be asked. Never: the way to a server, the table of open questions
(`client_questions`), the events that are kept of a stream (`resume`).
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Protocol

from msgspec import Raw

from metamcp_worker.front import answers, client_questions, front_recovery
from metamcp_worker.front.client_questions import Question, may_be_asked
from metamcp_worker.front.client_sessions import ClientSession
from metamcp_worker.front.exchange import message
from metamcp_worker.front.guard import RequestFacts
from metamcp_worker.front.resume import Lost, Tape
from metamcp_worker.front.server_links import Call, CallAnswer
from metamcp_worker.front.streams import Stream
from metamcp_worker.http.requests import Pending
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import ProtocolError

ELICIT = "elicitation/create"
_WITHDRAWN = "the server does not wait for the answer any more"
_NONE = Raw(b"null")


class AnswerOutlet(Protocol):
    """Outlet for the answer to one message: an `Exchange`, or a stream that is open already."""

    facts: RequestFacts
    waits: bool
    """Whether the request can be taken up again when its server has started for the first time."""

    def json(
        self, status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> None: ...

    def result(self, raw_id: bytes, body: bytes) -> Pending: ...

    def empty(self, status: int) -> None: ...

    def expect(self, call: Call, then: Callable[[CallAnswer | None], Pending]) -> Pending: ...

    def begin_stream(self) -> Stream | None: ...

    def put(self, event: bytes) -> bool: ...

    def settle(self) -> Awaitable[None]: ...

    def watch(self, on_lost: Callable[[], None]) -> None: ...

    def unwatch(self) -> None: ...


class SessionRequest:
    """Takes what comes for one request; a `client_questions.Caller`. `raw_id`: of the request;
    `token`: its raw progress token, or empty."""

    __slots__ = ("_call", "_gone", "_stream", "_tape", "_token", "outlet", "raw_id", "session")

    def __init__(
        self, outlet: AnswerOutlet, session: ClientSession, raw_id: bytes, token: bytes
    ) -> None:
        self.outlet = outlet
        self.session = session
        self.raw_id = raw_id
        self._token = token
        self._call: Call | None = None
        self._gone = False
        self._stream: Stream | None = None
        self._tape: Tape | None = None

    def progressed(self, params: bytes) -> None:
        self._put(answers.progress(self._token, params))

    def told(self, method: str, params: bytes) -> None:
        if method != client_questions.MESSAGE or client_questions.passes(
            self.session.level, params
        ):
            self._put(answers.notification(method, params))

    def asked(self, question: Question) -> None:
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
        question.on_withdrawn = partial(self._withdraw, raw_id)
        if not self._reach(answers.request(raw_id, question.method, params)):
            session.asked.take(raw_id)
            question.refuse("The client reads no event stream now, so it cannot be asked.")
        elif question.method == ELICIT and b'"elicitationId"' in params:
            elicitation = codec.text(codec.level(params).get("elicitationId", _NONE))
            if elicitation is not None:
                session.elicited(question.server, elicitation)

    def gone(self) -> None:
        """Note that the connection is lost; the client may come back on another one."""
        self._gone = True
        if self._tape is not None and self._stream is not None:
            self._tape.lose(self._stream)
            self._stream.end()

    def begin(self) -> None:
        """Answer with a stream, although there is nothing to tell yet."""
        self._open()

    def inherit(self, lost: Lost) -> None:
        """Answer with a stream in place of the one that another front has lost."""
        tape = self._open()
        if tape is not None and self.session.tapes is not None:
            self.session.tapes.inherit(lost, tape)

    def sent(self, call: Call) -> None:
        """Note the call that answers this request now."""
        self._call = call
        if self._tape is not None:
            self._keep(self._tape)

    def found(self, note: front_recovery.Note) -> None:
        """Take over id and progress token of the request from another front's note."""
        self.raw_id = bytes(note.id)
        self._token = b"" if bytes(note.token) == b"null" else bytes(note.token)

    def refuse(self, why: ProtocolError, now: float) -> Pending:
        """Answer a request that no server gets with this error. The HTTP status shows nothing of it
        in this era."""
        body = answers.refused(self.raw_id, why)
        if self._tape is None:
            self.outlet.json(200, body)
            return None
        self._tape.end(answers.event(body), now)
        return self.outlet.settle()

    def finish(self, answer: CallAnswer | None, now: float) -> Pending:
        """Answer the request, after all that was told before. None: it was cancelled."""
        if self._tape is not None:
            self._tape.end(answers.event(message(self.raw_id, answer)), now)
            return self.outlet.settle()
        if answer is None or answer.code:
            self.outlet.json(200, message(self.raw_id, answer))
            return None
        return self.outlet.result(self.raw_id, answer.body)

    def close(self) -> None:
        """Clean up after the request, whether it was answered or not."""
        self._call = None  # else the two would hold each other, and a large answer with them
        if self._tape is not None and not self._tape.over:
            self._tape.forget()

    def _reach(self, body: bytes) -> bool:
        """Put a question where the client is likely to read it soonest."""
        heard = self._tape is None or self._tape.reader is not None
        return (heard and self._put(body)) or self.session.tell(body) or self._put(body)

    def _put(self, body: bytes) -> bool:
        """Put a message on the stream of the request. Returns False if there is none and can be
        none."""
        event = answers.event(body)
        if self.session.tapes is None:
            return self.outlet.put(event)
        tape = self._open()
        if tape is not None:
            tape.put(event)
        return tape is not None

    def _open(self) -> Tape | None:
        """Return the tape of the request's own stream, and begin it if there is none yet; None if
        there can be none."""
        tapes = self.session.tapes
        if self._tape is None and tapes is not None and not self._gone:
            self._stream = self.outlet.begin_stream()
            if self._stream is not None:
                self._tape = tapes.open(self._stream, request=self.raw_id)
                self._keep(self._tape)
                if self.session.primed:
                    self._tape.prime()
        return self._tape

    def _keep(self, tape: Tape) -> None:
        """Keep the call, because there are events now for which a client can come back to another
        front."""
        if self._call is not None:
            session = self.session
            front_recovery.keep(self._call, session.id, tape.name, self.raw_id, self._token)

    def _withdraw(self, raw_id: bytes) -> None:
        if self.session.asked.take(raw_id) is not None:
            params = {"requestId": Raw(raw_id), "reason": _WITHDRAWN}
            self._reach(answers.notification("notifications/cancelled", codec.dump(params)))
