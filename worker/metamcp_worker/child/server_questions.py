"""Open questions of the server to a client: elicitation, sampling, roots, and any other request.

Owns: which question belongs to which call, the ids of the server, how long a question may be open,
and that each question is answered exactly once. Never: the contents of questions and answers, what
a client can do (the front knows that, and refuses in its client's name).

A question ends with the call that caused it, at the latest. While a question is open, the time of
its call does not run, because a human may be thinking.
"""

from msgspec import Struct

from metamcp_worker.child import jsonrpc_lines
from metamcp_worker.child.actions import Actions, CountOnce, ReplyToFront, WriteToServer
from metamcp_worker.child.call_queue import SentCall
from metamcp_worker.child.jsonrpc_lines import Faults
from metamcp_worker.child.lists import TaskOwners, word_of
from metamcp_worker.child.server_calls import ServerCalls
from metamcp_worker.ipc import codec, frames, roots
from metamcp_worker.ipc.envelope import Envelope
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import METHOD_BYTES_MAX, NUMBER_MAX, Withdraw

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


class Asks:
    """All open questions of one server. `calls`: the calls whose time the questions stop; `owners`:
    of its tasks. `asking`: calls in flight with open questions, by id on the wire."""

    def __init__(self, calls: ServerCalls, faults: Faults, owners: TaskOwners) -> None:
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

    def asked(self, request: Envelope, stream: bytes | None, via: int, now: float) -> Actions:
        """Pass a request of a legacy server to the client whose call caused it, or refuse it."""
        id, method = bytes(request.id), request.method or ""  # noqa: A001 - the wire's own name
        if (via, id) in self._numbers:
            # The server could not tell the answers to the two requests apart.
            return [CountOnce("broken_request")]
        if len(method.encode()) > METHOD_BYTES_MAX:
            return [_refused(id, via, Code.METHOD_NOT_FOUND, "no client knows this method")]
        key = self._calls.cause(stream, now, asks=True)
        owner = self._owners.find(bytes(request.params))
        if key and owner and owner != word_of(self._calls.in_flight[key]):
            key = b""  # it belongs to the task of another client
        if key is None and method == roots.METHOD:
            return [WriteToServer(jsonrpc_lines.answer(id, roots.NONE), via)]
        if not key:
            refused = _refused(id, via, Code.INTERNAL_ERROR, _UNROUTABLE)
            counts = [CountOnce("unroutable_request")]
            if key is not None and not stream and self._calls.in_flight:
                counts.append(CountOnce("contested_request"))
            return [*counts, refused]
        if len(self._open) >= QUESTIONS_MAX or self._next > NUMBER_MAX:
            return [_refused(id, via, Code.OVERLOADED, "too many questions are open")]
        call, params = self._calls.in_flight[key], bytes(request.params)
        asked = _Question(id, via, key, call.front, _token(params), method == roots.METHOD)
        number = self._note(asked, call, now)
        return [ReplyToFront(call.front, frames.Ask(call.call, number, method, params))]

    def replied(self, front: int, reply: frames.ReplyFrame, now: float) -> Actions:
        """Pass the answer of a front to the server."""
        found = self._open.get(reply.question)
        if found is None or found.front != front:
            return [CountOnce("late_reply")]
        self._close(reply.question, now)
        if found.roots and not reply.failed and _any_roots(reply.body):
            self.lent_roots = True
        line = (jsonrpc_lines.refusal if reply.failed else jsonrpc_lines.answer)(
            found.id, reply.body
        )
        return [WriteToServer(line, found.via)]

    def progressed(self, front: int, params: bytes) -> Actions:
        """Pass on a client's progress with a question. `params`: raw, with the token of the
        server."""
        token = _member(params, "progressToken")
        for one in self._open.values() if token else ():
            if one.token == token and one.front == front:
                return [
                    WriteToServer(
                        jsonrpc_lines.notification("notifications/progress", params), one.via
                    )
                ]
        return [CountOnce("untold_notification")]

    def undelivered(self, number: int, now: float) -> Actions:
        """Refuse a question that could not be sent to its front."""
        found = self._close(number, now)
        if found is None:
            return []
        return [_refused(found.id, found.via, Code.OVERLOADED, "the client could not be asked")]

    def withdrawn(self, params: bytes, via: int, now: float) -> Actions:
        """Withdraw a question that the server has cancelled; the server gets no answer."""
        number = self._numbers.get((via, _member(params, "requestId")), 0)
        found = self._close(number, now)
        return [] if found is None else [ReplyToFront(found.front, Withdraw(number))]

    def over(self, key: bytes, *, told: bool) -> Actions:
        """Close the questions of a call that has ended. `told`: whether its front must hear of
        that."""
        asking = self.asking.pop(key, None)
        actions: Actions = []
        for number in sorted(asking.questions) if asking else ():
            found = self._open.pop(number)
            del self._numbers[found.via, found.id]
            if told:
                actions.append(ReplyToFront(found.front, Withdraw(number)))
            why = "the call on whose behalf this was asked is over"
            actions.append(_refused(found.id, found.via, Code.INTERNAL_ERROR, why))
        return actions

    def tick(self, now: float) -> Actions:
        """Close the questions that were not answered in time."""
        if now < self._earliest:
            return []
        actions: Actions = []
        for number, late in list(self._open.items()):
            if late.deadline <= now:
                self._close(number, now)
                actions.append(ReplyToFront(late.front, Withdraw(number)))
                why = f"no answer within {QUESTION_S_MAX:g} s"
                actions.append(_refused(late.id, late.via, Code.TIMED_OUT, why))
        left = (one.deadline for one in self._open.values())
        self._earliest = min(left, default=float("inf"))
        return actions

    def _note(self, question: _Question, call: SentCall, now: float) -> int:
        asking = self.asking.get(question.key)
        if asking is None:
            asking = self.asking[question.key] = _Asking(call.deadline + ASKING_S_MAX, set())
        question.deadline = min(now + QUESTION_S_MAX, asking.until)
        self._earliest = min(self._earliest, question.deadline)
        self._calls.set_deadline(question.key, float("inf"))
        self._calls.set_asked(question.key, asked=True)
        number, self._next = self._next, self._next + 1
        self._open[number] = question
        self._numbers[question.via, question.id] = number
        asking.questions.add(number)
        return number

    def _close(self, number: int, now: float) -> _Question | None:
        """Close a question. After the last open one of its call the time of the call runs again."""
        found = self._open.pop(number, None)
        if found is None:
            return None
        del self._numbers[found.via, found.id]
        asking = self.asking[found.key]
        asking.questions.discard(number)
        if not asking.questions:
            call = self._calls.in_flight[found.key]
            self._calls.set_deadline(found.key, min(now + call.timeout_s, asking.until))
            self._calls.set_asked(found.key, asked=False)
        return found


def _refused(id: bytes, via: int, code: Code, why: str) -> WriteToServer:  # noqa: A002 - the wire's own name
    return WriteToServer(
        jsonrpc_lines.refusal(id, jsonrpc_lines.error_object(code, f"MetaMCP: {why}")), via
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
    try:
        return bytes(codec.level(raw).get(name, b""))
    except codec.Malformed:
        return b""
