"""What stays right while fronts, workers, servers and programs come and go."""

import pytest

from metamcp_supervisor.telemetry.health import Readings
from metamcp_supervisor.telemetry.metrics import Metrics
from metamcp_supervisor.telemetry.usage import MeasuredProcess, Usage
from metamcp_supervisor.verbs import GatewayStatus
from metamcp_worker.ipc.messages import AnswerStats, Figures
from tests.supervisor.scraped import buckets, calls, figures, gateway, page, summary, text, value
from tests.supervisor.small_gateway import SmallGateway, server


def counters(metrics: Metrics, status: GatewayStatus) -> dict[tuple[object, ...], float]:
    """All series of counters and histograms, by name and labels."""
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in page(metrics, status).values()
        for sample in family.samples
        if family.type != "gauge"
    }


def fallen(
    before: dict[tuple[object, ...], float], now: dict[tuple[object, ...], float]
) -> set[tuple[object, ...]]:
    """Those that are less than before, or gone."""
    return {key for key, n in before.items() if now.get(key, -1.0) < n}


@pytest.mark.promise("M85")
def test_no_error_changes_its_series_when_fronts_and_workers_go() -> None:
    metrics, status = Metrics("1"), gateway("git")
    for number, first in enumerate((0, 100)):
        codes = range(first, first + 32)
        failed = [calls("git", 0.1, error=str(code), version="v") for code in codes]
        metrics.front_stats(number, figures(*failed, *failed[: 1 - number]), summary())
        answers = [AnswerStats(0.1, buckets(0.1), "tools/call", str(code)) for code in codes]
        metrics.answers("git", number, "pipe", tuple(answers * (2 - number)))
    metrics.spans.count("lost", 2)
    before = counters(metrics, status)
    assert before["metamcp_spans_total", ("outcome", "lost")] == 2
    metrics.front_gone(1)
    metrics.worker_gone("git", 1)
    assert fallen(before, counters(metrics, status)) == set()
    after = Metrics("2")
    after.go_on(metrics.take_snapshot())
    assert fallen(before, counters(after, status)) == set()


@pytest.mark.promise("M85")
def test_a_spare_that_takes_over_brings_its_processor_time_once() -> None:
    metrics, status = Metrics("1"), gateway("git")
    first, spare = Usage(pid=1, cpu_s=5.0), Usage(pid=2, cpu_s=3.0)
    metrics.usage(
        {MeasuredProcess("server", "git"): first, MeasuredProcess("server", "git", 2): spare}
    )
    metrics.usage(
        {MeasuredProcess("server", "git"): spare, MeasuredProcess("server", "git", 1): first}
    )
    assert value(metrics, status, "metamcp_process_cpu_seconds_total", role="server") == 8


def test_what_is_still_told_of_a_server_that_is_gone_is_on_no_page() -> None:
    metrics, status = Metrics("1"), gateway("fs")
    metrics.usage({MeasuredProcess("server", "git"): Usage(pid=1, cpu_s=1.0)})
    metrics.forget("git")
    metrics.front_stats(0, Figures(retries={"git": {"failed": 1}}), summary())
    metrics.usage(
        {MeasuredProcess("server", "git"): Usage(pid=1, cpu_s=1.0)}
    )  # measured before that
    metrics.record_exit("git", 1)  # a process of it for a single client
    assert "git" not in text(metrics, status)


def test_answers_that_came_too_late_are_counted_by_workers_and_fronts() -> None:
    metrics, status = Metrics("1"), gateway("git")
    name = "metamcp_late_replies_total"
    metrics.server_counts("git", {"late_reply": 1})
    metrics.front_stats(0, Figures(late_replies={"git": 2}), summary())
    assert value(metrics, status, name, server="git") == 3
    metrics.front_gone(0)
    metrics.front_stats(1, Figures(late_replies={"git": 4}), summary())
    assert value(metrics, status, name, server="git") == 7
    after = Metrics("2")
    after.go_on(metrics.take_snapshot())
    assert value(after, status, name, server="git") == 7


def test_what_may_happen_to_a_server_is_a_series_before_it_does() -> None:
    metrics, status = Metrics("1"), gateway("git")
    first = {
        "metamcp_server_restarts_total": {"reason": "hang"},
        "metamcp_stop_escalations_total": {"step": "SIGKILL"},
        "metamcp_call_retries_total": {"outcome": "failed"},
    }
    for name, labels in first.items():
        assert value(metrics, status, name, None, **labels) == 0, name
    metrics.count_restart("git", "hang")
    assert value(metrics, status, "metamcp_server_restarts_total", reason="hang") == 1
    metrics.forget("git")
    assert value(metrics, gateway(), "metamcp_server_restarts_total", reason="hang") is None


def test_a_circuit_is_open_while_its_one_attempt_is_made() -> None:
    metrics = Metrics("1")
    status = SmallGateway(server("git", "warming", phase="warming")).status()
    readings = Readings(probing=frozenset({"git"}))
    assert value(metrics, status, "metamcp_circuit_open", server="git") == 0
    assert value(metrics, status, "metamcp_circuit_open", readings, server="git") == 1
