"""Whose call is next, and who makes room: by values, and whatever comes in whatever order."""

from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_worker.child.call_queue import WAITING_BYTES_MAX, FairCallQueue, WaitingCall
from metamcp_worker.ipc.frames import CallFrame

HALF = WAITING_BYTES_MAX // 2 - 1024
"""Two of these fit, and nothing large beside them."""


def one(peer: int, number: int, front: int = 1, size: int = 0, payer: int = 0) -> WaitingCall:
    frame = CallFrame(number, "tools/call", bytes(size), peer=peer, payer=payer)
    return WaitingCall(front, frame, 100.0, 60.0)


def owned(workspace: int, principal: int, peer: int, number: int) -> WaitingCall:
    return one(peer, number, payer=workspace << 32 | principal)


def filled(turns: FairCallQueue, *calls: tuple[int, int]) -> FairCallQueue:
    for peer, number in calls:
        assert turns.put(one(peer, number)) is None
    return turns


def order(turns: FairCallQueue) -> list[int]:
    """The numbers of the calls in the order of their turns."""
    return [turns.take().frame.id for _ in range(len(turns))]


def test_calls_of_one_caller_are_taken_in_order() -> None:
    assert order(filled(FairCallQueue(9), (1, 1), (1, 2), (1, 3))) == [1, 2, 3]


@pytest.mark.promise("M98")
def test_a_caller_with_many_calls_delays_one_with_few_by_one_turn() -> None:
    turns = filled(FairCallQueue(4096), *[(1, number) for number in range(4000)])
    assert turns.put(one(2, 5000)) is None
    assert turns.put(one(2, 5001)) is None
    assert order(turns)[:5] == [0, 5000, 1, 5001, 2]


def test_turns_go_round_the_callers_in_the_order_in_which_they_came() -> None:
    turns = filled(FairCallQueue(9), (1, 10), (1, 11), (2, 20), (3, 30), (3, 31))
    assert order(turns) == [10, 20, 30, 11, 31]


def test_calls_that_stand_alone_are_one_caller_for_each_front() -> None:
    turns = FairCallQueue(9)
    for front, number in ((1, 1), (1, 2), (2, 3), (2, 4)):
        assert turns.put(one(0, number, front)) is None
    assert order(turns) == [1, 3, 2, 4]


@pytest.mark.promise("M66")
def test_a_workspace_with_many_callers_delays_another_by_one_turn() -> None:
    turns = FairCallQueue(4096)
    for number in range(1000):
        assert turns.put(owned(1, number % 7, number, number)) is None
    assert turns.count_ahead(owned(2, 1, 1, 5000).seat) == 1
    for number in (5000, 5001, 5002):
        assert turns.put(owned(2, 1, number, number)) is None
    assert [number for number in order(turns)[:6] if number >= 5000] == [5000, 5001, 5002]


@pytest.mark.promise("M66")
def test_keys_of_a_workspace_take_turns_and_so_do_the_callers_of_a_key() -> None:
    turns = FairCallQueue(9)
    for principal, peer, number in ((1, 1, 10), (1, 1, 11), (1, 2, 12), (1, 3, 13), (2, 4, 20)):
        assert turns.put(owned(1, principal, peer, number)) is None
    assert turns.put(owned(2, 1, 5, 30)) is None
    assert turns.put(owned(2, 1, 5, 31)) is None
    assert order(turns) == [10, 30, 20, 31, 12, 13, 11]


@pytest.mark.promise("M66")
def test_a_workspace_cannot_fill_the_queue_with_callers_of_one_call_each() -> None:
    turns = FairCallQueue(6)
    for peer in range(6):
        assert turns.put(owned(1, peer % 2, peer, peer)) is None
    for number in (10, 11, 12):
        out = turns.put(owned(2, 1, number, number))
        assert out is not None
        assert out.frame.id < 6
    again = owned(2, 1, 99, 99)
    assert turns.put(again) is again, "each has its half"
    assert sorted(call.frame.id for call in turns)[-3:] == [10, 11, 12]


@pytest.mark.promise("M66")
def test_room_is_made_inside_a_workspace_where_another_has_as_many() -> None:
    turns = FairCallQueue(6)
    for number in range(3):
        assert turns.put(owned(1, 1, 1, number)) is None
        assert turns.put(owned(2, 1, 1, 10 + number)) is None
    out = turns.put(owned(2, 2, 2, 20))
    assert out is not None
    assert out.frame.id == 12


@pytest.mark.promise("M98")
def test_in_a_full_queue_the_newest_call_of_who_has_most_makes_room() -> None:
    turns = filled(FairCallQueue(4), (1, 10), (1, 11), (1, 12), (2, 20))
    out = turns.put(one(3, 30))
    assert out is not None
    assert out.frame.id == 12
    assert order(turns) == [10, 20, 30, 11]


def test_no_room_is_made_for_one_who_would_then_have_more_than_the_other() -> None:
    turns = filled(FairCallQueue(4), (1, 10), (1, 11), (2, 20), (2, 21))
    for peer in (1, 2):
        newest = one(peer, 99)
        assert turns.put(newest) is newest
    assert turns.put(one(3, 30)) is not None
    assert turns.put(one(3, 31)) is not None
    assert len(turns) == 4


def test_bytes_are_shared_like_places() -> None:
    turns = FairCallQueue(99)
    for number in (10, 11):
        assert turns.put(one(1, number, size=HALF)) is None
    again = one(1, 12, size=HALF)
    assert turns.put(again) is again
    out = turns.put(one(2, 20, size=HALF))
    assert out is not None
    assert out.frame.id == 11
    large = one(3, 30, size=HALF)
    assert turns.put(large) is large
    assert order(turns) == [10, 20]


def test_nobody_makes_room_if_the_room_would_not_suffice() -> None:
    turns = FairCallQueue(4)
    for peer, number, size in ((1, 10, 0), (1, 11, 0), (2, 20, HALF), (3, 30, HALF)):
        assert turns.put(one(peer, number, size=size)) is None
    large = one(4, 40, size=HALF)
    assert turns.put(large) is large
    assert turns.put(one(4, 41)) is not None
    assert order(turns) == [10, 20, 30, 41]


def test_a_call_that_is_larger_than_everything_has_no_place() -> None:
    turns, giant = FairCallQueue(9), one(1, 1, size=WAITING_BYTES_MAX)
    assert turns.put(giant) is giant
    assert len(turns) == 0


def test_what_is_ahead_of_a_caller_is_at_most_its_turns_times_the_callers() -> None:
    turns = filled(FairCallQueue(999), *[(1, number) for number in range(500)])
    assert turns.count_ahead(one(1, 0).seat) == 500
    assert turns.count_ahead(one(2, 0).seat) == 1
    assert FairCallQueue(9).count_ahead(one(1, 0).seat) == 0


def test_removed_calls_leave_the_round_in_order() -> None:
    turns = filled(FairCallQueue(9), (1, 10), (2, 20), (3, 30), (1, 11))
    gone = turns.remove(lambda call: call.frame.peer == 2 or call.frame.id == 10)
    assert [call.frame.id for call in gone] == [10, 20]
    assert order(turns) == [11, 30]
    with pytest.raises(IndexError):
        turns.take()


def of(peer: int) -> Callable[[WaitingCall], bool]:
    return lambda call: call.frame.peer == peer


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "put", "put", "take", "remove"]), st.integers(0, 4)),
    max_size=80,
)


@pytest.mark.promise("M98")
@given(STEPS, st.integers(1, 6))
def test_every_call_is_taken_or_refused_exactly_once(steps: list[Step], calls_max: int) -> None:
    turns, came, went = FairCallQueue(calls_max), 0, Counter[int]()
    for what, peer in steps:
        if what == "put":
            came += 1
            out = turns.put(owned(peer % 2, peer % 3, peer, came))
            went.update([out.frame.id] if out is not None else [])
        elif what == "take" and len(turns):
            went[turns.take().frame.id] += 1
        elif what == "remove":
            went.update(gone.frame.id for gone in turns.remove(of(peer)))
        assert len(turns) == len(list(turns)) <= calls_max
    went.update(order(turns))
    assert went == Counter(range(1, came + 1))


@given(STEPS, st.integers(1, 6))
def test_no_place_is_taken_from_one_who_has_fewer_calls(steps: list[Step], calls_max: int) -> None:
    turns = FairCallQueue(calls_max)
    for number, (what, peer) in enumerate(steps):
        had = Counter(call.frame.peer for call in turns)
        if what == "put":
            out = turns.put(one(peer, number))
            if out is not None and out.frame.id != number:
                assert had[out.frame.peer] - 1 >= had[peer] + 1
                assert had[out.frame.peer] == max(had.values())
            elif out is not None:
                assert max(had.values()) < had[peer] + 2
        elif len(turns):
            turns.take()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_nobody_has_two_turns_while_another_has_none(peers: list[int]) -> None:
    turns = filled(FairCallQueue(99), *[(peer, number) for number, peer in enumerate(peers)])
    while len(turns):
        waiting = {call.frame.peer for call in turns}
        assert {turns.take().frame.peer for _ in waiting} == waiting
