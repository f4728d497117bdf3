"""Calls that a legacy server interrupts, for clients that cannot be asked in between."""

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import structs

from metamcp_worker.front_calls import mrtr
from metamcp_worker.front_calls.request_facts import CallOrigin
from metamcp_worker.front_clients import mrtr_io
from metamcp_worker.front_clients.mrtr_io import InteractiveCall
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import BODY_BYTES_MAX
from tests.examples import examples
from tests.worker.front.talks import MINE, Bench, Visit

TOO_LATE = "the client did not answer within 300 s"
CANCELLED = b'{"action":"cancel"}'


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def parked_once(bench: Bench, who: str = "", server: str = "git") -> tuple[Visit, str]:
    """A call that waits for its client, and the state."""
    visit = bench.start(structs.replace(MINE, server=server))
    talk_of(visit).call.origin = CallOrigin("default", "t", b"{}", who, progress=False)
    bench.ask(talk_of(visit).call)
    bench.gather()
    return visit, visit.state


@pytest.mark.promise("M23")
def test_questions_that_come_together_are_put_together(bench: Bench) -> None:
    visit = bench.start()
    call = talk_of(visit).call
    first = bench.ask(call, params=b'{"message":"1", "n":1.0}')
    second = bench.ask(call, "roots/list")
    bench.gather()
    assert visit.answer is not None
    assert b'{"message":"1", "n":1.0}' in visit.answer.result().body
    assert visit.body["resultType"] == "input_required"
    assert visit.keys == ["k1", "k2"]
    again = bench.retry(visit.state, {"k1": "accept", "k2": "decline", "k9": "x"})
    assert bench.replies[first.number] == [(b'{"action":"accept"}', False)]
    assert bench.replies[second.number] == [(b'{"action":"decline"}', False)]
    bench.end(call, b'{"n":1.0}')
    assert again.answer is not None
    assert again.answer.result().body == b'{"n":1.0}'


@pytest.mark.promise("M23")
def test_what_was_not_answered_is_asked_again_under_the_same_name(bench: Bench) -> None:
    visit = bench.start()
    questions = [bench.ask(talk_of(visit).call) for _ in range(2)]
    bench.gather()
    again = bench.retry(visit.state, {"k2": "accept"})
    bench.gather()
    assert again.keys == ["k1"]
    assert again.state != visit.state
    assert [len(bench.replies[one.number]) for one in questions] == [0, 1]
    bench.retry(again.state, {"k1": "accept"})
    assert len(bench.replies[questions[0].number]) == 1


def test_the_next_question_is_a_round_of_its_own(bench: Bench) -> None:
    visit, state = parked_once(bench)
    for number in range(2, 5):
        visit = bench.retry(state, {f"k{number - 1}": "accept"})
        assert visit.answer is not None
        assert not visit.answer.is_done()
        bench.ask(talk_of(visit).call)
        bench.gather()
        assert visit.keys == [f"k{number}"]
        state = visit.state


@pytest.mark.promise("M23")
def test_what_the_client_did_not_declare_is_refused_at_once(bench: Bench) -> None:
    visit = bench.start(capabilities=codec.dump({"clientCapabilities": {"roots": {}}}))
    question = bench.ask(talk_of(visit).call)
    ((body, failed),) = bench.replies[question.number]
    assert failed
    assert codec.value(body)["code"] == Code.METHOD_NOT_FOUND
    bench.gather()
    assert visit.answer is not None
    assert not visit.answer.is_done()


def test_a_client_that_comes_back_able_to_do_less_is_not_asked_again(bench: Bench) -> None:
    visit, state = parked_once(bench)
    talk = bench.parking.take(state, MINE)
    talk.resume(visit, b"{}", {})
    bench.gather()
    ((_, failed),) = next(iter(bench.replies.values()))
    assert failed
    assert not talk.call.answer.is_done()


@pytest.mark.promise("M23")
@pytest.mark.parametrize("field", ["principal", "endpoint", "method", "server", "digest"])
def test_a_state_is_of_no_use_to_others_and_they_do_not_take_it_away(
    bench: Bench, field: str
) -> None:
    _, state = parked_once(bench)
    other = structs.replace(MINE, **{field: b"x" if field == "digest" else "x"})
    holder = field in {"principal", "endpoint"}
    assert bench.refused(state, other) == bench.refused("metamcp.token0.?", other) or not holder
    assert ("another request" in bench.refused(state, other)) is not holder
    assert "has expired: the process" in bench.refused("metamcp.elsewhere.token1")
    bench.retry(state, {"k1": "accept"})
    assert "was used before" in bench.refused(state)


@pytest.mark.promise("M23")
def test_a_client_that_does_not_come_back_ends_its_call(bench: Bench) -> None:
    visit = bench.start()
    form = bench.ask(talk_of(visit).call)
    roots = bench.ask(talk_of(visit).call, "roots/list")
    bench.gather()
    bench.loop.turn(mrtr.PARK_S_MAX)
    assert bench.replies[form.number] == [(CANCELLED, False)]
    assert [failed for _, failed in bench.replies[roots.number]] == [True]
    assert bench.reasons == [TOO_LATE]
    assert "was used before" in bench.refused(visit.state)
    assert (len(bench.parking.parked), bench.parking.parked.size_bytes) == (0, 0)


def test_time_in_which_people_think_is_not_counted_as_the_calls(bench: Bench) -> None:
    visit, state = parked_once(bench)
    started = talk_of(visit).call.started
    bench.loop.turn(100)
    bench.retry(state)
    assert talk_of(visit).call.started == started + 100


@pytest.mark.promise("M23")
def test_a_result_that_comes_while_the_client_is_away_is_kept_for_it(bench: Bench) -> None:
    for code in (0, -32000):
        visit, state = parked_once(bench)
        bench.end(talk_of(visit).call, b'{"n":1}', code)
        again = bench.retry(state, {"k1": "accept"})
        assert again.answer is not None
        assert again.answer.result().body == b'{"n":1}'
        assert again.answer.result().code == code
    assert bench.parking.parked.size_bytes == 0
    assert all(not replies for replies in bench.replies.values())


@pytest.mark.promise("M23")
def test_a_state_ends_with_its_server_and_with_its_client(bench: Bench) -> None:
    visit, state = parked_once(bench)
    bench.end(talk_of(visit).call, b"{}", Code.SERVER_DOWN)
    assert "the server that asked is gone" in bench.refused(state)
    visit, state = parked_once(bench)
    talk_of(visit).call.cancel("the client went away")  # before it has read the questions
    bench.loop.turn()
    assert "was used before" in bench.refused(state)
    assert bench.parking.parked.size_bytes == 0


def test_a_question_that_is_withdrawn_leaves_the_call_to_go_on(bench: Bench) -> None:
    visit, state = parked_once(bench)
    bench.withdraw(next(iter(bench.questions.values())))
    late = bench.ask(talk_of(visit).call)
    again = bench.retry(state, {"k1": "accept"})
    bench.gather()
    assert again.keys == ["k2"]
    assert bench.replies[late.number] == []


def test_nobody_is_told_anything_while_the_client_is_away(bench: Bench) -> None:
    visit, state = parked_once(bench)
    call = talk_of(visit).call
    assert call.caller is not None
    call.caller.on_progress(b"{}")
    call.caller.on_notification("notifications/message", b"{}")
    again = bench.retry(state)
    call.caller.on_progress(b"1")
    assert (visit.told_of, again.told_of) == ([], [b"1"])


def test_no_more_is_parked_and_asked_than_may_be(bench: Bench) -> None:
    visit = bench.start()
    call = talk_of(visit).call
    for _ in range(mrtr.REQUESTS_MAX):
        bench.ask(call)
    assert bench.replies[bench.ask(call).number][0][1]
    large = bench.start()
    longest = b" " * BODY_BYTES_MAX + b"{}"
    assert bench.replies[bench.ask(talk_of(large).call, params=longest).number]
    for _ in range(mrtr.PARKED_MAX):
        bench.parking.parked.park(str(len(bench.parking.parked)), MINE, "x", talk_of(large), 0.0)
    bench.gather()
    assert all(replies[0][1] for replies in bench.replies.values())
    assert visit.answer is not None
    assert not visit.answer.is_done()


def test_a_client_that_does_not_come_back_takes_no_places_from_others(bench: Bench) -> None:
    _, other = parked_once(bench, who="grace")
    _, first = parked_once(bench, who="eve")
    _, second = parked_once(bench, who="eve")
    for _ in range(mrtr.CLIENT_SERVER_PARKED_MAX - 1):
        parked_once(bench, who="eve")
    assert "newer calls of its client took its place" in bench.refused(first)
    assert bench.reasons == ["newer calls of its client wait for answers in its place"]
    for number in range(mrtr.CLIENT_PARKED_MAX - mrtr.CLIENT_SERVER_PARKED_MAX + 1):
        parked_once(bench, who="eve", server=f"git{number // mrtr.CLIENT_SERVER_PARKED_MAX}")
    assert "newer calls of its client took its place" in bench.refused(second)
    assert len(bench.parking.parked) == mrtr.CLIENT_PARKED_MAX + 1
    assert bench.retry(other, {"k1": "accept"}).answer is not None


def test_a_call_cannot_ask_for_ever(bench: Bench) -> None:
    visit, state = parked_once(bench)
    for number in range(1, mrtr_io.QUESTIONS_MAX):
        visit = bench.retry(state, {f"k{number}": "accept"})
        bench.ask(talk_of(visit).call)
        bench.gather()
        state = visit.state
    bench.retry(state, {f"k{mrtr_io.QUESTIONS_MAX}": "accept"})
    assert bench.replies[bench.ask(talk_of(visit).call).number][0][1]


def test_results_are_kept_within_their_bound(bench: Bench) -> None:
    kept, state = parked_once(bench)
    assert bench.parking.parked.reserve(mrtr.KEPT_BYTES_MAX - 10)
    bench.end(talk_of(kept).call, b'{"longer than what is left": 1}')
    assert "was used before" in bench.refused(state)
    bench.parking.parked.release(mrtr.KEPT_BYTES_MAX - 10)


def test_a_digest_knows_requests_apart_and_no_order() -> None:
    def digest(text: str) -> bytes:
        return mrtr.digest(codec.level(text.encode()))

    one = digest('{"name":"t","arguments":{"a":1,"b":{"c":2}}}')
    assert one == digest('{"arguments":{"a":1,"b":{"c":2}},"name":"t","requestState":"s"}')
    for other in ('{"name":"t","arguments":{"a":1}}', '{"name":"t","arguments":{"ab":1}}',
                  '{"name":"t"}', '{"name":"t","arguments":[]}', '{"uri":"t"}'):  # fmt: skip
        assert digest(other) != one


RESOLUTION_S = 1e-6
"""A timer that is due within the resolution of the loop's clock is due now; sums of seconds are
inexact."""


class Histories(RuleBasedStateMachine):
    """Whatever happens in whatever order: each question and each call ends once, a state works
    once and for one, and in the end nothing is left."""

    def __init__(self) -> None:
        super().__init__()
        self.bench = Bench()
        self.visits: list[Visit] = []
        self.states: dict[str, tuple[InteractiveCall, float]] = {}
        self.used: set[str] = set()

    @rule(method=st.sampled_from([mrtr.ELICIT, "roots/list"]), count=st.integers(1, 3))
    def start_and_be_asked(self, method: str, count: int) -> None:
        self.visits.append(self.bench.start())
        for _ in range(count):
            self.bench.ask(talk_of(self.visits[-1]).call, method)
        self.bench.gather()

    @precondition(lambda self: self.visits)
    @rule(data=st.data(), method=st.sampled_from([mrtr.ELICIT, "roots/list", "x"]))
    def ask(self, data: st.DataObject, method: str) -> None:
        call = talk_of(data.draw(st.sampled_from(self.visits))).call
        if not call.answer.is_done():
            self.bench.ask(call, method)

    @precondition(lambda self: self.bench.questions)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.bench.questions)))
        self.bench.withdraw(self.bench.questions[number])

    @precondition(lambda self: self.visits)
    @rule(data=st.data(), code=st.sampled_from([0, -32000, int(Code.SERVER_DOWN)]))
    def end(self, data: st.DataObject, code: int) -> None:
        self.bench.end(talk_of(data.draw(st.sampled_from(self.visits))).call, code=code)

    @precondition(lambda self: self.visits)
    @rule(data=st.data())
    def lose_the_client(self, data: st.DataObject) -> None:
        visit = data.draw(st.sampled_from(self.visits))
        call = talk_of(visit).call
        if visit.answer is call.answer:
            call.cancel("the client went away")
            self.bench.loop.turn()

    @rule(seconds=st.sampled_from([mrtr_io.GATHER_S, 10.0, 100.0, mrtr.PARK_S_MAX]))
    def wait(self, seconds: float) -> None:
        now = self.bench.loop.now
        waiting = {
            talk
            for talk, until in (self.states[state] for state in self.alive())
            if until <= now + seconds + RESOLUTION_S and not talk.call.answer.is_done()
        }
        before = self.bench.reasons.count(TOO_LATE)
        self.bench.loop.turn(seconds)
        assert self.bench.reasons.count(TOO_LATE) - before == len(waiting)

    def alive(self) -> list[str]:
        """The states that are of use now."""
        found: list[str] = []
        for state, (talk, until) in self.states.items():
            answer = talk.call.answer
            lost = answer.is_done() and (
                answer.is_cancelled() or answer.result().code == Code.SERVER_DOWN
            )
            if state not in self.used and self.bench.loop.now < until and not lost:
                found.append(state)
        return found

    @precondition(lambda self: self.alive())
    @rule(data=st.data(), keys=st.sets(st.sampled_from(["k1", "k2", "k3"])))
    def come_back(self, data: st.DataObject, keys: set[str]) -> None:
        state = data.draw(st.sampled_from(self.alive()))
        self.bench.refused(state, structs.replace(MINE, principal="eve"))
        self.used.add(state)
        self.visits.append(self.bench.retry(state, dict.fromkeys(keys, "accept")))
        assert self.visits[-1].talk is self.states[state][0]

    @precondition(lambda self: len(self.states) > len(self.alive()))
    @rule(data=st.data())
    def come_back_in_vain(self, data: st.DataObject) -> None:
        dead = sorted(set(self.states) - set(self.alive()))
        self.bench.refused(data.draw(st.sampled_from(dead)))

    @invariant()
    def every_question_ends_once(self) -> None:
        for number, replies in self.bench.replies.items():
            assert len(replies) <= 1
            assert not replies or not self.bench.questions[number].open

    @invariant()
    def every_state_is_new(self) -> None:
        for visit in self.visits:
            answer = visit.answer
            if answer is not None and answer.is_done() and not answer.is_cancelled():
                state = visit.body.get("requestState")
                until = self.bench.loop.now + mrtr.PARK_S_MAX
                if state is not None:
                    assert self.states.setdefault(state, (talk_of(visit), until))[0] is visit.talk

    def teardown(self) -> None:
        self.bench.loop.turn(mrtr_io.GATHER_S)
        self.bench.parking.close()
        self.bench.loop.turn()
        for visit in self.visits:
            self.bench.end(talk_of(visit).call)
        assert not any(question.open for question in self.bench.questions.values())
        assert (len(self.bench.parking.parked), self.bench.parking.parked.size_bytes) == (0, 0)
        assert all(talk_of(visit).call.answer.is_done() for visit in self.visits)
        self.bench.close()


def talk_of(visit: Visit) -> InteractiveCall:
    assert visit.talk is not None
    return visit.talk


Histories.TestCase.settings = settings(
    max_examples=examples(150), stateful_step_count=30, deadline=None
)
TestHistories = pytest.mark.promise("M23")(Histories.TestCase)
