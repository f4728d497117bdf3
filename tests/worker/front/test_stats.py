"""The counters of a front: cumulative, and bounded whatever servers invent."""

from metamcp_worker.front.stats import ERROR_TYPES_MAX, OTHER, Stats
from metamcp_worker.messages import BUCKETS_S


def test_a_call_falls_into_the_bucket_of_its_time() -> None:
    stats = Stats()
    for seconds in (0.0, 0.0005, 0.0006, 299.0, 301.0):
        stats.observe("git", "tools/call", seconds, "")
    (one,) = stats.calls()
    assert one.count == 5
    assert one.seconds == 600.0011
    assert len(one.buckets) == len(BUCKETS_S) + 1
    assert [one.buckets[at] for at in (0, 1, -2, -1)] == [2, 1, 1, 1]


def test_error_types_and_reasons_cannot_grow_without_end() -> None:
    stats = Stats()
    for code in range(3 * ERROR_TYPES_MAX):
        stats.observe("git", "tools/call", 0.1, str(code))
        stats.refused(f"reason {code}")
    (one,) = stats.calls()
    assert len(one.errors) == ERROR_TYPES_MAX + 1
    assert one.errors[OTHER] == 2 * ERROR_TYPES_MAX
    assert sum(stats.refusals.values()) == 3 * ERROR_TYPES_MAX


def test_calls_that_were_sent_once_more_are_counted_by_outcome() -> None:
    stats = Stats()
    for outcome in ("answered", "failed", "answered"):
        stats.retried("git", "tools/call", outcome)
    stats.observe("git", "tools/call", 0.1, "")
    (one,) = stats.calls()
    assert (one.count, one.retries) == (1, {"answered": 2, "failed": 1})


def test_late_replies_are_counted_by_server() -> None:
    stats = Stats()
    stats.late("git")
    stats.late("git")
    assert stats.late_replies == {"git": 2}
