"""The step that asks a person: who answers, in time or not, and what the server sees of it."""

from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from metamcp_worker.access.gate import USER
from metamcp_worker.guard.consent import LASTING_S, SESSION_S
from metamcp_worker.guard.consent_io import HOLDER_OPEN_MAX, OPEN_MAX, ConsentStep
from metamcp_worker.guard.guard_rules import CallFacts, CallGuard, GuardRules
from metamcp_worker.guard.held_calls import Answered, HeldCalls
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.consent_records import (
    ConsentClosed,
    ConsentDecided,
    ConsentGiven,
    ConsentOpened,
    ConsentScope,
)
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.spec import ConsentSpec, Unaskable
from tests.examples import examples
from tests.worker.front.talks import Clock

TIMEOUT_S = 60.0
ACCEPT = codec.dump({"action": "accept"})


class Work:
    """One held call, whose client can be asked or not. `ends`: how it ended, `pauses`: of its
    code."""

    def __init__(self, *, able: bool = True) -> None:
        self.able = able
        self.ends: list[str] = []
        self.pauses: list[bool] = []
        self.question: Answered | None = None
        self.withdrawn = False
        self.consent = ""
        self.more: Callable[[bytes], None] | None = None

    def askable(self) -> bool:
        return self.able

    def ask(self, params: bytes, answered: Answered) -> Callable[[], None] | None:
        if not self.able:
            return None
        self.question = answered
        return self._withdraw

    def _withdraw(self) -> None:
        self.withdrawn = True

    def pause(self, *, on: bool) -> None:
        self.pauses.append(on)

    def send(self, more: Callable[[bytes], None] | None, consent: str) -> None:
        self.more, self.consent = more, consent
        self.ends.append("sent")

    def refuse(self, why: str) -> None:
        self.ends.append(why)


class Bench:
    """A front on a clock that the test turns. `told`: what the supervisor hears."""

    def __init__(self, loop: Clock, unaskable: Unaskable = "deny") -> None:
        self.loop = loop
        self.told: list[Message] = []
        self.step = ConsentStep(self.told.append, loop.time)
        self.step.front = 3
        self.calls = HeldCalls(self.step)
        self.rules = GuardRules(ConsentSpec(timeout_s=TIMEOUT_S, unaskable=unaskable))
        self.works: list[Work] = []

    def call(
        self, *, able: bool = True, tool: str = "t", key: str = "k", who: str = "w", **more: Any
    ) -> Work:
        work = Work(able=able)
        self.works.append(work)
        number, digest = len(self.works), more.pop("digest", b"d")
        guard = CallGuard(self.rules, "s", "tools", tool, digest, "ask")
        facts = CallFacts(
            exposed=tool, arguments=more.pop("arguments", b"{}"),
            principal=replace(USER, auth="keys", key=key), endpoint="e", workspace="default",
            who=who, **more,
        )  # fmt: skip
        verdict = guard.decide(facts)
        self.loop.call_soon(self.calls.begin, number, guard, facts, work, verdict)
        self.loop.turn()
        return work

    def answered(self, work: Work, body: object, *, failed: bool = False) -> None:
        if work.question is not None:
            raw = body if isinstance(body, bytes) else codec.dump(body)
            self.loop.call_soon(work.question, raw, failed)
            self.loop.turn()

    def decided(self, number: int, scope: ConsentScope | None) -> None:
        message = ConsentDecided(call=number, scope=scope or "", by="ops")
        self.loop.call_soon(self.step.on_decision, message)
        self.loop.turn()


@contextmanager
def bench(unaskable: Unaskable = "deny") -> Generator[Bench]:
    with closing(Clock()) as loop:
        yield Bench(loop, unaskable)


def yes(scope: str = "once") -> dict[str, Any]:
    return {"action": "accept", "content": {"consent": scope}}


@pytest.mark.promise("M97")
@pytest.mark.parametrize(
    ("body", "outcome", "why"),
    [
        (yes(), "approved", "sent"),
        (yes("deny"), "declined", "did not agree"),
        ({"action": "decline"}, "declined", "did not agree"),
        ({"action": "cancel"}, "cancelled", "closed the question"),
        (b"[", "malformed", "cannot be read"),
        (yes("forever"), "malformed", "cannot be read"),
    ],
)
def test_each_answer_of_a_client_ends_the_call_once(body: object, outcome: str, why: str) -> None:
    with bench() as front:
        work = front.call()
        assert work.ends == []
        front.answered(work, body)
        front.answered(work, yes())
        front.loop.turn(TIMEOUT_S)
        (end,) = work.ends
        assert why in end
        assert front.step.counts == {outcome: 1}
        assert work.pauses == [True, False]


@pytest.mark.promise("M97")
@pytest.mark.parametrize("unaskable", ["deny", "allow", "queue"])
@pytest.mark.parametrize("able", [True, False])
def test_nobody_is_asked_about_what_cannot_be_shown_as_it_will_run(
    unaskable: Unaskable, *, able: bool
) -> None:
    with bench(unaskable) as front:
        work = front.call(able=able, arguments=b'{"to":"main","to":"prod"}')
        if unaskable == "allow" and not able:
            assert (work.ends, front.step.counts) == (["sent"], {"allowed": 1})
            return
        (why,) = work.ends
        assert why.startswith("Nobody can agree to this call of s/t, because its arguments cannot")
        assert "an object has a name twice" in why
        assert (work.question, front.told, front.step.counts) == (None, [], {"unshown": 1})


@pytest.mark.promise("M97")
def test_nobody_answers_in_time() -> None:
    with bench() as front:
        work = front.call()
        front.loop.turn(TIMEOUT_S - 1)
        assert work.ends == []
        front.loop.turn(1)
        assert work.ends == ["Nobody agreed to this call of s/t within 60 s, so it did not run."]
        assert work.withdrawn
        front.answered(work, yes())
        assert len(work.ends) == 1


@pytest.mark.promise("M97")
@pytest.mark.parametrize("lies", [False, True])
@pytest.mark.parametrize(
    ("setting", "end"), [("deny", "cannot ask one"), ("allow", "sent"), ("queue", "")]
)
def test_a_client_that_cannot_ask_or_lies_about_it_gets_what_is_configured(
    setting: Unaskable, end: str, *, lies: bool
) -> None:
    with bench(setting) as front:
        work = front.call(able=lies)
        front.answered(work, {"code": -32601, "message": "what?"}, failed=True)
        if setting == "queue":
            assert work.ends == []
            front.decided(1, "once")
            assert work.ends == ["sent"]
        else:
            assert len(work.ends) == 1
            assert end in work.ends[0]


@pytest.mark.promise("M97")
def test_whoever_answers_first_decides_and_the_other_hears_that_it_is_over() -> None:
    with bench() as front:
        first, second = front.call(), front.call()
        opened = [one.question.id for one in front.told if isinstance(one, ConsentOpened)]
        assert opened == ["3-1", "3-2"]
        front.decided(1, None)
        assert "did not agree" in first.ends[0]
        assert first.withdrawn
        front.answered(second, yes())
        front.decided(2, None)
        assert (second.ends, second.consent) == (["sent"], "client once")
        closed = [one.id for one in front.told if isinstance(one, ConsentClosed)]
        assert closed == opened
        assert front.step.counts == {"operator_denied": 1, "approved": 1}


@pytest.mark.promise("M97")
def test_consent_for_more_than_one_call_answers_the_questions_that_are_open() -> None:
    with bench() as front:
        works = [front.call(), front.call(), front.call(tool="other"), front.call(who="w2")]
        front.answered(works[0], yes("session"))
        assert [work.ends for work in works] == [["sent"], ["sent"], [], []]
        assert [work.consent for work in works[:2]] == ["client session", "granted"]
        assert works[1].withdrawn
        front.answered(works[3], yes("24h"))
        (given,) = [one.grant for one in front.told if isinstance(one, ConsentGiven)]
        assert (given.holder, given.until) == ("keys:k", LASTING_S)
        assert front.call(who="w3").ends == ["sent"]
        assert front.call(who="w3", key="other").ends == []
        assert front.call(who="w3", digest=b"changed").ends == []


@pytest.mark.promise("M97")
@pytest.mark.parametrize("modern", [True, False])
def test_a_session_lasts_an_hour_where_there_are_no_sessions(*, modern: bool) -> None:
    with bench() as front:
        front.answered(front.call(modern=modern), yes("session"))
        front.loop.turn(SESSION_S - 1)
        assert front.call(modern=modern).ends == ["sent"]
        front.loop.turn(2)
        assert front.call(modern=modern).ends == ([] if modern else ["sent"])


@pytest.mark.promise("M97")
def test_a_client_that_leaves_closes_its_question() -> None:
    with bench() as front:
        work = front.call()
        assert front.calls.drop(1)
        assert not front.calls.drop(1)
        front.answered(work, yes())
        front.decided(1, "once")
        front.loop.turn(TIMEOUT_S)
        assert work.ends == []
        assert front.step.counts == {"left": 1}
        assert isinstance(front.told[-1], ConsentClosed)


@pytest.mark.promise("M97")
def test_a_call_that_its_server_wants_again_is_not_asked_about_again() -> None:
    with bench() as front:
        work = front.call()
        front.answered(work, yes())
        assert work.more is not None
        work.more(b'"state"')
        assert front.call(state=b'"other"').ends == []
        assert front.call(state=b'"state"').ends == ["sent"]
        assert front.call(state=b'"state"').ends == []


@pytest.mark.promise("M97")
def test_there_are_limits_to_the_questions_that_are_open() -> None:
    with bench("queue") as front:
        for _ in range(HOLDER_OPEN_MAX):
            assert front.call(able=False).ends == []
        (end,) = front.call(able=False).ends
        assert "Too many calls" in end
        for number in range(OPEN_MAX - HOLDER_OPEN_MAX):
            front.call(able=False, key=f"k{number}")
        assert "Too many calls" in front.call(able=False, key="fresh").ends[0]


@pytest.mark.promise("M97")
def test_all_open_questions_are_told_again_to_a_supervisor_that_is_new() -> None:
    with bench() as front:
        front.call()
        front.told.clear()
        front.step.replace([])
        (again,) = front.told
        assert isinstance(again, ConsentOpened)
        assert (again.question.tool, again.question.until) == ("t", TIMEOUT_S)


SCOPES = st.sampled_from(["once", "session", "24h"])
NUMBERS = st.integers(0, 9)
STEPS = st.one_of(
    st.tuples(st.just("call"), st.sampled_from("ab"), st.sampled_from("kl"), st.sampled_from("vw")),
    st.tuples(st.just("yes"), NUMBERS, SCOPES),
    st.tuples(st.just("no"), NUMBERS, st.sampled_from(["decline", "cancel", "accept", "x"])),
    st.tuples(st.just("operator"), NUMBERS, st.one_of(st.none(), SCOPES)),
    st.tuples(st.just("leave"), NUMBERS),
    st.tuples(st.just("time"), st.sampled_from([1.0, TIMEOUT_S, SESSION_S, LASTING_S])),
    st.tuples(st.just("define"), st.sampled_from([b"1", b"2"])),
)


class Model:
    """What is to be: the calls that may be seen by their server, by the grants that there are."""

    def __init__(self) -> None:
        self.open: dict[int, tuple[tuple[str, bytes, str, str], float]] = {}
        self.grants: list[tuple[tuple[str, bytes, str, str], float]] = []
        self.seen: set[int] = set()

    def covers(self, call: tuple[str, bytes, str, str], now: float) -> bool:
        return any(
            until > now and grant[:3] == call[:3] and grant[3] in ("", call[3])
            for grant, until in self.grants
        )

    def agree(self, number: int, scope: str, now: float) -> None:
        if number not in self.open:
            return
        call, _ = self.open.pop(number)
        self.seen.add(number)
        if scope == "once":
            return
        until = now + (SESSION_S if scope == "session" else LASTING_S)
        who = call[3] if scope == "session" else ""
        self.grants.append(((*call[:3], who), until))
        covered = [one for one, (call, _) in self.open.items() if self.covers(call, now)]
        for one in covered:
            del self.open[one]
        self.seen.update(covered)

    def pass_by(self, now: float) -> None:
        self.open = {one: found for one, found in self.open.items() if found[1] > now}


def happen(front: Bench, model: Model, definition: bytes, step: Any) -> bytes:
    """Let one thing happen, at the front and in the model; return the definition of the tools."""
    kind: str = step[0]
    first: Any = step[1]
    at = int(first) if kind in ("yes", "no", "operator", "leave") else 0
    known = 0 < at <= len(front.works)
    if kind == "call":
        now, number = front.loop.time(), len(front.works) + 1
        call = first, definition, step[2], step[3]
        if model.covers(call, now):
            model.seen.add(number)
        else:
            model.open[number] = call, now + TIMEOUT_S
        front.call(tool=first, key=step[2], who=step[3], digest=definition)
    elif kind == "yes" and known:
        model.agree(at, str(step[2]), front.loop.time())
        front.answered(front.works[at - 1], yes(str(step[2])))
    elif kind == "no" and known:
        model.open.pop(at, None)
        body = {"action": step[2], "content": {"consent": "deny"}}
        front.answered(front.works[at - 1], body)
    elif kind == "operator":
        if step[2] is None:
            model.open.pop(at, None)
        else:
            model.agree(at, str(step[2]), front.loop.time())
        front.decided(at, step[2])
    elif kind == "leave":
        model.open.pop(at, None)
        front.calls.drop(at)
    elif kind == "time":
        front.loop.turn(first)
        model.pass_by(front.loop.time())
    changed: bytes = first if kind == "define" else definition
    return changed


@pytest.mark.promise("M97")
@settings(deadline=None, max_examples=examples(400))
@given(st.lists(STEPS, max_size=25))
def test_a_server_sees_a_call_exactly_if_there_was_a_valid_grant(steps: list[Any]) -> None:
    with bench() as front:
        model, definition = Model(), b"1"
        for step in steps:
            definition = happen(front, model, definition, step)
            seen = {n for n, work in enumerate(front.works, 1) if "sent" in work.ends}
            assert seen == model.seen
            assert all(len(work.ends) <= 1 for work in front.works)
        front.loop.turn(TIMEOUT_S)
        assert not any(front.calls.holds(n) for n, _ in enumerate(front.works, 1))


async def test_a_step_is_not_taken_without_a_loop_that_asks_later() -> None:
    """The question is put when the call has begun, so that its client is ready for it."""
    step, work = ConsentStep(), Work()
    calls = HeldCalls(step)
    guard = CallGuard(GuardRules(ConsentSpec()), "s", "tools", "t", b"d", "ask")
    facts = CallFacts(
        exposed="t", arguments=b"{}", principal=USER, endpoint="e", workspace="default"
    )
    calls.begin(1, guard, facts, work, guard.decide(facts))
    assert work.question is None
    calls.close("over")
    assert work.ends == ["over"]
