"""Verdicts about heartbeats, with values for the clock."""

import math

import pytest

from metamcp_supervisor.processes import workers
from metamcp_supervisor.processes.workers import FrontPulse, PulseVerdict


@pytest.mark.parametrize(
    ("silent_s", "verdict"),
    [
        (0.0, PulseVerdict.FINE),
        (2.9, PulseVerdict.FINE),
        (3.0, PulseVerdict.LATE),
        (5.9, PulseVerdict.LATE),
        (6.0, PulseVerdict.HUNG),
        (7.0, PulseVerdict.DEAD),
    ],
)
def test_a_silent_worker_is_late_then_hung_then_dead(
    silent_s: float, verdict: PulseVerdict
) -> None:
    assert workers.verdict(FrontPulse(100.0), 100.0 + silent_s) is verdict


def test_a_stopped_worker_is_late_at_once_and_dead_instead_of_hung() -> None:
    assert workers.verdict(FrontPulse(100.0, halted=True), 100.0) is PulseVerdict.LATE
    assert workers.verdict(FrontPulse(100.0, halted=True), 106.0) is PulseVerdict.DEAD


@pytest.mark.parametrize(
    ("now", "due"), [(100.0, 103.0), (103.0, 106.0), (106.5, 107.0), (107.0, math.inf)]
)
def test_the_next_verdict_is_due_at_a_time_known_before(now: float, due: float) -> None:
    assert workers.due(FrontPulse(100.0), now) == due


def test_a_beat_makes_it_fine_again() -> None:
    assert workers.verdict(workers.beat(FrontPulse(0.0), 103.0), 104.0) is PulseVerdict.FINE


def test_a_pause_of_the_supervisor_is_nobodys_fault() -> None:
    assert workers.verdict(workers.forgive(FrontPulse(100.0), 60.0), 161.0) is PulseVerdict.FINE
