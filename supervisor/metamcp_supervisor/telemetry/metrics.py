"""All figures since the start, and the page that shows them.

Owns: the sums, and which of them belongs to which family. Never: the list of families
(`metric_names`), text (`exposition`), limits of a page (`page_rows`), measuring (`usage`, the
fronts, the workers), HTTP (`admin`).
"""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Protocol

from msgspec import Struct

from metamcp_supervisor.config.config import MetricsConfig
from metamcp_supervisor.telemetry.counters import (
    AnsweringSnapshot,
    FrontCounters,
    ProcessUsage,
    TallySnapshot,
    WorkerCounters,
    add_counts,
)
from metamcp_supervisor.telemetry.health import Readings
from metamcp_supervisor.telemetry.histograms import (
    FAMILY,
    Counts,
    Histogram,
    RecentCounts,
    SpanCounts,
    quantile,
)
from metamcp_supervisor.telemetry.metric_names import (
    DRIFT,
    FAILOVER_BUCKETS_S,
    LAG_BUCKETS_S,
    OUTCOMES,
    RECORDED,
    RESTARTS,
    STATES,
    STEPS,
)
from metamcp_supervisor.telemetry.page_rows import (
    Caps,
    MetricsSnapshot,
    Table,
    Values,
    by_one,
    by_tool,
    by_two,
    histograms,
    limits_of_use,
    of_views,
    select_configured,
)
from metamcp_supervisor.telemetry.usage import MeasuredProcess, Usage
from metamcp_supervisor.verbs import GatewayStatus, ServerStatus
from metamcp_worker.confinement.denials import denied_of
from metamcp_worker.ipc import process_names
from metamcp_worker.ipc.disclosure import ViewStats
from metamcp_worker.ipc.figures import ToolStats
from metamcp_worker.ipc.messages import (
    BUCKETS_S,
    AnswerStats,
    Durations,
    Figures,
    FrontStats,
)
from metamcp_worker.ipc.spec import RECORDING

KINDS_MAX = 16
"""Maximum number of kinds of protocol errors; the code knows fewer."""
REASONS_MAX = 32
"""Maximum number of reasons of restarts; the code knows fewer."""
STEPS_MAX = 8
"""Maximum number of steps of a stop; the code knows fewer."""
STEP = "stop_"
"""Prefix of counters for the steps of a stop; the rest of the name is the label."""
SLOW = frozenset({"slow_head", "slow_body", "slow_reader"})
"""Reasons of refusals after which a client was disconnected."""

#: Counters of workers that have a metric of their own; all others are protocol errors.
_OWN_COUNTERS = {
    "stray_stdout": "metamcp_stray_stdout_lines_total",
    "late_reply": "metamcp_late_replies_total",
    "unroutable_request": "metamcp_unroutable_requests_total",
    "unattributed_log": "metamcp_unattributed_logs_total",
    "log_lines_dropped": "metamcp_log_lines_dropped_total",
    "orphan": "metamcp_orphans_reaped_total",
    "oom_kill": "metamcp_oom_kills_total",
    "result_kept": "metamcp_results_kept_total",
    "result_tokens_saved": "metamcp_result_tokens_saved_total",
}


class FiguresSnapshot(Struct, frozen=True, kw_only=True):
    """Counters that must not fall. `counts`: by metric and server; `live`: the last report of each
    front. `answered`: times of workers that have ended, by server, method, error and transport, and
    `answering`: of those that run, by name and generation. `steps`: steps of stops, by server.
    `refused`: rights that sandboxes refused, by server and kind, with the last one.
    `series_…`, `folded`: state of `page_rows.Caps`; `spans`: counts by outcome;
    `counters`: of features, by family and value of its label."""

    base: TallySnapshot
    live: tuple[tuple[int, Figures, FrontStats], ...]
    counts: dict[str, dict[str, int]]
    broken: dict[str, dict[str, int]]
    restarts: dict[str, dict[str, int]]
    cpu_s: tuple[tuple[str, str, float], ...]
    usages: tuple[tuple[MeasuredProcess, Usage], ...]
    answered: tuple[tuple[tuple[str, str, str, str], Durations], ...] = ()
    answering: tuple[tuple[str, int, AnsweringSnapshot], ...] = ()
    steps: dict[str, dict[str, int]] = {}
    refused: dict[str, dict[str, tuple[int, str]]] = {}
    exit_codes: dict[str, int] = {}
    lags: dict[str, Durations] = {}
    failovers: dict[str, Durations] = {}
    series_dropped: int = 0
    series_hidden: int = 0
    folded: dict[str, int] = {}
    spans: dict[str, int] = {}
    counters: dict[str, dict[str, int]] = {}


class MetricSource(Protocol):
    """Part of the gateway that has metrics of its own."""

    def metric_rows(self) -> Iterator[tuple[str, Values]]: ...


class Metrics:
    """The sums since the start of one gateway. All methods are called from its event loop."""

    def __init__(self, version: str) -> None:
        self._version = version
        self._fronts = FrontCounters()
        self._workers = WorkerCounters()
        self._lately = RecentCounts()
        self._processes = ProcessUsage()
        self._caps = Caps()
        self._counts: dict[str, dict[str, int]] = {name: {} for name in _OWN_COUNTERS.values()}
        self._broken: dict[str, dict[str, int]] = {}
        self._restarts: dict[str, dict[str, int]] = {}
        self._steps: dict[str, dict[str, int]] = {}
        self._refused: dict[str, dict[str, tuple[int, str]]] = {}
        self._exit_codes: dict[str, int] = {}
        self._lags: dict[str, Histogram] = {}
        self._failovers: dict[str, Histogram] = {}
        self.spans = SpanCounts()
        self._counters: dict[str, dict[str, int]] = {}
        self.sources: Sequence[MetricSource] = ()
        self._reload_ok: bool | None = None
        self._reloaded_at = 0.0

    # Events

    def front_stats(self, front: int, figures: Figures, summary: FrontStats) -> None:
        """Note the newest report of a front; its figures are cumulative."""
        self._fronts.report(front, figures, summary)

    def front_gone(self, front: int) -> None:
        """Keep the figures of a front that has ended."""
        self._fronts.on_front_gone(front)

    def answers(
        self, name: str, generation: int, transport: str, stats: tuple[AnswerStats, ...]
    ) -> None:
        """Note the newest report of a worker; its figures are cumulative. `transport`: between the
        worker and its server."""
        server = process_names.base(name)
        snapshot = AnsweringSnapshot(server=server, transport=transport, stats=stats)
        self._workers.report(name, generation, snapshot)

    def worker_gone(self, name: str, generation: int) -> None:
        """Keep the times of a worker that has ended."""
        self._workers.on_worker_gone(name, generation)

    def server_counts(self, server: str, counts: Mapping[str, int]) -> None:
        """Add counts of events at a server: names of `messages.EventCounts`, `log_lines_dropped`,
        `orphan`, `oom_kill`, and `stop_` with a step of a stop."""
        for name, n in counts.items():
            own = _OWN_COUNTERS.get(name)
            if own is not None:
                self._counts[own][server] = self._counts[own].get(server, 0) + n
            elif (denied := denied_of(name)) is not None:
                rights = self._refused.setdefault(server, {})
                rights[denied.right] = rights.get(denied.right, (0, ""))[0] + n, denied.path
            elif name.startswith(STEP):
                step = {name.removeprefix(STEP): n}
                add_counts(self._steps.setdefault(server, {}), step, STEPS_MAX)
            else:
                add_counts(self._broken.setdefault(server, {}), {name: n}, KINDS_MAX)

    def count_restart(self, server: str, reason: str) -> None:
        """Count another start that was not the first. `reason`: an exit class, or `operator`."""
        add_counts(self._restarts.setdefault(server, {}), {reason: 1}, REASONS_MAX)

    def record_exit(self, server: str, code: int) -> None:
        """Note how the process of a server ended. `code`: exit code, less than 0 for a signal."""
        self._exit_codes[server] = code

    def failed_over(self, server: str, seconds: float) -> None:
        """Note after how many seconds another copy took the calls of a server that went down."""
        self._failovers.setdefault(server, Histogram(FAILOVER_BUCKETS_S)).observe(seconds)

    def lag(self, role: str, seconds: float) -> None:
        """Note how late an event loop was."""
        self._lags.setdefault(role, Histogram(LAG_BUCKETS_S)).observe(seconds)

    def counter(self, family: str, values: Iterable[str] = ()) -> dict[str, int]:
        """Return the counts of a feature by the value of a label, which outlive an upgrade of the
        program. `values`: those that have series before their first event."""
        return self._counters.setdefault(family, dict.fromkeys(values, 0))

    def usage(self, usages: Mapping[MeasuredProcess, Usage]) -> None:
        """Note the newest `usage.sample` of all processes."""
        self._processes.update_usages(usages)

    def on_reload(self, config: MetricsConfig | None, now: float) -> None:
        """Note that the configuration was read, at the start or again. `config`: its settings for
        metrics, None if it was refused; `now`: seconds since the epoch."""
        self._reload_ok = config is not None
        if config is not None:
            self._reloaded_at = now
            self._caps.set_limit(config.series_max)

    def forget(self, server: str) -> None:
        """End the series of a server that was removed from the configuration."""
        self._fronts.forget(server)
        self._workers.forget(server)
        self._processes.forget(server)
        self._caps.forget(server)
        self.spans.forget(server)
        self._exit_codes.pop(server, None)
        self._failovers.pop(server, None)
        for kinds in (self._broken, self._restarts, self._steps, self._refused):
            kinds.pop(server, None)
        for counts in self._counts.values():
            counts.pop(server, None)

    # An upgrade

    def take_snapshot(self) -> FiguresSnapshot:
        """Return the figures with which the program after this one continues."""
        return FiguresSnapshot(
            base=self._fronts.take_snapshot(),
            live=self._fronts.live(),
            counts=self._counts,
            broken=self._broken,
            restarts=self._restarts,
            cpu_s=tuple((*key, spent) for key, spent in self._processes.cpu_s().items()),
            usages=tuple(self._processes.last().items()),
            answered=self._workers.take_snapshot(),
            answering=self._workers.live(),
            steps=self._steps,
            refused=self._refused,
            exit_codes=self._exit_codes,
            lags={role: histogram.durations for role, histogram in self._lags.items()},
            failovers={
                server: histogram.durations for server, histogram in self._failovers.items()
            },
            series_dropped=self._caps.dropped,
            series_hidden=self._caps.hidden,
            folded=self._caps.folded,
            spans=self.spans.counts,
            counters=self._counters,
        )

    def go_on(self, snapshot: FiguresSnapshot) -> None:
        """Continue with the figures of the previous program."""
        self._fronts.go_on(snapshot.base)
        for front, figures, summary in snapshot.live:
            self._fronts.report(front, figures, summary)
        self._workers.go_on(snapshot.answered)
        for name, generation, answering in snapshot.answering:
            self._workers.report(name, generation, answering)
        self._counts = {name: dict(snapshot.counts.get(name, {})) for name in self._counts}
        self._broken, self._restarts, self._steps = (
            snapshot.broken,
            snapshot.restarts,
            snapshot.steps,
        )
        self._exit_codes, self._refused = snapshot.exit_codes, snapshot.refused
        for role, times in snapshot.lags.items():
            self._lags[role] = Histogram(LAG_BUCKETS_S)
            self._lags[role].add(times.seconds, times.buckets)
        for server, times in snapshot.failovers.items():
            self._failovers[server] = Histogram(FAILOVER_BUCKETS_S)
            self._failovers[server].add(times.seconds, times.buckets)
        self._caps.dropped, self._caps.hidden = snapshot.series_dropped, snapshot.series_hidden
        self._caps.folded = dict(snapshot.folded)
        self.spans.counts |= snapshot.spans
        for family, counts in snapshot.counters.items():
            self.counter(family).update(counts)
        cpu_s = {(role, server): spent for role, server, spent in snapshot.cpu_s}
        self._processes.go_on(cpu_s, snapshot.usages)

    # Questions of other parts

    def calls(self, server: str) -> tuple[int, int, int]:
        """Return the numbers of calls, of errors among them, and of calls in flight. Counts since
        the last report of a killed front are lost: then workers know more calls."""
        calls, errors, inflight = self._fronts.of_server(server)
        answered, failed = self._workers.of_server(server)
        return max(calls, answered), max(errors, failed), inflight

    def latencies(self) -> dict[str, Counts]:
        """How many requests took how long, by server: counts per bucket of `BUCKETS_S`."""
        return self._fronts.buckets()

    def longest_s(self) -> dict[str, float]:
        """Return the seconds of the longest call so far, by server."""
        return self._fronts.longest_s()

    def tool_stats(self) -> Mapping[str, ToolStats]:
        """Return how often tools were called, by server."""
        return self._fronts.sums().tools

    def views(self) -> tuple[ViewStats, ...]:
        """Return the figures of views, as the fronts reported them last."""
        return self._fronts.views()

    def count_refusals(self) -> Mapping[tuple[str, str, str], int]:
        """Return the numbers of requests that limits of use refused, by kind and name of the owner
        and by limit."""
        return self._fronts.sums().limited

    def remember(self, now: float) -> None:
        """Mark the counts of now for `lately_s`; to be called often. `now`: monotonic seconds."""
        if self._lately.due(now):
            self._lately.mark(self.latencies(), now)

    def lately_s(self, server: str) -> tuple[float | None, float | None]:
        """Return the seconds within which half and 95 % of the latest requests were answered."""
        counts = self._lately.of(server, self._fronts.buckets_of(server))
        most = self._fronts.longest_of(server)
        return quantile(counts, BUCKETS_S, 0.5, most), quantile(counts, BUCKETS_S, 0.95, most)

    def read_event_count(self, server: str, name: str) -> int:
        """Return the count of an event at a server. `name`: of `messages.EventCounts`, with a
        metric of its own."""
        return self._counts[_OWN_COUNTERS[name]].get(server, 0)

    def find_denied_rights(self, server: str) -> Mapping[str, tuple[int, str]]:
        """Return how often its sandbox refused a server rights of each kind, and the last one."""
        return self._refused.get(server, {})

    # The page

    def snapshot(self, status: GatewayStatus, readings: Readings) -> MetricsSnapshot:
        """Return all that is on the page of now."""
        return MetricsSnapshot(self.table(status, readings), {FAMILY: self.spans.exemplars()})

    def table(self, status: GatewayStatus, readings: Readings) -> Table:
        """Return all rows by family, within the limit of series on a page."""
        # Processes for single clients count with their server: no label grows with clients.
        servers = [
            server for server in status.servers if not process_names.parse_client(server.name)
        ]
        names = sorted(server.name for server in servers)
        table: Table = {}
        for name, rows in chain(  # one after the other: what a family is made of changes
            self._call_families(names),
            self._server_families(servers, names, readings),
            self._process_families(names, readings),
            self._client_families(readings),
            limits_of_use(status.limits),
            self._gateway_families(status, readings),
        ):
            table[name] = select_configured(name, rows, {*names, ""})
        table = self._caps.hold(table)
        table["metamcp_metric_series_dropped_total"] = [((), self._caps.dropped)]
        return table

    def _call_families(self, names: Sequence[str]) -> Iterator[tuple[str, Values]]:
        """Yield the families about calls, from reports of fronts and workers."""
        sums, tools = self._fronts.sums(), self._fronts.sums().tools
        calls = {key: histogram.durations for key, histogram in sums.calls.items()}
        errors: dict[tuple[str, ...], int] = {}
        for (server, method, _, error, _), times in calls.items():
            if error:
                key = (server, method, error)
                errors[key] = errors.get(key, 0) + sum(times.buckets)
        yield (
            "mcp_server_operation_duration_seconds",
            (
                ((server, method, version, error, tool), times)
                for (server, method, version, error, tool), times in calls.items()
            ),
        )
        yield "metamcp_tool_calls_total", by_tool(tools, lambda stats: stats.counts)
        yield "metamcp_tool_errors_total", by_tool(tools, lambda stats: stats.errors)
        yield "mcp_client_operation_duration_seconds", self._workers.durations().items()
        overhead = sums.overhead
        yield (
            "metamcp_overhead_seconds",
            (((key,), histogram.durations) for key, histogram in overhead.items()),
        )
        yield "metamcp_call_errors_total", errors.items()
        yield "metamcp_call_retries_total", by_two(sums.retries, names, OUTCOMES)
        inflight = self._fronts.inflight()
        yield "metamcp_inflight_calls", (((name,), inflight.get(name, 0)) for name in names)

    def _server_families(
        self, servers: Sequence[ServerStatus], names: Sequence[str], readings: Readings
    ) -> Iterator[tuple[str, Values]]:
        """Yield the families about the states of servers and events at them."""
        held_calls, queued = self._fronts.sum_held_calls(), readings.queued
        yield (
            "metamcp_queued_calls",
            (((name,), held_calls.get(name, 0) + queued.get(name, 0)) for name in names),
        )
        yield (
            "metamcp_server_state",
            (
                ((server.name, state), server.state == state)
                for server in servers
                for state in STATES
            ),
        )
        yield "metamcp_server_required", (((server.name,), server.required) for server in servers)
        yield "metamcp_server_restarts_total", by_two(self._restarts, names, RESTARTS)
        starts = (((server.name,), server.start_s) for server in servers if server.start_s > 0)
        yield "metamcp_server_start_duration_seconds", starts
        yield "metamcp_server_last_exit_code", by_one(self._exit_codes)
        yield "metamcp_generation", (((server.name,), server.generation) for server in servers)
        yield (
            "metamcp_circuit_open",
            (
                ((server.name,), server.phase == "failed" or server.name in readings.probing)
                for server in servers
            ),
        )
        waits = (((server.name,), server.retry_in_s or 0.0) for server in servers)
        yield "metamcp_backoff_seconds", waits
        yield "metamcp_heartbeat_age_seconds", readings.beat_ages_s.items()
        yield "metamcp_loop_lag_seconds", histograms(self._lags)
        drift = ((server, word) for server in servers for word in DRIFT)
        yield (
            "metamcp_drifted_tools",
            (((server.name, word), server.drift.get(word, 0)) for server, word in drift),
        )
        yield (
            "metamcp_invalid_definitions",
            (((server.name,), server.left_out) for server in servers),
        )
        confined = (
            (
                (server.name, server.sandbox, server.achieved),
                not server.lacking and server.achieved != RECORDING,
            )
            for server in servers
            if server.achieved
        )
        yield "metamcp_server_confinement", confined
        refused = ((server.name, row) for server in servers for row in server.refusals)
        yield (
            "metamcp_sandbox_refusals_total",
            (((name, row.right), row.count) for name, row in refused),
        )
        yield "metamcp_spares_ready", (((name,), readings.spares.get(name, 0)) for name in names)
        yield "metamcp_failover_duration_seconds", histograms(self._failovers)
        yield "metamcp_stop_escalations_total", by_two(self._steps, names, STEPS)

    def _process_families(
        self, names: Sequence[str], readings: Readings
    ) -> Iterator[tuple[str, Values]]:
        """Yield the families about resources of processes, and counters of events at servers."""
        processes = self._processes
        used = (
            ("metamcp_process_memory_bytes", processes.memory_bytes()),
            ("metamcp_process_resident_memory_bytes", processes.rss_bytes()),
            ("metamcp_process_cpu_seconds_total", processes.cpu_s()),
            ("metamcp_process_threads", processes.threads()),
        )
        for family, values in used:
            yield family, (((server, role), n) for (role, server), n in values.items())
        fds = processes.descriptors()
        yield "metamcp_process_open_fds", (((s, role), n) for (role, s), (n, _) in fds.items())
        yield "metamcp_process_max_fds", (((s, role), most) for (role, s), (_, most) in fds.items())
        yield "metamcp_process_memory_limit_bytes", by_one(readings.limits_bytes)
        elsewhere = {
            _OWN_COUNTERS["oom_kill"]: readings.oom_kills,
            _OWN_COUNTERS["late_reply"]: self._fronts.sum_late_replies(),
        }
        for name, counts in self._counts.items():
            more = elsewhere.get(name, {})
            yield name, [((s,), counts.get(s, 0) + more.get(s, 0)) for s in names]
        yield "metamcp_protocol_errors_total", by_two(self._broken)

    def _client_families(self, readings: Readings) -> Iterator[tuple[str, Values]]:
        """Yield the families about clients, from reports of fronts."""
        refused = self._fronts.sum_refusals()
        slow = sum(n for reason, n in refused.items() if reason in SLOW)
        yield "metamcp_sessions", by_one(self._fronts.sessions())
        yield "metamcp_connections", [((), self._fronts.connections())]
        yield "metamcp_streams", [((), self._fronts.streams())]
        if readings.accept_queue is not None:
            yield "metamcp_accept_queue", [((), readings.accept_queue)]
        yield "metamcp_slow_client_disconnects_total", [((), slow)]
        yield "metamcp_requests_refused_total", by_one(refused)
        yield "metamcp_policy_matches_total", by_two(self._fronts.sums().policies)
        yield "metamcp_middleware_requests_total", by_two(self._fronts.sums().middleware)
        yield "metamcp_consent_total", by_one(self._fronts.sums().consent)
        yield from of_views(self._fronts.views())

    def _gateway_families(
        self, status: GatewayStatus, readings: Readings
    ) -> Iterator[tuple[str, Values]]:
        """Yield the families about the gateway itself."""
        recorded = dict.fromkeys(RECORDED, 0) | self._fronts.sum_recorded_calls()
        yield "metamcp_recorded_calls_total", by_one(recorded)
        yield "metamcp_spans_total", by_one(self.spans.counts)
        yield from chain.from_iterable(source.metric_rows() for source in self.sources)
        yield "metamcp_waiting_for_people", by_one(readings.waiting)
        if self._reload_ok is not None:
            yield "metamcp_config_last_reload_successful", [((), self._reload_ok)]
            yield "metamcp_config_last_reload_timestamp_seconds", [((), self._reloaded_at)]
        yield "metamcp_build_info", [((self._version, sys.version.split()[0]), 1)]
        yield "metamcp_up", [((), status.state == "active")]
