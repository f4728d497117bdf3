"""Runs of code of one front: the connection to the sandboxes, and the calls that the code makes.

Owns: the connection, opened at the first run; the runs on it with their calls under way; the end of
a run from either side. Never: running code, what a call is and what it answers
(`code_calls`), whether a call is allowed: each goes through `calls`, like any other.
"""

import asyncio
import logging
import re
import time
from collections.abc import Iterable
from functools import partial

from msgspec import Raw

from metamcp_worker.builtin_tools import code_tools
from metamcp_worker.builtin_tools.builtin import Run, ToolReply
from metamcp_worker.catalog.views import View
from metamcp_worker.front_calls.calls import Calls
from metamcp_worker.front_calls.client_questions import Question, may_be_asked
from metamcp_worker.front_calls.mcp_request import ServerNotReady
from metamcp_worker.front_calls.mrtr import ELICIT
from metamcp_worker.front_calls.request_facts import CallAnswer, InnerRun
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.front_calls.server_processes import RootsUnknown
from metamcp_worker.front_steps import code_calls
from metamcp_worker.front_steps.builtin_calls import Builtins, BuiltinWork
from metamcp_worker.front_steps.code_calls import NeedsConsent, ToolNames
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.code_runs import (
    FRAME_BYTES_MAX,
    ROLE,
    CodeLimits,
    EndRun,
    HoldRun,
    HostCall,
    HostReply,
    RunEnded,
    StartRun,
)
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.frame_link import FrameLink
from metamcp_worker.ipc.packets import Connectors

RUN_WAIT_S_MAX = 60.0
"""Seconds that a run may take beyond its own time: to wait for a sandbox, and to be ended."""
UNSENT_BYTES_MAX = 2 * FRAME_BYTES_MAX
"""Maximum bytes that wait for the sandboxes to read them; a call beyond gets an error."""

_GONE = "the process of the sandboxes ended or cannot be reached; try again"
_DEEP = "a value of the code has too many levels, or is not JSON"
_LATE = "the run was not over in time"
_FULL = "too many results wait for the code to take them"
_OVER = "the code that made this call has ended"
_UNASKED = "the folders of the client are not known to this server; call one of its tools directly"
_EXPIRED = "the credential of this client has expired"
_UNSERVED = "this endpoint is not served any more"

log = logging.getLogger("metamcp.front")

_RUN = re.compile(rb'\{"type":"(?:HostCall|RunEnded)","run":(?P<run>\d{1,18}),')
_read = codec.reader(HostCall | RunEnded)


class RunUnderWay:
    """Run under way. `number`: on the connection; `calls`: under way, by their number in the run;
    `ended`: number of calls that are over. `outer`: run whose code waits for this one, if there is
    one; `starts`: inner runs of this run: the first one runs, the others wait. `asking`: calls that
    wait until the user agrees, with names of tools; the first one is in `question`. `holds`:
    reasons for its time to stand still."""

    def __init__(self, work: BuiltinWork) -> None:
        self.call = work.call
        self.number = work.call.id
        self.view = work.view
        self.request = work.request
        self.inner = _InnerCaller(work.call)
        self.done = work.done
        self.calls: dict[int, Call] = {}
        self.ended = 0
        self.base = code_calls.base(work.request, work.run)
        self.limits: CodeLimits | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.outer: RunUnderWay | None = None
        self.starts: list[StartRun] = []
        self.asking: list[tuple[HostCall, str]] = []
        self.question: Question | None = None
        self.holds = 0


class CodeRuns:
    """Runs of a front; a `builtin_calls.WorkStep`. `calls`: makes those of the code; `builtins`:
    lists tools for it."""

    def __init__(self, calls: Calls, builtins: Builtins, connectors: Connectors) -> None:
        self._calls = calls
        self._builtins = builtins
        self._runs: dict[int, RunUnderWay] = {}
        self._names: dict[str, ToolNames] = {}
        self._connectors = connectors
        connect = partial(connectors.connect, ROLE)
        self._link = FrameLink("the process of the sandboxes", self._frame, self._on_lost, connect)

    def configure(self) -> None:
        """Adapt to another configuration. Runs go on with the settings that they began with."""
        self._names.clear()

    def close(self) -> None:
        """End all runs, and close the connection."""
        self._link.close()
        self._on_lost()

    def under_way(self) -> Iterable[tuple[Call, str]]:
        """Return the calls that are runs, with their state."""
        return [(run.call, "running") for run in self._runs.values()]

    def begin(self, work: BuiltinWork) -> None:
        """Run code for a client. `work.done` is called with the result, at once or later."""
        run, program, most = RunUnderWay(work), work.decision, work.view.spec.code
        assert isinstance(program, Run)
        if refusal := code_calls.refusal(program, run.request):
            run.done(ToolReply(refusal, failed=True))
        elif most is None or not self._connectors.has(ROLE):
            run.done(ToolReply("Code mode is not configured here, see [code].", failed=True))
        else:
            limits, within = code_calls.limits(most, program), run.request.run
            outer = next(
                (candidate for candidate in self._runs.values() if candidate.base.run == within),
                None,
            )
            self._runs[run.number] = run
            self._time(run, limits)
            start = StartRun(
                run=run.number, code=program.code, language=program.language, args=program.args,
                limits=limits, inner=outer is not None,
            )  # fmt: skip
            if outer is not None:
                run.outer = outer
                outer.starts.append(start)
            if outer is None or len(outer.starts) == 1:
                self._link.send(start)

    def leave(self, number: int) -> None:
        """End this run, if it is one: its client does not wait any more."""
        if self._take(number) is not None and self._link.is_open:
            self._link.send(EndRun(run=number))

    def _on_lost(self) -> None:
        """End all runs."""
        for run in self._runs.values():
            run.starts.clear()
        for number in list(self._runs):
            self._on_run_ended(RunEnded(run=number, failure="crashed", message=_GONE))

    def _frame(self, body: bytes) -> None:
        """Take a message. Raises codec.Malformed."""
        try:
            if not body.isascii():
                body.decode()  # values are passed on as they are
            message = _read(body)
        except (codec.Malformed, UnicodeDecodeError):
            self._unread(body)
            return
        if isinstance(message, RunEnded):
            self._on_run_ended(message)
        elif (run := self._runs.get(message.run)) is not None:
            self._on_host_call(run, message)

    def _unread(self, body: bytes) -> None:
        """End the run whose code made a value that cannot be read. Raises codec.Malformed for any
        other message."""
        match = _RUN.match(body)
        if match is None:
            raise codec.Malformed("not a message of a run")
        self._end(RunEnded(run=int(match["run"]), failure="size", message=_DEEP))

    # --- the end of a run ---------------------------------------------------------------------

    def _time(self, run: RunUnderWay, limits: CodeLimits) -> None:
        run.limits = limits
        after_s = limits.timeout_ms / 1000 + RUN_WAIT_S_MAX
        run.timer = asyncio.get_running_loop().call_later(after_s, self._on_timeout, run.number)

    def _on_timeout(self, number: int) -> None:
        self._end(RunEnded(run=number, failure="timeout", message=_LATE))

    def _end(self, end: RunEnded) -> None:
        """End a run from this side."""
        if end.run in self._runs and self._link.is_open:
            self._link.send(EndRun(run=end.run))
        self._on_run_ended(end)

    def _on_run_ended(self, end: RunEnded) -> None:
        run = self._take(end.run)
        if run is not None:
            run.done(code_tools.to_reply(end))

    def _take(self, number: int) -> RunUnderWay | None:
        """Forget a run, and cancel the calls that its code has not waited for."""
        run = self._runs.pop(number, None)
        if run is not None:
            if run.timer is not None:
                run.timer.cancel()
            if run.outer is not None:
                self._next(run.outer, number)
            if run.question is not None:
                run.question.withdraw()
            calls, run.calls = run.calls, {}
            for call in calls.values():
                call.cancel(_OVER)
        return run

    def _next(self, outer: RunUnderWay, ended: int) -> None:
        """Forget an inner run of this run; if it was the one that ran, begin the next one."""
        starts = outer.starts
        outer.starts = [start for start in starts if start.run != ended]
        if outer.starts[:1] != starts[:1] and outer.starts and outer.number in self._runs:
            self._link.send(outer.starts[0])

    # --- calls of a run -----------------------------------------------------------------------

    def _on_host_call(self, run: RunUnderWay, host_call: HostCall) -> None:
        name = host_call.name if host_call.kind == "call" else ""
        view = run.view
        try:
            view = self._view(run)
            if host_call.kind == "tools":
                self._calls.authorize(view, run.request.principal, "tools/list")
                done = partial(self._on_tools, run, host_call.call)
                self._builtins.tools(view, run.base, host_call.name, done)
                return
            self._calls.authorize(view, run.request.principal, "tools/call")
            if host_call.kind == "server":
                name = self._names_of(view, run).find(host_call.server, host_call.name)
            request = code_calls.call(run.base, name, host_call.arguments)
            code_calls.check_consent(view.of(modern=request.modern), name, request)
            call = self._calls.start(view, request, run.inner)
        except ServerNotReady as error:
            self._wait(run, host_call, error)
        except NeedsConsent as error:
            run.asking.append((host_call, error.name))
            if len(run.asking) == 1:
                self._ask(run, host_call, error.name)
        except ProtocolError as error:
            merged = view.of(modern=run.request.modern)
            self._refuse(run, host_call.call, code_calls.describe_refusal(error, name, merged))
        except RootsUnknown:
            self._refuse(run, host_call.call, _UNASKED)
        else:
            run.calls[host_call.call] = call
            call.answer.add_callback(partial(self._on_answer, run, host_call, name))

    def _ask(self, run: RunUnderWay, host_call: HostCall, name: str) -> None:
        """Ask the user before a call of an agent, while the time of its code stands still."""
        try:
            params = code_calls.consent(name, host_call.arguments)
        except codec.Malformed as error:
            self._stop(run, code_calls.UNSHOWN.format(name, error))
            return
        caller = run.call.caller
        if caller is None or not may_be_asked(run.request.caller, ELICIT, params):
            self._stop(run, code_calls.UNASKABLE.format(name))
            return

        def on_answer(question: Question, body: bytes, failed: bool) -> None:
            if run.number in self._runs:
                self._hold(run, hold=False)
                self._on_consent(run, name, *code_calls.parse_consent(body, error=failed))

        run.question = Question("", run.call.id, 0, ELICIT, params, on_answer)
        self._hold(run, hold=True)
        caller.on_question(run.question)

    def _on_consent(self, run: RunUnderWay, name: str, agreed: bool, further: bool) -> None:
        """Make the call that the user has agreed to, or stop the agent."""
        waiting, run.asking, run.question = run.asking, [], None
        allowed = None if run.base.run is None else run.base.run.allowed
        if not agreed or allowed is None:
            self._stop(run, code_calls.DECLINED.format(name))
            return
        allowed.add(name)
        self._on_host_call(run, waiting[0][0])
        if not further:
            allowed.discard(name)
        for host_call, _ in waiting[1:]:
            if run.number in self._runs:
                self._on_host_call(run, host_call)

    def hold(self, within: InnerRun, hold: bool) -> None:
        """Let the time of the run whose code makes a call stand still, or go on, if there is such a
        run."""
        self._hold(next((r for r in self._runs.values() if r.base.run is within), None), hold=hold)

    def _hold(self, run: RunUnderWay | None, *, hold: bool) -> None:
        """Let the time of a run and of the runs around it stand still, or go on."""
        while run is not None:
            run.holds += 1 if hold else -1
            if run.holds == hold:  # it begins or ends with this reason
                if run.timer is not None:
                    run.timer.cancel()
                if not hold and run.limits is not None:
                    self._time(run, run.limits)
                self._link.send(HoldRun(run=run.number, hold=hold))
            run = run.outer

    def _stop(self, run: RunUnderWay, reason: str) -> None:
        """End the outermost run around a call that the user has not agreed to."""
        while run.outer is not None:
            run = run.outer
        self._end(RunEnded(run=run.number, failure="consent", message=reason))

    def _view(self, run: RunUnderWay) -> View:
        """Return the view of the run's client as it is now. Raises ProtocolError."""
        expires = run.request.principal.expires
        if expires and time.time_ns() >= expires * 1e9:
            raise ProtocolError(Code.INVALID_REQUEST, _EXPIRED)
        view = self._calls.find_sender_view(run.view, run.request)
        if view is None:
            raise ProtocolError(Code.INVALID_REQUEST, _UNSERVED)
        if self._link.unsent > UNSENT_BYTES_MAX:
            raise ProtocolError(Code.OVERLOADED, _FULL)
        return view

    def _names_of(self, view: View, run: RunUnderWay) -> ToolNames:
        merged = view.of(modern=run.request.modern)
        names = self._names.get(view.endpoint)
        if names is None or names.merged is not merged:
            names = self._names[view.endpoint] = ToolNames(merged)
        return names

    def _wait(self, run: RunUnderWay, host_call: HostCall, early: ServerNotReady) -> None:
        """Make the call when its server has reported what it offers; then it is there, or not."""
        first = self._calls.first_list(early, run.view.whole)
        run.calls[host_call.call] = first

        def on_first_list(answer: CallAnswer | None) -> None:
            if run.calls.pop(host_call.call, None) is None or answer is None:
                return
            view = self._calls.find_sender_view(run.view, run.request)
            if view is None or early.server in view.merged.unknown:
                self._refuse(run, host_call.call, early.message)
            else:
                self._on_host_call(run, host_call)

        first.answer.add_callback(on_first_list)

    def _on_answer(
        self, run: RunUnderWay, host_call: HostCall, name: str, answer: CallAnswer | None
    ) -> None:
        if run.calls.pop(host_call.call, None) is None:
            return
        self._reply(code_calls.reply(run.number, host_call.call, answer))
        run.ended += 1
        if run.request.wants_progress and run.call.caller is not None:
            run.call.caller.on_progress(codec.dump({"progress": run.ended, "message": name}))

    def _on_tools(self, run: RunUnderWay, number: int, reply: ToolReply) -> None:
        if reply.structured is None:
            self._refuse(run, number, reply.text)
        else:
            tools = Raw(codec.dump(reply.structured["tools"]))
            self._reply(HostReply(run=run.number, call=number, result=tools))

    def _refuse(self, run: RunUnderWay, number: int, message: str) -> None:
        self._reply(code_calls.error(run.number, number, message))

    def _reply(self, reply: HostReply) -> None:
        if reply.run in self._runs:
            self._link.send(reply)


class _InnerCaller:
    """Takes for the client of a run what servers say during a call of its code. Progress of single
    calls is not passed on: the client hears of whole calls."""

    def __init__(self, outer: Call) -> None:
        self._outer = outer

    def on_progress(self, params: bytes) -> None:
        pass

    def on_notification(self, method: str, params: bytes) -> None:
        if self._outer.caller is not None:
            self._outer.caller.on_notification(method, params)

    def on_question(self, question: Question) -> None:
        if self._outer.caller is None:
            question.decline("The client of this call cannot be asked.")
        else:
            self._outer.caller.on_question(question)
