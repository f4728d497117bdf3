"""Step of guarded calls in which a person agrees: the client of the call, or an operator.

Owns: questions that are open, their time, who answers first, the fate of calls whose client cannot
be asked, counting all that. Never: the text of questions and the meaning of answers (`consent`),
which calls need consent (`guard_rules`).
"""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from metamcp_worker.guard import consent
from metamcp_worker.guard.consent import LASTING_S, SESSION_S, AgreedRounds, Grants
from metamcp_worker.guard.held_calls import HeldCall
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.consent_records import (
    SHOWN_CHARACTERS_MAX,
    ConsentClosed,
    ConsentDecided,
    ConsentGiven,
    ConsentGrant,
    ConsentOpened,
    ConsentScope,
    OpenConsent,
    question_id,
)
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.runtime.masking import SecretMasker

OPEN_MAX = 1024
"""Maximum open questions of one front; a call beyond is refused."""
HOLDER_OPEN_MAX = 64
"""Maximum open questions about calls of one credential in one front."""
HOLDER_BYTES_MAX = 64 * 1024
"""Maximum bytes of arguments in these."""
GRANT_ID_BYTES = 6

DECLINED = "The user did not agree to this call of {}."
CANCELLED = "The user closed the question about this call of {} without an answer."
MALFORMED = "The answer to the question about this call of {} cannot be read, so it did not run."
LATE = "Nobody agreed to this call of {} within {:g} s, so it did not run."
UNASKABLE = (
    "This call of {} needs the consent of a person, and this client cannot ask one. An operator can"
    " change that with on_no_elicitation in [consent]."
)
UNSHOWN = "Nobody can agree to this call of {}, because its arguments cannot be shown: {}."
FULL = "Too many calls wait for the consent of a person; try again when some are answered."
_WHY = {
    "deny": DECLINED, "declined": DECLINED, "cancelled": CANCELLED, "malformed": MALFORMED,
}  # fmt: skip
_CLIENT = "client"


class _Question:
    """Open question about a held call. `asked`: whether its client is asked; `arguments`: as people
    see them."""

    def __init__(self, call: HeldCall, now: float) -> None:
        self.held = call
        self.since = now
        self.asked = False
        self.arguments = ""
        self.told = False
        self.withdraw: Callable[[], None] = lambda: None
        self.timer: asyncio.TimerHandle | None = None


class ConsentStep:
    """Consent of one front: a `held_calls.GuardStep`. `front`: its number; `tell`: sends to the
    supervisor; `counts`: calls by outcome since the front began; `date`: seconds since the
    epoch."""

    def __init__(
        self,
        tell: Callable[[Message], None] = lambda message: None,
        date: Callable[[], float] = lambda: time.time_ns() / 1e9,
    ) -> None:
        self.front = 0
        self.tell = tell
        self.counts: Counter[str] = Counter()
        self.masks = SecretMasker()
        self.grants = Grants()
        self._date = date
        self._rounds = AgreedRounds()
        self._open: dict[int, _Question] = {}

    # Steps

    def take(self, call: HeldCall) -> bool:
        if call.verdict.effect != "ask":
            return True
        now, calls = self._date(), consent.build_grant_key(call.guard, call.facts)
        if self._rounds.take(calls, call.facts, now):
            return self._let(call, "granted")
        if self.grants.cover(calls, call.facts.who, now):
            return self._let(call, "granted")
        sizes = [
            len(question.held.facts.arguments)
            for question in self._open.values()
            if consent.holder(question.held.facts.principal) == calls[0]
        ]
        busy = len(sizes) >= HOLDER_OPEN_MAX or sum(sizes) >= HOLDER_BYTES_MAX
        if busy or len(self._open) >= OPEN_MAX:
            self._refuse(call, "full", FULL)
            return False
        self._open[call.number] = _Question(call, now)
        # The era of the client prepares for questions when the call has begun.
        asyncio.get_running_loop().call_soon(self._begin, call.number)
        return False

    def drop(self, call: HeldCall) -> None:
        if self._close(call.number) is not None:
            self.counts["left"] += 1

    # The supervisor

    def replace(self, grants: Sequence[ConsentGrant]) -> None:
        """Take over all grants that are stored, and announce all open questions again."""
        self.grants.replace(grants)
        for question in self._open.values():
            if question.told:
                self.tell(ConsentOpened(question=self._describe_question(question)))

    def on_decision(self, message: ConsentDecided) -> None:
        """Take the answer of an operator; too late, it has no effect."""
        question = self._close(message.call)
        if question is None:
            return
        if message.scope:
            self._approve(question.held, message.scope, message.by, "operator_approved")
        else:
            self._refuse(question.held, "operator_denied", DECLINED)

    # Questions

    def _begin(self, number: int) -> None:
        question = self._open.get(number)
        if question is None:
            return
        call, rules = question.held, question.held.guard.rules.consent
        try:
            question.arguments = consent.shown_arguments(call.facts.arguments, self.masks)
        except codec.Malformed as error:
            if rules.unaskable == "allow" and not call.work.askable():
                self._unaskable(number)
            elif self._close(number) is not None:
                self._refuse(call, "unshown", UNSHOWN.format("{}", error))
            return
        params = consent.question(call.guard, call.facts, question.arguments, call.verdict.why)
        loop = asyncio.get_running_loop()
        question.timer = loop.call_later(rules.timeout_s, self._on_timeout, number)
        question.asked = True
        withdraw = call.work.ask(params, partial(self._on_answer, number))
        if withdraw is None:
            question.asked = False
            self._unaskable(number)
        elif number in self._open:
            question.withdraw = withdraw
            self._wait(question)

    def _on_answer(self, number: int, body: bytes, failed: bool) -> None:
        if failed:
            if (question := self._open.get(number)) is not None:
                question.asked = False
                self._unaskable(number)
            return
        question = self._close(number)
        if question is None:
            return
        answer = consent.answer(body)
        if answer in _WHY:
            outcome = "declined" if answer == "deny" else answer
            self._refuse(question.held, outcome, _WHY[answer])
        else:
            scope: ConsentScope = next(each for each in consent.SCOPES if each == answer)
            self._approve(question.held, scope, _CLIENT, "approved")

    def _unaskable(self, number: int) -> None:
        """Do what the rules say about a call whose client cannot be asked."""
        question = self._open[number]
        action = question.held.guard.rules.consent.unaskable
        if action == "queue":
            self._wait(question)
            return
        self._close(number)
        if action == "deny":
            self._refuse(question.held, "unasked", UNASKABLE)
        elif self._let(question.held, "allowed"):
            question.held.go_on()

    def _on_timeout(self, number: int) -> None:
        question = self._close(number)
        if question is not None:
            timeout_s = question.held.guard.rules.consent.timeout_s
            self._refuse(question.held, "expired", LATE.format("{}", timeout_s))

    def _approve(self, call: HeldCall, scope: ConsentScope, by: str, outcome: str) -> None:
        """Let a call through, and keep the grant; other questions that it answers are closed."""
        now, calls = self._date(), consent.build_grant_key(call.guard, call.facts)
        if scope == "session":
            until = now + SESSION_S if call.facts.modern else float("inf")
            self.grants.keep_session(calls, call.facts.who, until)
        elif scope == "24h":
            grant = self._grant(call, now, by)
            self.grants.keep(grant)
            self.tell(ConsentGiven(grant=grant))
        if self._let(call, outcome, f"{by} {scope}"):
            call.go_on()
        for number, question in list(self._open.items()):
            covered = consent.build_grant_key(question.held.guard, question.held.facts)
            if self.grants.cover(covered, question.held.facts.who, now) and self._close(number):
                self._let(question.held, "granted")
                question.held.go_on()

    def _grant(self, call: HeldCall, now: float, by: str) -> ConsentGrant:
        who, server, definition, rules = consent.build_grant_key(call.guard, call.facts)
        return ConsentGrant(
            id=secrets.token_hex(GRANT_ID_BYTES), holder=who, principal=call.facts.principal.name,
            server=server, tool=call.guard.name[:SHOWN_CHARACTERS_MAX], definition=definition,
            rules=rules, given=now, until=now + LASTING_S, by=by,
        )  # fmt: skip

    def _let(self, call: HeldCall, outcome: str, by: str = "") -> bool:
        """Note that a call may go on; return True. `by`: who agreed, and how far."""
        self.counts[outcome] += 1
        call.consent = by or outcome
        call.more = partial(self._expect_round, call)
        return True

    def _expect_round(self, call: HeldCall, state: bytes) -> None:
        calls = consent.build_grant_key(call.guard, call.facts)
        self._rounds.expect(calls, call.facts, state, self._date())

    def _refuse(self, call: HeldCall, outcome: str, template: str) -> None:
        self.counts[outcome] += 1
        call.refuse(template.format(call.guard.path))

    def _close(self, number: int) -> _Question | None:
        """Close a question, for everybody who was asked; return None if it is not open."""
        question = self._open.pop(number, None)
        if question is not None and question.timer is not None:
            question.timer.cancel()
            question.withdraw()
            if question.told:
                question.held.work.pause(on=False)
                self.tell(ConsentClosed(id=question_id(self.front, number)))
        return question

    def _wait(self, question: _Question) -> None:
        """Notify operators of a question that somebody has to answer, unless they know it."""
        if not question.told:
            question.told = True
            question.held.work.pause(on=True)
            self.tell(ConsentOpened(question=self._describe_question(question)))

    def _describe_question(self, question: _Question) -> OpenConsent:
        facts, guard = question.held.facts, question.held.guard
        return OpenConsent(
            id=question_id(self.front, question.held.number),
            server=guard.server,
            tool=consent.plain(guard.name)[:SHOWN_CHARACTERS_MAX],
            workspace=facts.workspace,
            endpoint=facts.endpoint,
            principal=facts.principal.name,
            client=consent.client_name(facts.client),
            arguments=question.arguments,
            source=facts.source,
            asked=question.asked,
            since=question.since,
            until=question.since + guard.rules.consent.timeout_s,
        )
