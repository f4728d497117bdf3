"""Pieces of PromQL that several panels share.

Owns: how a panel selects series, and which errors count as failures. Never: panels.
"""

HERE = 'job=~"$job",instance=~"$instance"'
"""What every dashboard selects: some gateways."""
SERVER = f'{HERE},server=~"$server"'
"""What a dashboard with a choice of servers selects."""
CALLS = "mcp_server_operation_duration_seconds"
"""As clients see it: from a request to the end of its answer."""
UPSTREAM = "mcp_client_operation_duration_seconds"
"""As servers cause it: from the worker to the server and back."""
STATES = ("stopped", "idle", "warming", "ready", "active", "draining", "error",
          "quarantined")  # fmt: skip
"""In the order of the values that a timeline shows them with."""
ASKED_FOR = "tool_error|cancelled|-32700|-32600|-32601|-32602|-32002|-32042|-3202[0-2]|-1000[45]"
"""Errors that tell the caller something, and are no failure of a server or of the gateway."""
FAILED = f'error_type!~"{ASKED_FOR}"'


def rate(metric: str, where: str, by: str = "") -> str:
    """Per second, summed up."""
    return f"sum{_by(by)} (rate({metric}{{{where}}}[$__rate_interval]))"


def total(metric: str, where: str, by: str = "") -> str:
    return f"sum{_by(by)} ({metric}{{{where}}})"


def grown(metric: str, where: str, by: str = "", within: str = "$__rate_interval") -> str:
    """By how much counters grew."""
    return f"sum{_by(by)} (increase({metric}{{{where}}}[{within}]))"


def quantile(share: float, metric: str, where: str, by: str = "") -> str:
    """Within what time this share was done, estimated from the buckets."""
    labels = f"{by}, le" if by else "le"
    return f"histogram_quantile({share}, {rate(f'{metric}_bucket', where, labels)})"


def failing(where: str, by: str = "") -> str:
    """Which share of the requests failed; 0 where none did, nothing where there were none."""
    failed = rate("metamcp_call_errors_total", f"{where},{FAILED}", by)
    made = rate(f"{CALLS}_count", where, by)
    return f"({failed} or {made} * 0) / ({made} > 0)"


def named(expression: str) -> str:
    """What belongs to no server is the gateway's own."""
    return f'label_replace({expression}, "server", "(gateway)", "server", "")'


def state(where: str, by: str) -> str:
    """The state as a number: its place in STATES."""
    shown = (total("metamcp_server_state", f'{where},state="{name}"', by) for name in STATES)
    return " + ".join(f"{one} * {at}" for at, one in enumerate(shown))


def _by(labels: str) -> str:
    return f" by ({labels})" if labels else ""
