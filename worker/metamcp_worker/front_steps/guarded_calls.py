"""Calls that a rule or a person has to let through before their server gets them.

Owns: such a call between the front and `held_calls`: its facts, the question to its client, the
check that it is still the same call, its refusal; its way through middleware. Never: the rules
(`guard_rules`), consent (`consent_io`), calls that no rule concerns.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from msgspec import Raw, structs

from metamcp_worker.access.gate import Principal
from metamcp_worker.builtin_tools import builtin
from metamcp_worker.catalog.offers import Owner
from metamcp_worker.catalog.views import View
from metamcp_worker.front_calls import mcp_request, mrtr, server_links
from metamcp_worker.front_calls.calls import Calls
from metamcp_worker.front_calls.client_questions import Question, may_be_asked
from metamcp_worker.front_calls.mcp_request import METHODS
from metamcp_worker.front_calls.request_facts import CallAnswer, InnerRun, McpRequest
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.guard import guard_rules
from metamcp_worker.guard.consent_io import ConsentStep
from metamcp_worker.guard.guard_rules import CallFacts, CallGuard
from metamcp_worker.guard.held_calls import Answered, HeldCalls
from metamcp_worker.guard.policies import PolicyNote
from metamcp_worker.ipc import codec, jsonrpc_bytes
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.middleware_calls import OF_METHOD, StartHook
from metamcp_worker.ipc.packets import Connectors
from metamcp_worker.ipc.spec import FrontSpec
from metamcp_worker.middleware.chain import HookAnswer
from metamcp_worker.middleware.front_side import (
    HookedRequest,
    MiddlewareClient,
    MiddlewareClients,
)
from metamcp_worker.runtime.masking import SecretMasker

log = logging.getLogger("metamcp.front")

_CHANGED = "{} is not the same any more as when this call was made; call it again."
_LAPSED = "The credential of this call has expired or was revoked."
_UNSERVED = "This endpoint is not served any more."
_STOPPING = "The gateway is stopping."


class GuardNotes(Protocol):
    """Record of what happens to guarded calls; see `call_audit.CallAudit`."""

    def policies(self, call: Call, text: str) -> None:
        """Note what policies did."""
        ...

    def record_consent(self, call: Call, consent: str) -> None:
        """Note who agreed to a call, or why it is refused."""
        ...


class GuardedCalls:
    """Calls that their server gets when rules, people and middleware have let them through; a
    `calls.RuleStep`. `held`: calls that wait for `consent`; `hooked`: calls in middleware;
    `still(principal, endpoint, now)`: of the door, which may refuse the caller; `count`: counts
    what a policy does; `pause(run, on)`: lets the time of a run of code stand still, or go on;
    `notes`: None if nothing is recorded."""

    def __init__(self, calls: Calls, connectors: Connectors) -> None:
        self.consent = ConsentStep()
        self.held = HeldCalls(self.consent)
        self.still: Callable[[Principal, str, float], bool] = lambda who, endpoint, now: True
        self.count: Callable[[PolicyNote], None] = lambda note: None
        self.pause: Callable[[InnerRun, bool], None] = lambda run, on: None
        self.notes: GuardNotes | None = None
        self.quarantine = calls.quarantine
        self.routing = calls.routing
        self.calls = calls
        self.works: dict[int, _GuardedWork] = {}
        self.lines = MiddlewareClients(connectors)
        self.hooked: dict[int, _HookedCall] = {}

    def configure(self, spec: FrontSpec) -> None:
        self.lines.configure(spec.middleware)
        self.consent.masks = SecretMasker((*spec.log.secrets, *spec.recording.secrets))

    def start(
        self, call: Call, owner: Owner, view: View, request: McpRequest, params: Mapping[str, Raw]
    ) -> Call:
        """Send this call, or hold it, if a rule concerns it, and return it. `params`: as the
        server gets them."""
        subject = mcp_request.subject_of(METHODS[request.method], request)
        kind, name = guard_rules.KINDS[request.method], codec.text(owner.original) or subject
        guard = None if owner.guard is None else owner.guard.find_guard(kind, name)
        if guard is None:
            self.routing.start(call)
            return call
        facts = CallFacts(
            exposed=subject, arguments=bytes(params.get("arguments", b"{}")),
            principal=request.principal, endpoint=view.whole,
            workspace=view.spec.workspace, who=request.who, client=request.caller,
            modern=request.modern, source="client" if request.run is None else request.run.source,
            state=bytes(params.get("requestState", b"")) if params.keys() & mrtr.ADDED else None,
        )  # fmt: skip
        verdict = guard.decide(facts)
        if verdict.notes:
            self._note(call, guard, verdict.notes)
        if verdict.effect == "allow":
            self.send(call, guard, facts)
            return call
        work = _GuardedWork(self, call, owner, view, request, guard, facts)
        self.works[call.id] = work
        self.held.begin(call.id, guard, facts, work, verdict)
        return call

    def _note(self, call: Call, guard: CallGuard, notes: Iterable[PolicyNote]) -> None:
        """Count what policies do, and put it into the record of the call."""
        for note in notes:
            self.count(note)
            if note.why:
                log.warning("policy '%s' fails for %s: %s", note.policy, guard.path, note.why)
        if self.notes is not None:
            outcomes = (f"{note.policy} {note.outcome.replace('_', ' ')}" for note in notes)
            self.notes.policies(call, f"policies: {', '.join(outcomes)}")

    def send(self, call: Call, guard: CallGuard, facts: CallFacts) -> None:
        """Send a call that nothing holds any more, through its middleware."""
        hook = OF_METHOD[call.label]
        lines = self.lines.select_lines(guard.middleware, hook) if guard.middleware else []
        if lines:
            self.hooked[call.id] = hooked = _HookedCall(self, call, guard, facts, lines)
            hooked.begin(facts.arguments)
        else:
            self.routing.start(call)

    def holds(self, number: int) -> bool:
        return self.held.holds(number)

    def cancel(self, call: Call, reason: str) -> None:
        """End a call whose client does not wait any more, held or with its server."""
        if self.held.drop(call.id):
            del self.works[call.id]
            call.started = time.monotonic()
            self.calls.finish_call(call, None)
        elif (hooked := self.hooked.get(call.id)) is not None:
            hooked.cancel(reason)
        else:
            self.routing.cancel(call, reason)

    def under_way(self) -> Iterator[tuple[Call, str]]:
        """Yield the calls that no server has, with their state as in `figures.CallUnderWay`."""
        yield from ((work.call, "asking") for work in self.works.values())
        yield from ((hooked.call, "running") for hooked in self.hooked.values() if not hooked.sent)

    def close(self) -> None:
        """Answer all calls that no server has."""
        self.held.close(_STOPPING)
        for hooked in list(self.hooked.values()):
            hooked.stop()
        self.lines.close()


class _GuardedWork:
    """Held call, as the step can end it: a `held_calls.HeldWork`."""

    def __init__(
        self,
        calls: GuardedCalls,
        call: Call,
        owner: Owner,
        view: View,
        request: McpRequest,
        guard: CallGuard,
        facts: CallFacts,
    ) -> None:
        self.call = call
        self.guard = guard
        self.facts = facts
        self._calls = calls
        self._owner = owner
        self._view = view
        self._request = request

    def askable(self) -> bool:
        may_ask = may_be_asked(self._request.caller, mrtr.ELICIT, b"{}")
        return self.call.caller is not None and may_ask

    def ask(self, params: bytes, answered: Answered) -> Callable[[], None] | None:
        call = self.call
        if call.caller is None or not self.askable():
            return None

        def reply(question: Question, body: bytes, failed: bool) -> None:
            answered(body, failed)

        question = Question("", call.id, 0, mrtr.ELICIT, params, reply)
        call.caller.on_question(question)
        return question.withdraw

    def pause(self, *, on: bool) -> None:
        if self._request.run is not None:
            self._calls.pause(self._request.run, on)

    def send(self, more: Callable[[bytes], None] | None, consent: str) -> None:
        if reason := self._explain_change():
            self.refuse(reason)
            return
        del self._calls.works[self.call.id]
        if consent and self._calls.notes is not None:
            self._calls.notes.record_consent(self.call, consent)
        if more is not None:
            self.call.answer.add_callback(partial(_wants_more, more))
        self.call.started = time.monotonic()  # the time before was not that of the server
        self._calls.send(self.call, self.guard, self.facts)

    def refuse(self, why: str) -> None:
        call = self.call
        call.legacy = not call.modern  # the refusal is written for the client's era
        if call.label == "tools/call":
            reply = builtin.ToolReply(why, failed=True)
            answer = CallAnswer(builtin.result(reply, modern=call.modern))
        else:
            data: dict[str, object] = {"reason": "refused", "may_have_run": False}
            answer = server_links.error(Code.INVALID_PARAMS, why, data)
        del self._calls.works[call.id]
        call.mend = None
        call.started = time.monotonic()
        if self._calls.notes is not None:
            self._calls.notes.record_consent(call, why)
        self._calls.calls.finish_call(call, answer, "refused")

    def _explain_change(self) -> str:
        """Return why the call is not the same any more that was held; empty if it is."""
        calls, request, view = self._calls, self._request, self._view
        who, rule = request.principal, METHODS[request.method]
        if who.auth != "none" and not calls.still(who, view.endpoint, time.time_ns() / 1e9):
            return _LAPSED
        now = calls.calls.find_sender_view(view, request)
        if now is None:
            return _UNSERVED
        subject = mcp_request.subject_of(rule, request)
        if rule.find(now.of(modern=request.modern), subject) != self._owner:
            return _CHANGED.format(subject)
        try:
            if request.method == "tools/call":
                calls.quarantine.check(self.call.server, self._owner.original or subject)
        except ProtocolError as error:
            return error.message
        return ""


class _HookedCall:
    """Call on its way through middleware. `sent`: its server has it."""

    def __init__(
        self,
        calls: GuardedCalls,
        call: Call,
        guard: CallGuard,
        facts: CallFacts,
        lines: Sequence[MiddlewareClient],
    ) -> None:
        self.call = call
        self.sent = False
        self._calls = calls
        self._answer: HookAnswer | None = None
        about = StartHook(
            hook=OF_METHOD[call.label], server=guard.server, name=guard.name,
            annotations=Raw(guard.annotations), endpoint=facts.endpoint,
            workspace=facts.workspace, principal=facts.principal.name,
            caller=Raw(facts.client or b"null"),
        )  # fmt: skip
        self._request = HookedRequest(lines, about, self._send, self._leave, self._on_hooks_done)

    def begin(self, arguments: bytes) -> None:
        self.call.hooks = self._on_server_answer
        self._request.chain.begin(arguments)

    def cancel(self, reason: str) -> None:
        """End the call, because its client does not wait any more."""
        self._request.chain.cancel(reason)
        self._end(None)

    def stop(self) -> None:
        """End the call, because the front ends."""
        self._request.chain.cancel(_STOPPING)
        self._end(server_links.error(Code.SERVER_DOWN, _STOPPING, {"may_have_run": self.sent}))

    def _send(self, arguments: bytes) -> None:
        """Send the call to its server. The call does not become a task and its result is not kept,
        because both would come to the client past its middleware."""
        frame, self.sent = self.call.frame, True
        assert frame is not None
        params = codec.level(frame.params)
        params.pop("task", None)
        if arguments != bytes(params.get("arguments", b"{}")):
            params["arguments"] = Raw(arguments)
        caller = frame.caller
        if caller.find(b"/tasks") >= 0:  # whether the slash is escaped or not
            caller = mcp_request.without_tasks(caller)
        params_raw = codec.dump(params)
        self.call.frame = structs.replace(frame, params=params_raw, caller=caller, results=b"")
        self.call.started = time.monotonic()
        self._calls.routing.start(self.call)

    def _on_server_answer(self, answer: CallAnswer | None) -> None:
        """Take the answer of the server; None: the call was cancelled there."""
        self.sent = False
        if answer is None:
            return
        self._answer = HookAnswer(answer.body, answer.code)
        is_final = not _asks(answer)
        self._request.chain.on_answer(self._answer, final=is_final)

    def _leave(self, reason: str) -> None:
        self._calls.routing.cancel(self.call, reason)

    def _on_hooks_done(self, answer: HookAnswer) -> None:
        call, body, code = self.call, answer.body, answer.code
        if self._answer is None or body != self._answer.body:
            call.legacy = not call.modern  # from here on it has the form of the client's era
            body, code = jsonrpc_bytes.convert_answer(call.label, body, code, modern=call.modern)
        self._end(CallAnswer(body, code))

    def _end(self, answer: CallAnswer | None) -> None:
        self.call.hooks = None
        del self._calls.hooked[self.call.id]
        self._calls.calls.finish_call(self.call, answer)


def _asks(answer: CallAnswer) -> bool:
    """Whether a server wants more input before it answers."""
    try:
        return not answer.code and mrtr.parse(answer.body) is not None
    except codec.Malformed:
        return False


def _wants_more(more: Callable[[bytes], None], answer: CallAnswer | None) -> None:
    """Note that a server wants this call again, with the input that it asks for."""
    try:
        input_required = None if answer is None else mrtr.parse(answer.body)
    except codec.Malformed:
        return
    if input_required is not None:
        more(b"" if input_required.state is None else bytes(input_required.state))
