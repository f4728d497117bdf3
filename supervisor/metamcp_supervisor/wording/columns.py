"""Words about the gateway: status, events, log lines and plans as rows and sentences.

Owns: the columns of `status`, how durations and sizes are written. Never: printing (`show`),
requests to the gateway (`ctl`), reading a clock (callers pass the time).
"""

import time
from collections.abc import Sequence

from metamcp_supervisor.telemetry.health import READY_STATES, not_ready
from metamcp_supervisor.verbs import (
    GatewayStatus,
    JournalEvent,
    LimitStatus,
    LogLine,
    OverriddenSetting,
    PlannedChange,
    ReloadPlan,
    RoleStatus,
    ServerStatus,
)
from metamcp_worker.ipc import process_names

STATUS = (
    "SERVER", "STATE", "GEN", "PID", "UP", "TOOLS", "TOKENS", "CALLS", "INFL", "P95", "MEM",
    "RESTARTS", "NEXT / REASON",
)  # fmt: skip
RIGHT = frozenset(STATUS[2:-1])
WORKER = "WORKER"
"""Column with the worker that a server shares, behind PID, if there is one."""
_BEHIND_PID = STATUS.index("PID") + 1
SPARED = ("TOKENS", "GEN", "INFL", "P95", "PID", "CALLS", "RESTARTS", "MEM", "UP", WORKER)
NONE = "-"
MINUTE_S = 60.0
REASON_CHARACTERS_MAX = 120
"""Maximum characters of a reason in the table; `status --json` and `logs` show all of it."""

_SIGNS = {"add": "+", "remove": "-", "unchanged": "="}


def status_head_row(status: GatewayStatus) -> tuple[str, ...]:
    """Return the titles of the columns."""
    shared = any(server.worker for server in status.servers)
    return (*STATUS[:_BEHIND_PID], WORKER, *STATUS[_BEHIND_PID:]) if shared else STATUS


def status_rows(status: GatewayStatus, names: Sequence[str] = ()) -> list[tuple[str, ...]]:
    """Return a row for each server, those that are not ready first. The process of a single client
    is in the same group as its server."""
    missed = {process_names.base(server.name) for server in not_ready(status, names)}
    servers = [server for server in status.servers if not names or server.name in names]
    servers.sort(key=lambda server: process_names.base(server.name) not in missed)
    rows = list(map(_row, servers))
    if status_head_row(status) == STATUS:
        return rows
    return [
        (*row[:_BEHIND_PID], server.worker or NONE, *row[_BEHIND_PID:])
        for server, row in zip(servers, rows, strict=True)
    ]


def status_head(status: GatewayStatus) -> str:
    """Return the line about the gateway itself."""
    serving = sum(front.state in {"ready", "active"} for front in status.fronts)
    config = f"config {status.config_hash[:8]} ({span(status.config_age_s)} ago)"
    parts = (
        f"gateway {status.state}",
        f"up {span(status.up_s)}",
        f"fronts {serving}/{len(status.fronts)}",
        f"connections {sum(front.connections for front in status.fronts)}",
        f"sessions {sum(front.sessions for front in status.fronts)}",
        config if status.config_hash else "no config",
        status.url,
        *(f"{each.key} {each.value}" for each in status.overrides),
    )
    return "  ".join(text for text in parts if text)


def refused_text(status: GatewayStatus) -> str:
    """Return a line about a reload that was refused; empty if the last one was applied."""
    reason = status.reload_refused
    start = "the files are not in force, because the last reload was refused: "
    return f"{start}{reason}" if reason else ""


def keys_text(status: GatewayStatus) -> str:
    """Return a line about API keys of which none is valid; empty if they are."""
    reason = status.keys_unusable
    return f"no API key is valid, and endpoints ask for one: {reason}" if reason else ""


def store_text(status: GatewayStatus) -> str:
    """Return a line about stored things that cannot be read; empty if they can."""
    if status.store_unread:
        return f"tool sets, views and scripts are left out: {status.store_unread}"
    trouble = status.store_trouble
    return f"changes of keys, views and tool sets are refused: {trouble}" if trouble else ""


def answers_text(status: GatewayStatus) -> str:
    """Return a line about the runs that wait for an answer; empty without one."""
    count = sum(role.counts.get("needs_answer", 0) for role in status.roles)
    if not count:
        return ""
    runs = "1 run of a workflow waits" if count == 1 else f"{count} runs of workflows wait"
    return f"{runs} for an answer: 'metamcp workflow runs --status needs_answer'"


def status_foot(status: GatewayStatus, names: Sequence[str] = ()) -> str:
    servers = [s for s in status.servers if not names or s.name in names]
    missing = len(not_ready(status, names))
    cached = "   (* from cache)" if any(s.from_cache for s in servers) else ""
    if not servers:
        return "no servers are configured"
    if missing:
        return f"{missing} of {len(servers)} not ready{cached}"
    return f"all {len(servers)} as wanted{cached}"


def limit_texts(limits: Sequence[LimitStatus]) -> dict[tuple[str, str], str]:
    """Return the use of limits and the calls that they refused, by kind and name of their owner;
    owners without a quota or a refusal are left out."""
    texts: dict[tuple[str, str], str] = {}
    for status in limits:
        most = "" if status.name else " by the key that used most"
        refused = ", ".join(f"{limit} {n}" for limit, n in status.refused.items() if n)
        parts = (
            f"{status.calls_today} of {status.calls_per_day} calls today{most}"
            if status.calls_per_day
            else "",
            f"refused by {refused}" if refused else "",
        )
        if text := "; ".join(phrase for phrase in parts if phrase):
            texts[status.kind, status.name] = text
    return texts


def limit_lines(limits: Sequence[LimitStatus]) -> list[str]:
    """Return a line for each owner in `limit_texts`."""
    return [
        f"{f'{kind} {name}' if name else 'API keys'}: {text}"
        for (kind, name), text in limit_texts(limits).items()
    ]


def role_lines(roles: Sequence[RoleStatus]) -> list[str]:
    """Return a line for each process of the gateway that exists at most once."""
    return [
        ", ".join(
            phrase
            for phrase in (
                f"{role.role}: {role.state}",
                f"process {role.pid}" if role.pid else "",
                size(role.memory_bytes) if role.memory_bytes else "",
                *(f"{noun} {count}" for noun, count in role.counts.items() if role.pid),
                f"confined by {role.confined}" if role.confined else "",
                role.trouble,
            )
            if phrase
        )
        for role in roles
    ]


def event_text(event: JournalEvent, clock: str) -> str:
    return f"{clock}  {event.who:<10}  {event.what:<20}  {event.cause}".rstrip()


def log_text(line: LogLine, clock: str) -> str:
    mark = "" if line.stream == "stderr" else f"[{line.stream}] "
    return f"{clock}  {mark}{line.text}"


def cut(text: str, most: int) -> str:
    """Return the text, or its beginning and an ellipsis if it has more than `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def override_text(override: OverriddenSetting, clock: str) -> str:
    """Return what is set, until when, and the value after that."""
    return f"{override.key} {override.value} until {clock} (else {override.written})"


def plan_rows(plan: ReloadPlan) -> list[tuple[str, str, str, str]]:
    """Return a row for each change, and for each that has to wait; `plan_foot` counts the rest."""
    return [
        _change(change) for change in plan.changes if change.action != "unchanged" or change.why
    ]


def plan_foot(plan: ReloadPlan) -> str:
    unchanged = sum(change.action == "unchanged" and not change.why for change in plan.changes)
    tail = f"  {unchanged} unchanged" if unchanged else ""
    return _plan_verdict(plan) + tail


def _plan_verdict(plan: ReloadPlan) -> str:
    if plan.applied:
        return f"plan {plan.hash}  applied"
    if all(change.action == "unchanged" for change in plan.changes):
        return f"plan {plan.hash}  nothing to do"
    if plan.question:
        return f"plan {plan.hash}  confirm and apply it with: metamcp confirm"
    return f"plan {plan.hash}  apply it with: metamcp reload --expect {plan.hash}"


def cell(value: object) -> str:
    """Return a member of a status on one line, never empty: for `cut` and `awk`."""
    if value is None or value == "":
        return NONE
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.3f}".rstrip("0").rstrip(".")
    return " ".join(str(value).split())


def span(seconds: float) -> str:
    """Return a duration in two units at most: 8s, 2m11s, 5h07m, 3d04h."""
    total_s = max(0, int(seconds))
    minutes, s = divmod(total_s, 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days}d{h:02}h"
    if hours:
        return f"{hours}h{m:02}m"
    return f"{minutes}m{s:02}s" if minutes else f"{s}s"


def latency(seconds: float | None) -> str:
    """Return a duration in two or three digits: 0.4ms, 84ms, 1.2s, 2m11s; NONE without a value."""
    if seconds is None:
        return NONE
    if seconds >= MINUTE_S:
        return span(seconds)
    if seconds >= 1:
        return f"{seconds:.1f}s"
    return f"{seconds * 1000:.0f}ms" if seconds >= 0.01 else f"{seconds * 1000:.1f}ms"


def size(count: int) -> str:
    """Return a number of bytes in three digits at most: 812K, 71M, 1.2G."""
    amount, units = count / 1024, "KMGT"
    unit = 0
    while amount >= 1000 and unit < len(units) - 1:
        amount, unit = amount / 1024, unit + 1
    return f"{amount:.1f}{units[unit]}" if amount < 10 and unit else f"{amount:.0f}{units[unit]}"


def _row(server: ServerStatus) -> tuple[str, ...]:
    tools = f"{server.tools}{'*' if server.from_cache else ''}" if server.tools else NONE
    return (
        server.name,
        server.state,
        str(server.generation),
        str(server.pid) if server.pid else NONE,
        span(server.up_s) if server.up_s > 0 else NONE,
        tools,
        str(server.token_cost) if server.token_cost else NONE,
        str(server.calls),
        str(server.inflight),
        latency(server.p95_s),
        size(memory) if (memory := server.memory_bytes or server.rss_bytes) else NONE,
        str(server.restarts),
        outlook(server),
    )


def outlook(server: ServerStatus, most: int = REASON_CHARACTERS_MAX) -> str:
    """Return what happens next with the server, and the reason of its state in at most `most`
    characters."""
    text = " ".join(server.message.split())
    if server.reason and text:
        text = f"{server.reason}: {text}"
    text = text or server.reason
    if decision := server.decision:
        text = text or f"{decision.kind} by {decision.who}"
    text = cut(text, most)
    if server.state == "quarantined":
        text = f"{text}; 'metamcp ctl clear {server.name}' lets it out"
    elif server.state == "error":
        retry = server.retry_in_s
        coming = "no start planned" if retry is None else f"next start in {span(retry + 0.999)}"
        text = f"{text}; {coming}" if text else coming
    if server.required and server.state not in READY_STATES:
        return f"required, so /readyz is 503; {text}".removesuffix("; ")
    if server.state in ("error", "quarantined"):
        return text
    if quarantined := server.drift.get("quarantined"):
        text = text or f"{quarantined} {'tool' if quarantined == 1 else 'tools'} in quarantine"
    if server.lacking:
        text = text or f"not kept from {' and '.join(server.lacking)}"
    if server.left_out:
        noun = "definition" if server.left_out == 1 else "definitions"
        text = text or f"{server.left_out} {noun} left out, as not valid"
    if server.state == "idle":
        return text or "starts on first call"
    return text or server.origin


def _change(change: PlannedChange) -> tuple[str, str, str, str]:
    return _SIGNS.get(change.action, "~"), change.server, change.action, change.why


def clock(seconds: float) -> str:
    """Return the local time of day, to the millisecond."""
    local_time = time.localtime(seconds)
    return f"{time.strftime('%H:%M:%S', local_time)}.{int(seconds * 1000) % 1000:03}"
