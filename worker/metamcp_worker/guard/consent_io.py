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
from metamcp_worker.runtime.masking import Masks

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

    def __init__(self, held: HeldCall, now: float) -> None:
        self.held = held
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
        self.masks = Masks()
        self.grants = Grants()
        self._date = date
        self._rounds = AgreedRounds()
        self._open: dict[int, _Question] = {}

    # Steps

    def take(self, held: HeldCall) -> bool:
        if held.verdict.effect != "ask":
            return True
        now, calls = self._date(), consent.covered(held.guard, held.facts)
        if self._rounds.take(calls, held.facts, now):
            return self._let(held, "granted")
        if self.grants.cover(calls, held.facts.who, now):
            return self._let(held, "granted")
        sizes = [
            len(one.held.facts.arguments)
            for one in self._open.values()
            if consent.holder(one.held.facts.principal) == calls[0]
        ]
        busy = len(sizes) >= HOLDER_OPEN_MAX or sum(sizes) >= HOLDER_BYTES_MAX
        if busy or len(self._open) >= OPEN_MAX:
            self._refuse(held, "full", FULL)
            return False
        self._open[held.number] = _Question(held, now)
        # The era of the client prepares for questions when the call has begun.
        asyncio.get_running_loop().call_soon(self._begin, held.number)
        return False

    def drop(self, held: HeldCall) -> None:
        if self._close(held.number) is not None:
            self.counts["left"] += 1

    # The supervisor

    def replace(self, grants: Sequence[ConsentGrant]) -> None:
        """Take over all grants that are stored, and tell all open questions again."""
        self.grants.replace(grants)
        for one in self._open.values():
            if one.told:
                self.tell(ConsentOpened(question=self._shown(one)))

    def decided(self, message: ConsentDecided) -> None:
        """Take the answer of an operator; too late, it has no effect."""
        one = self._close(message.call)
        if one is None:
            return
        if message.scope:
            self._agreed(one.held, message.scope, message.by, "operator_approved")
        else:
            self._refuse(one.held, "operator_denied", DECLINED)

    # Questions

    def _begin(self, number: int) -> None:
        one = self._open.get(number)
        if one is None:
            return
        held, rules = one.held, one.held.guard.rules.consent
        try:
            one.arguments = consent.shown_arguments(held.facts.arguments, self.masks)
        except codec.Malformed as why:
            if rules.unaskable == "allow" and not held.work.askable():
                self._unaskable(number)
            elif self._close(number) is not None:
                self._refuse(held, "unshown", UNSHOWN.format("{}", why))
            return
        params = consent.question(held.guard, held.facts, one.arguments, held.verdict.why)
        loop = asyncio.get_running_loop()
        one.timer = loop.call_later(rules.timeout_s, self._late, number)
        one.asked = True
        withdraw = held.work.ask(params, partial(self._answered, number))
        if withdraw is None:
            one.asked = False
            self._unaskable(number)
        elif number in self._open:
            one.withdraw = withdraw
            self._wait(one)

    def _answered(self, number: int, body: bytes, failed: bool) -> None:
        if failed:
            if (one := self._open.get(number)) is not None:
                one.asked = False
                self._unaskable(number)
            return
        one = self._close(number)
        if one is None:
            return
        found = consent.answer(body)
        if found in _WHY:
            outcome = "declined" if found == "deny" else found
            self._refuse(one.held, outcome, _WHY[found])
        else:
            scope: ConsentScope = next(each for each in consent.SCOPES if each == found)
            self._agreed(one.held, scope, _CLIENT, "approved")

    def _unaskable(self, number: int) -> None:
        """Do what the rules say about a call whose client cannot be asked."""
        one = self._open[number]
        what = one.held.guard.rules.consent.unaskable
        if what == "queue":
            self._wait(one)
            return
        self._close(number)
        if what == "deny":
            self._refuse(one.held, "unasked", UNASKABLE)
        elif self._let(one.held, "allowed"):
            one.held.go_on()

    def _late(self, number: int) -> None:
        one = self._close(number)
        if one is not None:
            timeout_s = one.held.guard.rules.consent.timeout_s
            self._refuse(one.held, "expired", LATE.format("{}", timeout_s))

    def _agreed(self, held: HeldCall, scope: ConsentScope, by: str, outcome: str) -> None:
        """Let a call through, and keep the grant; other questions that it answers are closed."""
        now, calls = self._date(), consent.covered(held.guard, held.facts)
        if scope == "session":
            until = now + SESSION_S if held.facts.modern else float("inf")
            self.grants.keep_session(calls, held.facts.who, until)
        elif scope == "24h":
            grant = self._grant(held, now, by)
            self.grants.keep(grant)
            self.tell(ConsentGiven(grant=grant))
        if self._let(held, outcome, f"{by} {scope}"):
            held.go_on()
        for number, one in list(self._open.items()):
            found = consent.covered(one.held.guard, one.held.facts)
            if self.grants.cover(found, one.held.facts.who, now) and self._close(number):
                self._let(one.held, "granted")
                one.held.go_on()

    def _grant(self, held: HeldCall, now: float, by: str) -> ConsentGrant:
        who, server, definition, rules = consent.covered(held.guard, held.facts)
        return ConsentGrant(
            id=secrets.token_hex(GRANT_ID_BYTES), holder=who, principal=held.facts.principal.name,
            server=server, tool=held.guard.name[:SHOWN_CHARACTERS_MAX], definition=definition,
            rules=rules, given=now, until=now + LASTING_S, by=by,
        )  # fmt: skip

    def _let(self, held: HeldCall, outcome: str, by: str = "") -> bool:
        """Note that a call may go on; return True. `by`: who agreed, and how far."""
        self.counts[outcome] += 1
        held.consent = by or outcome
        held.more = partial(self._wanted, held)
        return True

    def _wanted(self, held: HeldCall, state: bytes) -> None:
        calls = consent.covered(held.guard, held.facts)
        self._rounds.expect(calls, held.facts, state, self._date())

    def _refuse(self, held: HeldCall, outcome: str, why: str) -> None:
        self.counts[outcome] += 1
        held.refuse(why.format(held.guard.path))

    def _close(self, number: int) -> _Question | None:
        """Close a question, for everybody who was asked; return None if it is not open."""
        one = self._open.pop(number, None)
        if one is not None and one.timer is not None:
            one.timer.cancel()
            one.withdraw()
            if one.told:
                one.held.work.pause(on=False)
                self.tell(ConsentClosed(id=question_id(self.front, number)))
        return one

    def _wait(self, one: _Question) -> None:
        """Tell operators of a question that somebody has to answer, unless they know it."""
        if not one.told:
            one.told = True
            one.held.work.pause(on=True)
            self.tell(ConsentOpened(question=self._shown(one)))

    def _shown(self, one: _Question) -> OpenConsent:
        facts, guard = one.held.facts, one.held.guard
        return OpenConsent(
            id=question_id(self.front, one.held.number),
            server=guard.server,
            tool=consent.plain(guard.name)[:SHOWN_CHARACTERS_MAX],
            workspace=facts.workspace,
            endpoint=facts.endpoint,
            principal=facts.principal.name,
            client=consent.client_name(facts.client),
            arguments=one.arguments,
            source=facts.source,
            asked=one.asked,
            since=one.since,
            until=one.since + guard.rules.consent.timeout_s,
        )
