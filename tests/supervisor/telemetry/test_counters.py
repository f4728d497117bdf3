"""What fronts counted of single tools is added up, whichever tools each of them has seen."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from metamcp_supervisor.telemetry.counters import TOOLS_MAX, FrontCounters
from metamcp_supervisor.telemetry.metric_names import OTHER
from metamcp_worker.ipc.messages import Figures, FrontStats, ToolStats

SUMMARY = FrontStats(connections=0, streams=0, sessions={}, refused={})
Counts = dict[str, tuple[int, int]]
counts = st.dictionaries(
    st.sampled_from(["a", "b", "c", "d", OTHER]),
    st.tuples(st.integers(0, 9), st.integers(0, 9)),
    max_size=5,
)


def told(server: str, found: Counts) -> ToolStats:
    called, failed = (tuple(each[at] for each in found.values()) for at in (0, 1))
    return ToolStats(server, tuple(found), called, failed)


def summed(fronts: FrontCounters, server: str) -> tuple[Counter[str], Counter[str]]:
    one = fronts.sums().tools.get(server, ToolStats(server, (), (), ()))
    assert len(set(one.tools)) == len(one.tools)
    called, failed = (
        Counter(dict(zip(one.tools, each, strict=True))) for each in (one.counts, one.errors)
    )
    return called, failed


@given(st.lists(st.tuples(counts, st.booleans()), max_size=4))
def test_calls_of_a_tool_are_those_of_all_fronts_also_of_those_that_are_gone(
    reports: list[tuple[Counts, bool]],
) -> None:
    fronts = FrontCounters()
    called, failed = Counter[str](), Counter[str]()
    for front, (found, stays) in enumerate(reports):
        fronts.report(front, Figures(tools=(told("s", found),)), SUMMARY)
        if not stays:
            fronts.on_front_gone(front)
        for tool, (calls, errors) in found.items():
            called[tool] += calls
            failed[tool] += errors
    assert summed(fronts, "s") == (called, failed)
    again = FrontCounters()
    again.go_on(fronts.take_snapshot())
    for number, figures, summary in fronts.live():
        again.report(number, figures, summary)
    assert summed(again, "s") == (called, failed)


def test_what_is_one_tool_too_many_counts_with_all_others_and_stays_so() -> None:
    fronts = FrontCounters()
    many: Counts = {f"t{number}": (1, 0) for number in range(TOOLS_MAX + 50)}
    late: Counts = {"late": (7, 3), "t0": (1, 1)}
    for front, found in enumerate((many, late)):
        fronts.report(front, Figures(tools=(told("s", found), told("other", found))), SUMMARY)
    for server in ("s", "other"):
        called, failed = summed(fronts, server)
        assert len(called) == TOOLS_MAX + 1
        assert (called[OTHER], called["t0"], called["t1"]) == (57, 2, 1)
        assert (failed[OTHER], failed["t0"]) == (3, 1)
    fronts.on_front_gone(0)
    assert summed(fronts, "s")[0][OTHER] == 57
    fronts.forget("s")
    assert summed(fronts, "s")[0] == Counter({"late": 7, "t0": 1})
