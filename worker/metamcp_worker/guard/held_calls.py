"""Calls that are held until every step has let them through, each of them ended exactly once.

Owns: the steps in their order, the table of held calls. Never: what a step does (`consent_io`), how
a call is answered or sent (the front).

A call is decided on at once: it is refused, or it takes the steps one after the other, and goes to
its server behind the last one. A step that lets a call through at once costs the call nothing; any
other step keeps the call and calls `go_on`, `refuse` or `answer` later. Only the first end counts.
"""

from collections.abc import Callable
from typing import Protocol

from metamcp_worker.guard.guard_rules import CallFacts, CallGuard, CallVerdict

Answered = Callable[[bytes, bool], None]
"""Takes the raw answer of a client to a question; True: an error object."""


class HeldWork(Protocol):
    """Services of the front for one held call."""

    def ask(self, params: bytes, answered: Answered) -> Callable[[], None] | None:
        """Ask the client of the call, in the form of `elicitation/create`; return a function that
        withdraws the question, or None if the client has not declared that it can be asked."""
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

    def answer(self, body: bytes) -> None:
        """Answer the call with this raw result of the server's era."""
        ...


class HeldCall:
    """Call of a client that waits. `number`: of the call in its front; `at`: number of the steps
    that it has begun; `more`, `consent`: as of `HeldWork.send`, set by a step."""

    __slots__ = ("_calls", "at", "consent", "facts", "guard", "more", "number", "verdict", "work")

    def __init__(
        self, calls: "HeldCalls", number: int, guard: CallGuard, facts: CallFacts, work: HeldWork
    ) -> None:
        self._calls = calls
        self.number = number
        self.guard = guard
        self.facts = facts
        self.work = work
        self.verdict = CallVerdict()
        self.at = 0
        self.more: Callable[[bytes], None] | None = None
        self.consent = ""

    def go_on(self) -> None:
        """Take the next step, or go to the server behind the last one."""
        if self._calls.holds(self.number):
            self._calls.advance(self)

    def refuse(self, why: str) -> None:
        """End the call with a refusal. `why`: a sentence."""
        if self._calls.forget(self.number):
            self.work.refuse(why)

    def answer(self, body: bytes) -> None:
        """End the call with a raw result, without its server."""
        if self._calls.forget(self.number):
            self.work.answer(body)


class GuardStep(Protocol):
    """Step of guarded calls."""

    def take(self, held: HeldCall) -> bool:
        """Return True to let the call through at once; else refuse it, or keep it and end the step
        after this method has returned."""
        ...

    def drop(self, held: HeldCall) -> None:
        """Forget a call that this step keeps: the client does not wait any more."""
        ...


class HeldCalls:
    """Held calls of a front. `steps`: in the order in which a call takes them."""

    def __init__(self) -> None:
        self.steps: list[GuardStep] = []
        self._held: dict[int, HeldCall] = {}

    def begin(self, number: int, guard: CallGuard, facts: CallFacts, work: HeldWork) -> None:
        """Decide on a call, and let it begin its steps."""
        held = HeldCall(self, number, guard, facts, work)
        held.verdict = guard.decide(facts)
        self._held[number] = held
        if held.verdict.effect == "deny":
            held.refuse(held.verdict.why)
        else:
            self.advance(held)

    def advance(self, held: HeldCall) -> None:
        """Take the steps that are left, until one keeps the call."""
        while held.at < len(self.steps):
            step = self.steps[held.at]
            held.at += 1
            if not step.take(held):
                return
        if self.forget(held.number):
            held.work.send(held.more, held.consent)

    def holds(self, number: int) -> bool:
        """Whether the call with this number is held."""
        return number in self._held

    def forget(self, number: int) -> bool:
        """Hold this call no longer. Returns False if it was not held."""
        return self._held.pop(number, None) is not None

    def drop(self, number: int) -> bool:
        """Drop a call, because its client does not wait any more. Returns False if it was not
        held."""
        held = self._held.pop(number, None)
        if held is not None and held.at:
            self.steps[held.at - 1].drop(held)
        return held is not None

    def close(self, why: str) -> None:
        """Refuse all held calls. `why`: a sentence."""
        for held in list(self._held.values()):
            if held.at:
                self.steps[held.at - 1].drop(held)
            held.refuse(why)
