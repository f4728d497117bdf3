"""A round is done when no front is behind it."""

from hypothesis import given
from hypothesis import strategies as some

from metamcp_supervisor.views.views import Rounds


def test_a_round_is_done_when_every_front_has_applied_it() -> None:
    rounds = Rounds()
    assert rounds.begin([1, 2]) == 1
    assert rounds.applied_round == 0
    rounds.on_round_applied(1, 1)
    assert rounds.applied_round == 0
    rounds.on_round_applied(2, 1)
    assert rounds.applied_round == 1


def test_a_round_without_fronts_is_done_at_once() -> None:
    rounds = Rounds()
    assert rounds.begin([]) == rounds.applied_round == 1


def test_a_slow_front_is_as_far_as_it_said_last() -> None:
    rounds = Rounds()
    for _ in range(3):
        rounds.begin([1, 2])
    rounds.on_round_applied(2, 3)
    assert rounds.applied_round == 0
    rounds.on_round_applied(1, 2)
    assert rounds.applied_round == 2
    assert rounds.begin([1, 2]) == 4
    rounds.on_round_applied(2, 4)
    assert rounds.applied_round == 2
    rounds.on_round_applied(1, 4)
    assert rounds.applied_round == 4


def test_who_is_gone_is_new_or_is_late_holds_up_nothing() -> None:
    rounds = Rounds()
    rounds.begin([1, 2, 3, 4])
    rounds.on_front_gone(1)
    rounds.join(2)
    rounds.on_round_applied(3, 1)
    assert rounds.applied_round == 0
    rounds.begin([2, 3, 4])
    rounds.on_timeout(1)
    assert rounds.applied_round == 1, "only the first round is not waited for"
    rounds.on_timeout(2)
    assert rounds.applied_round == 2
    rounds.on_round_applied(4, 1)
    assert rounds.applied_round == 2, "what comes late takes nothing back"


def test_a_number_of_the_program_before_says_nothing() -> None:
    rounds = Rounds()
    rounds.begin([1])
    rounds.on_round_applied(1, 50)
    assert rounds.applied_round == 0
    rounds.on_round_applied(1, 1)
    assert rounds.applied_round == 1


@given(some.data())
def test_what_is_done_only_grows_and_is_never_ahead_of_a_front(data: some.DataObject) -> None:
    rounds, far, done = Rounds(), {1: 0, 2: 0, 3: 0}, 0
    for _ in range(20):
        if data.draw(some.booleans()):
            rounds.begin(far)
        else:
            front = data.draw(some.sampled_from(sorted(far)))
            far[front] = data.draw(some.integers(far[front], rounds.number))
            rounds.on_round_applied(front, far[front])
        assert done <= rounds.applied_round <= rounds.number
        done = rounds.applied_round
        assert done <= min(far.values())
