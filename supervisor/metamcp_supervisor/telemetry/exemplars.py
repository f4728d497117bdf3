"""What became of spans, and which trace was the last one in each bucket of times.

Owns: these counts, the exemplars of the histogram of requests. Never: exporting (`traces`), text of
the page but for the end of such a line (`text_format`), other figures.

An exemplar is told only of a span that the collector has: whoever follows it finds something.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from metamcp_supervisor.telemetry.metric_names import METHODS, OTHER, SPANS
from metamcp_supervisor.telemetry.text_format import Labels, number
from metamcp_worker.ipc.messages import BUCKETS_S, Span

FAMILY = "mcp_server_operation_duration_seconds"
"""The histogram that has exemplars; what the first span of a call takes is what it counts."""
SERIES_MAX = 1024
"""With exemplars; if there are more, all are forgotten and come again."""


class Exemplar(NamedTuple):
    """`labels`: as in the family; `bucket`: of its bounds; `time_s`: since the epoch."""

    labels: Labels
    bucket: int
    trace_id: str
    seconds: float
    time_s: float


def exemplars(spans: Sequence[Span], since_ns: int) -> list[Exemplar]:
    """One of each call, with the name of its tool and without: times may be kept of each tool.
    `since_ns`: nanoseconds from the epoch to zero on the monotonic clock."""
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
        bucket, time_s = bisect_left(BUCKETS_S, seconds), span.end + since_ns / 1e9
        found += [
            Exemplar((*labels, tool), bucket, span.trace_id, seconds, time_s)
            for tool in {"", tools.get(span.span_id, "")}
        ]
    return found


class Spanned:
    """`counts`: by what became of spans."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = dict.fromkeys(SPANS, 0)
        self._last: dict[Labels, dict[int, bytes]] = {}

    def count(self, outcome: str, spans: int) -> None:
        """So many were exported, or lost."""
        self.counts[outcome] += spans

    def note(self, found: Iterable[Exemplar]) -> None:
        """A collector has these traces."""
        for one in found:
            if one.labels not in self._last and len(self._last) >= SERIES_MAX:
                self._last.clear()
            text = b' # {trace_id="%b"} %b %.3f' % (
                one.trace_id.encode(), number(one.seconds), one.time_s,
            )  # fmt: skip
            self._last.setdefault(one.labels, {})[one.bucket] = text

    def ends(self) -> Mapping[Labels, Mapping[int, bytes]]:
        """What stands at the end of a line of OpenMetrics, by labels and bucket."""
        return self._last

    def forget(self, server: str) -> None:
        """The server is no longer configured."""
        for labels in [labels for labels in self._last if labels[0] == server]:
            del self._last[labels]
