"""Calls of modern clients that a legacy server interrupts with questions.

Owns: `Talk` (one call and the questions in it), and `Parking` (the talks of one front that wait for
their clients). Never: HTTP, what a state is good for (`parked`), who may be asked what (`asking`).

A legacy server asks while the call is open. A client of revision 2026-07-28 cannot be asked: its
request is answered with the questions instead, and it sends the request again with the answers.
Meanwhile the call stays open at the server and is parked here. Then its client is another HTTP
request, so whoever takes for the client what the server says changes too: while nobody is there, it
is the talk itself.
"""

import asyncio
import functools
from collections.abc import Callable, Mapping

from msgspec import Raw

from metamcp_worker.front import asking, mrtr
from metamcp_worker.front.links import Answer, Call
from metamcp_worker.front.mrtr import Wanted
from metamcp_worker.front.parked import PARK_S_MAX, Bound, Full, Parked, is_state
from metamcp_worker.front.questions import Caller, Question
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import BODY_BYTES_MAX

GATHER_S = 0.005
"""Questions that come this close together are put to the client together: some servers ask several
at once, and each round costs the client a request."""
QUESTIONS_MAX = 128
"""In the course of one call: a server that asks more than that does not get anywhere."""

_UNDECLARED = "The client of this call did not declare that it can be asked this."
_TOO_MANY = f"More than {mrtr.REQUESTS_MAX} questions at once, or {QUESTIONS_MAX} in one call."
_NO_ROOM = "The gateway holds as many questions as it may; try again later."
_GONE = frozenset({Code.SERVER_DOWN, Code.TIMED_OUT})
_CANCEL = codec.dump({"action": "cancel"})


class Talk:
    """A call whose client may be asked. `capabilities`: the client, as in `frames.Call`."""

    __slots__ = (
        "_attended", "_count", "_loop", "_open", "_parked_at", "_parking", "_planned", "_size",
        "_state", "_timer", "bound", "call", "capabilities",
    )  # fmt: skip

    def __init__(self, parking: "Parking", call: Call, bound: Bound, capabilities: bytes) -> None:
        self.call = call
        self.bound = bound
        self.capabilities = capabilities
        self._parking = parking
        self._loop = parking.loop
        self._open: dict[str, Question] = {}
        self._count = 0
        self._attended = True
        self._planned = False
        self._state = ""
        self._parked_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._size = 0

    # --- what the server says while nobody is there -------------------------------------------

    def progressed(self, params: bytes) -> None:
        """Nobody is there to be told."""

    def told(self, method: str, params: bytes) -> None:
        """Nobody is there to be told."""

    def asked(self, question: Question) -> None:
        """Put this to the client as soon as it is there, with what is asked beside it."""
        size = len(question.params)
        waiting = sum(len(one.params) for one in self._open.values())
        if not asking.may_be_asked(self.capabilities, question.method, question.params):
            question.decline(_UNDECLARED)
        elif len(self._open) >= mrtr.REQUESTS_MAX or self._count >= QUESTIONS_MAX:
            question.refuse(_TOO_MANY)
        elif waiting + size > BODY_BYTES_MAX or not self._parking.parked.reserve(size):
            question.refuse(_NO_ROOM)
        else:
            self._count += 1
            key = f"k{self._count}"
            self._open[key] = question
            question.on_withdrawn = functools.partial(self._closed, key)
            self._plan()

    # --- the client ---------------------------------------------------------------------------

    def resume(self, client: Caller, capabilities: bytes, responses: Mapping[str, Raw]) -> None:
        """The client is back with raw answers, and `client` takes what the server says from now
        on. What is still open is asked again."""
        self._unpark()
        self._attended = True
        self.capabilities = capabilities
        self.call.caller = client
        for key, question in list(self._open.items()):
            if key in responses:
                self._closed(key)
                question.answer(bytes(responses[key]))
            elif not asking.may_be_asked(capabilities, question.method, question.params):
                self._closed(key)
                question.decline(_UNDECLARED)
        self._plan()

    def give_up(self, why: str) -> None:
        """The client does not come back: its call ends, and everything is free."""
        self._unpark()
        for key, question in list(self._open.items()):
            self._closed(key)
            if question.method == mrtr.ELICIT:
                question.answer(_CANCEL)
            else:
                question.fail(codec.dump({"code": int(Code.INTERNAL_ERROR), "message": why}))
        self.call.cancel(why)

    # --- underneath ---------------------------------------------------------------------------

    def _plan(self) -> None:
        if self._attended and self._open and not self._planned:
            self._planned = True
            self._loop.call_later(GATHER_S, self._put)

    def _put(self) -> None:
        """Answer the client with the questions, and park the call."""
        self._planned = False
        if not self._open or not self._attended or self.call.answer.done():
            return
        try:
            self._state = self._parking.park(self)
        except Full as full:
            for key, question in list(self._open.items()):
                self._closed(key)
                question.refuse(str(full))
            return
        self._attended = False
        self.call.caller = self
        self._parked_at = self._loop.time()
        self._timer = self._loop.call_later(PARK_S_MAX, self._expire)
        wanted = {key: Wanted(one.method, one.params) for key, one in self._open.items()}
        self.call.interim(Answer(mrtr.result(wanted, self._state)))
        self.call.answer.add_done_callback(self._ended)

    def _expire(self) -> None:
        self.give_up(f"the client did not answer within {PARK_S_MAX:g} s")

    def _ended(self, answer: asyncio.Future[Answer]) -> None:
        """The call is over. If its client is away, the answer is kept until it comes back, but for
        that of a server which is gone: then the state is over with it."""
        if not self._state or answer is not self.call.answer:
            return
        self.call.caller = None
        if answer.cancelled() or answer.result().code in _GONE:
            self._unpark()
        elif self._parking.parked.reserve(size := len(answer.result().body)):
            self._size = size
        else:
            self._unpark()

    def _unpark(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            # Nobody at the gateway or at the server is to blame for how long people think.
            self.call.started += self._loop.time() - self._parked_at
        self._parking.parked.forget(self._state)
        self._parking.parked.release(self._size)
        self._state, self._size = "", 0

    def _closed(self, key: str) -> None:
        question = self._open.pop(key)
        question.on_withdrawn = None
        self._parking.parked.release(len(question.params))


class Parking:
    """All talks of one front that wait for their clients. `mint`: texts that nobody guesses."""

    def __init__(self, loop: asyncio.AbstractEventLoop, mint: Callable[[], str]) -> None:
        self.loop = loop
        self.parked: Parked[Talk] = Parked(mint())
        self._mint = mint
        self._closed = False

    def park(self, talk: Talk) -> str:
        """The state with which its client comes back. Raises Full."""
        if self._closed:
            raise Full("The gateway is stopping.")
        client = "" if talk.call.origin is None else talk.call.origin.who
        if (oldest := self.parked.crowded(talk.bound, client)) is not None:
            oldest.give_up("newer calls of its client wait for answers in its place")
        return self.parked.park(self._mint(), talk.bound, client, talk, self.loop.time())

    def check_here(self, given: Raw) -> None:
        """Is the call with this raw state parked here, if it is anywhere? Raises Elsewhere."""
        state = codec.text(given)
        if state is not None and is_state(state):
            self.parked.check_here(state)

    def take(self, state: str, bound: Bound) -> Talk:
        """The talk that this state brings back. Raises Refused."""
        return self.parked.take(state, bound, self.loop.time())

    def close(self) -> None:
        """No client comes back any more."""
        self._closed = True
        for talk in self.parked.everything():
            talk.give_up("the gateway is stopping")
