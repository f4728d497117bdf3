"""Counts of exported and lost spans, and exemplars: the last trace in each bucket of times.

Owns: these counts, the exemplars of the histogram of requests. Never: exporting (`traces`), the
text of the page (`exposition`), other figures.

Exemplars name only traces that the collector has, so that an operator can find them there.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from metamcp_supervisor.telemetry.metric_names import METHODS, OTHER, SPANS, Labels
from metamcp_worker.ipc.messages import BUCKETS_S, Span

FAMILY = "mcp_server_operation_duration_seconds"
"""Name of the histogram that has exemplars; it counts the duration of the first span of a call."""
SERIES_MAX = 1024
"""Maximum number of series with exemplars; if there are more, all exemplars are removed, and new
ones come with later calls."""


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
    """Return the exemplars of calls, each with the name of its tool and without, because times may
    be kept for each tool. `since_ns`: nanoseconds from the epoch to zero on the monotonic clock."""
    tools = {
        span.parent_id: str(span.attributes.get("gen_ai.tool.name", ""))
        for span in spans
        if span.kind == "client"
    }
    found: list[Exemplar] = []
    for span in spans:
        if span.kind != "server":
            continue
        said = span.attributes
        method, seconds = str(said.get("mcp.method.name", "")), max(0.0, span.end - span.start)
        labels = (
            str(said.get("metamcp.server", "")),
            method if method in METHODS else OTHER,
            str(said.get("mcp.protocol.version", "")),
            span.error,
        )
        bucket, time_s = bisect_left(BUCKETS_S, seconds), round(span.end + since_ns / 1e9, 3)
        found += [
            Exemplar((*labels, tool), bucket, span.trace_id, seconds, time_s)
            for tool in {"", tools.get(span.span_id, "")}
        ]
    return found


class Spanned:
    """Counts and exemplars of spans. `counts`: number of spans by outcome."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = dict.fromkeys(SPANS, 0)
        self._last: dict[Labels, dict[int, Exemplar]] = {}

    def count(self, outcome: str, spans: int) -> None:
        """Add a number of spans that were exported, or lost."""
        self.counts[outcome] += spans

    def note(self, found: Iterable[Exemplar]) -> None:
        """Keep exemplars of traces that the collector has."""
        for one in found:
            if one.labels not in self._last and len(self._last) >= SERIES_MAX:
                self._last.clear()
            self._last.setdefault(one.labels, {})[one.bucket] = one

    def exemplars(self) -> Exemplars:
        """Return a copy of the exemplars, which does not change any more."""
        return {labels: dict(buckets) for labels, buckets in self._last.items()}

    def forget(self, server: str) -> None:
        """Remove the exemplars of a server that was removed from the configuration."""
        for labels in [labels for labels in self._last if labels[0] == server]:
            del self._last[labels]
