from pathlib import Path

import pytest
from msgspec.structs import replace
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from metamcp_supervisor.verbs import GatewayStatus
from metamcp_supervisor.watched.metrics import FAMILIES, Metrics
from metamcp_supervisor.watched.usage import Part, Usage
from metamcp_worker.messages import BUCKETS_S, CallStats, FrontStats
from tests.supervisor.small_gateway import SmallGateway, server

DOCS = Path(__file__).parent.parent.parent / "docs" / "operating.md"
COUNT = "mcp_server_operation_duration_seconds_count"
BUCKET = "mcp_server_operation_duration_seconds_bucket"


def calls(
    server: str, *seconds: float, method: str = "tools/call", errors: dict[str, int] | None = None
) -> CallStats:
    buckets = [0] * (len(BUCKETS_S) + 1)
    for one in seconds:
        buckets[sum(one > bound for bound in BUCKETS_S)] += 1
    return CallStats(server, method, len(seconds), sum(seconds), tuple(buckets), errors or {})


def summary(
    inflight: dict[str, int] | None = None, refused: dict[str, int] | None = None
) -> FrontStats:
    return FrontStats(
        connections=3,
        streams=1,
        inflight=inflight or {},
        sessions={"2025-11-25": 2},
        refused=refused or {},
    )


def gateway(*names: str) -> GatewayStatus:
    return SmallGateway(*(server(name) for name in names)).status()


def page(metrics: Metrics, status: GatewayStatus) -> dict[str, Metric]:
    text = metrics.render(status).decode()
    return {family.name: family for family in text_string_to_metric_families(text)}


def value(metrics: Metrics, status: GatewayStatus, name: str, **labels: str) -> float | None:
    """The one sample with this name and at least these labels, or None."""
    found = [
        sample.value
        for family in page(metrics, status).values()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    assert len(found) < 2, f"{name} {labels}: {found}"
    return found[0] if found else None


@pytest.mark.promise("M85")
def test_calls_of_all_fronts_are_added_up_into_cumulative_buckets() -> None:
    metrics, status = Metrics("1"), gateway("git")
    metrics.front_stats(0, [calls("git", 0.003, 0.003, 400.0)], summary())
    metrics.front_stats(1, [calls("git", 0.02)], summary())
    assert value(metrics, status, COUNT, server="git", mcp_method_name="tools/call") == 4
    bounds = {"0.0025": 0, "0.005": 2, "0.01": 2, "0.02": 3, "300": 3, "+Inf": 4}
    for bound, count in bounds.items():
        assert value(metrics, status, BUCKET, le=bound) == count, bound


def test_a_front_that_is_gone_takes_no_count_with_it_but_its_gauges() -> None:
    metrics, status = Metrics("1"), gateway("git")
    name = "metamcp_requests_refused_total"
    metrics.front_stats(
        0, [calls("git", 0.1, 0.1, errors={"tool_error": 1})], summary({"git": 5}, {"host": 2})
    )
    metrics.front_gone(0)
    metrics.front_gone(0)
    assert value(metrics, status, COUNT) == 2
    assert value(metrics, status, name, reason="host") == 2
    assert value(metrics, status, "metamcp_inflight_calls", server="git") == 0
    assert value(metrics, status, "metamcp_connections") == 0
    metrics.front_stats(
        1, [calls("git", 0.1, errors={"tool_error": 1})], summary({"git": 1}, {"host": 1})
    )
    assert value(metrics, status, COUNT) == 3
    assert value(metrics, status, name, reason="host") == 3
    assert metrics.calls("git") == (3, 2, 1)


def test_calls_that_were_sent_once_more_are_counted_by_server_and_outcome() -> None:
    metrics, status = Metrics("1"), gateway("git", "fs")
    name = "metamcp_call_retries_total"
    tools = replace(calls("git", 0.1), retries={"answered": 2, "failed": 1})
    reads = replace(calls("git", 0.1, method="resources/read"), retries={"answered": 1})
    metrics.front_stats(0, [tools, reads, calls("fs", 0.1)], summary())
    metrics.front_gone(0)
    metrics.front_stats(1, [tools], summary())
    assert value(metrics, status, name, server="git", outcome="answered") == 5
    assert value(metrics, status, name, server="git", outcome="failed") == 2
    assert value(metrics, status, name, server="fs") is None


def test_newer_figures_of_a_front_replace_the_older_ones() -> None:
    metrics = Metrics("1")
    metrics.front_stats(0, [calls("git", 0.1)], summary())
    metrics.front_stats(0, [calls("git", 0.1, 0.1), calls("fs", 0.1)], summary())
    assert metrics.calls("git") == (2, 0, 0)
    assert metrics.calls("fs") == (1, 0, 0)
    assert metrics.calls("nobody") == (0, 0, 0)


@pytest.mark.promise("M98")
def test_what_clients_and_servers_invent_becomes_no_label() -> None:
    metrics, status = Metrics("1"), gateway("git")
    errors = {str(code): 1 for code in range(100)}
    stats = [calls("git", 0.1, method=f"x/{number}") for number in range(50)]
    metrics.front_stats(0, [*stats, calls("git", 0.1, errors=errors)], summary())
    metrics.front_stats(1, [calls("unknown server", 0.1)], summary())
    metrics.server_counts("git", {f"kind {number}": 1 for number in range(100)})
    families = page(metrics, status)
    assert value(metrics, status, COUNT, mcp_method_name="_OTHER") == 50
    assert len(families["metamcp_call_errors"].samples) == 33
    assert len(families["metamcp_protocol_errors"].samples) == 17
    assert b"unknown server" not in metrics.render(status)


def test_the_state_of_a_server_is_one_of_seven() -> None:
    metrics = Metrics("1")
    status = SmallGateway(server("git", "error", phase="failed", retry_in_s=7.5)).status()
    states = page(metrics, status)["metamcp_server_state"].samples
    assert {s.labels["state"]: s.value for s in states if s.value} == {"error": 1.0}
    assert len(states) == 7
    assert value(metrics, status, "metamcp_circuit_open", server="git") == 1
    assert value(metrics, status, "metamcp_backoff_seconds", server="git") == 7.5


def test_memory_is_that_of_now_and_processor_time_never_falls() -> None:
    metrics, status = Metrics("1"), gateway("git")
    tree, other = Part("server", "git"), Part("front", number=1)
    for pid, cpu_s in ((10, 5.0), (10, 7.0), (10, 1.0), (10, 2.0), (11, 0.5)):
        metrics.usage({tree: Usage(pid=pid, rss_bytes=pid, cpu_s=cpu_s)})
    assert value(metrics, status, "metamcp_process_cpu_seconds_total", role="server") == 8.5
    assert value(metrics, status, "metamcp_process_resident_memory_bytes", role="server") == 11
    metrics.usage({
        other: Usage(pid=3, rss_bytes=100), Part("front", number=2): Usage(pid=4, rss_bytes=50),
    })  # fmt: skip
    assert value(metrics, status, "metamcp_process_resident_memory_bytes", role="front") == 150
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
    assert metrics.counted("git", "unroutable_request") == 4
    assert metrics.counted("nobody", "unroutable_request") == 0


def test_a_failed_reload_shows_and_keeps_the_time_of_the_good_one() -> None:
    metrics, status = Metrics("1"), gateway()
    assert value(metrics, status, "metamcp_config_last_reload_successful") is None
    metrics.reloaded(True, 100.0)
    metrics.reloaded(False, 200.0)
    assert value(metrics, status, "metamcp_config_last_reload_successful") == 0
    assert value(metrics, status, "metamcp_config_last_reload_timestamp_seconds") == 100


def test_a_server_that_is_no_longer_configured_has_no_series() -> None:
    metrics = Metrics("1")
    metrics.front_stats(0, [calls("git", 0.1)], summary())
    metrics.server_counts("git", {"stray_stdout": 1, "broken_reply": 1})
    metrics.restarted("git", "exit")
    metrics.usage({Part("server", "git"): Usage(pid=1, cpu_s=1.0)})
    assert b"git" in metrics.render(gateway("git"))
    metrics.front_gone(0)
    metrics.usage({})
    metrics.forget("git")
    assert b"git" not in metrics.render(gateway())


def test_every_family_is_on_the_page_as_the_list_says_and_in_the_documentation() -> None:
    metrics, text = Metrics("1"), DOCS.read_text()
    metrics.reloaded(True, 1.0)
    found = page(metrics, gateway("git"))
    for family in FAMILIES.values():
        shown = found[family.name.removesuffix("_total")]
        assert (shown.type, shown.documentation) == (family.kind, family.help)
        labels = ", ".join(f"`{label}`" for label in family.labels) or "-"
        assert f"| `{family.name}` | {family.kind} | {labels} | {family.help} |" in text
    assert {family.name.removesuffix("_total") for family in FAMILIES.values()} == set(found)


@pytest.mark.promise("M85")
def test_processes_for_single_clients_count_with_their_server_and_have_no_labels() -> None:
    metrics, status = Metrics("1"), gateway("git", "git@00000000002a", "git@00000000002b")
    parts = [Part("worker", one.name) for one in status.servers]
    metrics.usage({part: Usage(pid=n, rss_bytes=10, cpu_s=1.0) for n, part in enumerate(parts, 1)})
    name = "metamcp_process_resident_memory_bytes"
    assert value(metrics, status, name, server="git", role="worker") == 30
    assert b"@" not in metrics.render(status)
