"""Calls that are held until somebody has let them through, each of them ended exactly once.

Owns: the table of held calls. Never: who lets them through (`consent_io`), how a call is answered
or sent (the front).

A call is refused at once, or the step lets it through at once, or the step keeps it and calls
`go_on` or `refuse` later. Only the first end counts.
"""

from collections.abc import Callable
from typing import Protocol

from metamcp_worker.guard.guard_rules import CallFacts, CallGuard, CallVerdict

Answered = Callable[[bytes, bool], None]
"""Takes the raw answer of a client to a question; True: an error object."""


class HeldWork(Protocol):
    """Services of the front for one held call."""

    def askable(self) -> bool:
        """Whether the client of the call has declared that it can be asked."""
        ...

    def ask(self, params: bytes, answered: Answered) -> Callable[[], None] | None:
        """Ask the client of the call, in the form of `elicitation/create`; return a function that
        withdraws the question, or None if the client is not askable."""
        ...

    def pause(self, *, on: bool) -> None:
        """Let the time of the code that makes this call stand still, or go on."""
        ...

    def send(self, more: "Callable[[bytes], None] | None", consent: str) -> None:
        """Send the call to its server, if it is still the same call. `more`: called with the raw
        state, or nothing, if the server wants the call again with more input; `consent`: who agreed
        to the call, for the audit, or empty."""
        ...

    def refuse(self, why: str) -> None:
        """Answer the call with a refusal; `why`: a sentence."""
        ...


class HeldCall:
    """Call of a client that waits. `number`: of the call in its front; `more`, `consent`: as of
    `HeldWork.send`, set by the step."""

    __slots__ = ("_calls", "consent", "facts", "guard", "more", "number", "verdict", "work")

    def __init__(
        self,
        calls: "HeldCalls",
        number: int,
        guard: CallGuard,
        facts: CallFacts,
        work: HeldWork,
        verdict: CallVerdict,
    ) -> None:
        self._calls = calls
        self.number = number
        self.guard = guard
        self.facts = facts
        self.work = work
        self.verdict = verdict
        self.more: Callable[[bytes], None] | None = None
        self.consent = ""

    def go_on(self) -> None:
        """Send the call to its server."""
        if self._calls.forget(self.number):
            self.work.send(self.more, self.consent)

    def refuse(self, reason: str) -> None:
        """End the call with a refusal. `reason`: a sentence."""
        if self._calls.forget(self.number):
            self.work.refuse(reason)


class GuardStep(Protocol):
    """Step between the decision about a call and its server."""

    def take(self, call: HeldCall) -> bool:
        """Return True to let the call through at once; else refuse it, or keep it and end it after
        this method has returned."""
        ...

    def drop(self, call: HeldCall) -> None:
        """Forget a call that this step keeps: the client does not wait any more."""
        ...


class HeldCalls:
    """Held calls of a front."""

    def __init__(self, step: GuardStep) -> None:
        self.step = step
        self._held: dict[int, HeldCall] = {}

    def begin(
        self,
        number: int,
        guard: CallGuard,
        facts: CallFacts,
        work: HeldWork,
        verdict: CallVerdict,
    ) -> None:
        """Refuse a call, or let it take the step."""
        call = HeldCall(self, number, guard, facts, work, verdict)
        self._held[number] = call
        if verdict.effect == "deny":
            call.refuse(verdict.why)
        elif self.step.take(call):
            call.go_on()

    def holds(self, number: int) -> bool:
        """Whether the call with this number is held."""
        return number in self._held

    def forget(self, number: int) -> bool:
        """Hold this call no longer. Returns False if it was not held."""
        return self._held.pop(number, None) is not None

    def drop(self, number: int) -> bool:
        """Drop a call, because its client does not wait any more. Returns False if it was not
        held."""
        call = self._held.pop(number, None)
        if call is not None:
            self.step.drop(call)
        return call is not None

    def close(self, reason: str) -> None:
        """Refuse all held calls. `reason`: a sentence."""
        for call in list(self._held.values()):
            self.step.drop(call)
            call.refuse(reason)
