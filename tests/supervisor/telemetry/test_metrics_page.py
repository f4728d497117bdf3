"""The page is, byte for byte, what the library of Prometheus would write, and has a limit."""

import gc
import random
import sys
import time
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics

from metamcp_supervisor.telemetry.health import Readings
from metamcp_supervisor.telemetry.metric_names import FAMILIES, OTHER
from metamcp_supervisor.telemetry.metrics import Metrics
from metamcp_supervisor.telemetry.page_rows import SERIES_MAX, Caps, Table, size
from metamcp_supervisor.telemetry.text_format import (
    ROWS,
    Columns,
    MetricsPages,
    Row,
    wants_openmetrics,
)
from metamcp_worker.ipc.messages import (
    BUCKETS_S,
    AnswerStats,
    CallStats,
    Durations,
    Figures,
    FrontStats,
    ToolStats,
)
from tests.examples import examples
from tests.supervisor.small_gateway import SmallGateway, server

IN_COLUMNS = frozenset({"metamcp_tool_calls_total", "metamcp_tool_errors_total"})
PAGES = MetricsPages()
"""What one page leaves to the next changes nothing."""
SERVED = "mcp_server_operation_duration_seconds"
SUMMARY = FrontStats(connections=1, streams=0, sessions={}, refused={})

values = st.floats(min_value=0.0, allow_nan=False, allow_infinity=False) | st.integers(0, 10**15)


def _measured(seconds: float, counts: list[int]) -> Durations:
    return Durations(float(seconds), tuple(counts))


@st.composite
def rows(draw: st.DrawFn, name: str) -> list[Row]:
    family = FAMILIES[name]
    counts = st.lists(
        st.integers(0, 10**9),
        min_size=len(family.bounds_s) + 1,
        max_size=len(family.bounds_s) + 1,
    )
    measured = st.builds(_measured, values, counts)
    labels = st.tuples(*(st.text(max_size=8) for _ in family.labels))
    value = measured if family.bounds_s else values
    return list(draw(st.dictionaries(labels, value, max_size=4)).items())


@st.composite
def columns(draw: st.DrawFn) -> Columns:
    counted = st.dictionaries(st.text(max_size=8), st.integers(0, 2 * 10**6), max_size=4)
    found = draw(st.dictionaries(st.text(max_size=8), counted, max_size=4))
    return Columns({key: (tuple(one), tuple(one.values())) for key, one in found.items()})


@st.composite
def tables(draw: st.DrawFn) -> Table:
    names = draw(st.lists(st.sampled_from(sorted(FAMILIES)), unique=True, max_size=6))
    inside = st.booleans()
    return {
        name: draw(columns()) if name in IN_COLUMNS and draw(inside) else draw(rows(name))
        for name in names
    }


class Library:
    """The same rows, for the library."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def collect(self) -> list[Metric]:
        return [self._family(name, rows) for name, rows in self._table.items()]

    def _family(self, name: str, rows: Iterable[Row]) -> Metric:
        row = FAMILIES[name]
        if row.kind == "histogram":
            histogram = HistogramMetricFamily(name, row.help, labels=row.labels)
            for labels, value in rows:
                assert isinstance(value, Durations)
                below, buckets = 0, list[tuple[str, float]]()
                bounds = [*map(repr, row.bounds_s), "+Inf"]
                for bound, n in zip(bounds, value.buckets, strict=True):
                    below += n
                    buckets.append((bound, float(below)))
                histogram.add_metric(labels, buckets, value.seconds)
            return histogram
        kind = CounterMetricFamily if row.kind == "counter" else GaugeMetricFamily
        family = kind(name, row.help, labels=row.labels)
        for labels, value in rows:
            assert not isinstance(value, Durations)
            family.add_metric(labels, float(value))
        return family


@pytest.mark.promise("M85")
@settings(max_examples=examples(50), deadline=None)
@given(tables())
def test_the_page_is_byte_for_byte_what_the_library_writes(table: Table) -> None:
    registry = CollectorRegistry()
    registry.register(Library(table))
    assert PAGES.page(table) == generate_latest(registry)
    other = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call] # of the library
    assert PAGES.page(table, openmetrics=True) == other


def test_rows_that_come_go_and_take_places_of_others_have_their_own_numbers() -> None:
    name = "metamcp_tool_calls_total"
    tools = [f"t{number}" for number in range(2 * ROWS + 5)]
    pages = MetricsPages()
    for shown in (tools, tools[3:], tools, [*tools[:ROWS], "100%", *tools[ROWS:]], tools[:1]):
        rows: list[Row] = [(("s", tool), number) for number, tool in enumerate(shown)]
        registry = CollectorRegistry()
        registry.register(Library({name: rows}))
        assert pages.page({name: rows}) == generate_latest(registry)


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4", False),
        ("application/openmetrics-text", True),
        ("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2", True),
        ('application/openmetrics-text; version="1.0.0", */*', True),
        ("application/openmetrics-text;version=0.0.1", False),
        ("application/vnd.google.protobuf;q=0.7,application/openmetrics-text", True),
        ("text/plain;q=0.5,application/openmetrics-text;q=0.4", False),
    ],
)
def test_a_scraper_gets_the_format_that_it_names_first(accept: str, wanted: bool) -> None:
    assert wants_openmetrics(accept) is wanted


def counted(servers: int, tools: int, *, per_tool: bool, dice: random.Random) -> Figures:
    """Calls of so many tools of each server, with more revisions and ends than there should be."""
    calls: list[CallStats] = []
    for number in range(servers):
        for tool in range(tools if per_tool else 1):
            for error in ("", "tool_error"):
                buckets = tuple(dice.randrange(9) for _ in range(len(BUCKETS_S) + 1))
                name = f"tool{tool}" if per_tool else ""
                calls.append(CallStats(
                    f"s{number}", "tools/call", sum(buckets), 1.0, buckets, error, "2026-07-28",
                    name,
                ))  # fmt: skip
    return Figures(
        calls=tuple(calls),
        tools=tuple(
            ToolStats(
                f"s{n}", tuple(f"tool{tool}" for tool in range(tools)), (5,) * tools, (1,) * tools
            )
            for n in range(servers)
        ),
    )


def total(table: Table, name: str, at: int = 0) -> dict[str, float]:
    """What the rows of a family come to, by one of its labels."""
    found: dict[str, float] = {}
    for labels, value in table[name]:
        number = sum(value.buckets) if isinstance(value, Durations) else value
        found[labels[at]] = found.get(labels[at], 0) + number
    return found


@pytest.mark.promise("M85")
def test_a_page_never_has_more_series_than_it_may_and_loses_no_call() -> None:
    figures = counted(20, 100, per_tool=True, dice=random.Random(1))
    status = SmallGateway(*(server(f"s{n}") for n in range(20))).status()
    metrics = Metrics("1")
    metrics.front_stats(0, figures, SUMMARY)
    table = metrics.table(status, Readings())
    assert size(table) <= SERIES_MAX
    free = Caps(10**9).hold({name: list(rows) for name, rows in table.items()})
    assert total(free, SERVED) == {
        name: sum(sum(one.buckets) for one in figures.calls if one.server == name)
        for name in {one.server for one in figures.calls}
    }
    dropped = next(iter(table["metamcp_metric_series_dropped_total"]))[1]
    assert isinstance(dropped, int)
    assert dropped > 0
    assert len(table["metamcp_tool_calls_total"]) == 2000, "single tools still have their counts"
    again = metrics.table(status, Readings())
    assert again == table, "nothing is counted twice"


def test_a_server_that_was_folded_stays_so_until_it_is_forgotten() -> None:
    def table(tools: int) -> Table:
        return {"metamcp_tool_calls_total": [(("git", f"t{n}"), 1) for n in range(tools)]}

    caps = Caps(10)
    for tools in (11, 5):
        assert caps.hold(table(tools)) == {"metamcp_tool_calls_total": [(("git", OTHER), tools)]}
        assert caps.dropped == 10
    caps.forget("git")
    assert caps.hold(table(5)) == table(5)


def test_labels_are_given_up_in_order_where_they_cost_most() -> None:
    def times(server: str, method: str, error: str, tool: str) -> Row:
        return (server, method, "v", error, tool), Durations(1.0, (1,) * (len(BUCKETS_S) + 1))

    def table() -> Table:
        return {
            SERVED: [
                *(times("big", "tools/call", "", f"t{n}") for n in range(10)),
                times("big", "ping", "-1", ""),
                *(times("small", "tools/call", "", f"t{n}") for n in range(3)),
            ],
            "metamcp_tool_calls_total": [(("big", f"t{n}"), 1) for n in range(10)],
            "metamcp_up": [((), 1)],
        }

    def labels(found: Table, server: str) -> set[tuple[str, ...]]:
        return {key[1:] for key, _ in found[SERVED] if key[0] == server}

    whole = size(table())
    first = Caps(whole - 1).hold(table())
    assert labels(first, "big") == {("tools/call", "v", "", OTHER), ("ping", "v", "-1", "")}
    assert len(labels(first, "small")) == 3, "the one with the most series is enough"
    assert len(first["metamcp_tool_calls_total"]) == 10
    third = Caps(3 * 21 + 2).hold(table())
    assert third["metamcp_tool_calls_total"] == [(("big", OTHER), 10)]
    assert labels(third, "big") == {("tools/call", "v", "", OTHER), ("ping", "v", "-1", "")}
    last = Caps(2 * 21).hold(table())
    assert size(last) <= 2 * 21
    assert Caps(0).hold(table()) == {name: [] for name in table()}


@pytest.mark.promise("M85")
def test_a_client_that_invents_names_adds_no_series() -> None:
    metrics, status = Metrics("1"), SmallGateway(server("git")).status()

    def report(invented: int) -> int:
        calls = tuple(
            CallStats("git", f"m{n}", 1, 0.1, (1,), str(n), f"v{n}", f"t{n}")
            for n in range(invented)
        )
        names = tuple(f"t{n}" for n in range(invented))
        tools = ToolStats("git", names, (1,) * invented, (0,) * invented)
        metrics.front_stats(0, Figures(calls=calls, tools=(tools,)), SUMMARY)
        return size(metrics.table(status, Readings()))

    assert report(5000) <= SERIES_MAX
    dropped = metrics.table(status, Readings())["metamcp_metric_series_dropped_total"]
    assert report(5000) == report(10_000)
    assert metrics.table(status, Readings())["metamcp_metric_series_dropped_total"] == dropped


@pytest.mark.promise("M85")
def test_a_page_of_twenty_servers_and_two_thousand_tools_is_quick() -> None:
    figures = counted(20, 100, per_tool=False, dice=random.Random(1))
    status = SmallGateway(*(server(f"s{n}") for n in range(20))).status()
    metrics = Metrics("1")
    metrics.front_stats(0, figures, SUMMARY)
    metrics.render(status)
    spent: list[float] = []
    page = b""
    for _ in range(5):
        metrics.front_stats(0, figures, SUMMARY)  # so that sums are made anew
        begun = time.thread_time()
        page = metrics.render(status)
        spent.append(time.thread_time() - begun)
    assert page.count(b"\n") > 4000
    assert min(spent) < 0.05, "5 ms on an idle machine; ten times as much is something else"


@pytest.mark.promise("M85")
def test_an_upgrade_counts_no_series_twice_and_unfolds_nothing() -> None:
    status = SmallGateway(*(server(f"s{n}") for n in range(20))).status()
    before, after = Metrics("1"), Metrics("1")
    before.front_stats(0, counted(20, 100, per_tool=True, dice=random.Random(1)), SUMMARY)
    table = before.table(status, Readings())
    after.go_on(before.handed())
    assert after.table(status, Readings()) == table


@pytest.mark.promise("M85")
def test_a_page_of_very_many_servers_is_bounded_in_time_too() -> None:
    """Two hundred servers, single tools of which are wanted: five times what a page may have."""
    status = SmallGateway(*(server(f"s{n}") for n in range(200))).status()
    metrics = Metrics("1")
    metrics.front_stats(0, counted(200, 12, per_tool=True, dice=random.Random(1)), SUMMARY)
    methods = ("tools/call", "tools/list", "ping", "prompts/list", "prompts/get")
    times = (1,) * (len(BUCKETS_S) + 1)
    for number in range(200):
        stats = tuple(AnswerStats(method, "", 1.0, times) for method in methods)
        metrics.answers(f"s{number}", 1, "pipe", stats)
    spent: list[float] = []
    for _ in range(3):
        begun = time.thread_time()
        assert size(metrics.table(status, Readings())) <= SERIES_MAX
        spent.append(time.thread_time() - begun)
    assert min(spent) < 0.2, "20 ms on an idle machine; ten times as much is something else"


def test_a_page_leaves_nothing_behind_that_the_next_one_adds_to() -> None:
    found = Durations(1.0, tuple(range(len(BUCKETS_S) + 1)))
    table: dict[str, list[Row]] = {
        SERVED: [(("git", "tools/call", "v", "", f"t{n}"), found) for n in range(300)]
    }
    pages = MetricsPages()
    page = pages.page(table)
    gc.collect()  # what Python keeps for the next tuple, too
    before = sys.getallocatedblocks()
    assert pages.page(table) == page
    assert sys.getallocatedblocks() - before < 200
