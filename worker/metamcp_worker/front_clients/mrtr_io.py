"""Calls that ask for input on the way, between a client and a server of different eras.

Owns: `CallRoundTrips`, which asks a handshake-era client for the input that an `input_required`
result wants and sends the call again with the answers; `InteractiveCall` and `ParkedCalls`, which
answer a client of the other era with the questions of a handshake-era server and park its call
until the client comes back. Never: how a session is asked (`exchange`), the wire format of such
results and the table of states (`mrtr`), the first attempt."""

import asyncio
import functools
from collections.abc import Callable, Mapping

from msgspec import Raw

from metamcp_worker.front_calls import client_questions, mrtr
from metamcp_worker.front_calls.client_questions import Caller, Question, may_be_asked
from metamcp_worker.front_calls.mrtr import (
    PARK_S_MAX,
    InputRequired,
    ParkedEntries,
    StateBinding,
    TooManyParked,
    WantedInput,
    is_state,
)
from metamcp_worker.front_calls.request_facts import CallAnswer, McpRequest
from metamcp_worker.front_calls.server_links import Call, error
from metamcp_worker.ipc import codec, process_names
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.frames import BODY_BYTES_MAX

_MARK = b"input_required"
ROUNDS_MAX = 10
"""Maximum number of rounds of one call, as the official clients of the other era count them."""
ROUND_S_MAX = 300.0
"""Seconds for a client, or its user, to answer all questions of one round."""
PAUSE_S_MIN, PAUSE_S_MAX = 0.05, 0.25
"""Seconds to wait before a round without questions, in which the server only wants to be called
again; the pause doubles with each round."""
KEPT_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes of the parameters of all calls of one front that may have to be sent again: four of
the largest."""


class ParkedBudget:
    """Bytes that are kept for calls that may have to be sent again."""

    def __init__(self) -> None:
        self._bytes = 0

    def take(self, request: McpRequest) -> int | None:
        """Reserve room for the parameters of a request. Returns their size; None if there is not
        enough room."""
        size = sum(map(len, request.params.values()))
        if self._bytes + size > KEPT_BYTES_MAX:
            return None
        self._bytes += size
        return size

    def give(self, size: int) -> None:
        self._bytes -= size


def wants_input(answer: CallAnswer | None) -> bool:
    """Whether this answer of a modern server may ask for input. The test is cheap; its False is
    always right."""
    return answer is not None and not answer.code and _MARK in answer.body


class CallRoundTrips:
    """Rounds of one call of a handshake-era client at a modern server. For the client it is one
    call, during which the client is asked something. For the server it is a row of requests, each
    of which stands alone. `request`: as it was sent first, None if it was too large to keep;
    `start`: sends it; `ask`: asks the client; `mint`: creates the ids of visits to URLs."""

    def __init__(
        self,
        call: Call,
        request: McpRequest | None,
        start: Callable[[McpRequest], Call],
        ask: Callable[[Question], None],
        mint: Callable[[], str],
    ) -> None:
        self._call = call
        self._request = request
        self._start = start
        self._ask = ask
        self._mint = mint
        self._cancelled = False
        self._open: list[Question] = []
        self._turn: asyncio.Future[CallAnswer | None] | None = None

    def cancel(self, reason: str) -> None:
        """End the call and its round, because the client does not wait any more."""
        self._cancelled = True
        self._call.cancel(reason)
        self._end_round(None)

    async def finish(self, answer: CallAnswer) -> CallAnswer | None:
        """Return the final answer of the call, after this first answer; None if the call was
        cancelled."""
        for rounds in range(ROUNDS_MAX + 1):
            if self._cancelled:  # when the answer was on its way already
                return None
            outcome = self._read_answer(answer)
            if isinstance(outcome, CallAnswer):
                return outcome
            if rounds == ROUNDS_MAX:
                break
            responses: dict[str, bytes] = {}
            pause_s = min(PAUSE_S_MIN * 2**rounds, PAUSE_S_MAX)
            ended = await self._round(outcome.requests, responses, pause_s)
            if self._cancelled or ended is not None:
                return ended
            brought = await self._retry_call(responses, outcome.state)
            if brought is None:
                return None
            answer = brought
        return self._make_error(
            Code.INTERNAL_ERROR, f"asked for input more than {ROUNDS_MAX} times"
        )

    def _read_answer(self, answer: CallAnswer) -> InputRequired | CallAnswer:
        """Return the input that this answer asks for, or the answer that the call ends with."""
        try:
            required = None if answer.code else mrtr.parse(answer.body)
        except codec.Malformed as broken:
            return self._make_error(Code.INTERNAL_ERROR, f"asks for input, but {broken}")
        if required is None:
            return answer
        if self._request is None:
            return self._make_error(Code.OVERLOADED, "asks for input to a call too large to repeat")
        return self._refusal(self._request.caller, required.requests) or required

    async def _retry_call(
        self, responses: Mapping[str, bytes], state: Raw | None
    ) -> CallAnswer | None:
        """Send the call again, and wait for its answer."""
        request = self._request
        assert request is not None
        request.params = mrtr.retry(request.params, responses, state)
        try:
            self._call = self._start(request)
        except ProtocolError as refused:
            return CallAnswer(
                codec.dump({"code": refused.code, "message": refused.message}), refused.code
            )
        return await self._call.answer.wait()

    def _refusal(self, caller: bytes, requests: Mapping[str, WantedInput]) -> CallAnswer | None:
        """Return the error for questions that the client cannot be asked; None if it can be asked
        all of them."""
        for request in requests.values():
            if not may_be_asked(caller, request.method, request.params):
                problem = (
                    f"asks the client {request.method}, which it has not declared to understand"
                )
                return self._make_error(Code.MISSING_CAPABILITY, problem)
        return None

    async def _round(
        self, requests: Mapping[str, WantedInput], responses: dict[str, bytes], pause_s: float
    ) -> CallAnswer | None:
        """Ask the client everything at once, and collect its answers; without questions, wait
        `pause_s`. Returns the answer that ends the call, or None if the call goes on."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[CallAnswer | None] = loop.create_future()
        self._turn = turn
        late = self._make_error(
            Code.TIMED_OUT, f"got no answer from the client in {ROUND_S_MAX:g} s"
        )
        timer = loop.call_later(
            ROUND_S_MAX if requests else pause_s, self._end_round, late if requests else None
        )

        def collect(key: str, body: bytes, failed: bool) -> None:
            if failed:  # an error has no place among the answers
                self._end_round(CallAnswer(body, _code(body)))
                return
            responses[key] = body
            if len(responses) == len(requests):
                self._end_round(None)

        self._open = [self._question(key, request, collect) for key, request in requests.items()]
        try:
            for question in list(self._open):
                if question.open:  # not if the one before could not be asked
                    self._ask(question)
            return await turn
        finally:
            timer.cancel()
            self._end_round(None)

    def _question(
        self, key: str, request: WantedInput, collect: Callable[[str, bytes, bool], None]
    ) -> Question:
        params = request.params
        if request.method == mrtr.ELICIT and b'"url"' in params:
            members = codec.level(params)
            if codec.text(members.get("mode", Raw(b"null"))) == "url":
                members["elicitationId"] = Raw(codec.dump(self._mint()))
                params = codec.dump(members)

        def reply(question: Question, body: bytes, failed: bool) -> None:
            collect(key, body, failed)

        return Question(self._call.server, self._call.id, 0, request.method, params, reply)

    def _end_round(self, outcome: CallAnswer | None) -> None:
        """End the round with this outcome, and withdraw the questions that are still open. Only the
        first end counts."""
        turn, self._turn = self._turn, None
        if turn is not None and not turn.done():
            turn.set_result(outcome)
        still, self._open = self._open, []
        for question in still:
            question.withdraw()

    def _make_error(self, code: Code, problem: str) -> CallAnswer:
        server = process_names.base(self._call.server)
        return error(code, f"server '{server}' {problem}", {"server": server})


def _code(body: bytes) -> int:
    """Return the code of a client's error; an error without a usable code counts as internal."""
    try:
        code = codec.level(body).get("code", Raw(b"0"))
        return int(bytes(code)) or Code.INTERNAL_ERROR
    except (codec.Malformed, ValueError):
        return Code.INTERNAL_ERROR


GATHER_S = 0.05
"""Seconds in which questions are gathered for one round: some servers ask several at once, and each
round costs the client a request."""
QUESTIONS_MAX = 128
"""Maximum number of questions in the course of one call; further questions are refused."""

_UNDECLARED = "The client of this call did not declare that it can be asked this."
_TOO_MANY = f"More than {mrtr.REQUESTS_MAX} questions at once, or {QUESTIONS_MAX} in one call."
_NO_ROOM = "The gateway holds as many questions as it may; try again later."
_GONE = frozenset({Code.SERVER_DOWN, Code.TIMED_OUT})
_CANCEL = codec.dump({"action": "cancel"})


class InteractiveCall:
    """Call whose client may be asked. While the client is away, the talk itself is the caller of
    the call. `capabilities`: raw, the `caller` of `frames.CallFrame`."""

    __slots__ = (
        "_attended", "_count", "_loop", "_open", "_parked_at", "_parking", "_planned", "_size",
        "_state", "_timer", "bound", "call", "capabilities",
    )  # fmt: skip

    def __init__(
        self, parking: "ParkedCalls", call: Call, bound: StateBinding, capabilities: bytes
    ) -> None:
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

    # --- what the server says while the client is away -----------------------------------------

    def on_progress(self, params: bytes) -> None:
        """Drop the progress, because the client is away."""

    def on_notification(self, method: str, params: bytes) -> None:
        """Drop the notification, because the client is away."""

    def on_question(self, question: Question) -> None:
        """Put this question to the client as soon as it is there, together with other open
        questions."""
        size = len(question.params)
        waiting = sum(len(other.params) for other in self._open.values())
        if not client_questions.may_be_asked(self.capabilities, question.method, question.params):
            question.decline(_UNDECLARED)
        elif len(self._open) >= mrtr.REQUESTS_MAX or self._count >= QUESTIONS_MAX:
            question.refuse(_TOO_MANY)
        elif waiting + size > BODY_BYTES_MAX or not self._parking.parked.reserve(size):
            question.refuse(_NO_ROOM)
        else:
            self._count += 1
            key = f"k{self._count}"
            self._open[key] = question
            question.on_withdrawn = functools.partial(self._close_question, key)
            self._plan()

    # --- the client ---------------------------------------------------------------------------

    def resume(self, client: Caller, capabilities: bytes, responses: Mapping[str, Raw]) -> None:
        """Go on with a client that is back with raw answers; `client` takes what the server says
        from now on. Questions that are still open are asked again."""
        self._unpark()
        self._attended = True
        self.capabilities = capabilities
        self.call.caller = client
        for key, question in list(self._open.items()):
            if key in responses:
                self._close_question(key)
                question.answer(bytes(responses[key]))
            elif not client_questions.may_be_asked(capabilities, question.method, question.params):
                self._close_question(key)
                question.decline(_UNDECLARED)
        self._plan()

    def give_up(self, reason: str) -> None:
        """End the call, because the client does not come back, and free everything."""
        self._unpark()
        for key, question in list(self._open.items()):
            self._close_question(key)
            if question.method == mrtr.ELICIT:
                question.answer(_CANCEL)
            else:
                question.fail(codec.dump({"code": int(Code.INTERNAL_ERROR), "message": reason}))
        self.call.cancel(reason)

    # --- underneath ---------------------------------------------------------------------------

    def _plan(self) -> None:
        if self._attended and self._open and not self._planned:
            self._planned = True
            self._loop.call_later(GATHER_S, self._put)

    def _put(self) -> None:
        """Answer the client with the questions, and park the call."""
        self._planned = False
        if not self._open or not self._attended or self.call.answer.is_done():
            return
        try:
            self._state = self._parking.park(self)
        except TooManyParked as full:
            for key, question in list(self._open.items()):
                self._close_question(key)
                question.refuse(str(full))
            return
        self._attended = False
        self.call.caller = self
        self._parked_at = self._loop.time()
        self._timer = self._loop.call_later(PARK_S_MAX, self._expire)
        requests = {
            key: WantedInput(question.method, question.params)
            for key, question in self._open.items()
        }
        self.call.interim(CallAnswer(mrtr.result(requests, self._state)))
        own = self.call.answer

        def on_answer(answer: CallAnswer | None) -> None:
            if own is self.call.answer:  # and not only more questions, after which the call goes on
                self._on_call_ended(answer)

        own.add_callback(on_answer)

    def _expire(self) -> None:
        self.give_up(f"the client did not answer within {PARK_S_MAX:g} s")

    def _on_call_ended(self, answer: CallAnswer | None) -> None:
        """Keep the answer of a finished call until its client comes back. The answer of a server
        that is gone is not kept: the state ends with the server."""
        if not self._state:
            return
        self.call.caller = None
        size = 0 if answer is None or answer.code in _GONE else len(answer.body)
        if size and self._parking.parked.reserve(size):
            self._size = size
        else:
            self._unpark()

    def _unpark(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            # The time that people think is not time of the gateway or the server.
            now = self._loop.time()
            self.call.started = min(now, self.call.started + now - self._parked_at)
        self._parking.parked.forget(self._state)
        self._parking.parked.release(self._size)
        self._state, self._size = "", 0

    def _close_question(self, key: str) -> None:
        question = self._open.pop(key)
        question.on_withdrawn = None
        self._parking.parked.release(len(question.params))


class ParkedCalls:
    """Talks of one front that wait for their clients. `mint`: makes texts that cannot be
    guessed."""

    def __init__(self, loop: asyncio.AbstractEventLoop, mint: Callable[[], str]) -> None:
        self.loop = loop
        self.parked: ParkedEntries[InteractiveCall] = ParkedEntries(mint())
        self._mint = mint
        self._is_closed = False

    def park(self, talk: InteractiveCall) -> str:
        """Return the state with which the client comes back. Raises TooManyParked."""
        if self._is_closed:
            raise TooManyParked("The gateway is stopping.")
        client = "" if talk.call.origin is None else talk.call.origin.who
        if (oldest := self.parked.find_oldest(talk.bound, client)) is not None:
            oldest.give_up("newer calls of its client wait for answers in its place")
        return self.parked.park(self._mint(), talk.bound, client, talk, self.loop.time())

    def check_here(self, raw_state: Raw) -> None:
        """Raise Elsewhere if the call with this raw state may be parked in another front."""
        state = codec.text(raw_state)
        if state is not None and is_state(state):
            self.parked.check_here(state)

    def take(self, state: str, bound: StateBinding) -> InteractiveCall:
        """Return the talk that this state brings back. Raises ProtocolError."""
        return self.parked.take(state, bound, self.loop.time())

    def close(self) -> None:
        """Give up all talks, because no client comes back to a front that ends."""
        self._is_closed = True
        for talk in self.parked.list_parked():
            talk.give_up("the gateway is stopping")
