"""Calls that a rule or a person has to let through before their server gets them.

Owns: such a call between the front and the steps of `held_calls`: its facts, the question to its
client, the check that it is still the same call, its refusal. Never: the rules (`guard_rules`),
what a step does, calls that no rule concerns.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from msgspec import Raw

from metamcp_worker.access.gate import Principal
from metamcp_worker.builtin_tools import builtin
from metamcp_worker.catalog.offers import Owner
from metamcp_worker.catalog.views import View
from metamcp_worker.front import mcp_request, mrtr, server_links
from metamcp_worker.front.call_router import QuarantinedCalls, Routing
from metamcp_worker.front.client_questions import Question, may_be_asked
from metamcp_worker.front.mcp_request import METHODS, InnerRun, McpRequest
from metamcp_worker.front.server_links import Call, CallAnswer
from metamcp_worker.guard import guard_rules
from metamcp_worker.guard.guard_rules import CallFacts, CallSource
from metamcp_worker.guard.held_calls import Answered, HeldCalls
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code, ProtocolError

_CHANGED = "{} is not the same any more as when this call was made; call it again."
_LAPSED = "The credential of this call has expired or was revoked."
_UNSERVED = "This endpoint is not served any more."


class GuardHost(Protocol):
    """Parts of a front that guarded calls need; see `calls.Calls`."""

    def now(self, view: View, request: McpRequest) -> View | None: ...

    def pause(self, run: InnerRun, *, on: bool) -> None:
        """Let the time of a run of code stand still, or go on."""
        ...

    def answered(self, call: Call, answer: CallAnswer | None, refused: str = "") -> None:
        """Answer a call. `refused`: word for the figures of a call that no server gets."""
        ...


class GuardedCalls:
    """Calls that their server gets when every step has let them through. `held`: the steps, and the
    calls in them; `still(principal, endpoint, now)`: of the door, which may refuse the caller."""

    def __init__(self, routing: Routing, host: GuardHost) -> None:
        self.held = HeldCalls()
        self.still: Callable[[Principal, str, float], bool] = lambda who, endpoint, now: True
        self.quarantine = QuarantinedCalls(routing)
        self.routing = routing
        self.host = host
        self.works: dict[int, _GuardedWork] = {}

    def start(
        self, call: Call, owner: Owner, view: View, request: McpRequest, params: Mapping[str, Raw]
    ) -> None:
        """Send this call, or hold it, if a rule concerns it. `params`: as the server gets them."""
        subject = mcp_request.subject_of(METHODS[request.method], request)
        kind, name = guard_rules.KINDS[request.method], codec.text(owner.original) or subject
        guard = None if owner.guard is None else owner.guard.named(kind, name)
        if guard is None:
            self.routing.start(call)
            return
        facts = CallFacts(
            exposed=subject, arguments=bytes(params.get("arguments", b"{}")),
            principal=request.principal, endpoint=view.spec.part_of or view.endpoint,
            workspace=view.spec.workspace, who=request.who, client=request.caller,
            source=_source(request.run),
            state=bytes(params.get("requestState", b"")) if params.keys() & mrtr.ADDED else None,
        )  # fmt: skip
        work = self.works[call.id] = _GuardedWork(self, call, owner, view, request)
        self.held.begin(call.id, guard, facts, work)

    def cancel(self, call: Call, reason: str) -> None:
        """End a call whose client does not wait any more, held or with its server."""
        if self.held.drop(call.id):
            del self.works[call.id]
            self.host.answered(call, None)
        else:
            self.routing.cancel(call, reason)

    def under_way(self) -> list[Call]:
        """Return the calls that are held."""
        return [work.call for work in self.works.values()]


class _GuardedWork:
    """Held call, as the steps can end it: a `held_calls.HeldWork`."""

    def __init__(
        self, calls: GuardedCalls, call: Call, owner: Owner, view: View, request: McpRequest
    ) -> None:
        self.call = call
        self._calls = calls
        self._owner = owner
        self._view = view
        self._request = request

    def ask(self, params: bytes, answered: Answered) -> Callable[[], None] | None:
        call = self.call
        asked = may_be_asked(self._request.caller, mrtr.ELICIT, params)
        if call.caller is None or not asked:
            return None

        def reply(question: Question, body: bytes, failed: bool) -> None:
            answered(body, failed)

        question = Question("", call.id, 0, mrtr.ELICIT, params, reply)
        call.caller.asked(question)
        return question.withdraw

    def pause(self, *, on: bool) -> None:
        if self._request.run is not None:
            self._calls.host.pause(self._request.run, on=on)

    def send(self, more: Callable[[bytes], None] | None) -> None:
        if why := self._changed():
            self.refuse(why)
            return
        del self._calls.works[self.call.id]
        if more is not None:
            self.call.answer.add_done_callback(partial(_wants_more, more))
        self.call.started = time.monotonic()  # the time before was not that of the server
        self._calls.routing.start(self.call)

    def refuse(self, why: str) -> None:
        call = self.call
        call.legacy = not call.modern  # the refusal is written for the client's era
        if call.label == "tools/call":
            reply = builtin.ToolReply(why, failed=True)
            answer = CallAnswer(builtin.result(reply, modern=call.modern))
        else:
            data: dict[str, object] = {"reason": "refused", "may_have_run": False}
            answer = server_links.error(Code.INVALID_PARAMS, why, data)
        self._end(answer, "refused")

    def answer(self, body: bytes) -> None:
        self._end(CallAnswer(body), "")

    def _end(self, answer: CallAnswer, refused: str) -> None:
        del self._calls.works[self.call.id]
        self.call.mend = None
        self._calls.host.answered(self.call, answer, refused)

    def _changed(self) -> str:
        """Return why the call is not the same any more that was held; empty if it is."""
        calls, request, view = self._calls, self._request, self._view
        who, rule = request.principal, METHODS[request.method]
        if who.auth != "none" and not calls.still(who, view.endpoint, time.time_ns() / 1e9):
            return _LAPSED
        now = calls.host.now(view, request)
        if now is None:
            return _UNSERVED
        subject = mcp_request.subject_of(rule, request)
        if rule.find(now.of(modern=request.modern), subject) != self._owner:
            return _CHANGED.format(subject)
        try:
            if request.method == "tools/call":
                calls.quarantine.check(self.call.server, self._owner.original or subject)
        except ProtocolError as why:
            return why.message
        return ""


def _source(run: InnerRun | None) -> CallSource:
    if run is None:
        return "client"
    if run.allowed is not None:
        return "agent"
    return "code" if run.depth else "workflow"


def _wants_more(more: Callable[[bytes], None], answer: asyncio.Future[CallAnswer]) -> None:
    """Note that a server wants this call again, with the input that it asks for."""
    try:
        wanted = None if answer.cancelled() else mrtr.parse(answer.result().body)
    except codec.Malformed:
        return
    if wanted is not None:
        more(b"" if wanted.state is None else bytes(wanted.state))
