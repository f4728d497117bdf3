"""A soak of load is as good as what it compares: windows and bars with values; a short one."""

import pytest

from benchmarks.soak_load import KINDS, LoadSoak
from benchmarks.soak_load_drift import DRIFT_MAX, drift
from tests.faults import soak_report
from tests.faults.soak import Wish, soak

SECONDS = 600


def answers(first_ms: float, last_ms: float) -> list[tuple[float, float]]:
    """A hundred in each second, one of them slow; from the middle on in the later time."""
    return [
        (second + number / 100, (first_ms if second < SECONDS / 2 else last_ms) / 1000 * slow)
        for second in range(SECONDS)
        for number in range(100)
        for slow in (10 if number == 99 else 1,)
    ]


STEADY = answers(0.1, 0.1)


def test_the_first_minute_is_compared_with_the_last() -> None:
    found = drift(answers(1.0, 1.0), STEADY, 0.0, SECONDS)
    assert (found.window_s, found.first.calls, found.last.calls) == (60.0, 6000, 6000)
    assert found.first.ms == pytest.approx({"p50": 1.0, "p99": 10.0})
    assert found.problems() == []


def test_a_short_run_has_shorter_windows_that_do_not_touch() -> None:
    found = drift(answers(1.0, 1.0), STEADY, 0.0, 30.0)
    assert (found.window_s, found.first.calls) == (10.0, 1000)


def test_latency_that_grew_is_told_with_both_figures() -> None:
    assert drift(answers(1.0, DRIFT_MAX - 0.01), STEADY, 0.0, SECONDS).problems() == []
    told = drift(answers(1.0, 1.2), STEADY, 0.0, SECONDS).problems()
    assert [sentence.split()[0] for sentence in told] == ["p50", "p99"]
    assert "1.20 times that of the first, and 1.00 times without a gateway" in told[0]


def test_what_the_machine_drifts_by_is_not_the_gateways() -> None:
    slower = answers(0.1, 0.15)
    assert drift(answers(1.0, 1.6), slower, 0.0, SECONDS).problems() == []
    assert len(drift(answers(1.0, 1.7), slower, 0.0, SECONDS).problems()) == 2
    faster = answers(0.15, 0.1)
    assert drift(answers(1.0, 1.05), faster, 0.0, SECONDS).problems() == []


@pytest.mark.live
@pytest.mark.timeout(400)
@pytest.mark.promise("M15")
def test_a_short_mixed_load_loses_nothing_and_leaves_nothing() -> None:
    wish = Wish(seconds=9.0, seed=5, servers=6, clients=24, warm_s=5.0, think_s=0.3)
    outcome = soak(wish, kind=LoadSoak)
    assert not outcome.problems, soak_report.words(outcome)
    assert {kind for kind, end in outcome.ends if end == "right"} >= {
        *(kind.kind for kind in KINDS if kind.kind != "leaver"), "listen", "stdio", "straight",
    }  # fmt: skip
    assert outcome.ends["rude", "left"] > 0
