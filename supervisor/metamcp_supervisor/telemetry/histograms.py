"""Histograms of times, their quantiles, and exemplars: the last trace in each bucket of times.

Owns: one histogram, the period that "lately" means, the exemplars of the histogram of requests,
counts of exported and lost spans. Never: measuring (the fronts), exporting (`traces`), names of
metrics, the text of the page (`exposition`).

Exemplars name only traces that the collector has, so that an operator can find them there.

The count of a bucket does not include lower buckets; the last bucket has everything above the
highest bound.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from operator import add
from typing import NamedTuple

from metamcp_supervisor.telemetry.metric_names import METHODS, OTHER, SPANS, Labels
from metamcp_worker.ipc.messages import BUCKETS_S, Durations, Span

FAMILY = "mcp_server_operation_duration_seconds"
"""Name of the histogram that has exemplars; it counts the duration of the first span of a call."""
SERIES_MAX = 1024
"""Maximum number of series with exemplars; if there are more, all exemplars are removed, and new
ones come with later calls."""


class Histogram:
    """A histogram. `bounds_s`: upper bounds of the buckets in seconds; the last bucket is not
    bounded. `longest_s`: the longest time, as far as callers of `add` passed theirs."""

    __slots__ = ("_bounds_s", "_buckets", "_seconds", "longest_s")

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self._bounds_s = bounds_s
        self._seconds = self.longest_s = 0.0
        self._buckets = [0] * (len(bounds_s) + 1)

    def observe(self, seconds: float) -> None:
        seconds = max(0.0, seconds)
        self._seconds += seconds
        self._buckets[bisect_left(self._bounds_s, seconds)] += 1

    def add(self, seconds: float, buckets: Sequence[int], longest_s: float = 0.0) -> None:
        """Add a histogram with the same bounds."""
        self._seconds += seconds
        self.longest_s = max(self.longest_s, longest_s)
        if len(buckets) == len(self._buckets):
            self._buckets = list(map(add, self._buckets, buckets))
            return
        for at, n in enumerate(buckets[: len(self._buckets)]):
            self._buckets[at] += n

    @property
    def durations(self) -> Durations:
        return Durations(self._seconds, tuple(self._buckets))


LATELY_S = 300.0
"""Minimum seconds that "lately" reaches back: long enough for servers with few calls."""
SLICE_S = 30.0
"""Seconds between two marks; "lately" may reach back by so much more."""

Counts = tuple[int, ...]


def quantile(
    counts: Sequence[int], bounds: Sequence[float], share: float, longest: float = 0.0
) -> float | None:
    """Return the time within which this share of the calls was answered, in the unit of `bounds`;
    None without a call. The calls of a bucket count as evenly spread over it; the result for the
    last bucket is the highest bound. `longest`: the longest call, which limits the result, or 0."""
    value = _within(counts, bounds, share)
    return min(value, longest) if value is not None and longest else value


def _within(counts: Sequence[int], bounds: Sequence[float], share: float) -> float | None:
    total = sum(counts)
    if not total:
        return None
    rank, below, low = share * total, 0, 0.0
    for count, bound in zip(counts, bounds, strict=False):
        if count and below + count >= rank:
            return low + (bound - low) * max(0.0, rank - below) / count
        below, low = below + count, bound
    return bounds[-1]


def between(before: Sequence[int], now: Sequence[int]) -> Counts:
    """Return the counts since `before`, or all of `now` if a server was removed since then and its
    counts began again."""
    if len(before) != len(now) or any(old > new for old, new in zip(before, now, strict=True)):
        return tuple(now)
    return tuple(new - old for old, new in zip(before, now, strict=True))


class RecentCounts:
    """Marks of the sums by server; "lately" begins at the oldest mark."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, Mapping[str, Counts]]] = deque()

    def due(self, now: float) -> bool:
        """Whether it is time for another mark. `now`: monotonic seconds."""
        return not self._marks or now - self._marks[-1][0] >= SLICE_S

    def mark(self, sums: Mapping[str, Counts], now: float) -> None:
        self._marks.append((now, sums))
        while len(self._marks) > 1 and now - self._marks[1][0] >= LATELY_S:
            self._marks.popleft()

    def of(self, server: str, total: Sequence[int]) -> Counts:
        """Return the part of a server's counts `total` that came lately."""
        return between(self._marks[0][1].get(server, ()) if self._marks else (), total)


class Exemplar(NamedTuple):
    """A trace in a bucket. `labels`: as in the family; `bucket`: index of the bucket; `seconds`: of
    the call; `time_s`: seconds from the epoch to the end of the call."""

    labels: Labels
    bucket: int
    trace_id: str
    seconds: float
    time_s: float


Exemplars = Mapping[Labels, Mapping[int, Exemplar]]
"""The last exemplar of each bucket, by labels and bucket."""


def exemplars(spans: Sequence[Span], since_ns: int) -> list[Exemplar]:
    """Return the exemplars of calls that the metrics count, each with the name of its tool and
    without, because times may be kept for each tool. `since_ns`: nanoseconds from the epoch to zero
    on the monotonic clock."""
    tools = {
        span.parent_id: str(span.attributes.get("gen_ai.tool.name", ""))
        for span in spans
        if span.kind == "client"
    }
    collected: list[Exemplar] = []
    for span in spans:
        attributes = span.attributes
        if span.kind != "server" or "metamcp.call.id" not in attributes:
            continue
        method, seconds = (
            str(attributes.get("mcp.method.name", "")),
            max(0.0, span.end - span.start),
        )
        labels = (
            str(attributes.get("metamcp.server", "")),
            method if method in METHODS else OTHER,
            str(attributes.get("mcp.protocol.version", "")),
            span.error,
        )
        bucket, time_s = bisect_left(BUCKETS_S, seconds), round(span.end + since_ns / 1e9, 3)
        collected += [
            Exemplar((*labels, tool), bucket, span.trace_id, seconds, time_s)
            for tool in {"", tools.get(span.span_id, "")}
        ]
    return collected


class SpanCounts:
    """Counts and exemplars of spans. `counts`: number of spans by outcome."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = dict.fromkeys(SPANS, 0)
        self._last: dict[Labels, dict[int, Exemplar]] = {}

    def count(self, outcome: str, spans: int) -> None:
        """Add a number of spans that were exported, or lost."""
        self.counts[outcome] += spans

    def note(self, exported: Iterable[Exemplar]) -> None:
        """Keep exemplars of traces that the collector has."""
        for exemplar in exported:
            if exemplar.labels not in self._last and len(self._last) >= SERIES_MAX:
                self._last.clear()
            self._last.setdefault(exemplar.labels, {})[exemplar.bucket] = exemplar

    def exemplars(self) -> Exemplars:
        """Return a copy of the exemplars, which does not change any more."""
        return {labels: dict(buckets) for labels, buckets in self._last.items()}

    def forget(self, server: str) -> None:
        """Remove the exemplars of a server that was removed from the configuration."""
        for labels in [labels for labels in self._last if labels[0] == server]:
            del self._last[labels]
