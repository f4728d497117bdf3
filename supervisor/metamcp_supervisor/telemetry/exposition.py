"""The page of metrics as text, written by the Prometheus library.

Owns: the library's families, made of the rows of a snapshot, and the two formats. Never: values,
which series there are (`metrics`), which format a scraper wants and the thread (`admin`).

The library takes 4 MiB, so only a scrape imports this module.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import cast

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    Exemplar,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics import exposition as openmetrics

from metamcp_supervisor.telemetry.exemplars import Exemplars
from metamcp_supervisor.telemetry.metric_names import FAMILIES, MetricFamily
from metamcp_supervisor.telemetry.page_rows import MetricsSnapshot, Row
from metamcp_worker.ipc.messages import Durations


def page(snapshot: MetricsSnapshot, *, as_openmetrics: bool) -> tuple[str, bytes]:
    """Return the content type and the text; families without rows are on the page, too."""
    registry = CollectorRegistry()
    registry.register(_SnapshotCollector(snapshot))
    if as_openmetrics:
        # Names need no escapes, as they are; with this setting the library is a third faster.
        text = openmetrics.generate_latest(registry, openmetrics.ALLOWUTF8)  # type: ignore[no-untyped-call] # of the library
        return openmetrics.CONTENT_TYPE_LATEST, cast("bytes", text)
    return CONTENT_TYPE_PLAIN_0_0_4, generate_latest(registry)


class _SnapshotCollector:
    """Custom collector of the library."""

    def __init__(self, snapshot: MetricsSnapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yield one family after the other."""
        for name, rows in self._snapshot.table.items():
            family = FAMILIES[name]
            if family.kind == "histogram":
                yield _histograms(family, rows, self._snapshot.exemplars.get(name, {}))
            else:
                yield _numbers(family, rows)


def _numbers(family: MetricFamily, rows: Sequence[Row]) -> Metric:
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    found = kind(family.name, family.help, labels=family.labels)
    for labels, value in rows:
        assert not isinstance(value, Durations)
        found.add_metric(labels, value)
    return found


def _histograms(family: MetricFamily, rows: Sequence[Row], exemplars: Exemplars) -> Metric:
    found = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    bounds = (*map(repr, family.bounds_s), "+Inf")
    for labels, value in rows:
        assert isinstance(value, Durations)
        counts = zip(bounds, accumulate(value.buckets), strict=True)
        last = exemplars.get(labels, {})
        found.add_metric(labels, [
            (bound, count, Exemplar({"trace_id": one.trace_id}, one.seconds, one.time_s))
            if (one := last.get(bucket)) else (bound, count)
            for bucket, (bound, count) in enumerate(counts)
        ], value.seconds)  # fmt: skip
    return found
