"""Calls on their way: sent to a server, held until the server comes back, answered exactly once.

Owns: the links, call ids, deadlines, the fate of waiting calls when a pipe is lost, the refusal of
calls to quarantined tools of processes for one client (`QuarantinedCalls`). Never: names, views,
the contents of bodies, restarting a server, the errors and which calls may be sent again
(`call_faults`).

A call is in at most one table: the waiting calls of a wire, or the held calls of a link. The call
leaves its table before it is answered; an answer for an id in no table is late. A wire that was
replaced keeps its waiting calls until it closes, so a draining generation still answers.

A call that may be sent again keeps its frame until its client has seen something of the call. The
frame goes to the next generation with the same id, which no wire knows any more, and the call keeps
its first deadline.
"""

import asyncio
import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final

from msgspec import structs

from metamcp_worker.front_calls import call_faults, mcp_request, server_links
from metamcp_worker.front_calls.client_questions import Question
from metamcp_worker.front_calls.request_facts import CallAnswer
from metamcp_worker.front_calls.server_links import Call, ServerLink, Wire
from metamcp_worker.ipc import codec, process_names
from metamcp_worker.ipc.errors import Code, PipeFull, TooLarge
from metamcp_worker.ipc.frames import (
    CallFrame,
    ClientNotice,
    Error,
    Frame,
    KeptFrame,
    Notice,
    Progress,
    QuestionFrame,
    ReplyFrame,
    Result,
    ServerGone,
    WithdrawQuestion,
)
from metamcp_worker.ipc.messages import ServerState
from metamcp_worker.ipc.pipe import Pipe

HELD_MAX = 1024
"""Maximum number of calls that wait for one server to come back; the server then takes as many at
once."""
HELD_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes of the parameters of these calls; the number alone would allow 16 GiB."""
WAITING_MAX: Final = 16384
"""Maximum number of calls that wait on one wire; more than any worker queues, so only a worker that
does not read reaches it."""
MARGIN_S: Final = 5.0
"""Seconds that the front waits longer than the worker, because the worker's answer is better."""
QUESTION_S_MAX = 300.0
"""Seconds for a client, or its user, to answer a question of the server; the time of the call
stands still until then."""
SWEEP_S = 0.25
"""Seconds between two searches for calls whose time is up; all calls share one timer."""
WANTED_S_MIN = 1.0
"""Minimum seconds between two requests to start the same server; the supervisor starts it at its
own pace."""
CLOSE_S_MAX = 1.0
"""Seconds for pipes to take the last frames; then the process ends anyway."""

_WAKEABLE = frozenset({"idle", "error"})


class Routing:
    """Links to all servers.

    `on_answer(call, answer)`: called once for every call that ends; `answer` is None if the call
    was cancelled. `on_late(server)`: an answer came for a call that is not waiting.
    `on_wanted(server)`: a call needs a server that is not running. `on_notice(server, method,
    params)`: a notification came that belongs to no call. `on_read()`: all answers of one read have
    been passed to `on_answer`. `on_asked(call, question)`: None, or called with the question of a
    server before its client is asked. `new_id()`: returns an id that this front has not used, so
    that no answer reaches a later call.
    """

    def __init__(
        self,
        on_answer: Callable[[Call, CallAnswer | None], None],
        on_late: Callable[[str], None],
        on_wanted: Callable[[str], None],
        on_notice: Callable[[str, str, bytes], None],
        on_read: Callable[[], None] | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._on_answer = on_answer
        self._on_late = on_late
        self._on_wanted = on_wanted
        self._on_notice = on_notice
        self._on_read = on_read
        self.on_asked: Callable[[Call, Question], None] | None = None
        self._links: dict[str, ServerLink] = {}
        self._full: dict[str, ServerLink] = {}
        self.wires: set[Wire] = set()
        self.new_id = itertools.count(1).__next__
        self._hold_s = 0.0
        self._timeouts_s: Mapping[str, float] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    # --- what the supervisor says -------------------------------------------------------------

    def configure(self, timeouts_s: Mapping[str, float], hold_s: float) -> None:
        self._timeouts_s = timeouts_s
        self._hold_s = hold_s
        for link in self._links.values():
            link.timeout_s = timeouts_s.get(link.name, server_links.TIMEOUT_S)

    def learn(self, news: ServerState) -> None:
        link = self._link(news.server)
        link.learn(news, self.loop.time())
        self._release(link)

    async def attach(self, server: str, generation: int, fd: int, *, legacy: bool = False) -> None:
        """Take over descriptor `fd`, the pipe to this generation. `legacy`: the process speaks a
        revision with sessions. Raises OSError."""
        if not stat.S_ISSOCK(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.ENOTSOCK, "The descriptor is not a pipe")
        link = self._link(server)
        wire = Wire(link, generation, legacy=legacy)
        wire.pipe = await Pipe.open(
            fd,
            partial(self._frame, wire),
            lambda reason: self._on_wire_lost(wire, reason),
            self._on_read,
        )
        if wire.gone.is_set():
            return
        self.wires.add(wire)
        link.attach(wire)
        self._release(link)

    def forget(self, server: str, heir: str = "") -> None:
        """Drop the link to a server that is not configured any more, or to a process for one client
        that has ended. Calls that wait for an answer still get it. Calls held for such a process
        start again: they are a reason for a new process. `heir`: name of the process that serves
        these calls from now on, if it has another name."""
        link = self._links.pop(server, None)
        while link is not None and link.apart and link.held:
            call = link.take()
            call.server = heir or server
            self.start(call)
        if link is not None and link.reason == process_names.NO_PLACE:
            link.end(link.message)
            self._full[link.name], link.wanted_at = link, self.loop.time()
        elif link is not None:
            link.end("it is not configured any more")
            self._fail_held(link)

    async def close(self) -> None:
        """Answer every call and close every pipe."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        for link in self._links.values():
            self._fail_held(link)
        for wire in list(self.wires):
            self._fail(wire, "stopping", "the gateway is stopping", last=True)
            if wire.pipe is not None:
                wire.pipe.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S_MAX):
                for wire in list(self.wires):
                    await wire.gone.wait()

    # --- what clients want --------------------------------------------------------------------

    def start(self, call: Call) -> None:
        """Send the call, hold it, or answer it with the error that prevents both."""
        link = self._links.get(call.server) or self._find_link(call.server)
        if link.target is not None:
            self._send(link.target, call)
        else:
            self._hold(link, call)
        if self._sweeper is None:
            self.watch()

    def watch(self) -> None:
        """Start the timer for calls that wait too long, unless it runs already."""
        if self._sweeper is None:
            self._sweeper = self.loop.call_later(SWEEP_S, self._sweep)

    def cancel(self, call: Call, reason: str, answer: CallAnswer | None = None) -> None:
        wire = call.wire
        if wire is not None:
            if wire.waiting.pop(call.id, None) is None:
                return
            wire.on_call_end(call)
            wire.cancel(call, reason)
        else:
            link = self._links.get(call.server)
            if link is None or not link.drop(call):
                return
        self._on_answer(call, answer)

    def tell(self, server: str, method: str, params: bytes = b"") -> None:
        """Send a notification of a client to this server, if the server takes calls now."""
        link = self._links.get(server)
        if link is not None and link.target is not None:
            link.target.offer(ClientNotice(method, params))

    def reachable(self, server: str) -> bool:
        """Whether the server takes calls now."""
        link = self._links.get(server)
        return link is not None and link.target is not None

    def inflight(self) -> dict[str, int]:
        """Return the number of calls that wait for an answer, by server, with held calls."""
        return server_links.inflight(self._links.values(), self.wires)

    def under_way(self) -> Iterator[tuple[Call, str]]:
        return server_links.under_way(self._links.values(), self.wires)

    def count_held_calls(self) -> int:
        return sum(len(link.held) for link in self._links.values())

    # --- underneath ---------------------------------------------------------------------------

    def _find_link(self, server: str) -> ServerLink:
        """Return the link for a call to a process without a link. If a place for another client was
        missing a moment ago, return the link that says so, without asking the supervisor."""
        full = (
            self._full.get(process_names.base(server))
            if process_names.parse_client(server)
            else None
        )
        if full is None or self.loop.time() - full.wanted_at >= WANTED_S_MIN:
            return self._link(server)
        return full

    def _link(self, server: str) -> ServerLink:
        link = self._links.get(server)
        if link is None:
            timeout_s = self._timeouts_s.get(process_names.base(server), server_links.TIMEOUT_S)
            link = self._links[server] = ServerLink(server, timeout_s)
        return link

    def _send(self, wire: Wire, call: Call) -> None:
        frame, pipe, link = call.frame, wire.pipe, wire.link
        assert frame is not None
        assert pipe is not None
        deadline = self.loop.time() + link.timeout_s + MARGIN_S
        if call.ends:
            left_s = call.ends - MARGIN_S - self.loop.time()
            frame = structs.replace(frame, deadline_ms=max(1, int(left_s * 1000)))
            deadline = call.ends
        if len(wire.waiting) >= WAITING_MAX:
            reason = f"{WAITING_MAX} calls wait for its answers"
            self._on_answer(call, call_faults.build_overload_error(link, call, reason, WAITING_MAX))
            return
        try:
            pipe.send(frame)
        except PipeFull:
            reason = "its worker does not take what is sent to it"
            self._on_answer(call, call_faults.build_overload_error(link, call, reason, WAITING_MAX))
            return
        except TooLarge as error:
            data: dict[str, object] = {"limit_bytes": error.limit_bytes, "may_have_run": False}
            self._on_answer(call, server_links.error(Code.TOO_LARGE, str(error), data))
            return
        wire.on_sent(call, frame, deadline)

    def _hold(self, link: ServerLink, call: Call) -> None:
        now = self.loop.time()
        self._wake(link, now)
        if not link.worth_holding(self._hold_s, now):
            self._on_answer(call, call_faults.not_there(link, call))
        elif len(link.held) >= HELD_MAX or link.held_bytes + call.size_bytes > HELD_BYTES_MAX:
            reason = f"{len(link.held)} calls wait for it to come back"
            self._on_answer(call, call_faults.build_overload_error(link, call, reason, HELD_MAX))
        else:
            call.deadline = now + link.hold_s(self._hold_s)
            if call.ends:
                call.deadline = min(call.deadline, call.ends - MARGIN_S)
            link.hold(call)

    def _wake(self, link: ServerLink, now: float) -> None:
        """Ask the supervisor to start this server, because a call needs it."""
        new = link.wanted_at < link.called_after <= now  # what was asked before came too early
        if link.state in _WAKEABLE and (new or now - link.wanted_at >= WANTED_S_MIN):
            link.wanted_at = now
            self._on_wanted(link.server)

    def _release(self, link: ServerLink) -> None:
        """Send held calls, in order, or answer them if their server is not likely to come back.
        Calls that came before the state of the server was known are a reason to start it, too."""
        if link.held:
            self._wake(link, self.loop.time())
        if link.target is None and not link.worth_holding(self._hold_s, self.loop.time()):
            self._fail_held(link)
        while link.target is not None and link.held:
            self._send(link.target, link.take())

    def _fail_held(self, link: ServerLink) -> None:
        while link.held:
            call = link.take()
            self._on_answer(call, call_faults.not_there(link, call))

    def _frame(self, wire: Wire, frame: Frame) -> None:
        if type(frame) is Result:
            self._on_answer_frame(wire, frame.id, CallAnswer(frame.body))
            return
        match frame:
            case Error(id, body):
                self._on_answer_frame(wire, id, CallAnswer(body, call_faults.code_of(body)))
            case Progress(id, body):
                self._on_progress(wire, id, body)
            case Notice(method, body, 0):
                self._on_notice(wire.link.server, method, body)
            case Notice(method, body, id):
                caller = wire.find_caller(id)
                if caller is not None:
                    caller.on_notification(method, body)
            case QuestionFrame():
                self._on_question(wire, frame)
            case KeptFrame(id, note):
                wire.on_claim_note(id, note)
            case WithdrawQuestion(number):
                question = wire.questions.pop(number, None)
                if question is not None:
                    self._go_on(wire, question.call)
                    question.withdraw()
            case ServerGone(body):
                reason, message = call_faults.why_down(body)
                self._fail(wire, reason, message)
            case _:
                pass  # All other frames go from front to worker only.

    def _on_progress(self, wire: Wire, number: int, params: bytes) -> None:
        """Let the time of a call begin again; the worker limits how often. Pass on the progress, if
        the client asked for it."""
        call = wire.waiting.get(number)
        if call is None:
            return
        again = self.loop.time() + wire.link.timeout_s + MARGIN_S
        call.deadline = max(call.deadline, again)
        caller = wire.find_caller(number) if params else None
        if caller is not None:
            caller.on_progress(params)

    def _on_question(self, wire: Wire, ask: QuestionFrame) -> None:
        def reply(question: Question, body: bytes, failed: bool) -> None:
            wire.questions.pop(question.number, None)
            self._go_on(wire, question.call)
            # A full pipe: the worker ends the question in its own time.
            wire.offer(ReplyFrame(question.number, body, failed))

        question = Question(wire.link.server, ask.id, ask.question, ask.method, ask.params, reply)
        caller = wire.find_caller(ask.id)
        if caller is None:
            question.refuse("Nobody waits for the call in which this was asked.")
            return
        wire.questions[ask.question] = question
        wire.waiting[ask.id].deadline = self.loop.time() + QUESTION_S_MAX + MARGIN_S
        if self.on_asked is not None:
            self.on_asked(wire.waiting[ask.id], question)
        caller.on_question(question)

    def _go_on(self, wire: Wire, number: int) -> None:
        """Let the time of this call run again, unless other questions in the call are open."""
        call = wire.waiting.get(number)
        if call is not None and all(
            question.call != number for question in wire.questions.values()
        ):
            call.deadline = self.loop.time() + wire.link.timeout_s + MARGIN_S

    def _on_answer_frame(self, wire: Wire, number: int, answer: CallAnswer) -> None:
        call = wire.waiting.pop(number, None)
        if call is None:
            self._on_late(wire.link.name)
            return
        if wire.questions or call.spare is not None:
            wire.on_call_end(call)
        self._on_answer(call, answer)

    def _on_wire_lost(self, wire: Wire, reason: str) -> None:
        wire.gone.set()
        self.wires.discard(wire)
        self._fail(wire, "worker", f"its worker process is gone ({reason})")

    def _fail(self, wire: Wire, reason: str, message: str, *, last: bool = False) -> None:
        """Answer the calls of a wire whose server is gone, or send them to the next generation.
        `last`: there will be no next generation."""
        link = wire.link
        link.lose(wire)
        waiting, wire.waiting = wire.waiting, {}
        if not waiting:
            return
        answers = [
            call_faults.went_down(link, wire, reason, message, twice=twice)
            for twice in (False, True)
        ]
        for call in waiting.values():
            frame = link.unkeep(call)
            wire.on_call_end(call)
            if frame is None or last or not self._retry(link, call, frame):
                self._on_answer(call, answers[call.ends > 0])

    def _retry(self, link: ServerLink, call: Call, frame: CallFrame) -> bool:
        """Send this call to the next generation, or hold it until there is one. Returns False if
        the time of the call is up, or no generation is likely to come."""
        now = self.loop.time()
        late = call.deadline - MARGIN_S <= now
        if late or (link.target is None and not link.worth_holding(self._hold_s, now)):
            return False
        call.ends, call.frame, call.wire = call.deadline, frame, None
        if link.target is not None:
            self._send(link.target, call)
        else:
            self._hold(link, call)
        return True

    def _sweep(self) -> None:
        now = self.loop.time()
        waiting_calls = 0
        for link in self._links.values():
            if link.held:
                waited_s = link.hold_s(self._hold_s)
                for call in link.take_expired(now):
                    self._on_answer(call, call_faults.not_there(link, call, waited_s))
            waiting_calls += len(link.held)
        for wire in self.wires:
            for call in wire.take_expired(now):
                wire.cancel(call, "timeout")
                self._on_answer(call, call_faults.timed_out(wire.link, wire, call))
            waiting_calls += len(wire.waiting)
        self._sweeper = self.loop.call_later(SWEEP_S, self._sweep) if waiting_calls else None


Pair = tuple[str, str]


class QuarantinedCalls:
    """Refuses calls of quarantined tools. `apart`: reasons for tools that only a process for one
    client has, by process and tool; usually empty."""

    def __init__(self, routing: Routing) -> None:
        self.apart: Mapping[Pair, str] = {}
        self._routing = routing

    def configure(self, quarantined: tuple[tuple[str, str, str], ...]) -> None:
        """Set the quarantined tools, and cancel calls of these that wait for their server: they
        would reach a different tool than their caller meant."""
        reasons = {(server, tool): reason for server, tool, reason in quarantined}
        self.apart = {
            pair: reason for pair, reason in reasons.items() if process_names.parse_client(pair[0])
        }
        for call, state in list(self._routing.under_way()) if reasons else ():
            if state == "held" and (reason := _find_reason(call, reasons)):
                data: dict[str, object] = {"reason": "quarantine", "may_have_run": call.ends > 0}
                answer = server_links.error(Code.INVALID_PARAMS, reason, data)
                self._routing.cancel(call, reason, answer)

    def check(self, server: str, tool: bytes | str) -> None:
        """Raise ProtocolError if the tool is in quarantine. `server`: the process that would be
        called; `tool`: name of the tool there, raw JSON if it is bytes."""
        if reason := self.apart.get((server, _text(tool))):
            raise mcp_request.build_quarantine_error(reason)


def _find_reason(call: Call, reasons: Mapping[Pair, str]) -> str:
    tool = "" if call.origin is None else _text(call.origin.tool)
    return reasons.get((call.server, tool)) or reasons.get(
        (process_names.base(call.server), tool), ""
    )


def _text(tool: bytes | str) -> str:
    return tool if isinstance(tool, str) else codec.text(tool) or ""
