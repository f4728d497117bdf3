"""Figures that only grow, added up over processes that come and go.

Owns: the sums over fronts and over workers, the resources of processes by role and server, and the
figures of processes that have ended. Never: names of metrics (`metric_names`), measuring (the
fronts, the workers, `usage`).

A process reports figures that are cumulative over its life. Each report replaces the one before.
When the process has ended, its last report is added to a base: sums never go down.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import add

from msgspec import Struct, structs

from metamcp_supervisor.telemetry.histograms import Histogram
from metamcp_supervisor.telemetry.metric_names import METHODS, OTHER
from metamcp_supervisor.telemetry.usage import MeasuredProcess, Usage
from metamcp_worker.ipc import process_names
from metamcp_worker.ipc.disclosure import ViewStats
from metamcp_worker.ipc.figures import LimitedStats
from metamcp_worker.ipc.messages import (
    BUCKETS_S,
    OVERHEAD_BUCKETS_S,
    AnswerStats,
    CallStats,
    Durations,
    Figures,
    FrontStats,
    ToolStats,
)

ERROR_TYPES_MAX = 32
"""Maximum number of error types per server and method; servers may invent codes, and each would be
a time series for ever."""
OUTCOMES_MAX = 8
"""Maximum number of outcomes of calls that were to be sent again; fronts know three."""
CONSENTS_MAX = 16
"""Maximum number of outcomes of calls that needed consent; fronts know thirteen."""
TOOLS_MAX = 200
"""Maximum number of tools per server with figures of their own."""
VERSIONS_MAX = 16
"""Maximum number of protocol revisions per server; fronts know five."""

Key = tuple[str, str, str, str, str]
"""Server, method, revision, error type and, if times are kept for each tool, tool."""
ProcessKey = tuple[str, str]
"""Role and server."""


Seen = dict[tuple[str, ...], set[str]]
"""Values of labels that have series of their own; the key is, as far as needed, kind of label,
server and method."""


class TallySnapshot(Struct, frozen=True, kw_only=True):
    """Figures of fronts that have ended. `refused`: requests by reason; `late`: answers that came
    when no client waited for them any more, by server; `recorded`: calls by the outcome of
    recording them."""

    figures: Figures = Figures()
    refused: dict[str, int] = {}
    late: dict[str, int] = {}
    recorded: dict[str, int] = {}


class AnsweringSnapshot(Struct, frozen=True, kw_only=True):
    """Last report of a worker on the times of its server's answers. `transport`: between worker and
    server, `pipe` or `tcp`."""

    server: str
    transport: str
    stats: tuple[AnswerStats, ...]


class Sums:
    """Sums over the figures of fronts. `seen`: sums that share it give series to the same values of
    labels, in whatever order figures are added."""

    def __init__(self, seen: Seen) -> None:
        self.calls: dict[Key, Histogram] = {}
        self.tools: dict[str, ToolStats] = {}
        """Figures of tools by server."""
        self.overhead: dict[str, Histogram] = {}
        self.retries: dict[str, dict[str, int]] = {}
        self.limited: dict[tuple[str, str, str], int] = {}
        """Requests that limits of use refused, by kind and name of the owner and by limit."""
        self.policies: dict[str, dict[str, int]] = {}
        """Counts of calls that a policy had to do with, by policy and outcome."""
        self.middleware: dict[str, dict[str, int]] = {}
        """Requests that went through middleware, by name and outcome."""
        self.consent: dict[str, int] = {}
        """Calls that needed consent, by outcome."""
        self._seen = seen

    def add(self, figures: Figures) -> None:
        for stats in figures.calls:
            self.add_calls(stats)
        for tools in figures.tools:
            self._add_tools(tools)
        for stage, times in figures.overhead.items():
            histogram = self.overhead.setdefault(stage, Histogram(OVERHEAD_BUCKETS_S))
            histogram.add(times.seconds, times.buckets)
        for server, outcomes in figures.retries.items():
            add_counts(self.retries.setdefault(server, {}), outcomes, OUTCOMES_MAX)
        for name, outcomes in figures.middleware.items():
            add_counts(self.middleware.setdefault(name, {}), outcomes, OUTCOMES_MAX)
        for limited in figures.limited:
            key = limited.kind, limited.name, limited.limit
            self.limited[key] = self.limited.get(key, 0) + limited.count
        for policy, counts in figures.policies.items():
            add_counts(self.policies.setdefault(policy, {}), counts, OUTCOMES_MAX)
        add_counts(self.consent, figures.consent, CONSENTS_MAX)

    def _add_tools(self, stats: ToolStats) -> None:
        """Add figures of a server's tools; in nearly all cases without a loop over single tools."""
        seen = self._seen.setdefault(("tool", stats.server), set())
        if not seen.issuperset(stats.tools):
            names = tuple(_bound_value(seen, name, TOOLS_MAX) for name in stats.tools)
            stats = structs.replace(stats, tools=names)
        before = self.tools.get(stats.server)
        if before is not None and before.tools == stats.tools:
            counts = tuple(map(add, before.counts, stats.counts))
            errors = tuple(map(add, before.errors, stats.errors))
            self.tools[stats.server] = ToolStats(stats.server, stats.tools, counts, errors)
        elif before is None and stats.tools.count(OTHER) <= 1:
            self.tools[stats.server] = stats
        else:
            self.tools[stats.server] = _merge_stats(
                before or ToolStats(stats.server, (), (), ()), stats
            )

    def add_calls(self, stats: CallStats) -> None:
        labels = (stats.server, stats.method, stats.version, stats.error_type, stats.tool)
        histogram = self.calls.get(labels) or self._calls(stats)
        histogram.add(stats.seconds, stats.buckets, stats.longest_s)

    def _calls(self, stats: CallStats) -> Histogram:
        """Return the histogram for these calls, a new one if they are the first of their kind.
        Values of labels beyond their limit are replaced by OTHER."""
        server, method = stats.server, stats.method if stats.method in METHODS else OTHER
        error = self._bound_value("error", (server, method), stats.error_type, ERROR_TYPES_MAX)
        version = self._bound_value("version", (server,), stats.version, VERSIONS_MAX)
        tool = self._bound_value("tool", (server,), stats.tool, TOOLS_MAX)
        key = (server, method, version, error, tool)
        histogram = self.calls.get(key)
        if histogram is None:
            histogram = self.calls[key] = Histogram(BUCKETS_S)
        return histogram

    def figures(self) -> Figures:
        return Figures(
            calls=tuple(
                CallStats(
                    server, method, sum(histogram.durations.buckets), histogram.durations.seconds,
                    histogram.durations.buckets, error, version, tool, histogram.longest_s,
                )
                for (server, method, version, error, tool), histogram in self.calls.items()
            ),
            tools=tuple(self.tools.values()),
            overhead={stage: histogram.durations for stage, histogram in self.overhead.items()},
            retries=self.retries,
            middleware=self.middleware,
            limited=tuple(LimitedStats(*key, count) for key, count in self.limited.items()),
            policies=self.policies,
            consent=self.consent,
        )  # fmt: skip

    def forget(self, server: str) -> None:
        for key in [key for key in self.calls if key[0] == server]:
            del self.calls[key]
        self.tools.pop(server, None)
        for seen in [seen for seen in self._seen if seen[1] == server]:
            del self._seen[seen]
        self.retries.pop(server, None)

    def _bound_value(self, kind: str, of: tuple[str, ...], value: str, most: int) -> str:
        """Return the value, or OTHER if its kind has the maximum number of values."""
        return _bound_value(self._seen.setdefault((kind, *of), set()), value, most) if value else ""


class _Front(Struct):
    """The last report of a front that runs."""

    figures: Figures
    summary: FrontStats


class _Total:
    """Errors and times of all calls of one server."""

    def __init__(self) -> None:
        self.errors = 0
        self.histogram = Histogram(BUCKETS_S)


class FrontCounters:
    """The sums over all fronts, those that run and those that have ended."""

    def __init__(self) -> None:
        self._live: dict[int, _Front] = {}
        self._seen: Seen = {}
        self._base = Sums(self._seen)
        self._refused: dict[str, int] = {}
        self._late: dict[str, int] = {}
        self._recorded: dict[str, int] = {}
        self._sums: Sums | None = None
        self._totals: dict[str, _Total] | None = None
        """Totals of all methods by server; kept, like the sums, until the next report."""

    def report(self, front: int, figures: Figures, summary: FrontStats) -> None:
        self._live[front] = _Front(figures, summary)
        self._sums = self._totals = None

    def on_front_gone(self, front: int) -> None:
        last = self._live.pop(front, None)
        self._sums = self._totals = None
        if last is not None:
            self._base.add(last.figures)
            add_counts(self._refused, last.summary.refused, ERROR_TYPES_MAX)
            self._late = _sum_counts((self._late, last.figures.late_replies))
            self._recorded = _sum_counts((self._recorded, last.summary.recorded))

    def forget(self, server: str) -> None:
        """Remove a server that was removed from the configuration. Figures that running fronts
        still report about the server come again."""
        self._sums = self._totals = None
        self._base.forget(server)
        self._late.pop(server, None)

    def take_snapshot(self) -> TallySnapshot:
        """Return the figures of fronts that have ended, for the program after this one."""
        return TallySnapshot(
            figures=self._base.figures(), refused=self._refused, late=self._late,
            recorded=self._recorded,
        )  # fmt: skip

    def live(self) -> tuple[tuple[int, Figures, FrontStats], ...]:
        """Return the last reports of the fronts that run."""
        return tuple((n, front.figures, front.summary) for n, front in self._live.items())

    def go_on(self, snapshot: TallySnapshot) -> None:
        """Continue with the figures of the previous program."""
        self._base.add(snapshot.figures)
        self._refused, self._late = dict(snapshot.refused), dict(snapshot.late)
        self._recorded = dict(snapshot.recorded)

    def sums(self) -> Sums:
        if self._sums is None:
            self._sums = Sums(self._seen)
            self._sums.add(self._base.figures())
            for front in self._live.values():
                self._sums.add(front.figures)
        return self._sums

    def of_server(self, server: str) -> tuple[int, int, int]:
        """Return the numbers of calls, errors and calls in flight."""
        inflight = sum(front.figures.inflight.get(server, 0) for front in self._live.values())
        total = self._by_server().get(server)
        if total is None:
            return 0, 0, inflight
        return sum(total.histogram.durations.buckets), total.errors, inflight

    def buckets_of(self, server: str) -> Sequence[int]:
        """How many calls of one server took how long, per bucket of BUCKETS_S; empty before the
        first call."""
        total = self._by_server().get(server)
        return total.histogram.durations.buckets if total is not None else ()

    def longest_of(self, server: str) -> float:
        """Return the seconds of the longest call of one server so far; 0 before the first call."""
        total = self._by_server().get(server)
        return total.histogram.longest_s if total is not None else 0.0

    def longest_s(self) -> dict[str, float]:
        """Return the seconds of the longest call so far, by server."""
        return {name: total.histogram.longest_s for name, total in self._by_server().items()}

    def buckets(self) -> dict[str, tuple[int, ...]]:
        """How many calls took how long, by server: counts per bucket of BUCKETS_S."""
        return {
            name: total.histogram.durations.buckets for name, total in self._by_server().items()
        }

    def inflight(self) -> dict[str, int]:
        return _sum_counts(front.figures.inflight for front in self._live.values())

    def sum_held_calls(self) -> dict[str, int]:
        return _sum_counts(front.figures.held for front in self._live.values())

    def sessions(self) -> dict[str, int]:
        return _sum_counts(front.summary.sessions for front in self._live.values())

    def sum_refusals(self) -> dict[str, int]:
        live = (front.summary.refused for front in self._live.values())
        return _sum_counts((self._refused, *live))

    def sum_late_replies(self) -> dict[str, int]:
        """Return the number of answers that came when no client waited any more, by server."""
        live = (front.figures.late_replies for front in self._live.values())
        return _sum_counts((self._late, *live))

    def sum_recorded_calls(self) -> dict[str, int]:
        """Return the number of calls that were to be recorded, by outcome."""
        live = (front.summary.recorded for front in self._live.values())
        return _sum_counts((self._recorded, *live))

    def connections(self) -> int:
        return sum(front.summary.connections for front in self._live.values())

    def streams(self) -> int:
        return sum(front.summary.streams for front in self._live.values())

    def views(self) -> tuple[ViewStats, ...]:
        """Return each view once, as the newest front reports it: all fronts show the same."""
        views: dict[tuple[str, str, str], ViewStats] = {}
        for front in self._live.values():
            for view in front.figures.views:
                views[view.endpoint, view.principal, view.session] = view
        return tuple(views.values())

    def _by_server(self) -> Mapping[str, _Total]:
        if self._totals is None:
            self._totals = {}
            for (name, _, _, error, _), histogram in self.sums().calls.items():
                total = self._totals.setdefault(name, _Total())
                times = histogram.durations
                total.histogram.add(times.seconds, times.buckets, histogram.longest_s)
                total.errors += sum(times.buckets) if error else 0
        return self._totals


class WorkerCounters:
    """How long servers took for their answers, over all workers, those that run and those that have
    ended. The key of a worker is the name of its server and its generation."""

    def __init__(self) -> None:
        self._live: dict[tuple[str, int], AnsweringSnapshot] = {}
        self._base: dict[tuple[str, str, str, str], Histogram] = {}
        self._seen: Seen = {}
        self._totals: dict[str, tuple[int, int]] | None = None
        """Numbers of calls and errors by server; kept until the next report."""

    def report(self, name: str, generation: int, snapshot: AnsweringSnapshot) -> None:
        self._live[name, generation] = snapshot
        self._totals = None

    def on_worker_gone(self, name: str, generation: int) -> None:
        last = self._live.pop((name, generation), None)
        if last is not None:
            self._fold(self._base, last)

    def forget(self, server: str) -> None:
        self._totals = None
        for key in [key for key in self._base if key[0] == server]:
            del self._base[key]
        for seen in [seen for seen in self._seen if seen[0] == server]:
            del self._seen[seen]
        for worker in [key for key, snapshot in self._live.items() if snapshot.server == server]:
            del self._live[worker]

    def durations(self) -> dict[tuple[str, str, str, str], Durations]:
        """Return the times of answers by server, method, error type and transport."""
        total: dict[tuple[str, str, str, str], Histogram] = {}
        for key, base in self._base.items():
            histogram = total[key] = Histogram(BUCKETS_S)
            histogram.add(base.durations.seconds, base.durations.buckets)
        for live in self._live.values():
            self._fold(total, live)
        return {key: histogram.durations for key, histogram in total.items()}

    def of_server(self, server: str) -> tuple[int, int]:
        """Return the number of calls that ended, as workers saw them, and of errors among them."""
        if self._totals is None:
            self._totals = {}
            for (name, _, error, _), times in self.durations().items():
                calls, errors = self._totals.get(name, (0, 0))
                count = sum(times.buckets)
                self._totals[name] = calls + count, errors + (count if error else 0)
        return self._totals.get(server, (0, 0))

    def take_snapshot(self) -> tuple[tuple[tuple[str, str, str, str], Durations], ...]:
        return tuple((key, histogram.durations) for key, histogram in self._base.items())

    def live(self) -> tuple[tuple[str, int, AnsweringSnapshot], ...]:
        return tuple((*key, snapshot) for key, snapshot in self._live.items())

    def go_on(self, base: Iterable[tuple[tuple[str, str, str, str], Durations]]) -> None:
        for key, times in base:
            self._error(key[0], key[1], key[2])
            histogram = self._base[key] = Histogram(BUCKETS_S)
            histogram.add(times.seconds, times.buckets)

    def _fold(
        self, total: dict[tuple[str, str, str, str], Histogram], snapshot: AnsweringSnapshot
    ) -> None:
        for stats in snapshot.stats:
            method = stats.method if stats.method in METHODS else OTHER
            error = self._error(snapshot.server, method, stats.error_type)
            key = (snapshot.server, method, error, snapshot.transport)
            histogram = total.get(key)
            if histogram is None:
                histogram = total[key] = Histogram(BUCKETS_S)
            histogram.add(stats.seconds, stats.buckets)

    def _error(self, server: str, method: str, error: str) -> str:
        errors = self._seen.setdefault((server, method), set())
        return _bound_value(errors, error, ERROR_TYPES_MAX) if error else ""


def _bound_value(values: set[str], value: str, most: int) -> str:
    """Return the value, or OTHER if `values` has `most` values already. Values stay known for good:
    if a value with a series became OTHER later, two counters would fall."""
    if value in values or value == OTHER:
        return value
    if len(values) >= most:
        return OTHER
    values.add(value)
    return value


def _merge_stats(stats: ToolStats, other: ToolStats) -> ToolStats:
    counts: dict[str, int] = {}
    errors: dict[str, int] = {}
    for each in (stats, other):
        for tool, called, failed in zip(each.tools, each.counts, each.errors, strict=True):
            counts[tool] = counts.get(tool, 0) + called
            errors[tool] = errors.get(tool, 0) + failed
    return ToolStats(stats.server, tuple(counts), tuple(counts.values()), tuple(errors.values()))


def add_counts(total: dict[str, int], more: Mapping[str, int], keys_max: int) -> None:
    """Add counts; counts of keys beyond `keys_max` are added under OTHER."""
    for key, n in more.items():
        label = key if key in total or len(total) < keys_max else OTHER
        total[label] = total.get(label, 0) + n


def _sum_counts(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for more in counts:
        for key, n in more.items():
            total[key] = total.get(key, 0) + n
    return total


class ProcessUsage:
    """Memory now and processor time so far, by role and server, over processes that come and go."""

    def __init__(self) -> None:
        self._last: dict[MeasuredProcess, Usage] = {}
        self._cpu_s: dict[ProcessKey, float] = {}

    def update_usages(self, usages: Mapping[MeasuredProcess, Usage]) -> None:
        """Note the newest measurement of all processes; a process that is missing has ended.
        Processes are compared by process id, because numbers change when a spare takes the place of
        another copy."""
        usages = {_of_server(process): used for process, used in usages.items()}
        before_s = {
            (process.role, process.server, usage.pid): usage.cpu_s
            for process, usage in self._last.items()
        }
        for process, now in usages.items():
            key = (process.role, process.server)
            # Child processes come and go, so the time of a tree may fall. The sum must not.
            used_s = max(0.0, now.cpu_s - before_s.get((*key, now.pid), 0.0))
            self._cpu_s[key] = self._cpu_s.get(key, 0.0) + used_s
        self._last = usages

    def last(self) -> Mapping[MeasuredProcess, Usage]:
        """Return the newest measurement."""
        return self._last

    def go_on(
        self, cpu_s: Mapping[ProcessKey, float], last: Iterable[tuple[MeasuredProcess, Usage]]
    ) -> None:
        """Continue with the figures of the previous program."""
        self._cpu_s, self._last = dict(cpu_s), dict(last)

    def forget(self, server: str) -> None:
        for key in [key for key in self._cpu_s if key[1] == server]:
            del self._cpu_s[key]

    def rss_bytes(self) -> dict[ProcessKey, int]:
        return self._sums(lambda now: now.rss_bytes)

    def memory_bytes(self) -> dict[ProcessKey, int]:
        return self._sums(lambda now: now.held_bytes)

    def threads(self) -> dict[ProcessKey, int]:
        return self._sums(lambda now: now.threads)

    def descriptors(self) -> dict[ProcessKey, tuple[int, int]]:
        """Return the number of open descriptors and the limit of the process that is nearest to its
        limit."""
        fullest: dict[ProcessKey, tuple[int, int]] = {}
        for process, now in self._last.items():
            key = (process.role, process.server)
            if now.fds_max and now.fds / now.fds_max >= _share(fullest.get(key)):
                fullest[key] = now.fds, now.fds_max
        return fullest

    def cpu_s(self) -> Mapping[ProcessKey, float]:
        return self._cpu_s

    def _sums(self, of: Callable[[Usage], int]) -> dict[ProcessKey, int]:
        total: dict[ProcessKey, int] = {}
        for process, now in self._last.items():
            key = (process.role, process.server)
            total[key] = total.get(key, 0) + of(now)
        return total


def _of_server(process: MeasuredProcess) -> MeasuredProcess:
    """Return a process for a single client, or for clients with a session, as one of several
    processes of its server. The word for the client has 48 bits, which leaves room for the number
    of a copy."""
    who = process_names.parse_client(process.server)
    if not who:
        return process
    word = int.from_bytes(who.encode()) if who == process_names.LEGACY else int(who, 16)
    return MeasuredProcess(
        process.role, process_names.base(process.server), (word << 12) + process.number
    )


def _share(descriptors: tuple[int, int] | None) -> float:
    return descriptors[0] / descriptors[1] if descriptors is not None else 0.0
