"""The queue of one server as its session uses it: fair turns, and no waiting in vain."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_worker.child import call_queue
from metamcp_worker.child.actions import ReplyToFront
from metamcp_worker.child.call_queue import WaitEstimator
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import Error, Result

from .talk import Talk, error_of, ready_legacy


def answer(talk: Talk, after_s: float = 0.0) -> None:
    """The server answers the oldest call that it has, whether anybody waits for it or not."""
    call = next(one for one in talk.calls() if "done" not in one)
    call["done"] = True
    talk.now += after_s
    talk.says({"jsonrpc": "2.0", "id": call["id"], "result": {}})


def replies(talk: Talk) -> list[tuple[int, int]]:
    """Whom an answer went to, and for which call, so far."""
    frames = [(one.front, one.frame) for one in talk.actions if isinstance(one, ReplyToFront)]
    return [(front, frame.id) for front, frame in frames if isinstance(frame, Result | Error)]


def busy(calls: int, service_s: float, **options: Any) -> Talk:
    """A server that has one call at a time, and `calls` that wait after ten were answered."""
    talk = ready_legacy(concurrency=1, timeout_s=1000.0, **options)
    for number in range(calls + 11):
        assert talk.call(1, number, peer=1) == []
    for _ in range(10):
        answer(talk, service_s)
    assert talk.session.queue_length == calls
    return talk


def test_calls_that_wait_for_their_clients_take_no_places_from_others() -> None:
    talk = ready_legacy(concurrency=2)
    for number in range(5):
        assert talk.call(1, number, peer=1) == []
        talk.asks(number)
    assert len(talk.calls()) == 5
    answer(talk)
    talk.call(1, 10, peer=2)
    talk.call(1, 11, peer=2)
    assert (len(talk.calls()), talk.session.queue_length) == (7, 0)
    talk.call(1, 12, peer=2)
    assert (len(talk.calls()), talk.session.queue_length) == (7, 1)


def test_a_server_that_gets_one_call_at_a_time_gets_the_next_one_after_the_answer() -> None:
    talk = ready_legacy(concurrency=1)
    talk.call(1, 1, peer=1)
    talk.asks(1)
    talk.call(1, 2, peer=2)
    assert (len(talk.calls()), talk.session.queue_length) == (1, 1)


@pytest.mark.promise("M98")
def test_a_session_with_two_hundred_calls_does_not_keep_another_waiting() -> None:
    talk = ready_legacy(concurrency=1)
    for number in range(200):
        talk.call(1, number, peer=1)
    talk.call(1, 1000, peer=2)
    for _ in range(3):
        answer(talk)
    assert (1, 1000) in replies(talk)
    assert (
        talk.session.queue_length == 200 + 1 - 1 - 3
    )  # all came, one went at once, three had turns


@pytest.mark.promise("M98")
def test_a_full_queue_lets_a_newcomer_in_and_answers_the_call_that_made_room() -> None:
    talk = ready_legacy(concurrency=1, queue=3)
    for number in range(4):
        assert talk.call(1, number, peer=1) == []
    assert error_of(talk.call(2, 9, peer=7))["code"] == Code.OVERLOADED
    assert replies(talk) == [(1, 3)]
    for _ in range(4):
        answer(talk)
    assert sorted(replies(talk)) == [(1, 0), (1, 1), (1, 2), (1, 3), (2, 9)]


@pytest.mark.promise("M98")
def test_a_call_whose_time_cannot_suffice_is_refused_when_it_comes() -> None:
    talk = busy(calls=20, service_s=1.0)
    error = error_of(talk.call(1, 100, peer=1, deadline_ms=9_000))
    assert error["code"] == Code.OVERLOADED
    load = {"inflight": 1, "queued": 20, "limit": 4096, "retry_after_ms": 20_000}
    assert error["data"] == {"server": "fake", "may_have_run": False, **load}
    assert talk.call(1, 101, peer=1, deadline_ms=10_000) == []
    assert talk.call(1, 102, peer=2, deadline_ms=1_000) == []  # its turn comes soon


def test_nothing_is_refused_for_its_time_before_enough_was_measured() -> None:
    talk = ready_legacy(concurrency=1)
    for number in range(100):
        assert talk.call(1, number, peer=1, deadline_ms=1000) == []
    for _ in range(call_queue.SAMPLES_MIN - 1):
        answer(talk, 0.1)
    assert talk.call(1, 100, peer=1, deadline_ms=1) == []


def test_what_was_measured_is_forgotten_with_the_queue() -> None:
    talk = busy(calls=0, service_s=50.0)
    for number in range(100, 110):
        assert talk.call(1, number, peer=1, deadline_ms=100) == []


def test_the_time_of_a_person_is_not_that_of_the_server() -> None:
    talk = ready_legacy(concurrency=1)
    for number in range(30):
        talk.call(1, number, peer=1, caller=b'{"clientCapabilities":{"elicitation":{}}}')
    for _ in range(call_queue.SAMPLES_MIN):
        talk.asks(len(talk.wrote))
        answer(talk, 200.0)
    assert talk.call(1, 100, peer=1, deadline_ms=1) == []


@given(
    st.lists(st.floats(0, 1e6), min_size=call_queue.SAMPLES_MIN, max_size=40), st.integers(1, 99)
)
def test_the_expected_wait_lies_between_the_shortest_and_the_longest(
    seconds: list[float], concurrency: int
) -> None:
    measured = WaitEstimator(concurrency)
    for one in seconds:
        measured.add_sample(one)
    wait_s = measured.wait_s(concurrency)
    assert wait_s is not None
    assert min(seconds) * 0.999 <= wait_s <= max(seconds) * 1.001
    assert not measured.hopeless(0, 0.0)
    assert measured.retry_after_ms(10**9) in {0, 60_000} or max(seconds) < 1


def test_the_expected_wait_follows_a_server_that_becomes_faster() -> None:
    measured = WaitEstimator(1)
    for seconds in [60.0] * 20 + [0.001] * 20:
        measured.add_sample(seconds)
    wait_s = measured.wait_s(1)
    assert wait_s is not None
    assert wait_s < 10


STEPS = st.lists(
    st.tuples(st.sampled_from(["call", "call", "call", "answer", "cancel", "tick"]),
              st.integers(0, 3)),
    max_size=60,
)  # fmt: skip


@pytest.mark.promise("M98")
@given(STEPS)
def test_every_call_is_answered_exactly_once_or_cancelled(steps: list[tuple[str, int]]) -> None:
    talk = ready_legacy(concurrency=2, queue=3, timeout_s=30.0)
    came, cancelled = 0, set[int]()
    for what, peer in steps:
        if what == "call":
            came += 1
            talk.call(1, came, peer=peer, deadline_ms=5000 * (peer + 1))
        elif what == "answer" and talk.session.in_flight:
            answer(talk, 0.5)
        elif what == "cancel" and came and (1, came) not in replies(talk):
            talk.cancel(1, came)
            cancelled.add(came)
        elif what == "tick":
            talk.tick(1.0)
    talk.note(talk.session.fail_calls(Code.SERVER_DOWN, "ended"))
    told = [number for _, number in replies(talk)]
    assert sorted(told) == sorted(set(range(1, came + 1)) - cancelled)
