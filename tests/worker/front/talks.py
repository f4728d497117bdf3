"""Calls that are interrupted by questions, on a loop whose clock the test turns."""

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from metamcp_worker.front_calls import mrtr
from metamcp_worker.front_calls.client_questions import Question
from metamcp_worker.front_calls.mrtr import StateBinding
from metamcp_worker.front_calls.request_facts import CallAnswer
from metamcp_worker.front_calls.server_links import Call, PendingAnswer
from metamcp_worker.front_clients.mrtr_io import GATHER_S, InteractiveCall, ParkedCalls
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import ProtocolError
from metamcp_worker.ipc.frames import CallFrame

ABLE = codec.dump({"clientCapabilities": {"elicitation": {}, "roots": {}}})
MINE = StateBinding("ada", "default", "tools/call", "git", b"digest")


class Clock(asyncio.SelectorEventLoop):
    """A loop on which time passes only when it is told to."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def turn(self, seconds: float = 0.0) -> None:
        """Let so much time pass, and everything happen that is due then."""
        self.now += seconds
        for _ in range(3):  # a timer, what it resolves, who waits for that
            self.call_soon(self.stop)
            self.run_forever()


class Visit:
    """One request of the client: a `questions.Caller` that keeps what it is told, and what the
    request is answered with."""

    def __init__(self, talk: InteractiveCall | None = None) -> None:
        self.talk = talk
        self.told_of: list[bytes] = []
        self.answer: PendingAnswer | None = None

    def on_progress(self, params: bytes) -> None:
        self.told_of.append(params)

    def on_notification(self, method: str, params: bytes) -> None:
        self.told_of.append(params)

    def on_question(self, question: Question) -> None:
        assert self.talk is not None
        self.talk.on_question(question)

    def wait(self, call: Call) -> None:
        self.answer = call.answer

    @property
    def body(self) -> dict[str, Any]:
        assert self.answer is not None
        body: dict[str, Any] = codec.value(self.answer.result().body)
        return body

    @property
    def state(self) -> str:
        state: str = self.body["requestState"]
        return state

    @property
    def keys(self) -> list[str]:
        return list(self.body["inputRequests"])


class Bench:
    """A front and its servers. `replies`: per number of a question, what its server was told."""

    def __init__(self) -> None:
        self.loop = Clock()
        tokens = itertools.count()
        self.parking = ParkedCalls(self.loop, lambda: f"token{next(tokens)}")
        self.questions: dict[int, Question] = {}
        self.replies: dict[int, list[tuple[bytes, bool]]] = {}
        self.reasons: list[str] = []
        self._ids = itertools.count(1)

    def start(self, bound: StateBinding = MINE, capabilities: bytes = ABLE) -> Visit:
        frame = CallFrame(next(self._ids), bound.method, b"{}")
        call = Call("git", frame, self._cancelled, self.loop.time())
        visit = Visit(InteractiveCall(self.parking, call, bound, capabilities))
        call.caller = visit
        visit.wait(call)
        return visit

    def ask(self, call: Call, method: str = mrtr.ELICIT, params: bytes = b"{}") -> Question:
        number = next(self._ids)
        question = Question("git", call.id, number, method, params, self._reply)
        self.questions[number] = question
        self.replies[number] = []
        assert call.caller is not None
        call.caller.on_question(question)
        return question

    def gather(self) -> None:
        self.loop.turn(GATHER_S)

    def withdraw(self, question: Question) -> None:
        question.withdraw()
        self.loop.turn()

    def end(self, call: Call, body: bytes = b'{"done":1}', code: int = 0) -> None:
        """What its server answers, or the gateway for it."""
        self._forget(call)
        call.answer.end(CallAnswer(body, code))
        self.loop.turn()

    def retry(self, state: str, answers: Mapping[str, str] | None = None) -> Visit:
        """The client comes back with an action per question. Raises Refused."""
        talk = self.parking.take(state, MINE)
        visit = Visit(talk)
        responses = {
            key: Raw(codec.dump({"action": said})) for key, said in (answers or {}).items()
        }
        talk.resume(visit, ABLE, responses)
        visit.wait(talk.call)
        self.loop.turn()
        return visit

    def refused(self, state: str, bound: StateBinding = MINE) -> str:
        """Why this state is of no use."""
        try:
            self.parking.take(state, bound)
        except ProtocolError as why:
            return why.message
        raise AssertionError("the state was accepted")

    def close(self) -> None:
        self.parking.close()
        self.loop.turn(2 * mrtr.PARK_S_MAX)
        self.loop.close()

    def _reply(self, question: Question, body: bytes, failed: bool) -> None:
        self.replies[question.number].append((body, failed))

    def _cancelled(self, call: Call, reason: str) -> None:
        if call.answer.is_done():
            return
        self.reasons.append(reason)
        self._forget(call)
        call.answer.end(None)

    def _forget(self, call: Call) -> None:
        for question in list(self.questions.values()):
            if question.call == call.id:
                question.withdraw()
