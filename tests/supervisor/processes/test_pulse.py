"""Verdicts about heartbeats, with values for the clock."""

import pytest

from metamcp_supervisor.processes import pulse
from metamcp_supervisor.processes.pulse import Pulse, Verdict


@pytest.mark.parametrize(
    ("silent_s", "verdict"),
    [
        (0.0, Verdict.FINE),
        (2.9, Verdict.FINE),
        (3.0, Verdict.LATE),
        (5.9, Verdict.LATE),
        (6.0, Verdict.HUNG),
        (7.0, Verdict.DEAD),
    ],
)
def test_a_silent_worker_is_late_then_hung_then_dead(silent_s: float, verdict: Verdict) -> None:
    assert pulse.verdict(Pulse(100.0), 100.0 + silent_s) is verdict


def test_a_stopped_worker_is_late_at_once_and_dead_instead_of_hung() -> None:
    assert pulse.verdict(Pulse(100.0, halted=True), 100.0) is Verdict.LATE
    assert pulse.verdict(Pulse(100.0, halted=True), 106.0) is Verdict.DEAD


def test_a_beat_makes_it_fine_again() -> None:
    assert pulse.verdict(pulse.beat(Pulse(0.0), 103.0), 104.0) is Verdict.FINE


def test_a_pause_of_the_supervisor_is_nobodys_fault() -> None:
    assert pulse.verdict(pulse.forgive(Pulse(100.0), 60.0), 161.0) is Verdict.FINE
