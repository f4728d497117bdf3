"""Calls that outlive their front, with values: what another front gets of them, and until when."""

import pytest

from metamcp_worker.child.actions import Action, ReplyToFront
from metamcp_worker.child.frontless_calls import (
    EVENTS_MAX,
    KEPT_ANSWERS_MAX,
    KEPT_BYTES_MAX,
    NOBODY,
    ORPHAN_S,
    SENT_BYTES_MAX,
    SENT_S,
)
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import (
    Error,
    Frame,
    KeepCall,
    KeptFrame,
    Progress,
    QuestionFrame,
    RecoverCall,
    ReleaseCalls,
    Result,
)
from tests.worker.child.talk import Talk, error_of, ready_legacy

OWNER, NAME, NOTE = b"o", b"n", b'{"id":1}'
ONE, TWO = 1, 2
"""The front that dies, and the one that goes on."""
LATER = 900
"""The number of the call there."""


class World:
    """A worker with its fronts. `gone`: of these; `got`: what the others were sent."""

    def __init__(self, talk: Talk) -> None:
        self.talk = talk
        self.orphans = talk.session.orphans
        self.gone = {NOBODY}
        self.got: list[tuple[int, Frame]] = []

    def carry(self, actions: list[Action]) -> None:
        """As the worker does: what is for a front is sent, and noted where that matters."""
        for one in actions:
            if isinstance(one, ReplyToFront):
                if one.front not in self.gone:
                    self.got.append((one.front, one.frame))
                self.orphans.on_frame_sent(one.front, one.frame, self.talk.now)

    def call(self, number: int = 7, *, name: bytes = NAME, **more: object) -> None:
        """Front one calls, and says that the call outlives it."""
        self.carry(self.talk.call(ONE, number, wants_progress=True, peer=3, **more))
        self.orphans.keep(ONE, KeepCall(number, OWNER, name, NOTE))

    def dies(self, front: int = ONE) -> None:
        self.gone.add(front)
        self.carry(self.talk.note(self.talk.session.front_gone(front, self.talk.now)))

    def progresses(self, step: int) -> None:
        token = self.talk.keys()[-1].decode()
        told = self.talk.tells("notifications/progress", progressToken=int(token), progress=step)
        self.carry(told)

    def answers(self, **result: object) -> None:
        self.carry(self.talk.answers("tools/call", result))

    def claims(self, *, owner: bytes = OWNER, name: bytes = NAME, front: int = TWO) -> list[Frame]:
        """What the other front gets at once."""
        self.got.clear()
        frame = RecoverCall(LATER, owner, name, peer=5)
        self.carry(self.talk.note(self.orphans.claim(front, frame, self.talk.now)))
        assert all(to == front for to, _ in self.got)
        return [frame for _, frame in self.got]

    def releases(self, owner: bytes, front: int = TWO) -> None:
        found = self.orphans.release(front, ReleaseCalls(owner), self.talk.now)
        self.carry(self.talk.note(found))

    def ticks(self, after_s: float = 0.0) -> None:
        self.carry(self.talk.tick(after_s))

    @property
    def cancelled(self) -> int:
        return sum(one.get("method") == "notifications/cancelled" for one in self.talk.wrote)


@pytest.fixture
def world() -> World:
    return World(ready_legacy())


def progress(step: int) -> Progress:
    return Progress(LATER, b'{"progress":%d}' % step)


@pytest.mark.promise("M79")
def test_a_call_that_is_not_kept_is_cancelled_with_its_front(world: World) -> None:
    world.call()
    world.carry(world.talk.call(ONE, 8))
    world.dies()
    assert (world.cancelled, world.talk.session.in_flight) == (1, 1)
    assert world.claims(name=b"another") == [KeptFrame(LATER)]


@pytest.mark.promise("M79")
def test_who_claims_a_call_gets_what_was_told_meanwhile_and_then_all_the_rest(world: World) -> None:
    world.call()
    world.dies()
    world.progresses(1)
    world.progresses(2)
    assert world.claims() == [KeptFrame(LATER, NOTE), progress(1), progress(2)]
    world.progresses(3)
    world.answers(n=1)
    assert world.got[3:] == [(TWO, progress(3)), (TWO, Result(LATER, b'{"n": 1}'))]
    assert world.cancelled == 0


@pytest.mark.promise("M79")
def test_an_answer_that_came_meanwhile_is_given_and_soon_forgotten(world: World) -> None:
    world.call()
    world.dies()
    world.progresses(1)
    world.answers(n=1)
    answer = Result(LATER, b'{"n": 1}')
    assert world.claims() == [KeptFrame(LATER, NOTE), progress(1), answer]
    world.ticks(SENT_S)
    assert world.claims() == [KeptFrame(LATER)]
    assert world.talk.session.in_flight == 0


@pytest.mark.promise("M79")
def test_an_answer_on_its_way_to_the_second_front_that_died_is_not_lost_either(
    world: World,
) -> None:
    world.call()
    world.dies()
    world.answers(n=1)
    answer = Result(LATER, b'{"n": 1}')
    assert world.claims() == [KeptFrame(LATER, NOTE), answer]
    world.dies(TWO)
    world.ticks(ORPHAN_S - 1)
    assert world.claims(front=3) == [KeptFrame(LATER, NOTE), answer]


@pytest.mark.parametrize(
    ("owner", "name"), [(b"x", NAME), (OWNER, b"x"), (NAME, OWNER), (b"", b"")]
)
def test_who_does_not_know_both_words_gets_nothing(world: World, owner: bytes, name: bytes) -> None:
    world.call()
    world.dies()
    assert world.claims(owner=owner, name=name) == [KeptFrame(LATER)]
    assert world.claims() == [KeptFrame(LATER, NOTE)]


def test_a_front_may_claim_before_it_is_known_that_the_other_is_gone(world: World) -> None:
    world.call()
    assert world.claims() == [KeptFrame(LATER, NOTE)]
    world.dies()
    world.answers()
    assert world.got[1:] == [(TWO, Result(LATER, b"{}"))]
    assert world.cancelled == 0


def test_a_call_that_was_claimed_outlives_the_next_front_too(world: World) -> None:
    world.call()
    world.dies()
    world.claims()
    world.dies(TWO)
    world.answers()
    assert world.claims(front=3) == [KeptFrame(LATER, NOTE), Result(LATER, b"{}")]


def test_a_call_that_waits_for_its_turn_keeps_that_without_its_front() -> None:
    world = World(ready_legacy(concurrency=1))
    world.carry(world.talk.call(3, 1))
    world.call()
    world.dies()
    assert world.talk.session.queue_length == 1
    assert world.claims() == [KeptFrame(LATER, NOTE)]
    world.answers(n=1)  # the first one; now it is its turn
    world.answers(n=2)
    assert world.got[1:] == [(3, Result(1, b'{"n": 1}')), (TWO, Result(LATER, b'{"n": 2}'))]


def test_a_call_that_nobody_comes_back_for_is_cancelled(world: World) -> None:
    world.call()
    world.dies()
    world.ticks(ORPHAN_S - 1)
    assert world.cancelled == 0
    world.ticks(1)
    assert (world.cancelled, world.talk.session.in_flight) == (1, 0)
    assert world.claims() == [KeptFrame(LATER)]


def test_an_answer_waits_as_long_as_its_call_would_have(world: World) -> None:
    world.call()
    world.dies()
    world.ticks(ORPHAN_S - 10)
    world.answers()
    world.ticks(ORPHAN_S - 1)
    assert world.claims() == [KeptFrame(LATER, NOTE), Result(LATER, b"{}")]
    world.ticks(SENT_S)
    assert not world.orphans.any


def test_a_call_whose_time_is_up_is_answered_with_that() -> None:
    world = World(ready_legacy(timeout_s=5.0))
    world.call()
    world.dies()
    world.ticks(6)
    found, error = world.claims()
    assert found == KeptFrame(LATER, NOTE)
    assert isinstance(error, Error)
    assert error_of([ReplyToFront(TWO, error)])["code"] == Code.TIMED_OUT


def test_the_end_of_a_session_cancels_what_its_front_has_left(world: World) -> None:
    world.call()
    world.call(8, name=b"m")
    world.dies()
    world.answers()
    world.releases(b"another")
    assert world.cancelled == 0
    world.releases(OWNER)
    assert (world.cancelled, world.orphans.any) == (1, False)


def test_a_front_that_ends_in_order_leaves_nothing(world: World) -> None:
    world.call()
    world.releases(b"", ONE)
    world.dies()
    assert (world.cancelled, world.talk.session.in_flight) == (1, 0)


def test_a_question_that_was_open_is_refused_and_time_goes_on() -> None:
    world = World(ready_legacy(timeout_s=5.0))
    world.call()
    world.carry(world.talk.asks("q"))
    world.dies()
    (refused,) = world.talk.answered("q")
    assert refused["error"]["code"] == Code.INTERNAL_ERROR
    world.ticks(6)
    assert world.talk.session.in_flight == 0


def test_of_two_calls_that_are_nobodys_none_can_be_meant(world: World) -> None:
    for number in (7, 8):
        world.call(number, name=b"%d" % number)
    world.dies()
    world.carry(world.talk.asks("q"))
    assert "error" in world.talk.answered("q")[0]


@pytest.mark.promise("M23")
@pytest.mark.parametrize(("peer", "asked"), [(5, True), (3, False), (6, False)])
def test_who_goes_on_with_a_call_is_its_caller_from_then_on(
    world: World, peer: int, asked: bool
) -> None:
    world.call()
    world.dies()
    world.claims()
    world.carry(world.talk.call(TWO, 901, peer=peer))
    world.carry(world.talk.asks("q"))
    assert any(isinstance(frame, QuestionFrame) for _, frame in world.got) == asked
    assert bool(world.talk.answered("q")) != asked


def test_what_is_told_while_two_calls_are_nobodys_is_kept_for_none(world: World) -> None:
    for number in (7, 8):
        world.call(number, name=b"%d" % number)
    world.dies()
    world.carry(world.talk.tells("notifications/message", data="secret"))
    assert world.claims(name=b"7") == world.claims(name=b"8") == [KeptFrame(LATER, NOTE)]


def test_an_answer_on_its_way_to_a_front_that_died_is_not_lost(world: World) -> None:
    world.call()
    world.answers(n=1)
    assert world.got == [(ONE, Result(7, b'{"n": 1}'))]
    world.dies()
    world.ticks(ORPHAN_S - 1)
    assert world.claims() == [KeptFrame(LATER, NOTE), Result(LATER, b'{"n": 1}')]


def test_an_answer_that_a_living_front_has_had_for_a_while_is_kept_no_longer(world: World) -> None:
    world.call()
    world.answers()
    assert world.orphans.any
    world.ticks(SENT_S)
    assert not world.orphans.any


def test_a_large_answer_is_not_kept_for_a_front_that_is_there(world: World) -> None:
    world.call()
    world.answers(text="x" * SENT_BYTES_MAX)
    assert not world.orphans.any


def test_the_second_call_for_a_request_replaces_what_is_kept_of_the_first(world: World) -> None:
    world.call()
    world.answers(resultType="input_required")
    world.call(8)
    world.answers(n=2)
    assert world.claims() == [KeptFrame(LATER, NOTE), Result(LATER, b'{"n": 2}')]


def test_of_what_is_told_the_youngest_is_kept(world: World) -> None:
    world.call()
    world.dies()
    for step in range(EVENTS_MAX + 2):
        world.progresses(step)
    found = world.claims()
    assert found[1:] == [progress(step) for step in range(2, EVENTS_MAX + 2)]


def test_of_too_many_answers_the_oldest_goes(world: World) -> None:
    for number in range(KEPT_ANSWERS_MAX + 1):
        world.call(number, name=b"%d" % number)
        world.answers()
    assert world.claims(name=b"0") == [KeptFrame(LATER)]
    assert len(world.claims(name=b"1")) == len(world.claims(name=b"%d" % KEPT_ANSWERS_MAX)) == 2


def test_of_too_large_answers_the_oldest_goes(world: World) -> None:
    for number in (1, 2):
        world.call(number, name=b"%d" % number)
    world.dies()
    half = "x" * (KEPT_BYTES_MAX // 2)
    keys = world.talk.keys()
    for key in keys:
        world.carry(world.talk.says({"jsonrpc": "2.0", "id": int(key), "result": {"text": half}}))
    assert world.claims(name=b"1") == [KeptFrame(LATER)]
    assert len(world.claims(name=b"2")) == 2


def test_what_was_said_of_calls_that_are_over_is_forgotten(world: World) -> None:
    world.orphans.keep(ONE, KeepCall(7, OWNER, NAME, NOTE))
    assert world.orphans.any
    world.ticks()
    assert not world.orphans.any
