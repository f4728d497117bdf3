"""Which trace was the last one in each bucket: on the page for those that read OpenMetrics."""

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser
from prometheus_client.samples import Timestamp

from metamcp_supervisor.telemetry.histograms import (
    FAMILY,
    SERIES_MAX,
    Exemplar,
    SpanCounts,
    exemplars,
)
from metamcp_supervisor.telemetry.metrics import Metrics
from metamcp_worker.ipc.messages import BUCKETS_S, Span
from tests.supervisor.scraped import calls, figures, gateway, summary, text

pytestmark = pytest.mark.promise("M88")

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def both(took_s: float, method: str = "tools/call", error: str = "") -> list[Span]:
    """The two spans of a call to `git`."""
    said: dict[str, str | int | bool] = {"mcp.method.name": method, "metamcp.server": "git"}
    ours = {**said, "mcp.protocol.version": "v", "gen_ai.tool.name": "git__status"}
    ours["metamcp.call.id"] = 1
    theirs = {**said, "gen_ai.tool.name": "status"}
    start, end = 100.0, 100.0 + took_s
    return [
        Span("server", "x", TRACE, "aa", "", True, 1, start, end, ours, "", error),
        Span("client", "x", TRACE, "bb", "aa", False, 1, start, end, theirs, "", error),
    ]


def families(text: str) -> list[Metric]:
    # The library does not say what this takes and gives.
    return list(parser.text_string_to_metric_families(text))  # type: ignore[no-untyped-call] # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]


def test_a_call_is_an_example_of_its_bucket_with_and_without_its_tool() -> None:
    found = sorted(exemplars(both(0.015, error="tool_error"), since_ns=10**12))
    labels = ("git", "tools/call", "v", "tool_error")
    assert [one.labels for one in found] == [(*labels, ""), (*labels, "status")]
    for one in found:
        assert (one.trace_id, BUCKETS_S[one.bucket]) == (TRACE, 0.02)
        assert one.seconds == pytest.approx(0.015)
        assert one.time_s == pytest.approx(1100.015)
    spans = both(0.015, method="tools/list")
    del spans[0].attributes["metamcp.call.id"]
    assert exemplars(spans, since_ns=0) == [], "no figure counts what the gateway answers itself"
    (first, *_) = exemplars(both(400.0, method="x/y"), since_ns=0)
    assert (first.labels[1], first.bucket) == ("_OTHER", len(BUCKETS_S))


def test_it_stands_behind_its_bucket_in_openmetrics_and_nowhere_else() -> None:
    metrics, status = Metrics("1"), gateway("git", "fs")
    told = (calls("git", 0.015, 0.3, version="v"), calls("fs", 0.015, version="v"))
    metrics.front_stats(0, figures(*told), summary())
    plain, before = text(metrics, status), text(metrics, status, openmetrics=True)
    metrics.spans.note(exemplars(both(0.015), since_ns=10**12))
    assert text(metrics, status) == plain
    page = text(metrics, status, openmetrics=True)
    found = {
        (family.name, sample.labels["server"], sample.labels["le"]): sample.exemplar
        for family in families(page)
        for sample in family.samples
        if sample.exemplar is not None
    }
    ((where, exemplar),) = found.items()
    assert where == (FAMILY, "git", "0.02")
    assert exemplar.labels == {"trace_id": TRACE}
    assert exemplar.value == pytest.approx(0.015)
    assert isinstance(exemplar.timestamp, float | Timestamp)
    assert float(exemplar.timestamp) == pytest.approx(1100.015)
    stripped = "\n".join(line.partition(" # {")[0] for line in page.splitlines()) + "\n"
    assert stripped == before
    metrics.forget("git")
    assert metrics.spans.exemplars() == {}


def test_the_last_one_counts_and_there_are_not_more_than_fit() -> None:
    spanned = SpanCounts()
    labels = ("git", "tools/call", "v", "", "")
    for trace in ("a", "b"):
        last = Exemplar(labels, 3, trace, 0.005, 1.0)
        spanned.note([last])
    assert spanned.exemplars() == {labels: {3: last}}
    for number in range(SERIES_MAX):
        spanned.note([Exemplar((str(number), "", "", "", ""), 0, "c", 0.0, 1.0)])
    assert len(spanned.exemplars()) <= SERIES_MAX
