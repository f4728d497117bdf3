"""The counters of a front: cumulative, and bounded whatever servers invent."""

import pytest

from metamcp_worker.front_calls.stats import ERROR_TYPES_MAX, OTHER, TOOLS_MAX, Stats
from metamcp_worker.ipc.messages import BUCKETS_S, ToolStats


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
    stats.observe("git", "tools/call", 0.1, "")
    for code in range(3 * ERROR_TYPES_MAX):
        stats.observe("git", "tools/call", 0.1, str(code))
        stats.count_refusal(f"reason {code}")
    found = {one.error_type: one.count for one in stats.calls()}
    assert len(found) == ERROR_TYPES_MAX + 2
    assert (found[""], found["0"], found[OTHER]) == (1, 1, 2 * ERROR_TYPES_MAX)
    assert sum(stats.refusals.values()) == 3 * ERROR_TYPES_MAX


def test_calls_of_another_revision_or_with_another_end_are_another_series() -> None:
    stats = Stats()
    for version, error in (("2025-11-25", ""), ("2026-07-28", ""), ("2026-07-28", "tool_error")):
        stats.observe("git", "tools/call", 0.1, error, version, "status")
    found = [(one.version, one.error_type, one.tool) for one in stats.calls()]
    assert found == [
        ("2025-11-25", "", ""), ("2026-07-28", "", ""), ("2026-07-28", "tool_error", ""),
    ]  # fmt: skip
    assert stats.tools() == (ToolStats("git", ("status",), (3,), (1,)),)


@pytest.mark.promise("M85")
def test_a_tool_counts_under_its_servers_name_for_it_however_that_is_spelled() -> None:
    stats = Stats()
    for tool in ("status", b'"status"', b'"st\\u0061tus"'):
        stats.observe("git", "tools/call", 0.1, "", "", tool)
    stats.observe("git", "resources/read", 0.1, "")
    assert stats.tools() == (ToolStats("git", ("status",), (3,), (0,)),)


@pytest.mark.promise("M85")
@pytest.mark.parametrize("per_tool", [False, True])
def test_no_server_has_more_than_so_many_tools_with_figures(per_tool: bool) -> None:
    stats = Stats()
    stats.per_tool = per_tool
    for number in range(2 * TOOLS_MAX):
        stats.observe("git", "tools/call", 0.1, "", "", f"tool{number}")
    stats.observe("fs", "tools/call", 0.1, "", "", "read")
    tools = {
        (one.server, tool): count
        for one in stats.tools()
        for tool, count in zip(one.tools, one.counts, strict=True)
    }
    assert len(tools) == TOOLS_MAX + 2
    assert (tools["git", OTHER], tools["fs", "read"]) == (TOOLS_MAX, 1)
    named = {one.tool: one.count for one in stats.calls() if one.server == "git"}
    if per_tool:
        assert len(named) == TOOLS_MAX + 1
        assert (named["tool0"], named[OTHER]) == (1, TOOLS_MAX)
    else:
        assert named == {"": 2 * TOOLS_MAX}


def test_calls_that_were_sent_once_more_are_counted_by_outcome() -> None:
    stats = Stats()
    for outcome in ("answered", "failed", "answered"):
        stats.count_retry("git", outcome)
    assert stats.retries == {"git": {"answered": 2, "failed": 1}}


def test_late_replies_are_counted_by_server() -> None:
    stats = Stats()
    stats.count_late_reply("git")
    stats.count_late_reply("git")
    assert stats.late_replies == {"git": 2}


@pytest.mark.promise("M98")
def test_a_code_of_thousands_of_digits_becomes_no_label() -> None:
    stats = Stats()
    for code in ("9" * 4000, "8" * 4000, "-2147483648"):
        stats.observe("git", "tools/call", 0.1, code)
    assert {one.error_type: one.count for one in stats.calls()} == {OTHER: 2, "-2147483648": 1}
