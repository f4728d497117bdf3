"""Every metric: its name, kind, labels and help in one list.

Owns: the list, the buckets, the values that a label may have. Never: values of metrics (`counters`,
`metrics`), text (`exposition`).

The values of a label do not grow with traffic: servers are the configured ones, methods, revisions
and states are closed sets, error types are limited, tools are those that a server lists. Values
that a client or server invents become `_OTHER`. Processes for single clients count with their
server.
"""

from collections.abc import Mapping
from functools import cache
from itertools import chain
from pkgutil import resolve_name
from typing import Literal

from msgspec import Struct

from metamcp_supervisor.features import all_features
from metamcp_worker.ipc.messages import BUCKETS_S, OVERHEAD_BUCKETS_S

STATES = ("warming", "ready", "active", "idle", "draining", "stopped", "error",
          "quarantined")  # fmt: skip
#: Values that have series before their first event; series of other values begin with it.
OUTCOMES = ("answered", "failed", "cancelled")
STEPS = ("SIGTERM", "SIGKILL", "worker_SIGKILL")
SPANS = ("exported", "lost")
RECORDED = ("written", "lost")
DRIFT = ("harmless", "drifted", "quarantined")
"""States of a tool that differs from its approved definition."""
RESTARTS = ("exit", "signal", "connect", "start_timeout", "limit", "hang", "operator")
#: Methods of all revisions; any other is counted as `_OTHER`.
METHODS = frozenset({
    "completion/complete", "initialize", "logging/setLevel", "ping", "prompts/get", "prompts/list",
    "resources/list", "resources/read", "resources/subscribe", "resources/templates/list",
    "resources/unsubscribe", "server/discover", "subscriptions/listen", "tasks/cancel", "tasks/get",
    "tasks/list", "tasks/result", "tasks/update", "tools/call", "tools/list",
})  # fmt: skip
OTHER = "_OTHER"

LAG_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Upper bounds of the buckets for the delay of an event loop, in seconds."""
FAILOVER_BUCKETS_S = (
    0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
"""Upper bounds of the buckets for the time without a server, in seconds."""

Kind = Literal["gauge", "counter", "histogram"]
Labels = tuple[str, ...]
"""Values of the labels of one row, in the order of its family."""


class MetricFamily(Struct, frozen=True):
    """A metric, as a row of the list. `name`: as on the page, with `_total`; `bounds_s`: upper
    bounds of the buckets of a histogram, in seconds."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    bounds_s: tuple[float, ...] = ()


_SERVER_CALL = ("server", "mcp_method_name", "mcp_protocol_version", "error_type",
                "gen_ai_tool_name")  # fmt: skip

_CALLS = (
    MetricFamily("mcp_server_operation_duration_seconds", "histogram", _SERVER_CALL,
           "Time from a request of a client to the end of its answer, by the server it went to.",
           BUCKETS_S),
    MetricFamily("metamcp_tool_calls_total", "counter", ("server", "gen_ai_tool_name"),
           "Calls of a tool that have ended, by the name that its server has for it."),
    MetricFamily("metamcp_tool_errors_total", "counter", ("server", "gen_ai_tool_name"),
           "Those that failed: an error, a result with isError, or cancelled."),
    MetricFamily("mcp_client_operation_duration_seconds", "histogram",
           ("server", "mcp_method_name", "error_type", "network_transport"),
           "Time from a request to the server itself to its answer, as its worker sees it.",
           BUCKETS_S),
    MetricFamily("metamcp_overhead_seconds", "histogram", ("stage",),
           "The gateway's own time in sampled calls: front, pipe (and waiting for it) and worker.",
           OVERHEAD_BUCKETS_S),
    MetricFamily("metamcp_call_errors_total", "counter",
           ("server", "mcp_method_name", "error_type"),
           "Requests that failed: error_type is tool_error, cancelled or a JSON-RPC code."),
    MetricFamily("metamcp_call_retries_total", "counter", ("server", "outcome"),
           "Calls whose server died and that went to the next one: answered, failed or cancelled."),
    MetricFamily("metamcp_inflight_calls", "gauge", ("server",),
           "Requests that wait for an answer now."),
    MetricFamily("metamcp_queued_calls", "gauge", ("server",),
           "Of these, those that wait for their turn or for the server to be there."),
    MetricFamily("metamcp_late_replies_total", "counter", ("server",),
           "Answers of a server for which nobody waited any more."),
    MetricFamily("metamcp_results_kept_total", "counter", ("server",),
           "Large results that were kept, and for which clients got a short one."),
    MetricFamily("metamcp_result_tokens_saved_total", "counter", ("server",),
           "Estimated tokens of these results that did not go to clients at once."),
)  # fmt: skip
_SUPERVISION = (
    MetricFamily("metamcp_server_state", "gauge", ("server", "state"),
           "1 for the state the server is in, 0 for the others."),
    MetricFamily("metamcp_server_required", "gauge", ("server",),
           "1 for a server without which the gateway is not ready, as `required` says."),
    MetricFamily("metamcp_server_restarts_total", "counter", ("server", "reason"),
           "Starts after the first one, by what made them necessary."),
    MetricFamily("metamcp_server_start_duration_seconds", "gauge", ("server",),
           "From the last start of the server's process to its lists."),
    MetricFamily("metamcp_server_last_exit_code", "gauge", ("server",),
           "How the server's process ended last: its exit code, or less than 0 for a signal."),
    MetricFamily("metamcp_generation", "gauge", ("server",),
           "How often the server was started."),
    MetricFamily("metamcp_circuit_open", "gauge", ("server",),
           "1 while the server failed so often that it is only probed now and then."),
    MetricFamily("metamcp_backoff_seconds", "gauge", ("server",),
           "Until the next planned start, 0 if none is planned."),
    MetricFamily("metamcp_heartbeat_age_seconds", "gauge", ("server", "role"),
           "Since the last sign of life of a process of the gateway, the oldest one of its role;"
           " 0 while a worker sleeps."),
    MetricFamily("metamcp_loop_lag_seconds", "histogram", ("role",),
           "How late event loops were with what was due, looked at every second while they work.",
           LAG_BUCKETS_S),
    MetricFamily("metamcp_spares_ready", "gauge", ("server",),
           "Copies that could take the place of the one that serves."),
    MetricFamily("metamcp_failover_duration_seconds", "histogram", ("server",),
           "From the news that a ready server went down to the next copy that takes its calls.",
           FAILOVER_BUCKETS_S),
    MetricFamily("metamcp_stop_escalations_total", "counter", ("server", "step"),
           "Servers and workers that did not stop when asked: SIGTERM, SIGKILL or worker_SIGKILL."),
    MetricFamily("metamcp_drifted_tools", "gauge", ("server", "drift"),
           "Tools that are not as approved: harmless, drifted, or quarantined and not served."),
    MetricFamily("metamcp_invalid_definitions", "gauge", ("server",),
           "Tools, prompts and resources that lists leave out: their definitions are not valid."),
    MetricFamily("metamcp_server_confinement", "gauge", ("server", "profile", "achieved"),
           "1 if all that its profile asks for confines its process, 0 if the kernel lacks some."),
    MetricFamily("metamcp_sandbox_refusals_total", "counter", ("server", "right"),
           "Rights that its sandbox refused a server, as far as the kernel tells."),
    MetricFamily("metamcp_orphans_reaped_total", "counter", ("server",),
           "Processes that a server left behind and that were killed."),
)  # fmt: skip
_RESOURCES = (
    MetricFamily("metamcp_process_memory_bytes", "gauge", ("server", "role"),
           "Memory of a process and what is below it, down to the next of our processes; pages that"
           " several processes share count in part for each."),
    MetricFamily("metamcp_process_resident_memory_bytes", "gauge", ("server", "role"),
           "Resident memory of a process and what is below it, down to the next of our processes."),
    MetricFamily("metamcp_process_memory_limit_bytes", "gauge", ("server",),
           "Memory that the processes of a server may have together, where memory_max is set."),
    MetricFamily("metamcp_process_cpu_seconds_total", "counter", ("server", "role"),
           "Processor time of the same processes."),
    MetricFamily("metamcp_process_open_fds", "gauge", ("server", "role"),
           "Open descriptors of that one of these processes that is nearest to its limit."),
    MetricFamily("metamcp_process_max_fds", "gauge", ("server", "role"),
           "The limit of that process."),
    MetricFamily("metamcp_process_threads", "gauge", ("server", "role"),
           "Threads of all these processes."),
    MetricFamily("metamcp_oom_kills_total", "counter", ("server",),
           "Times that the kernel killed a server, or in its control group, for want of memory."),
)  # fmt: skip
_FRONTS = (
    MetricFamily("metamcp_sessions", "gauge", ("protocol_version",),
           "Open sessions of clients that have sessions."),
    MetricFamily("metamcp_connections", "gauge", (),
           "Open connections of clients."),
    MetricFamily("metamcp_streams", "gauge", (),
           "Open streams of events to clients."),
    MetricFamily("metamcp_accept_queue", "gauge", (),
           "Connections of clients that wait in the kernel for a front to take them."),
    MetricFamily("metamcp_slow_client_disconnects_total", "counter", (),
           "Clients that were cut because they did not send or read fast enough."),
    MetricFamily("metamcp_requests_refused_total", "counter", ("reason",),
           "Requests that were turned away before they reached a server."),
    MetricFamily("metamcp_limited_total", "counter", ("kind", "name", "limit"),
           "Requests that a limit of use refused, by whose limit it is."),
    MetricFamily("metamcp_middleware_requests_total", "counter", ("middleware", "outcome"),
           "Requests that went through a middleware: `ok`, or the kind of failure."),
    MetricFamily("metamcp_consent_total", "counter", ("outcome",),
           "Calls that need the consent of a person, by how that ended."),
    MetricFamily("metamcp_quota_used_ratio", "gauge", ("kind", "name"),
           "Share of calls_per_day that is used today; of API keys, that of the fullest one."),
    MetricFamily("metamcp_policy_matches_total", "counter", ("policy", "outcome"),
           "Calls that a policy denied, asked about, logged, would have denied, or failed for."),
    MetricFamily("metamcp_endpoint_tokens", "gauge", ("endpoint",),
           "Estimated tokens of all tool definitions behind an endpoint."),
    MetricFamily("metamcp_view_tokens", "gauge", ("endpoint",),
           "Estimated tokens of the list of tools in the fullest view of an endpoint."),
)  # fmt: skip
_HYGIENE = (
    MetricFamily("metamcp_stray_stdout_lines_total", "counter", ("server",),
           "Lines on a server's stdout that were no message."),
    MetricFamily("metamcp_protocol_errors_total", "counter", ("server", "kind"),
           "Messages of a server that broke the protocol."),
    MetricFamily("metamcp_unroutable_requests_total", "counter", ("server",),
           "Requests of a server that no single caller can have caused; they were refused."),
    MetricFamily("metamcp_unattributed_logs_total", "counter", ("server",),
           "Log messages and unknown notifications of a server that belong to no single caller;"
           " they reached nobody."),
    MetricFamily("metamcp_log_lines_dropped_total", "counter", ("server",),
           "Lines of a server that were lost because it wrote too many per second."),
    MetricFamily("metamcp_recorded_calls_total", "counter", ("outcome",),
           "Calls that were to be recorded: those that are written, and those that are lost."),
    MetricFamily("metamcp_waiting_for_people", "gauge", ("kind",),
           "What waits for a person: runs of workflows, and calls that need consent."),
    MetricFamily("metamcp_spans_total", "counter", ("outcome",),
           "Spans of traced calls that a collector has, or that were lost on the way to it."),
    MetricFamily("metamcp_certificate_expiry_timestamp_seconds", "gauge", ("certificate",),
           "When a certificate of the gateway ends: gateway, authority or client_ca."),
    MetricFamily("metamcp_key_expiry_timestamp_seconds", "gauge", ("workspace", "key"),
           "When the last valid API key of this name ends."),
    MetricFamily("metamcp_token_expiry_timestamp_seconds", "gauge", ("server",),
           "When the token for a remote server ends that only a person can renew."),
    MetricFamily("metamcp_config_last_reload_successful", "gauge", (),
           "1 if the configuration was valid when it was last read."),
    MetricFamily("metamcp_config_last_reload_timestamp_seconds", "gauge", (),
           "When the configuration was last read with success."),
    MetricFamily("metamcp_build_info", "gauge", ("version", "python"),
           "Always 1; the labels tell what runs."),
    MetricFamily("metamcp_up", "gauge", (),
           "1 while the gateway serves, 0 while it starts or drains."),
    MetricFamily("metamcp_metric_series_dropped_total", "counter", (),
           "Series that were left out of a page because there would have been too many."),
)  # fmt: skip


@cache
def families() -> Mapping[str, MetricFamily]:
    """Return all families by name, with those of the features."""
    rows = (resolve_name(feature.metrics) for feature in all_features() if feature.metrics)
    core = *_CALLS, *_SUPERVISION, *_RESOURCES, *_FRONTS, *_HYGIENE
    return {row.name: row for row in chain(core, *rows)}
