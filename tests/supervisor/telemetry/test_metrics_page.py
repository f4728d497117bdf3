"""Which format a scraper gets, what a page is made of, and its limit."""

import random
import time

import pytest

from metamcp_supervisor.config.config import MetricsConfig
from metamcp_supervisor.telemetry import exposition
from metamcp_supervisor.telemetry.admin import wants_openmetrics
from metamcp_supervisor.telemetry.health import Readings
from metamcp_supervisor.telemetry.histograms import Exemplar
from metamcp_supervisor.telemetry.metric_names import OTHER
from metamcp_supervisor.telemetry.metrics import Metrics
from metamcp_supervisor.telemetry.page_rows import SERIES_MAX, Caps, Row, Table, size
from metamcp_worker.ipc.messages import (
    BUCKETS_S,
    AnswerStats,
    CallStats,
    Durations,
    Figures,
    FrontStats,
    ToolStats,
)
from tests.supervisor.scraped import gateway, value
from tests.supervisor.small_gateway import SmallGateway, server

SERVED = "mcp_server_operation_duration_seconds"
SUMMARY = FrontStats(connections=1, streams=0, sessions={}, refused={})


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


@pytest.mark.parametrize("openmetrics", [False, True])
def test_a_page_does_not_change_while_it_is_written(openmetrics: bool) -> None:
    metrics, status = Metrics("1"), SmallGateway(server("s0")).status()
    metrics.front_stats(0, counted(1, 2, per_tool=True, dice=random.Random(1)), SUMMARY)
    labels = ("s0", "tools/call", "2026-07-28", "", "tool0")
    metrics.spans.note([Exemplar(labels, 3, "a", 0.005, 1.0)])
    snapshot = metrics.snapshot(status, Readings())
    before = exposition.page(snapshot, as_openmetrics=openmetrics)
    metrics.front_stats(0, counted(1, 5, per_tool=True, dice=random.Random(2)), SUMMARY)
    metrics.spans.note([Exemplar(labels, 3, "b", 0.004, 2.0)])
    metrics.server_counts("s0", {"stray_stdout": 3})
    metrics.lag("front", 0.003)
    metrics.forget("s0")
    assert exposition.page(snapshot, as_openmetrics=openmetrics) == before


@pytest.mark.parametrize("openmetrics", [False, True])
def test_a_page_after_others_has_the_text_of_a_first_page(openmetrics: bool) -> None:
    metrics, status = Metrics("1"), gateway("s0", "s1", "s2")
    writer = exposition.PageWriter(as_openmetrics=openmetrics)
    dice = random.Random(3)
    labels = ("s0", "tools/call", "2026-07-28", "", "tool0")

    def nothing() -> None: ...

    def first_calls() -> None:
        metrics.front_stats(0, counted(2, 2, per_tool=True, dice=dice), SUMMARY)

    def more_tools() -> None:
        metrics.front_stats(0, counted(3, 3, per_tool=True, dice=dice), SUMMARY)

    def another_trace() -> None:
        metrics.spans.note([Exemplar(labels, 3, f"{dice.random()}", 0.005, 1.0)])

    def one_counter() -> None:
        metrics.server_counts("s1", {"stray_stdout": 3})

    def one_server_less() -> None:
        nonlocal status
        status = gateway("s2", "s1")
        metrics.forget("s0")

    for happens in (
        nothing, first_calls, nothing, more_tools, another_trace, another_trace, one_counter,
        one_server_less, nothing,
    ):  # fmt: skip
        happens()
        snapshot = metrics.snapshot(status, Readings(beat_ages_s={("s1", "worker"): dice.random()}))
        assert writer.page(snapshot) == exposition.page(snapshot, as_openmetrics=openmetrics)


def test_labels_may_have_any_characters() -> None:
    names = ('say "hi"', "back\\slash", "two\nlines", "100% {a,b}", "größer", "a\u2028b c")
    metrics, status = Metrics("1"), gateway(*names)
    for name in names:
        metrics.server_counts(name, {"stray_stdout": 3})
    for name in names:
        assert value(metrics, status, "metamcp_stray_stdout_lines_total", server=name) == 3


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
    for labels, found_here in table[name]:
        number = sum(found_here.buckets) if isinstance(found_here, Durations) else found_here
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


@pytest.mark.promise("M85")
def test_each_of_fifty_tools_of_a_hundred_servers_has_its_own_count() -> None:
    names = [f"s{n}" for n in range(100)]
    tools = tuple(f"tool{n}" for n in range(50))
    metrics, times = Metrics("1"), (1,) * (len(BUCKETS_S) + 1)
    ends = [(revision, error) for revision in ("2025-11-25", "2026-07-28")
            for error in ("", "tool_error")]  # fmt: skip
    calls = tuple(
        CallStats(name, "tools/call", len(times), 1.0, times, error, revision, "")
        for name in names
        for revision, error in ends
    )
    stats = tuple(
        ToolStats(name, tools, tuple(range(1, 51)), (7, *(0 for _ in tools[1:]))) for name in names
    )
    metrics.front_stats(0, Figures(calls=calls, tools=stats), SUMMARY)
    for name in names:
        answers = [AnswerStats(1.0, times, method, "") for method in ("tools/list", "tools/call")]
        metrics.answers(name, 1, "pipe", tuple(answers))
        metrics.failed_over(name, 0.1)
    table = metrics.table(SmallGateway(*map(server, names)).status(), Readings())
    expected = {(name, tool): n for name in names for n, tool in enumerate(tools, 1)}
    assert dict(table["metamcp_tool_calls_total"]) == expected
    failed = dict(table["metamcp_tool_errors_total"])
    assert failed == {(name, "tool0"): 7 for name in names}, "a tool that never failed has no row"
    assert table["metamcp_metric_series_dropped_total"] == [((), 0)]
    assert size(table) < SERIES_MAX / 2, "there is room for other methods and errors"


def test_labels_that_were_given_up_come_back_with_a_higher_limit() -> None:
    caps, rows = Caps(10), [(("git", f"t{n}"), 1) for n in range(11)]
    assert len(caps.hold({"metamcp_tool_calls_total": list(rows)})["metamcp_tool_calls_total"]) == 1
    caps.set_limit(11)
    assert caps.hold({"metamcp_tool_calls_total": list(rows)}) == {"metamcp_tool_calls_total": rows}


def test_the_configuration_says_how_many_series_there_may_be() -> None:
    metrics, status = Metrics("1"), SmallGateway(*(server(f"s{n}") for n in range(20))).status()
    metrics.front_stats(0, counted(20, 50, per_tool=False, dice=random.Random(1)), SUMMARY)
    for series_max in (4000, 2000, 4000):
        metrics.on_reload(MetricsConfig(series_max=series_max), 1.0)
        table = metrics.table(status, Readings())
        assert size(table) <= series_max
        assert (len(table["metamcp_tool_calls_total"]) == 1000) == (series_max == 4000)


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
def test_an_upgrade_counts_no_series_twice_and_unfolds_nothing() -> None:
    status = SmallGateway(*(server(f"s{n}") for n in range(20))).status()
    before, after = Metrics("1"), Metrics("1")
    before.front_stats(0, counted(20, 100, per_tool=True, dice=random.Random(1)), SUMMARY)
    table = before.table(status, Readings())
    after.go_on(before.take_snapshot())
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
        stats = tuple(AnswerStats(1.0, times, method, "") for method in methods)
        metrics.answers(f"s{number}", 1, "pipe", stats)
    spent: list[float] = []
    for _ in range(3):
        begun = time.thread_time()
        assert size(metrics.table(status, Readings())) <= SERIES_MAX
        spent.append(time.thread_time() - begun)
    assert min(spent) < 0.2, "20 ms on an idle machine; ten times as much is something else"
