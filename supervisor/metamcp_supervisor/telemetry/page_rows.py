"""From counters to the rows of a page, and the limit of series on one page.

Owns: forms that several metrics share, and the order in which labels are given up. Never: sums
(`metrics`, `counters`), text (`exposition`).

A page with too many series gives up labels where they cost most and show least, server by server,
the server with the most series first: times of single tools, then counts of single tools, then
methods and revisions of times, then kinds of errors. The values of series without these labels are
added up under `_OTHER` ("folded"), so no call is lost. A folded server stays folded, because a
series that comes and goes looks like a counter that fell.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from collections.abc import Set as AbstractSet
from itertools import chain, product
from operator import add

from msgspec import Struct

from metamcp_supervisor.config.config import MetricsConfig
from metamcp_supervisor.telemetry.histograms import Exemplars, Histogram
from metamcp_supervisor.telemetry.metric_names import OTHER, Labels, families
from metamcp_supervisor.verbs import LimitStatus
from metamcp_worker.access import gate
from metamcp_worker.ipc.disclosure import ViewStats
from metamcp_worker.ipc.messages import Durations, ToolStats

Row = tuple[Labels, float | Durations]
Values = Iterable[Row]
Table = dict[str, list[Row]]
"""Rows by name of the family."""


class MetricsSnapshot(Struct, frozen=True):
    """All values of one page, which do not change any more, so that a thread may read them.
    `exemplars`: by name of the family."""

    table: Table
    exemplars: Mapping[str, Exemplars]


def of_views(views: Iterable[ViewStats]) -> Iterator[tuple[str, Values]]:
    """Yield the families about views by endpoint, with the fullest view of each: labels do not grow
    with clients."""
    everything: dict[str, int] = {}
    visible_tokens: dict[str, int] = {}
    for view in views:
        name = gate.whole_name(view.endpoint)  # parts are for some of its clients
        everything[name] = max(everything.get(name, 0), view.everything)
        visible_tokens[name] = max(visible_tokens.get(name, 0), view.tokens)
    yield "metamcp_endpoint_tokens", by_one(everything)
    yield "metamcp_view_tokens", by_one(visible_tokens)


def limits_of_use(limits: Sequence[LimitStatus]) -> Iterator[tuple[str, Values]]:
    """Yield the families about limits of use."""
    yield (
        "metamcp_limited_total",
        (((o.kind, o.name, limit), n) for o in limits for limit, n in o.refused.items()),
    )
    quotas = [limit for limit in limits if limit.calls_per_day]
    yield (
        "metamcp_quota_used_ratio",
        (((quota.kind, quota.name), quota.calls_today / quota.calls_per_day) for quota in quotas),
    )


def histograms(by_label: Mapping[str, Histogram]) -> Values:
    return (((key,), histogram.durations) for key, histogram in by_label.items())


def by_one(counts: Mapping[str, float]) -> Values:
    return (((key,), n) for key, n in counts.items())


def by_tool(tools: Mapping[str, ToolStats], counts: Callable[[ToolStats], Sequence[int]]) -> Values:
    """Return rows for two labels: server and tool, without those that are 0. `counts`: returns the
    values, in the order of the tools."""
    return (
        ((server, tool), n)
        for server, stats in tools.items()
        for tool, n in zip(stats.tools, counts(stats), strict=True)
        if n
    )


def by_two(
    counts: Mapping[str, Mapping[str, int]], servers: Iterable[str] = (), keys: Iterable[str] = ()
) -> Values:
    """Return rows for two labels: server and key. Known servers have rows for `keys` before the
    first event, because `increase` of Prometheus does not see the value with which a series
    begins."""
    rows: dict[Labels, int] = dict.fromkeys(product(servers, keys), 0)
    rows |= {(server, key): n for server, inner in counts.items() for key, n in inner.items()}
    return rows.items()


def select_configured(name: str, rows: Values, names: AbstractSet[str]) -> list[Row]:
    """Return the rows without those of servers that are not configured: fronts still report such
    servers, and a process may have been measured after its server was removed."""
    if families()[name].labels[:1] != ("server",):
        return list(rows)
    return [row for row in rows if row[0][0] in names]


SERIES_MAX = MetricsConfig().series_max
"""Maximum number of series on a page; each bucket of a histogram is a series."""

_TOOL, _METHOD = "gen_ai_tool_name", "mcp_method_name"
_SERVED, _ANSWERED = (
    "mcp_server_operation_duration_seconds",
    "mcp_client_operation_duration_seconds",
)
_STEPS: tuple[Mapping[str, frozenset[str]], ...] = (
    {_SERVED: frozenset({_TOOL})},
    {
        "metamcp_tool_calls_total": frozenset({_TOOL}),
        "metamcp_tool_errors_total": frozenset({_TOOL}),
    },
    {
        _SERVED: frozenset({_METHOD, "mcp_protocol_version"}),
        _ANSWERED: frozenset({_METHOD}),
    },
    {
        _SERVED: frozenset({"error_type"}),
        _ANSWERED: frozenset({"error_type"}),
        "metamcp_call_errors_total": frozenset({_METHOD, "error_type"}),
    },
)
"""Labels to give up by family, for each step; steps follow one after the other."""

Parts = dict[str, dict[str, list[Row]]]
"""Rows by family and server, so that folding a server does not walk through the other servers."""


def weight(name: str) -> int:
    """Return the number of series in one row of this family."""
    bounds = len(families()[name].bounds_s)
    return bounds + 3 if bounds else 1


def size(table: Mapping[str, Sized]) -> int:
    return sum(len(rows) * weight(name) for name, rows in table.items())


class Caps:
    """Limit of series on pages. `dropped`: number of series given up so far, each counted once;
    `hidden`: the largest number on a single page; `folded`: number of steps applied to each folded
    server."""

    def __init__(self, series_max: int = SERIES_MAX) -> None:
        self.dropped = self.hidden = 0
        self.folded: dict[str, int] = {}
        self._series_max = series_max

    def hold(self, table: Table) -> Table:
        """Return the table within the limit."""
        before = size(table)
        if self.folded or before > self._series_max:
            self._give_up(table, before)
        _cut(table, size(table) - self._series_max)
        hidden = before - size(table)
        self.dropped += max(0, hidden - self.hidden)
        self.hidden = max(hidden, self.hidden)
        return table

    def set_limit(self, series_max: int) -> None:
        """Use another limit from now on. With a higher one, labels that were given up come back."""
        if series_max > self._series_max:
            self.folded.clear()
        self._series_max = series_max

    def forget(self, server: str) -> None:
        self.folded.pop(server, None)

    def _give_up(self, table: Table, series: int) -> None:
        """Fold the servers that were folded before, and as many others as necessary. `series`: of
        all rows."""
        parts = _parts(table)
        series -= sum(_fold(parts, server, step) for server, step in self.folded.items())
        for step in range(1, len(_STEPS) + 1):
            for server in _largest(parts, step):
                if series <= self._series_max:
                    break
                if self.folded.get(server, 0) < step:
                    self.folded[server] = step
                    series -= _fold(parts, server, step)
        for name, servers in parts.items():
            table[name] = list(chain.from_iterable(servers.values()))


def _parts(table: Table) -> Parts:
    """Return the rows of the families in which labels can be given up."""
    parts: Parts = {}
    for name in dict.fromkeys(chain.from_iterable(_STEPS)):
        if name in table:
            servers = parts[name] = {}
            for row in table[name]:
                servers.setdefault(row[0][0], []).append(row)
    return parts


def _largest(parts: Parts, step: int) -> list[str]:
    """Return the servers with series in the families of this step, largest first."""
    counts: dict[str, int] = {}
    for name in _STEPS[step - 1]:
        for server, rows in parts.get(name, {}).items():
            counts[server] = counts.get(server, 0) + len(rows) * weight(name)
    return sorted(counts, key=lambda server: (-counts[server], server))


def _fold(parts: Parts, server: str, steps: int) -> int:
    """Give up the labels of the first `steps` steps for this server. Return the number of series
    saved."""
    saved = 0
    for step in _STEPS[:steps]:
        for name, given_up in step.items():
            rows = parts.get(name, {}).get(server, [])
            at = [i for i, label in enumerate(families()[name].labels) if label in given_up]
            folded: dict[Labels, float | Durations] = {}
            for labels, value in rows:
                key = _without(labels, at)
                folded[key] = _sum(folded[key], value) if key in folded else value
            if rows:
                parts[name][server] = list(folded.items())
                saved += (len(rows) - len(folded)) * weight(name)
    return saved


def _without(labels: Labels, at: Sequence[int]) -> Labels:
    """Replace labels at these places by OTHER. Empty labels stay empty: they mean
    that a value does not exist."""
    return tuple(OTHER if i in at and label else label for i, label in enumerate(labels))


def _sum(value: float | Durations, other: float | Durations) -> float | Durations:
    if isinstance(value, Durations) and isinstance(other, Durations):
        buckets = tuple(map(add, value.buckets, other.buckets))
        return Durations(value.seconds + other.seconds, buckets)
    assert not isinstance(value, Durations)
    assert not isinstance(other, Durations)
    return value + other


def _cut(table: Table, excess: int) -> None:
    """Leave out rows until `excess` series are gone, from the largest families first."""
    while excess > 0:
        name = max(table, key=lambda each: len(table[each]) * weight(each))
        rows, each = table[name], weight(name)
        dropped = min(len(rows), max(1, min(-(-excess // each), len(rows) // 2)))
        table[name] = rows[: len(rows) - dropped]
        excess -= dropped * each
