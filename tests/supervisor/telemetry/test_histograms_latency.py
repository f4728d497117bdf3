"""How long calls took: shares out of histograms, and what came lately."""

import pytest

from metamcp_supervisor.telemetry.histograms import (
    LATELY_S,
    SLICE_S,
    RecentCounts,
    between,
    quantile,
)
from metamcp_supervisor.telemetry.metrics import Metrics
from metamcp_worker.front_calls.stats import Stats
from metamcp_worker.ipc.messages import BUCKETS_S, CallStats, Figures, FrontStats

BOUNDS = (0.1, 0.2, 1.0)


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ((0, 0, 0, 0), 0.95, None),
        ((10, 0, 0, 0), 0.5, 0.05),
        ((10, 0, 0, 0), 1.0, 0.1),
        ((0, 10, 0, 0), 0.5, 0.15),
        ((50, 40, 10, 0), 0.95, 0.6),
        ((50, 40, 10, 0), 0.5, 0.1),
        ((0, 0, 0, 3), 0.5, 1.0),
        ((1, 0, 0, 1), 0.95, 1.0),
        ((0, 0, 4, 0), 0.0, 0.2),
        ((), 0.5, None),
    ],
)
def test_the_time_of_a_share_lies_evenly_within_its_bucket(
    counts: tuple[int, ...], share: float, expected: float | None
) -> None:
    assert quantile(counts, BOUNDS, share) == pytest.approx(expected)


def test_no_share_took_longer_than_the_longest_call() -> None:
    assert quantile((0, 10, 0, 0), BOUNDS, 0.95, longest=0.11) == 0.11
    assert quantile((0, 10, 0, 0), BOUNDS, 0.5, longest=0.19) == pytest.approx(0.15)


def test_what_came_between_is_the_difference_unless_counting_began_anew() -> None:
    assert between((1, 2), (4, 2)) == (3, 0)
    assert between((5, 2), (4, 9)) == (4, 9)
    assert between((), (4, 9)) == (4, 9)


def test_lately_reaches_some_minutes_back_and_no_further() -> None:
    lately = RecentCounts()
    assert lately.of("git", (7,)) == (7,), "nothing is marked yet: since the start"
    for second in range(0, 1000, int(SLICE_S)):
        assert lately.due(second)
        lately.mark({"git": (second,)}, second)
        assert not lately.due(second + SLICE_S - 1)
    (came,) = lately.of("git", (990,))
    assert LATELY_S <= came <= LATELY_S + SLICE_S
    assert lately.of("new", (3,)) == (3,)


def counted(method: str, **buckets: int) -> CallStats:
    """`b3=7`: seven calls in the bucket with this number."""
    counts = [buckets.get(f"b{at}", 0) for at in range(len(BUCKETS_S) + 1)]
    return CallStats("git", method, sum(counts), 1.0, tuple(counts))


def test_no_latency_is_above_the_longest_call_that_a_front_saw() -> None:
    stats, metrics = Stats(), Metrics("1")
    for seconds in (0.06, 0.061, 0.055):
        stats.observe("git", "tools/call", seconds, "")
    summary = FrontStats(connections=0, streams=0, sessions={}, refused={})
    metrics.front_stats(0, Figures(calls=stats.calls()), summary)
    assert metrics.lately_s("git")[1] == 0.061
    assert metrics.longest_s() == {"git": 0.061}
    metrics.front_gone(0)
    assert metrics.lately_s("git")[1] == 0.061


def test_the_latest_calls_of_all_methods_and_fronts_count_together() -> None:
    metrics = Metrics("1")
    summary = FrontStats(connections=0, streams=0, sessions={}, refused={})
    assert metrics.lately_s("git") == (None, None)
    metrics.front_stats(0, Figures(calls=(counted("tools/call", b0=90),)), summary)
    metrics.remember(0.0)
    metrics.front_stats(
        0,
        Figures(
            calls=(
                counted("tools/call", b0=90, b9=19),
                counted("ping", b9=1),
            )
        ),
        summary,
    )
    metrics.front_stats(1, Figures(calls=(counted("tools/call", b2=20),)), summary)
    metrics.remember(1.0)  # too soon for another mark
    half, most = metrics.lately_s("git")
    assert half == pytest.approx(BUCKETS_S[2])
    assert most == pytest.approx(0.2 + 0.3 * 18 / 20)
    metrics.front_gone(0)
    assert metrics.lately_s("git") == (half, most), "what it counted stays"
    metrics.remember(LATELY_S + 1)
    metrics.remember(2 * LATELY_S + 2)
    assert metrics.lately_s("git") == (None, None), "long ago"
