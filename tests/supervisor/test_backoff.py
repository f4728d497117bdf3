"""Delays, windows and forgiveness as plain arithmetic."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from metamcp_supervisor import backoff
from metamcp_supervisor.config.config import Server
from metamcp_supervisor.servers.entry import patience

JITTER = some.floats(0, 1, exclude_max=True)


@given(some.integers(0, 10_000), JITTER)
def test_a_delay_has_a_floor_and_a_cap(k: int, jitter: float) -> None:
    assert backoff.delay(k, jitter) >= backoff.DELAY_S_FLOOR
    assert backoff.delay(k, jitter) < backoff.DELAY_S_FLOOR + backoff.RestartLimits().delay_s_max


def test_a_server_of_which_nothing_is_written_has_the_patience_that_there_is() -> None:
    assert patience(Server(name="git", source="x")) == backoff.RestartLimits()


@given(some.integers(0, 10_000), JITTER)
def test_more_failures_never_shorten_the_delay(k: int, jitter: float) -> None:
    assert backoff.delay(k, jitter) <= backoff.delay(k + 1, jitter)


def test_the_delay_doubles_until_the_cap() -> None:
    delays = [backoff.delay(k, 0.5) - backoff.DELAY_S_FLOOR for k in (0, 1, 2, 7, 8)]
    assert delays == pytest.approx([0.125, 0.25, 0.5, 15.0, 15.0])


@given(some.integers(0, 10_000), JITTER)
def test_an_open_circuit_is_tried_after_a_minute_at_first_and_a_quarter_hour_at_last(
    trips: int, jitter: float
) -> None:
    assert 0.8 * 60 <= backoff.half_open(trips, jitter) <= 1.2 * 900


def test_the_circuits_rate_doubles_with_every_trip() -> None:
    assert [backoff.half_open(trips, 0.5) for trips in (1, 2, 3, 4, 5, 6)] == [
        60, 120, 240, 480, 900, 900,
    ]  # fmt: skip


def test_a_minute_and_an_answer_make_a_server_stable() -> None:
    assert backoff.stable(100.0, proven=True, now=160.0)
    assert not backoff.stable(100.0, proven=True, now=159.0)
    assert not backoff.stable(100.0, proven=False, now=699.0)
    assert backoff.stable(100.0, proven=False, now=700.0)
    assert not backoff.stable(None, proven=True, now=700.0)


def test_a_tally_forgets_what_left_its_window() -> None:
    assert backoff.tally((0.0, 50.0, 119.0), 120.0, 120.0, 9) == (50.0, 119.0, 120.0)
    assert backoff.tally((50.0, 119.0), 120.0, 120.0, 2) == (119.0, 120.0)


def test_the_first_crash_of_our_own_costs_no_time_and_the_sixth_in_a_minute_is_the_end() -> None:
    crashes: tuple[float, ...] = ()
    delays: list[float | None] = []
    for second in range(backoff.CRASHES_MAX + 1):
        crashes, wait = backoff.count_crash(crashes, 0, float(second), 0.5)
        delays.append(wait)
    assert delays[0] == 0.0
    assert all(wait is not None and wait > 0 for wait in delays[1:-1])
    assert delays[-1] is None
    assert backoff.count_crash(crashes, 0, 120.0, 0.5) == ((120.0,), 0.0)


def test_those_that_hang_at_their_start_are_counted_however_long_that_takes() -> None:
    crashes: tuple[float, ...] = ()
    delays: list[float | None] = []
    for unready in range(1, backoff.CRASHES_MAX + 2):
        crashes, wait = backoff.count_crash(crashes, unready, unready * 100.0, 0.5)
        delays.append(wait)
    assert delays[0] == 0.0
    assert delays[1:-1] == [backoff.delay(k, 0.5) for k in range(2, backoff.CRASHES_MAX + 1)]
    assert delays[-1] is None
