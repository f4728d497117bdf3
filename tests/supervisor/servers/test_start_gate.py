"""The start gate: who may start when, with values for clock and names."""

from hypothesis import given
from hypothesis import strategies as some

from metamcp_supervisor.servers import start_gate
from metamcp_supervisor.servers.start_gate import (
    CROWDED_S,
    PLACE_S_MAX,
    STARTS_MAX,
    STARTS_WINDOW_S,
    Gate,
)


def queued(names: list[str], cores: int = 2, *, again: bool = False) -> Gate:
    gate = start_gate.for_cores(cores)
    for name in names:
        gate = start_gate.join(gate, name, 0, again=again)
    return gate


def test_no_more_warm_up_at_once_than_there_are_places() -> None:
    found, names, again = start_gate.admit(queued(list("abcdef"), cores=1), 0.0, ())
    assert names == ("a", "b", "c", "d")
    assert again == PLACE_S_MAX
    found, names, _ = start_gate.admit(start_gate.leave(found, "a"), 0.1, ())
    assert names == ("e",)


def test_servers_that_hang_hold_up_the_rest_for_a_moment_only() -> None:
    found, _, _ = start_gate.admit(queued([*"abcdefgh", "good"], cores=2), 0.0, ())
    found, names, _ = start_gate.admit(found, PLACE_S_MAX, ())
    assert names == ("good",)


def test_first_starts_wait_for_places_alone() -> None:
    first = [f"s{number}" for number in range(20)]
    _, names, again = start_gate.admit(queued(first, cores=64), 10.0, ())
    assert (list(names), again) == (first, None)


def test_those_that_ran_before_start_eight_in_a_quarter_of_a_second_and_hold_up_no_first() -> None:
    many = queued([f"s{number}" for number in range(20)], cores=64, again=True)
    _, names, _ = start_gate.admit(start_gate.join(many, "first", 0), 10.0, ())
    assert len(names) == STARTS_MAX + 1
    assert names[-1] == "first"
    many, names, again = start_gate.admit(many, 10.0, ())
    assert len(names) == STARTS_MAX
    assert again == 10.0 + STARTS_WINDOW_S
    many, names, _ = start_gate.admit(many, 10.0 + STARTS_WINDOW_S, ())
    assert len(names) == STARTS_MAX


def test_a_server_that_still_leaves_keeps_its_turn_and_holds_up_nobody() -> None:
    found, names, again = start_gate.admit(queued(["old", "new"]), 0.0, {"old"})
    assert names == ("new",)
    assert again is None
    _, names, _ = start_gate.admit(found, 0.0, ())
    assert names == ("old",)


def test_those_that_failed_before_queue_behind_those_that_did_not() -> None:
    found = start_gate.for_cores(1)
    for name, failures in (("bad", 3), ("first", 0), ("worse", 5), ("second", 0)):
        found = start_gate.join(found, name, failures)
    assert [waiting.name for waiting in found.queue] == ["first", "second", "bad", "worse"]


def test_after_a_kill_for_want_of_memory_nobody_starts_and_then_one_at_a_time() -> None:
    found = start_gate.on_oom_kill(queued(["a", "b", "c"]), 10.0)
    found, names, again = start_gate.admit(found, 11.0, ())
    assert (names, again) == ((), 10.0 + CROWDED_S)
    found, names, again = start_gate.admit(found, 10.0 + CROWDED_S, ())
    assert (names, again) == (("a",), 10.0 + CROWDED_S + PLACE_S_MAX)
    found, names, again = start_gate.admit(found, 10.0 + 2 * CROWDED_S, ())
    assert (names, again) == (("b", "c"), None)


def test_joining_twice_is_joining_once() -> None:
    assert start_gate.join(queued(["a"]), "a", 0) == queued(["a"])


STEPS = some.lists(
    some.tuples(some.sampled_from(["join", "leave", "admit"]), some.sampled_from("abcdefgh"),
                some.floats(0, 3)),
    max_size=60,
)  # fmt: skip


@given(STEPS, some.integers(1, 3))
def test_whatever_happens_the_limits_hold_and_the_queue_moves(
    steps: list[tuple[str, str, float]], cores: int
) -> None:
    found, now = start_gate.for_cores(cores), 0.0
    for what, name, passed in steps:
        now += passed
        if what == "join":
            found = start_gate.join(found, name, 0, again=name < "e")
        elif what == "leave":
            found = start_gate.leave(found, name)
            assert name not in {waiting.name for waiting in found.queue}
        else:
            found, _, again = start_gate.admit(found, now, ())
            assert len(found.warming) <= found.places
            assert len(found.starts) <= STARTS_MAX
            assert (again is None) == (not found.queue)
            if again is not None:
                assert now < again <= now + PLACE_S_MAX
                _, names, _ = start_gate.admit(found, again, ())
                assert names
