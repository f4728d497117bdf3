"""Every metric: its name, labels and help in one list, and the page that Prometheus reads.

Owns: the list, the sums behind it, the text. Never: measuring (`usage`, the fronts, the workers),
HTTP (`admin`). The only file that uses prometheus_client.

No label can grow with traffic: servers are the configured ones, methods and states are closed sets,
error types are bounded, and what a client or server sent is never a label.
"""

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec import Struct
from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import CollectorRegistry

from metamcp_supervisor import handing
from metamcp_supervisor.verbs import GatewayStatus, ServerStatus
from metamcp_supervisor.watched.latency import Counts, Lately, quantile
from metamcp_supervisor.watched.tallies import OUTCOMES_MAX, Fronts, Processes, Sum, add_counts
from metamcp_supervisor.watched.usage import Part, Usage
from metamcp_worker import sharing
from metamcp_worker.messages import BUCKETS_S, CallStats, FrontStats

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
STATES = ("warming", "ready", "active", "idle", "draining", "stopped", "error")
#: Methods of all revisions; any other is counted as `_OTHER`.
METHODS = frozenset({
    "completion/complete", "initialize", "logging/setLevel", "ping", "prompts/get", "prompts/list",
    "resources/list", "resources/read", "resources/subscribe", "resources/templates/list",
    "resources/unsubscribe", "server/discover", "subscriptions/listen", "tasks/cancel", "tasks/get",
    "tasks/list", "tasks/result", "tasks/update", "tools/call", "tools/list",
})  # fmt: skip
KINDS_MAX = 16
"""Kinds of protocol errors; the code knows fewer."""
REASONS_MAX = 32
"""Reasons of restarts; the code knows fewer."""

_LE = (*(f"{bound:g}" for bound in BUCKETS_S), "+Inf")


class Family(Struct, frozen=True):
    """One row of the list. `name` is what stands on the page, `_total` included."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    labels: tuple[str, ...]
    help: str


_ROWS = (
    Family("mcp_server_operation_duration_seconds", "histogram", ("server", "mcp_method_name"),
           "Time from a request of a client to the end of its answer, by the server it went to."),
    Family("metamcp_call_errors_total", "counter", ("server", "mcp_method_name", "error_type"),
           "Requests that failed: error_type is tool_error, cancelled or a JSON-RPC code."),
    Family("metamcp_call_retries_total", "counter", ("server", "outcome"),
           "Calls whose server died and that went to the next one: answered, failed or cancelled."),
    Family("metamcp_inflight_calls", "gauge", ("server",),
           "Requests that wait for an answer now."),
    Family("metamcp_server_state", "gauge", ("server", "state"),
           "1 for the state the server is in, 0 for the others."),
    Family("metamcp_server_restarts_total", "counter", ("server", "reason"),
           "Starts after the first one, by what made them necessary."),
    Family("metamcp_server_start_duration_seconds", "gauge", ("server",),
           "From the last start of the server's process to its lists."),
    Family("metamcp_generation", "gauge", ("server",),
           "How often the server was started."),
    Family("metamcp_circuit_open", "gauge", ("server",),
           "1 while the server failed so often that it is only probed now and then."),
    Family("metamcp_backoff_seconds", "gauge", ("server",),
           "Until the next planned start, 0 if none is planned."),
    Family("metamcp_process_resident_memory_bytes", "gauge", ("server", "role"),
           "Resident memory of a process and what is below it, down to the next of our processes."),
    Family("metamcp_process_cpu_seconds_total", "counter", ("server", "role"),
           "Processor time of the same processes."),
    Family("metamcp_sessions", "gauge", ("protocol_version",),
           "Open sessions of clients that have sessions."),
    Family("metamcp_connections", "gauge", (),
           "Open connections of clients."),
    Family("metamcp_streams", "gauge", (),
           "Open streams of events to clients."),
    Family("metamcp_requests_refused_total", "counter", ("reason",),
           "Requests that were turned away before they reached a server."),
    Family("metamcp_stray_stdout_lines_total", "counter", ("server",),
           "Lines on a server's stdout that were no message."),
    Family("metamcp_late_replies_total", "counter", ("server",),
           "Answers of a server for which nobody waited any more."),
    Family("metamcp_protocol_errors_total", "counter", ("server", "kind"),
           "Messages of a server that broke the protocol."),
    Family("metamcp_unroutable_requests_total", "counter", ("server",),
           "Requests of a server that no single caller can have caused; they were refused."),
    Family("metamcp_unattributed_logs_total", "counter", ("server",),
           "Log messages of a server that belong to no single caller; they reached nobody."),
    Family("metamcp_log_lines_dropped_total", "counter", ("server",),
           "Lines of a server that were lost because it wrote too many per second."),
    Family("metamcp_config_last_reload_successful", "gauge", (),
           "1 if the configuration was valid when it was last read."),
    Family("metamcp_config_last_reload_timestamp_seconds", "gauge", (),
           "When the configuration was last read with success."),
    Family("metamcp_build_info", "gauge", ("version", "python"),
           "Always 1; the labels tell what runs."),
    Family("metamcp_up", "gauge", (),
           "1 while the gateway serves, 0 while it starts or drains."),
)  # fmt: skip
FAMILIES: Mapping[str, Family] = {row.name: row for row in _ROWS}

#: Counters of the workers that have a metric of their own; the others are protocol errors.
_OWN_COUNTERS = {
    "stray_stdout": "metamcp_stray_stdout_lines_total",
    "late_reply": "metamcp_late_replies_total",
    "unroutable_request": "metamcp_unroutable_requests_total",
    "unattributed_log": "metamcp_unattributed_logs_total",
    "log_lines_dropped": "metamcp_log_lines_dropped_total",
}

Values = Iterable[tuple[tuple[str, ...], float]]


class Metrics:
    """The sums since the start. One per gateway; everything is called from its event loop."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._fronts = Fronts(METHODS)
        self._lately = Lately()
        self._processes = Processes()
        self._counts: dict[str, dict[str, int]] = {name: {} for name in _OWN_COUNTERS.values()}
        self._broken: dict[str, dict[str, int]] = {}
        self._restarts: dict[str, dict[str, int]] = {}
        self._reload_ok: bool | None = None
        self._reloaded_at = 0.0

    def front_stats(self, front: int, stats: Sequence[CallStats], summary: FrontStats) -> None:
        """The newest report of a front; its figures are cumulative."""
        self._fronts.report(front, stats, summary)

    def front_gone(self, front: int) -> None:
        """Keep what it counted."""
        self._fronts.gone(front)

    def server_counts(self, server: str, counts: Mapping[str, int]) -> None:
        """Things that happened `n` more times at a server: the names of `messages.Counted`, and
        `log_lines_dropped`."""
        for name, n in counts.items():
            own = _OWN_COUNTERS.get(name)
            if own is None:
                add_counts(self._broken.setdefault(server, {}), {name: n}, KINDS_MAX)
            else:
                self._counts[own][server] = self._counts[own].get(server, 0) + n

    def restarted(self, server: str, reason: str) -> None:
        """One more start that was not the first; `reason`: an exit class, or who asked."""
        add_counts(self._restarts.setdefault(server, {}), {reason: 1}, REASONS_MAX)

    def handed(self) -> handing.Figures:
        """What the program after this one goes on counting from."""
        return handing.Figures(
            base=self._fronts.handed(),
            live=self._fronts.live(),
            counts=self._counts,
            broken=self._broken,
            restarts=self._restarts,
            cpu_s=tuple((*key, spent) for key, spent in self._processes.cpu_s().items()),
            usages=tuple(self._processes.last().items()),
        )

    def go_on(self, found: handing.Figures) -> None:
        """After what the program before counted."""
        self._fronts.go_on(found.base)
        for front, calls, summary in found.live:
            self._fronts.report(front, calls, summary)
        self._counts = {name: dict(found.counts.get(name, {})) for name in self._counts}
        self._broken, self._restarts = found.broken, found.restarts
        cpu_s = {(role, server): spent for role, server, spent in found.cpu_s}
        self._processes.go_on(cpu_s, found.usages)

    def usage(self, usages: Mapping[Part, Usage]) -> None:
        """The newest `usage.sample`, of all parts at once."""
        self._processes.sampled({_part(part): used for part, used in usages.items()})

    def reloaded(self, ok: bool, now: float) -> None:
        """The configuration was read, at the start or anew. `now`: seconds since the epoch."""
        self._reload_ok = ok
        if ok:
            self._reloaded_at = now

    def forget(self, server: str) -> None:
        """The server is no longer configured: its series end."""
        self._fronts.forget(server)
        self._processes.forget(server)
        self._broken.pop(server, None)
        self._restarts.pop(server, None)
        for counts in self._counts.values():
            counts.pop(server, None)

    def calls(self, server: str) -> tuple[int, int, int]:
        """Calls so far, errors among them, and calls in flight."""
        return self._fronts.of_server(server)

    def latencies(self) -> dict[str, Counts]:
        """How many requests took how long, by server: counts per bucket of `BUCKETS_S`."""
        return self._fronts.buckets()

    def remember(self, now: float) -> None:
        """Called often, so that it is known later what came lately. `now`: monotonic seconds."""
        if self._lately.due(now):
            self._lately.mark(self.latencies(), now)

    def lately_s(self, server: str) -> tuple[float | None, float | None]:
        """Within how many seconds half of the latest requests were answered, and 95 % of them."""
        counts = self._lately.of(server, self._fronts.buckets_of(server))
        return quantile(counts, BUCKETS_S, 0.5), quantile(counts, BUCKETS_S, 0.95)

    def counted(self, server: str, name: str) -> int:
        """How often so far: a name of `messages.Counted` that has a metric of its own."""
        return self._counts[_OWN_COUNTERS[name]].get(server, 0)

    def render(self, status: GatewayStatus) -> bytes:
        """The page, in the text format of Prometheus."""
        registry = CollectorRegistry()
        # What serves a single client counts with its server: no label grows with clients.
        servers = [one for one in status.servers if not sharing.whose(one.name)]
        registry.register(_Page([*self._measured(servers), *self._told(status, servers)]))
        return generate_latest(registry)

    def _measured(self, servers: Sequence[ServerStatus]) -> Iterator[Metric]:
        """What fronts, workers and the process table told."""
        known = {server.name for server in servers}
        sums = {key: one for key, one in self._fronts.calls().items() if key[0] in known | {""}}
        yield _durations(sums)
        yield _family("metamcp_call_errors_total", (
            ((*key, kind), n) for key, one in sums.items() for kind, n in one.errors.items()
        ))  # fmt: skip
        yield _family("metamcp_call_retries_total", _by_two(_retries(sums)))
        inflight = self._fronts.inflight()
        yield _family("metamcp_inflight_calls", (
            ((name,), inflight.get(name, 0)) for name in sorted(known)
        ))  # fmt: skip
        yield _family("metamcp_process_resident_memory_bytes", (
            ((server, role), n) for (role, server), n in self._processes.rss_bytes().items()
        ))  # fmt: skip
        yield _family("metamcp_process_cpu_seconds_total", (
            ((server, role), n) for (role, server), n in self._processes.cpu_s().items()
        ))  # fmt: skip
        yield _family("metamcp_sessions", _by_one(self._fronts.sessions()))
        yield _family("metamcp_connections", [((), self._fronts.connections())])
        yield _family("metamcp_streams", [((), self._fronts.streams())])
        yield _family("metamcp_requests_refused_total", _by_one(self._fronts.refused()))
        for name, counts in self._counts.items():
            yield _family(name, (((server,), counts.get(server, 0)) for server in sorted(known)))
        yield _family("metamcp_protocol_errors_total", _by_two(self._broken))
        yield _family("metamcp_server_restarts_total", _by_two(self._restarts))

    def _told(self, status: GatewayStatus, servers: Sequence[ServerStatus]) -> Iterator[Metric]:
        """What the status tells."""
        yield _family("metamcp_server_state", (
            ((server.name, state), server.state == state) for server in servers for state in STATES
        ))  # fmt: skip
        yield _family("metamcp_server_start_duration_seconds", (
            ((server.name,), server.start_s) for server in servers if server.start_s > 0
        ))  # fmt: skip
        yield _family("metamcp_generation", (
            ((server.name,), server.generation) for server in servers
        ))  # fmt: skip
        yield _family("metamcp_circuit_open", (
            ((server.name,), server.phase == "failed") for server in servers
        ))  # fmt: skip
        yield _family("metamcp_backoff_seconds", (
            ((server.name,), server.retry_in_s or 0.0) for server in servers
        ))  # fmt: skip
        if self._reload_ok is not None:
            yield _family("metamcp_config_last_reload_successful", [((), self._reload_ok)])
            yield _family("metamcp_config_last_reload_timestamp_seconds", [((), self._reloaded_at)])
        build = (self._version, platform.python_version())
        yield _family("metamcp_build_info", [(build, 1)])
        yield _family("metamcp_up", [((), status.state == "active")])


class _Page:
    """What the library calls a collector."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _part(part: Part) -> Part:
    """What serves a single client is one of several processes of its server. The word for it has
    48 bits, which leaves room for the number of a copy."""
    who = sharing.whose(part.server)
    if not who:
        return part
    return Part(part.role, sharing.base(part.server), (int(who, 16) << 12) + part.number)


def _family(name: str, values: Values) -> Metric:
    row = FAMILIES[name]
    family: GaugeMetricFamily | CounterMetricFamily
    if row.kind == "counter":
        family = CounterMetricFamily(name, row.help, labels=row.labels)
    else:
        family = GaugeMetricFamily(name, row.help, labels=row.labels)
    for labels, number in values:
        family.add_metric(labels, float(number))
    return family


def _durations(sums: Mapping[tuple[str, str], Sum]) -> Metric:
    row = FAMILIES["mcp_server_operation_duration_seconds"]
    family = HistogramMetricFamily(row.name, row.help, labels=row.labels)
    for key, one in sums.items():
        below = 0
        buckets: list[tuple[str, float]] = []
        for bound, n in zip(_LE, one.buckets, strict=True):
            below += n
            buckets.append((bound, float(below)))
        family.add_metric(key, buckets, one.seconds)
    return family


def _retries(sums: Mapping[tuple[str, str], Sum]) -> dict[str, dict[str, int]]:
    """By server and outcome, whatever the method."""
    found: dict[str, dict[str, int]] = {}
    for (server, _), one in sums.items():
        add_counts(found.setdefault(server, {}), one.retries, OUTCOMES_MAX)
    return found


def _by_one(counts: Mapping[str, int]) -> Values:
    return (((key,), n) for key, n in counts.items())


def _by_two(counts: Mapping[str, Mapping[str, int]]) -> Values:
    return (((server, key), n) for server, inner in counts.items() for key, n in inner.items())
