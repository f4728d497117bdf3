"""The page of metrics as text, written by the Prometheus library.

Owns: the library's families, built from the rows of a snapshot, the two formats, and the text of
rows that stay as they are. Never: values, which series there are (`metrics`), which format a
scraper wants and the thread (`admin`).

The library takes 4 MiB, so only a scrape imports this module.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, cast

from prometheus_client import CollectorRegistry, core, generate_latest, utils
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.openmetrics import exposition as openmetrics

from metamcp_supervisor.telemetry.histograms import Exemplar, Exemplars
from metamcp_supervisor.telemetry.metric_names import Labels, MetricFamily, families
from metamcp_supervisor.telemetry.page_rows import MetricsSnapshot, Row
from metamcp_worker.ipc.messages import Durations

_NONE: Mapping[int, Exemplar] = {}
_END = "# EOF\n"
"""Last line of a page of OpenMetrics."""


def page(snapshot: MetricsSnapshot, *, as_openmetrics: bool) -> tuple[str, bytes]:
    """Return the content type and the text; families without rows are on the page, too."""
    return PageWriter(as_openmetrics=as_openmetrics).page(snapshot)


class _RowText(NamedTuple):
    """Text of one row, and the value and exemplars that it shows."""

    value: float | Durations
    exemplars: Mapping[int, Exemplar]
    text: str


class _Family(NamedTuple):
    """A family on the last page. `head`: its two lines before all rows; `rows`: in the order of the
    page; `written`: the text of each row."""

    head: str
    rows: Sequence[Row]
    exemplars: Exemplars
    written: Mapping[Labels, _RowText]


class PageWriter:
    """Writes one page after the other in one format. The library takes 8 us for each line, most of
    it for labels, so it writes a row once: on later pages the row keeps its text, or gets other
    numbers in it."""

    def __init__(self, *, as_openmetrics: bool) -> None:
        self._as_openmetrics = as_openmetrics
        self._families: dict[str, _Family] = {}

    def page(self, snapshot: MetricsSnapshot) -> tuple[str, bytes]:
        """Return the content type and the text of the next page. Only one thread at a time may call
        this."""
        self._families = {
            name: self._family(families()[name], rows, snapshot.exemplars.get(name, {}))
            for name, rows in snapshot.table.items()
        }
        text = "".join(
            text
            for family in self._families.values()
            for text in (family.head, *(row.text for row in family.written.values()))
        )
        if self._as_openmetrics:
            return openmetrics.CONTENT_TYPE_LATEST, f"{text}{_END}".encode()
        return CONTENT_TYPE_PLAIN_0_0_4, text.encode()

    def _family(self, family: MetricFamily, rows: Sequence[Row], exemplars: Exemplars) -> _Family:
        before = self._families.get(family.name)
        if before is None:
            before = _Family(self._text(family, (), {}), (), {}, {})
        elif before.rows == rows and before.exemplars == exemplars:
            return before
        written: dict[Labels, _RowText | None] = {
            row[0]: _update_row(before.written.get(row[0]), row[1], exemplars.get(row[0], _NONE))
            for row in rows
        }
        new = [row for row in rows if written[row[0]] is None]
        lines = self._text(family, new, exemplars)[len(before.head) :].split("\n")
        each = (len(lines) - 1) // max(1, len(new))
        for at, (labels, value) in enumerate(new):
            text = "\n".join((*lines[at * each : (at + 1) * each], ""))
            written[labels] = _RowText(value, exemplars.get(labels, _NONE), text)
        written_rows = {labels: row for labels, row in written.items() if row is not None}
        return _Family(before.head, rows, exemplars, written_rows)

    def _text(self, family: MetricFamily, rows: Sequence[Row], exemplars: Exemplars) -> str:
        """Return the text of these rows, as the library writes it."""
        registry = CollectorRegistry()
        registry.register(_RowCollector(family, rows, exemplars))
        if not self._as_openmetrics:
            return generate_latest(registry).decode()
        # Names need no escapes, as they are; with this setting the library is a third faster.
        text = openmetrics.generate_latest(registry, openmetrics.ALLOWUTF8)  # type: ignore[no-untyped-call] # of the library
        return cast("bytes", text).decode().removesuffix(_END)


def _update_row(
    written: _RowText | None, value: float | Durations, exemplars: Mapping[int, Exemplar]
) -> _RowText | None:
    """Return what stands on the page for a row that was on the page before: the same text, or the
    same lines with other numbers. None: the library has to write the row."""
    if written is None or exemplars != written.exemplars:
        return None
    if value == written.value:
        return written
    if exemplars:  # they stand behind the numbers
        return None
    numbers = _numbers_of(value) if isinstance(value, Durations) else (value,)
    lines = (
        f"{line[: line.rindex(' ')]} {utils.floatToGoString(number)}\n"  # type: ignore[no-untyped-call] # of the library
        for line, number in zip(written.text[:-1].split("\n"), numbers, strict=True)
    )
    return _RowText(value, exemplars, "".join(lines))


def _numbers_of(value: Durations) -> Sequence[float]:
    """Return the numbers of a histogram in the order in which the library writes them."""
    counts = list(accumulate(value.buckets))
    return [*counts, counts[-1], value.seconds]


class _RowCollector:
    """Custom collector of the library for the rows of one family."""

    def __init__(self, family: MetricFamily, rows: Sequence[Row], exemplars: Exemplars) -> None:
        self._family = family
        self._rows = rows
        self._exemplars = exemplars

    def collect(self) -> Iterator[Metric]:
        """Yield the family."""
        if self._family.kind == "histogram":
            yield _histograms(self._family, self._rows, self._exemplars)
        else:
            yield _numbers(self._family, self._rows)


def _numbers(family: MetricFamily, rows: Sequence[Row]) -> Metric:
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(family.name, family.help, labels=family.labels)
    for labels, value in rows:
        assert not isinstance(value, Durations)
        metric.add_metric(labels, value)
    return metric


def _histograms(family: MetricFamily, rows: Sequence[Row], exemplars: Exemplars) -> Metric:
    metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    bounds = (*map(repr, family.bounds_s), "+Inf")
    for labels, value in rows:
        assert isinstance(value, Durations)
        counts = zip(bounds, accumulate(value.buckets), strict=True)
        last = exemplars.get(labels, {})
        metric.add_metric(labels, [
            (
                bound, count,
                core.Exemplar({"trace_id": exemplar.trace_id}, exemplar.seconds, exemplar.time_s),
            )
            if (exemplar := last.get(bucket)) else (bound, count)
            for bucket, (bound, count) in enumerate(counts)
        ], value.seconds)  # fmt: skip
    return metric
