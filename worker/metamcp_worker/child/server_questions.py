"""Open questions of the server to a client: elicitation, sampling, roots, and any other request.

Owns: which question belongs to which call, the ids of the server, how long a question may be open,
and that each question is answered exactly once. Never: the contents of questions and answers, what
a client can do (the front knows that, and refuses in its client's name), the roots that a process
answers itself (`server_session`).

A question ends with the call that caused it, at the latest. While a question is open, the time of
its call does not run, because a human may be thinking.
"""

from msgspec import Struct

from metamcp_worker.child import jsonrpc_lines
from metamcp_worker.child.actions import Actions, CountOnce, ReplyToFront, WriteToServer
from metamcp_worker.child.call_queue import SentCall
from metamcp_worker.child.jsonrpc_lines import ServerErrors
from metamcp_worker.child.lists import TaskOwners, word_of
from metamcp_worker.child.server_calls import ServerCalls
from metamcp_worker.ipc import codec, frames, roots
from metamcp_worker.ipc.envelope import Envelope
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import METHOD_BYTES_MAX, NUMBER_MAX, WithdrawQuestion

QUESTION_S_MAX = 300.0
"""Maximum seconds that a question is open: a human reads a form and fills it in."""
ASKING_S_MAX = 3600.0
"""Maximum seconds that a call may take longer because of questions; otherwise a server that asks
without end would keep it for ever."""
QUESTIONS_MAX = 1024
"""Maximum number of open questions of one server."""

_UNROUTABLE = "it cannot be told which client this is for, as not exactly one uses this server now"


class _Question(Struct, gc=False):
    """Open question. `id`: the server's own, as on the wire. `via`: see `transport`. `key`: id of
    the call. `token`: raw token under which the server wants progress, or empty. `roots`: whether
    the question asks for the roots of the client."""

    id: bytes
    via: int
    key: bytes
    front: int
    token: bytes
    roots: bool = False
    deadline: float = 0.0


class _Asking(Struct):
    """Call on whose behalf the server asked. `until`: when its time is over in any case."""

    until: float
    questions: set[int]


class ServerQuestions:
    """All open questions of one server. `calls`: the calls whose time the questions stop; `owners`:
    of its tasks. `asking`: calls in flight with open questions, by id on the wire."""

    def __init__(self, calls: ServerCalls, faults: ServerErrors, owners: TaskOwners) -> None:
        self._calls = calls
        self._faults = faults
        self._owners = owners
        self.lent_roots = False
        """Whether the server was given the roots of one call's client."""
        self._open: dict[int, _Question] = {}
        self._numbers: dict[tuple[int, bytes], int] = {}
        self.asking: dict[bytes, _Asking] = {}
        self._next = 1
        self._earliest = float("inf")

    def route_request(
        self, request: Envelope, stream: bytes | None, via: int, now: float
    ) -> Actions:
        """Pass a request of a legacy server to the client whose call caused it, or refuse it."""
        id, method = bytes(request.id), request.method or ""  # noqa: A001 - the wire's own name
        if (via, id) in self._numbers:
            # The server could not distinguish the answers to the two requests.
            return [CountOnce("broken_request")]
        if len(method.encode()) > METHOD_BYTES_MAX:
            return [_make_refusal(id, via, Code.METHOD_NOT_FOUND, "no client knows this method")]
        key = self._calls.cause(stream, now, asks=True)
        owner = self._owners.find(bytes(request.params))
        if key and owner and owner != word_of(self._calls.in_flight[key]):
            key = b""  # it belongs to the task of another client
        if key is None and method == roots.METHOD:
            return [WriteToServer(jsonrpc_lines.answer(id, roots.NONE), via)]
        if not key:
            refused = _make_refusal(id, via, Code.INTERNAL_ERROR, _UNROUTABLE)
            counts = [CountOnce("unroutable_request")]
            if key is not None and not stream and self._calls.in_flight:
                counts.append(CountOnce("contested_request"))
            return [*counts, refused]
        if len(self._open) >= QUESTIONS_MAX or self._next > NUMBER_MAX:
            return [_make_refusal(id, via, Code.OVERLOADED, "too many questions are open")]
        call, params = self._calls.in_flight[key], bytes(request.params)
        question = _Question(id, via, key, call.front, _token(params), method == roots.METHOD)
        number = self._note(question, call, now)
        return [ReplyToFront(call.front, frames.QuestionFrame(call.call, number, method, params))]

    def reply(self, front: int, reply: frames.ReplyFrame, now: float) -> Actions:
        """Pass the answer of a front to the server."""
        question = self._open.get(reply.question)
        if question is None or question.front != front:
            return [CountOnce("late_reply")]
        self._close(reply.question, now)
        if question.roots and not reply.failed and _any_roots(reply.body):
            self.lent_roots = True
        line = (jsonrpc_lines.refusal if reply.failed else jsonrpc_lines.answer)(
            question.id, reply.body
        )
        return [WriteToServer(line, question.via)]

    def answer(self, number: int, result: bytes, now: float) -> Actions:
        """Answer a question in place of its front, unless it is closed."""
        question = self._close(number, now)
        if question is None:
            return []
        return [WriteToServer(jsonrpc_lines.answer(question.id, result), question.via)]

    def is_open(self, number: int) -> bool:
        return number in self._open

    def on_progress(self, front: int, params: bytes) -> Actions:
        """Pass on a client's progress with a question. `params`: raw, with the token of the
        server."""
        token = _member(params, "progressToken")
        for question in self._open.values() if token else ():
            if question.token == token and question.front == front:
                return [
                    WriteToServer(
                        jsonrpc_lines.notification("notifications/progress", params), question.via
                    )
                ]
        return [CountOnce("untold_notification")]

    def refuse_question(self, number: int, now: float) -> Actions:
        """Refuse a question that could not be sent to its front."""
        question = self._close(number, now)
        if question is None:
            return []
        return [
            _make_refusal(
                question.id, question.via, Code.OVERLOADED, "the client could not be asked"
            )
        ]

    def withdrawn(self, params: bytes, via: int, now: float) -> Actions:
        """Withdraw a question that the server has cancelled; the server gets no answer."""
        number = self._numbers.get((via, _member(params, "requestId")), 0)
        question = self._close(number, now)
        return [] if question is None else [ReplyToFront(question.front, WithdrawQuestion(number))]

    def close_questions(self, key: bytes, *, tell_front: bool) -> Actions:
        """Close the questions of a call that has ended. `tell_front`: whether its front must
        hear of that."""
        asking = self.asking.pop(key, None)
        actions: Actions = []
        for number in sorted(asking.questions) if asking else ():
            question = self._open.pop(number)
            del self._numbers[question.via, question.id]
            if tell_front:
                actions.append(ReplyToFront(question.front, WithdrawQuestion(number)))
            reason = "the call on whose behalf this was asked is over"
            actions.append(_make_refusal(question.id, question.via, Code.INTERNAL_ERROR, reason))
        return actions

    def tick(self, now: float) -> Actions:
        """Close the questions that were not answered in time."""
        if now < self._earliest:
            return []
        actions: Actions = []
        for number, late in list(self._open.items()):
            if late.deadline <= now:
                self._close(number, now)
                actions.append(ReplyToFront(late.front, WithdrawQuestion(number)))
                reason = f"no answer within {QUESTION_S_MAX:g} s"
                actions.append(_make_refusal(late.id, late.via, Code.TIMED_OUT, reason))
        deadlines = (question.deadline for question in self._open.values())
        self._earliest = min(deadlines, default=float("inf"))
        return actions

    def _note(self, question: _Question, call: SentCall, now: float) -> int:
        asking = self.asking.get(question.key)
        if asking is None:
            asking = self.asking[question.key] = _Asking(call.deadline + ASKING_S_MAX, set())
        question.deadline = min(now + QUESTION_S_MAX, asking.until)
        self._earliest = min(self._earliest, question.deadline)
        self._calls.set_deadline(question.key, float("inf"))
        self._calls.set_asked(question.key, is_asked=True)
        number, self._next = self._next, self._next + 1
        self._open[number] = question
        self._numbers[question.via, question.id] = number
        asking.questions.add(number)
        return number

    def _close(self, number: int, now: float) -> _Question | None:
        """Close a question. After the last open one of its call the time of the call runs again."""
        question = self._open.pop(number, None)
        if question is None:
            return None
        del self._numbers[question.via, question.id]
        asking = self.asking[question.key]
        asking.questions.discard(number)
        if not asking.questions:
            call = self._calls.in_flight[question.key]
            self._calls.set_deadline(question.key, min(now + call.timeout_s, asking.until))
            self._calls.set_asked(question.key, is_asked=False)
        return question


ROOTS_TRIAL_S = 1.0
"""Seconds in which a server that keeps roots asks for them again after it heard that they changed.
The first question for roots of each of its processes waits for so long."""


class _Pending(Struct):
    """Question for roots that waits for the end of the trial. `number`: of the open question, 0 if
    no client can be asked; `actions`: what follows if the server keeps no roots."""

    id: bytes
    via: int
    number: int
    actions: Actions


class RootsQuestions:
    """Questions for roots of a server that all clients share.

    A server that asks in a call may keep the answer, and would have the roots of one client for all
    others then. Only such a server asks again when it hears that the roots changed. So it hears
    that when it asks for the first time, and its question waits (the trial). The question that
    comes next may be of another call, so it hears it once for each call: it keeps roots if it asks
    more often than it has calls. `keeps`: whether it keeps roots, or asked without a call. Then it
    gets none.
    """

    def __init__(self, calls: ServerCalls, asks: ServerQuestions, *, keeps: bool) -> None:
        self._calls = calls
        self._asks = asks
        self.keeps = keeps
        self._asks_each_time = self._doubtful = False
        self._pending: list[_Pending] = []
        self._notices = 0
        """How often the server heard in this trial that the roots changed."""
        self._via = 0
        self._trial_until = float("inf")

    def receive(self, request: Envelope, stream: bytes | None, via: int, now: float) -> Actions:
        """Answer a question, pass it on, or let it wait."""
        id, calls = bytes(request.id), self._calls.at_work(now)  # noqa: A001 - the wire's own name
        if self.keeps or not calls:
            self.keeps = True
            return [WriteToServer(jsonrpc_lines.answer(id, roots.NONE), via), *self._refuse(now)]
        if any((other.id, other.via) == (id, via) for other in self._pending):
            return [CountOnce("broken_request")]
        actions = self._asks.route_request(request, stream, via, now)
        if self._asks_each_time:
            return actions
        if not self._pending:
            self._notices, self._via, self._trial_until = 0, via, now + ROOTS_TRIAL_S
        pending = _Pending(id, via, _number(actions), actions)
        self._pending = [*filter(self._is_open, self._pending), pending]
        if len(self._pending) > calls:
            self.keeps = True
            return self._refuse(now)
        more = max(0, calls - self._notices)
        self._notices += more
        return [self._notice()] * more

    def tick(self, now: float) -> Actions:
        """End the trial of a server that did not ask again in time."""
        if self._doubtful and not self._calls.at_work(now):
            self._doubtful = False
            return [self._notice()]
        if now < self._trial_until:
            return []
        pending = self._end()
        # Several questions may be of one call: it hears of roots once more when it has no calls.
        self._doubtful = len(pending) > 1
        self._asks_each_time = not self._doubtful
        return [
            action for question in filter(self._is_open, pending) for action in question.actions
        ]

    def _refuse(self, now: float) -> Actions:
        """End the trial of a server that keeps roots: there are none."""
        actions: Actions = []
        for question in self._end():
            if question.number:
                actions += self._asks.answer(question.number, roots.NONE, now)
            else:
                actions.append(
                    WriteToServer(jsonrpc_lines.answer(question.id, roots.NONE), question.via)
                )
        return actions

    def _end(self) -> list[_Pending]:
        pending, self._pending, self._trial_until = self._pending, [], float("inf")
        return pending

    def _is_open(self, question: _Pending) -> bool:
        return not question.number or self._asks.is_open(question.number)

    def _notice(self) -> WriteToServer:
        return WriteToServer(jsonrpc_lines.notification(roots.CHANGED), self._via)


def _number(actions: Actions) -> int:
    """Return the number of the question that these actions put to a front; 0 if there is none."""
    to_fronts = [action.frame for action in actions if isinstance(action, ReplyToFront)]
    return next(
        (frame.question for frame in to_fronts if isinstance(frame, frames.QuestionFrame)), 0
    )


def _make_refusal(id: bytes, via: int, code: Code, reason: str) -> WriteToServer:  # noqa: A002 - the wire's own name
    return WriteToServer(
        jsonrpc_lines.refusal(id, jsonrpc_lines.error_object(code, f"MetaMCP: {reason}")), via
    )


def _any_roots(answer: bytes) -> bool:
    try:
        return bool(roots.uris(answer))
    except roots.RootsUnfit:
        return True  # the server may read what the gateway cannot


def _token(params: bytes) -> bytes:
    return _member(_member(params, "_meta"), "progressToken") if b"progressToken" in params else b""


def _member(raw: bytes, name: str) -> bytes:
    """Return a member of a raw object, raw; empty if it is not there."""
    return bytes(codec.members(raw).get(name, b""))
