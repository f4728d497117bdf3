import tracemalloc

import pytest

from metamcp_supervisor.telemetry.logs import (
    BLOCK_LINES,
    LINE_BYTES_EXTRA,
    LINE_CHARS_MAX,
    RING_BYTES_MAX,
    ServerLogs,
)
from metamcp_supervisor.verbs import LogLine


def nothing() -> None:
    pass


def texts(lines: list[LogLine]) -> list[str]:
    return [line.text for line in lines]


def test_the_tail_is_the_newest_lines_in_order() -> None:
    logs = ServerLogs(lambda: 7.0)
    logs.add("git", "stderr", ["a", "b", "c"])
    assert texts(logs.tail("git", 2)) == ["b", "c"]
    assert texts(logs.tail("git", 99)) == ["a", "b", "c"]
    assert logs.tail("git", 0) == []
    assert logs.tail("git", 1)[0] == LogLine(
        seq=3, time=7.0, server="git", stream="stderr", text="c"
    )


def test_servers_do_not_see_each_others_lines() -> None:
    logs = ServerLogs(lambda: 0.0)
    logs.add("git", "stderr", ["secret of git"])
    assert logs.tail("fs", 10) == []


def test_a_server_that_writes_without_end_keeps_its_last_megabyte() -> None:
    logs = ServerLogs(lambda: 0.0)
    for number in range(3000):
        logs.add("git", "stderr", [f"{number:04}" + "x" * 996])
    kept = logs.tail("git", 10_000)
    assert len(kept) == RING_BYTES_MAX // (1000 + LINE_BYTES_EXTRA)
    assert kept[-1].text.startswith("2999")


@pytest.mark.parametrize("count", [BLOCK_LINES - 1, BLOCK_LINES, 10 * BLOCK_LINES + 7, 9000])
def test_all_that_is_kept_is_read_as_it_was_written(count: int) -> None:
    clock = iter(range(count))
    logs = ServerLogs(lambda: next(clock) + 0.25)
    for number in range(count):
        logs.add("git", ("stderr", "stdout")[number % 2], [f"é\n{number}"])
    kept = logs.tail("git", count)
    assert len(kept) == count or len(kept) > 4000
    for line, number in zip(reversed(kept), reversed(range(count)), strict=False):
        assert line == LogLine(
            seq=number + 1, time=number + 0.25, server="git",
            stream=("stderr", "stdout")[number % 2], text=f"é\n{number}",
        )  # fmt: skip
    assert logs.newest(10**9) == kept
    assert logs.tail("git", 3) == kept[-3:]


def test_many_short_lines_take_much_less_than_they_may() -> None:
    logs = ServerLogs(lambda: 0.125)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(5200):
            logs.add("git", "stderr", [f"line {number}"])
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < RING_BYTES_MAX / 2


def test_empty_and_wide_lines_are_bounded_too() -> None:
    logs = ServerLogs(lambda: 0.0)
    for _ in range(10):
        logs.add("git", "stderr", [""] * 1000)
        logs.add("fs", "stderr", ["\U0001f600" * 10_000] * 10)
    assert len(logs.tail("git", 10_000)) == RING_BYTES_MAX // LINE_BYTES_EXTRA
    assert len(logs.tail("fs", 10_000)) == RING_BYTES_MAX // (40_000 + LINE_BYTES_EXTRA)


def test_a_giant_line_is_cut_and_says_so() -> None:
    logs = ServerLogs(lambda: 0.0)
    logs.add("git", "stdout", ["y" * (LINE_CHARS_MAX + 5)])
    (line,) = logs.tail("git", 1)
    assert line.text.endswith("… [5 more characters]")
    assert line.stream == "stdout"


def test_lost_lines_leave_a_note_in_their_place() -> None:
    logs = ServerLogs(lambda: 0.0)
    logs.add("git", "stderr", ["next"], dropped=12)
    assert texts(logs.tail("git", 2)) == ["[12 lines suppressed: too many per second]", "next"]


def test_a_follower_gets_the_lines_of_its_server_only() -> None:
    logs = ServerLogs(lambda: 0.0)
    follower = logs.follow("git", nothing)
    logs.add("fs", "stderr", ["other"])
    logs.add("git", "stderr", ["mine"])
    assert texts(follower.take()) == ["mine"]
    logs.unfollow("git", follower)
    logs.add("git", "stderr", ["late"])
    assert follower.take() == []


def test_a_server_that_comes_back_after_a_reload_starts_with_an_empty_log() -> None:
    logs = ServerLogs(lambda: 0.0)
    logs.add("git", "stderr", ["old"])
    logs.forget("git")
    logs.add("git", "stderr", ["new"])
    assert texts(logs.tail("git", 10)) == ["new"]


def test_the_sink_sees_every_line_at_once() -> None:
    seen: list[LogLine] = []
    logs = ServerLogs(lambda: 0.0, sink=seen.append)
    logs.add("git", "stderr", ["a", "b"])
    assert texts(seen) == ["a", "b"]
