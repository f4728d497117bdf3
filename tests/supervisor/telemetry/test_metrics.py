from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

import pytest
from msgspec.structs import replace

from metamcp_supervisor.config.config import MetricsConfig
from metamcp_supervisor.features import all_features
from metamcp_supervisor.telemetry.health import Readings
from metamcp_supervisor.telemetry.metric_names import families
from metamcp_supervisor.telemetry.metrics import Metrics
from metamcp_supervisor.telemetry.page_rows import Values
from metamcp_supervisor.telemetry.usage import MeasuredProcess, Usage
from metamcp_supervisor.verbs import LimitStatus
from metamcp_worker.ipc.figures import LimitedStats
from metamcp_worker.ipc.messages import (
    AnswerStats,
    Durations,
    Figures,
    ToolStats,
)
from tests.supervisor.scraped import buckets, calls, figures, gateway, page, summary, text, value
from tests.supervisor.small_gateway import SmallGateway, server

DOCS = Path(__file__).parents[3] / "docs" / "metrics.md"
COUNT = "mcp_server_operation_duration_seconds_count"
BUCKET = "mcp_server_operation_duration_seconds_bucket"


@pytest.mark.promise("M85")
def test_calls_of_all_fronts_are_added_up_into_cumulative_buckets() -> None:
    metrics, status = Metrics("1"), gateway("git")
    metrics.front_stats(0, figures(calls("git", 0.003, 0.003, 400.0)), summary())
    metrics.front_stats(1, figures(calls("git", 0.02)), summary())
    assert value(metrics, status, COUNT, server="git", mcp_method_name="tools/call") == 4
    bounds = {"0.0025": 0, "0.005": 2, "0.01": 2, "0.02": 3, "300.0": 3, "+Inf": 4}
    for bound, count in bounds.items():
        assert value(metrics, status, BUCKET, le=bound) == count, bound


@pytest.mark.promise("M85")
def test_calls_are_told_apart_by_revision_and_by_how_they_ended() -> None:
    metrics, status = Metrics("1"), gateway("git")
    metrics.front_stats(0, figures(
        calls("git", 0.1, 0.1, version="2025-11-25"),
        calls("git", 0.1, version="2026-07-28", error="tool_error"),
    ), summary())  # fmt: skip
    old = {"mcp_protocol_version": "2025-11-25", "error_type": ""}
    new = {"mcp_protocol_version": "2026-07-28", "error_type": "tool_error"}
    assert value(metrics, status, COUNT, None, **old) == 2
    assert value(metrics, status, COUNT, None, **new) == 1
    name = "metamcp_call_errors_total"
    assert value(metrics, status, name, server="git", error_type="tool_error") == 1


@pytest.mark.promise("M89")
def test_recordings_that_are_lost_are_counted_over_all_fronts_and_programs() -> None:
    metrics, status, name = Metrics("1"), gateway("git"), "metamcp_recorded_calls_total"
    assert value(metrics, status, name, outcome="lost") == 0, "there before anything was lost"
    metrics.front_stats(0, figures(), replace(summary(), recorded={"written": 5, "lost": 2}))
    metrics.front_stats(1, figures(), replace(summary(), recorded={"written": 1, "lost": 0}))
    metrics.front_gone(0)
    after = Metrics("2")
    after.go_on(metrics.take_snapshot())
    for each in (metrics, after):
        assert value(each, status, name, outcome="written") == 6
        assert value(each, status, name, outcome="lost") == 2


@pytest.mark.promise("M85")
def test_a_front_that_dies_loses_no_count() -> None:
    metrics, status = Metrics("1"), gateway("git")
    refused, tools = "metamcp_requests_refused_total", "metamcp_tool_calls_total"
    overhead = {"front": Durations(0.001, (0, 0, 1))}
    counted = Figures(
        calls=(calls("git", 0.1, error="tool_error"),),
        tools=(ToolStats("git", ("log",), (1,), (1,)),),
        overhead=overhead,
        inflight={"git": 5},
    )
    metrics.front_stats(0, counted, summary({"host": 2, "slow_body": 1}))
    metrics.front_gone(0)
    metrics.front_gone(0)
    assert value(metrics, status, COUNT) == 1
    assert value(metrics, status, refused, reason="host") == 2
    assert value(metrics, status, "metamcp_inflight_calls", server="git") == 0
    assert value(metrics, status, "metamcp_connections") == 0
    metrics.front_stats(1, replace(counted, inflight={"git": 1}), summary({"host": 1}))
    assert value(metrics, status, COUNT) == 2
    assert value(metrics, status, tools, gen_ai_tool_name="log") == 2
    assert value(metrics, status, "metamcp_tool_errors_total", gen_ai_tool_name="log") == 2
    assert value(metrics, status, "metamcp_overhead_seconds_count", stage="front") == 2
    assert value(metrics, status, refused, reason="host") == 3
    assert value(metrics, status, "metamcp_slow_client_disconnects_total") == 1
    assert metrics.calls("git") == (2, 2, 1)


def test_calls_that_were_sent_once_more_are_counted_by_server_and_outcome() -> None:
    metrics, status = Metrics("1"), gateway("git", "fs")
    name = "metamcp_call_retries_total"
    retries = {"git": {"answered": 3, "failed": 1}}
    both = replace(figures(calls("git", 0.1), calls("fs", 0.1)), retries=retries)
    metrics.front_stats(0, both, summary())
    metrics.front_gone(0)
    metrics.front_stats(1, replace(figures(calls("git", 0.1)), retries=retries), summary())
    assert value(metrics, status, name, server="git", outcome="answered") == 6
    assert value(metrics, status, name, server="git", outcome="failed") == 2
    assert value(metrics, status, name, server="fs", outcome="failed") == 0


def test_newer_figures_of_a_front_replace_the_older_ones() -> None:
    metrics = Metrics("1")
    metrics.front_stats(0, figures(calls("git", 0.1)), summary())
    metrics.front_stats(0, figures(calls("git", 0.1, 0.1), calls("fs", 0.1)), summary())
    assert metrics.calls("git") == (2, 0, 0)
    assert metrics.calls("fs") == (1, 0, 0)
    assert metrics.calls("nobody") == (0, 0, 0)


@pytest.mark.promise("M85")
def test_what_a_server_took_for_its_answers_outlives_its_workers() -> None:
    metrics, status = Metrics("1"), gateway("git")
    name = "mcp_client_operation_duration_seconds_count"
    first = (AnswerStats(0.2, buckets(0.1, 0.1), "tools/call", ""),)
    metrics.answers("git", 1, "pipe", first)
    metrics.answers("git", 1, "pipe", first)
    assert value(metrics, status, name, server="git", network_transport="pipe") == 2
    metrics.worker_gone("git", 1)
    metrics.worker_gone("git", 1)
    metrics.answers("git", 2, "pipe", (AnswerStats(0.1, buckets(0.1), "tools/call", ""),))
    assert value(metrics, status, name, server="git", error_type="") == 3
    metrics.answers("git@00000000002a", 1, "pipe", first)
    assert value(metrics, status, name, server="git", error_type="") == 5
    metrics.forget("git")
    assert "git" not in text(metrics, gateway())


@pytest.mark.promise("M98")
def test_what_clients_and_servers_invent_becomes_no_label() -> None:
    metrics, status = Metrics("1"), gateway("git")
    failed = [calls("git", 0.1, error=str(code)) for code in range(100)]
    stats = [calls("git", 0.1, method=f"x/{number}") for number in range(50)]
    versions = [calls("git", 0.1, method="ping", version=f"v{number}") for number in range(50)]
    names = tuple(f"tool{number}" for number in range(500))
    tools = ToolStats("git", names, (1,) * 500, (0,) * 500)
    metrics.front_stats(0, Figures(calls=(*stats, *failed, *versions), tools=(tools,)), summary())
    metrics.front_stats(1, figures(calls("unknown server", 0.1)), summary())
    answers = [AnswerStats(0.1, buckets(0.1), f"x/{n}", str(n)) for n in range(100)]
    metrics.answers("git", 1, "pipe", tuple(answers))
    metrics.server_counts("git", {f"kind {number}": 1 for number in range(100)})
    families = page(metrics, status)
    assert value(metrics, status, COUNT, mcp_method_name="_OTHER", error_type="") == 50
    labels = families["mcp_server_operation_duration_seconds"].samples
    assert len({sample.labels["mcp_protocol_version"] for sample in labels}) <= 18
    assert len(families["metamcp_call_errors"].samples) == 33
    assert len(families["metamcp_protocol_errors"].samples) == 17
    assert len(families["metamcp_tool_calls"].samples) == 201
    answered = families["mcp_client_operation_duration_seconds"].samples
    assert len({sample.labels["error_type"] for sample in answered}) <= 34
    assert "unknown server" not in text(metrics, status)


def test_the_state_of_a_server_is_one_of_eight() -> None:
    metrics = Metrics("1")
    status = SmallGateway(server("git", "error", phase="failed", retry_in_s=7.5)).status()
    states = page(metrics, status)["metamcp_server_state"].samples
    assert {s.labels["state"]: s.value for s in states if s.value} == {"error": 1.0}
    assert len(states) == 8
    assert value(metrics, status, "metamcp_circuit_open", server="git") == 1
    assert value(metrics, status, "metamcp_backoff_seconds", server="git") == 7.5


def test_memory_is_that_of_now_and_processor_time_never_falls() -> None:
    metrics, status = Metrics("1"), gateway("git")
    tree, other = MeasuredProcess("server", "git"), MeasuredProcess("front", number=1)
    for pid, cpu_s in ((10, 5.0), (10, 7.0), (10, 1.0), (10, 2.0), (11, 0.5)):
        metrics.usage({tree: Usage(pid=pid, rss_bytes=pid, cpu_s=cpu_s)})
    assert value(metrics, status, "metamcp_process_cpu_seconds_total", role="server") == 8.5
    assert value(metrics, status, "metamcp_process_resident_memory_bytes", role="server") == 11
    metrics.usage({
        other: Usage(pid=3, rss_bytes=100, pss_bytes=30),
        MeasuredProcess("front", number=2): Usage(pid=4, rss_bytes=50),
    })  # fmt: skip
    assert value(metrics, status, "metamcp_process_resident_memory_bytes", role="front") == 150
    assert value(metrics, status, "metamcp_process_memory_bytes", role="front") == 80
    assert value(metrics, status, "metamcp_process_resident_memory_bytes", role="server") is None
    assert value(metrics, status, "metamcp_process_cpu_seconds_total", role="server") == 8.5


def test_what_the_workers_count_has_a_metric_for_each_kind() -> None:
    metrics, status = Metrics("1"), gateway("git")
    for _ in range(2):
        metrics.server_counts("git", {"stray_stdout": 3, "late_reply": 1, "broken_reply": 1})
    metrics.server_counts("git", {"log_lines_dropped": 9, "unroutable_request": 4})
    metrics.server_counts("git", {"unattributed_log": 5})
    assert value(metrics, status, "metamcp_stray_stdout_lines_total", server="git") == 6
    assert value(metrics, status, "metamcp_late_replies_total", server="git") == 2
    assert value(metrics, status, "metamcp_protocol_errors_total", kind="broken_reply") == 2
    assert value(metrics, status, "metamcp_log_lines_dropped_total", server="git") == 9
    assert value(metrics, status, "metamcp_unroutable_requests_total", server="git") == 4
    assert value(metrics, status, "metamcp_unattributed_logs_total", server="git") == 5
    assert metrics.read_event_count("git", "unroutable_request") == 4
    assert metrics.read_event_count("nobody", "unroutable_request") == 0


def test_a_failed_reload_shows_and_keeps_the_time_of_the_good_one() -> None:
    metrics, status = Metrics("1"), gateway()
    assert value(metrics, status, "metamcp_config_last_reload_successful") is None
    metrics.on_reload(MetricsConfig(), 100.0)
    metrics.on_reload(None, 200.0)
    assert value(metrics, status, "metamcp_config_last_reload_successful") == 0
    assert value(metrics, status, "metamcp_config_last_reload_timestamp_seconds") == 100


def test_a_server_that_is_no_longer_configured_has_no_series() -> None:
    metrics = Metrics("1")
    metrics.front_stats(0, figures(calls("git", 0.1)), summary())
    metrics.record_exit("git", 3)
    metrics.failed_over("git", 0.1)
    metrics.server_counts("git", {"stray_stdout": 1, "broken_reply": 1, "stop_SIGTERM": 1})
    metrics.count_restart("git", "exit")
    metrics.usage({MeasuredProcess("server", "git"): Usage(pid=1, cpu_s=1.0)})
    assert "git" in text(metrics, gateway("git"))
    metrics.front_gone(0)
    metrics.usage({})
    metrics.forget("git")
    assert "git" not in text(metrics, gateway())


class EachFamily:
    """A part with a row for each family of the features, and the ends of what a gateway has."""

    def metric_rows(self) -> Iterator[tuple[str, Values]]:
        for feature in all_features():
            for family in resolve_name(feature.metrics) if feature.metrics else ():
                yield family.name, [(("x",) * len(family.labels), 1)]
        yield from ((name, []) for name in families() if "_expiry_" in name)


@pytest.mark.promise("M85")
def test_every_family_is_on_the_page_and_in_the_documentation_and_no_other_is() -> None:
    metrics, documented = Metrics("1"), DOCS.read_text()
    metrics.on_reload(MetricsConfig(), 1.0)
    metrics.sources = (EachFamily(),)
    found = page(metrics, gateway("git"), Readings(accept_queue=0))
    for family in families().values():
        shown = found[family.name.removesuffix("_total")]
        assert (shown.type, shown.documentation) == (family.kind, family.help)
        labels = ", ".join(f"`{label}`" for label in family.labels) or "-"
        assert f"| `{family.name}` | {family.kind} | {labels} | {family.help} |" in documented
    assert {family.name.removesuffix("_total") for family in families().values()} == set(found)
    kinds = (" | gauge | ", " | counter | ", " | histogram | ")
    rows = [line for line in documented.splitlines() if any(kind in line for kind in kinds)]
    assert {row.split("`")[1] for row in rows} == set(families())
    assert len(rows) == len(families())


def test_what_happens_to_servers_and_loops_is_on_the_page() -> None:
    metrics, status = Metrics("1"), gateway("git")
    metrics.record_exit("git", 1)
    metrics.record_exit("git", -9)
    metrics.failed_over("git", 0.02)
    metrics.lag("front", 0.003)
    metrics.server_counts("git", {"stop_SIGTERM": 1, "stop_worker_SIGKILL": 2, "orphan": 3})
    assert value(metrics, status, "metamcp_server_last_exit_code", server="git") == -9
    failovers = "metamcp_failover_duration_seconds_bucket"
    assert value(metrics, status, failovers, server="git", le="0.01") == 0
    assert value(metrics, status, failovers, server="git", le="0.025") == 1
    assert value(metrics, status, "metamcp_loop_lag_seconds_count", role="front") == 1
    steps = "metamcp_stop_escalations_total"
    assert value(metrics, status, steps, server="git", step="SIGTERM") == 1
    assert value(metrics, status, steps, server="git", step="worker_SIGKILL") == 2
    assert value(metrics, status, "metamcp_orphans_reaped_total", server="git") == 3


def test_what_is_read_at_a_scrape_is_on_the_page() -> None:
    metrics, status = Metrics("1"), gateway("git", "fs")
    metrics.server_counts("git", {"oom_kill": 2})
    metrics.front_stats(0, Figures(held={"git": 2}), summary())
    readings = Readings(
        beat_ages_s={("git", "worker"): 0.5, ("", "front"): 0.25},
        queued={"git": 3}, spares={"git": 1}, limits_bytes={"git": 2**30}, oom_kills={"git": 1},
        accept_queue=7,
    )  # fmt: skip
    wanted = {
        "metamcp_queued_calls": 5, "metamcp_spares_ready": 1,
        "metamcp_process_memory_limit_bytes": 2**30, "metamcp_oom_kills_total": 3,
        "metamcp_heartbeat_age_seconds": 0.5,
    }  # fmt: skip
    for name, number in wanted.items():
        assert value(metrics, status, name, readings, server="git") == number, name
    assert value(metrics, status, "metamcp_heartbeat_age_seconds", readings, server="") == 0.25
    assert value(metrics, status, "metamcp_process_memory_limit_bytes", server="fs") is None
    assert value(metrics, status, "metamcp_accept_queue", readings) == 7


def test_descriptors_are_those_of_the_process_that_is_nearest_to_its_limit() -> None:
    metrics, status = Metrics("1"), gateway()
    metrics.usage({
        MeasuredProcess("front", number=1): Usage(pid=1, fds=10, fds_max=1000, threads=2),
        MeasuredProcess("front", number=2): Usage(pid=2, fds=60, fds_max=100, threads=3),
        MeasuredProcess("front", number=3): Usage(pid=3, fds=50, fds_max=100),
    })  # fmt: skip
    assert value(metrics, status, "metamcp_process_open_fds", role="front") == 60
    assert value(metrics, status, "metamcp_process_max_fds", role="front") == 100
    assert value(metrics, status, "metamcp_process_threads", role="front") == 5


@pytest.mark.promise("M85")
def test_an_upgrade_lets_no_counter_fall() -> None:
    status, readings = gateway("git"), Readings()
    before, after = Metrics("1"), Metrics("2")
    before.front_stats(0, figures(calls("git", 0.1, error="-32603")), summary({"host": 1}))
    before.front_gone(0)
    counted = Figures(
        calls=(calls("git", 0.2),),
        tools=(ToolStats("git", ("log",), (4,), (1,)),),
        retries={"git": {"failed": 1}},
    )
    before.front_stats(1, counted, summary())
    before.answers("git", 1, "pipe", (AnswerStats(0.1, buckets(0.1), "tools/call", ""),))
    before.worker_gone("git", 1)
    before.answers("git", 2, "pipe", (AnswerStats(0.1, buckets(0.1), "tools/call", "-1"),))
    before.server_counts("git", {"late_reply": 2, "broken_reply": 1, "stop_SIGKILL": 1})
    before.count_restart("git", "exit")
    before.record_exit("git", 3)
    before.failed_over("git", 0.1)
    before.lag("worker", 0.1)
    before.counter("metamcp_audit_records_total", ["records"])["records"] += 5
    before.usage({MeasuredProcess("server", "git"): Usage(pid=1, cpu_s=5.0, threads=1)})
    after.go_on(before.take_snapshot())
    assert after.counter("metamcp_audit_records_total") == {"records": 5}
    built = ("metamcp_build_info", "metamcp_metric_series_dropped_total")
    found = [
        {name: rows for name, rows in one.table(status, readings).items() if name not in built}
        for one in (before, after)
    ]
    assert found[1] == found[0]


@pytest.mark.promise("M66")
def test_limits_that_are_set_are_on_the_page_before_they_refuse_and_others_are_not() -> None:
    git = LimitStatus(kind="server", name="git", refused={"in_flight": 0, "calls_per_day": 3},
                      calls_today=25, calls_per_day=100)  # fmt: skip
    keys = LimitStatus(kind="key", name="", refused={"calls_per_minute": 2})
    metrics, status = Metrics("1"), replace(gateway("git"), limits=(git, keys))
    table = metrics.table(status, Readings())
    assert table["metamcp_limited_total"] == [
        (("server", "git", "in_flight"), 0),
        (("server", "git", "calls_per_day"), 3),
        (("key", "", "calls_per_minute"), 2),
    ]
    assert table["metamcp_quota_used_ratio"] == [(("server", "git"), 0.25)]


@pytest.mark.promise("M66")
def test_refusals_by_limits_are_added_up_over_fronts_and_programs() -> None:
    before, after = Metrics("1"), Metrics("2")
    for front, count in ((0, 2), (1, 5)):
        one = LimitedStats("endpoint", "dev", "streams", count)
        before.front_stats(front, Figures(limited=(one,)), summary())
    before.front_gone(0)
    after.go_on(before.take_snapshot())
    for metrics in (before, after):
        assert metrics.count_refusals() == {("endpoint", "dev", "streams"): 7}


@pytest.mark.promise("M85")
def test_processes_for_single_clients_count_with_their_server_and_have_no_labels() -> None:
    names = ("git", "git@00000000002a", "git@00000000002b", "git@legacy")
    metrics, status = Metrics("1"), gateway(*names)
    parts = [MeasuredProcess("worker", one.name) for one in status.servers]
    metrics.usage({part: Usage(pid=n, rss_bytes=10, cpu_s=1.0) for n, part in enumerate(parts, 1)})
    name = "metamcp_process_resident_memory_bytes"
    assert value(metrics, status, name, server="git", role="worker") == 40
    assert "@" not in text(metrics, status)
