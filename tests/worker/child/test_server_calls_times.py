"""How long a server takes, and which of it is the worker's own."""

import pytest

from metamcp_worker.child.server_calls import OTHER, SERIES_MAX, TIMED_MAX, Timing, error_type
from metamcp_worker.ipc import figures
from metamcp_worker.ipc.figures import BUCKETS_S, WorkerCallTimes


def ends(timing: Timing) -> dict[tuple[str, str], int]:
    return {(one.method, one.error_type): sum(one.buckets) for one in timing.stats()}


def told(timing: Timing) -> bool:
    """Is there anything new?"""
    return timing.news


@pytest.mark.promise("M85")
def test_an_answer_is_timed_by_method_and_error() -> None:
    timing = Timing()
    assert timing.stats() == ()
    timing.count_call("tools/call", 0.0006)
    timing.count_call("tools/call", 400.0)
    timing.count_call("tools/call", 0.1, error_type(b'{"code":-32603,"message":"no"}'))
    timing.count_call("tools/call", 60.0, "-10002")
    assert told(timing)
    assert ends(timing) == {
        ("tools/call", ""): 2, ("tools/call", "-32603"): 1, ("tools/call", "-10002"): 1,
    }  # fmt: skip
    assert not told(timing)
    one = timing.stats()[0]
    assert (one.seconds, len(one.buckets)) == (400.0006, len(BUCKETS_S) + 1)
    assert [one.buckets[1], one.buckets[-1]] == [1, 1]


@pytest.mark.parametrize("code", [b'"text"', b"1e9", b"12345678901234567890", b"{}", b"1.5"])
def test_what_is_no_code_is_another(code: bytes) -> None:
    timing = Timing()
    timing.count_call("ping", 0.1, error_type(b'{"code":%b}' % code))
    assert ends(timing) == {("ping", OTHER): 1}


def test_a_server_cannot_make_series_without_end() -> None:
    timing = Timing()
    for code in range(10 * SERIES_MAX):
        timing.count_call("tools/call", 0.1, error_type(b'{"code":%d}' % code))
        timing.count_call(f"x/{code}", 0.1)
    found = ends(timing)
    assert len(found) <= SERIES_MAX + 2
    assert sum(found.values()) == 20 * SERIES_MAX


def test_the_workers_own_time_is_without_the_servers() -> None:
    timing = Timing()
    timing.on_sent(3, 31, came=10.0, now=10.25)
    notice = timing.take_times(3, 31, heard=12.0, now=12.5)
    assert notice.method == figures.NOTICE
    assert figures.unpack(notice.body) == WorkerCallTimes(31, 2.5, 0.75)


def test_calls_that_never_end_are_forgotten_in_time() -> None:
    timing = Timing()
    for call in range(3 * TIMED_MAX):
        timing.on_sent(0, call, came=1.0, now=1.0)
    timed = figures.unpack(timing.take_times(0, 0, heard=2.0, now=2.0).body)
    assert timed == WorkerCallTimes(0, 0.0, 0.0)
    last = figures.unpack(timing.take_times(0, 3 * TIMED_MAX - 1, heard=2.0, now=2.0).body)
    assert last is not None
    assert last.total_s == 1.0


def test_what_a_server_writes_is_no_notice_of_the_worker() -> None:
    assert figures.unpack(b"") is None
    assert figures.unpack(b'{"a":1}') is None
    forged = figures.unpack(b'{"a":123456789012345678}')
    assert forged is None or forged.id > 2**62, "no call has such a number"
