"""The status of the gateway, as one value for `ctl`, health pages and metrics.

Owns: putting the status together. Never: changing anything, printing.
"""

import os
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from msgspec import Struct, structs

from metamcp_supervisor.config import sandboxes
from metamcp_supervisor.config.config import Address, AnyAddress, Config, Server, UnixAddress
from metamcp_supervisor.config.document import table_of
from metamcp_supervisor.config.sections import origin
from metamcp_supervisor.config.show import MASK, masked_url, tables
from metamcp_supervisor.control.explain import Tries
from metamcp_supervisor.control.services import ServerDetails
from metamcp_supervisor.fronts.front import FrontProcess
from metamcp_supervisor.servers import catalog_changes, per_client
from metamcp_supervisor.servers.entry import Copy, ServerEntry
from metamcp_supervisor.servers.scrape import SingletonProcess, front_state
from metamcp_supervisor.servers.specs import (
    default_endpoint,
    find_exposed_servers,
    reachable,
    refusals,
)
from metamcp_supervisor.servers.states import PUBLIC, ServerPhase
from metamcp_supervisor.telemetry.metrics import Metrics
from metamcp_supervisor.telemetry.usage import MeasuredProcess, Usage
from metamcp_supervisor.verbs import (
    Decision,
    FrontStatus,
    GatewayStatus,
    LimitStatus,
    OverriddenSetting,
    RoleStatus,
    ServerStatus,
)
from metamcp_worker.access.use_limits import Owner
from metamcp_worker.ipc.spec import UNLIMITED, UseLimits

SECRET_CHARACTERS_MIN = 6
"""Minimum characters of an environment value to be masked in commands: a shorter value would be
found by chance."""
USED_FOR = ("worker", "server")
"""Roles of the processes that count for a server."""


class GatewayFacts(Struct, frozen=True, kw_only=True):
    """Facts about the gateway itself. Times are of the monotonic clock. `drift`, `decisions`: by
    server."""

    version: str
    state: str
    now: float
    started: float
    listen: Address
    ops_listen: AnyAddress
    config: Config
    config_hash: str
    config_read: float
    nursery_pid: int
    roles: tuple[RoleStatus, ...] = ()
    upgrades: int = 0
    overrides: tuple[OverriddenSetting, ...] = ()
    drift: Mapping[str, dict[str, int]] = {}
    decisions: Mapping[str, Decision] = {}
    reload_refused: str = ""
    keys_unusable: str = ""
    store_unread: str = ""
    store_trouble: str = ""
    missing: Mapping[str, str] = {}
    """Reasons, by server, why a ready server cannot be called."""
    key_limits: Mapping[str, UseLimits] = {}
    """Limits of API keys, by id, where there are some."""
    calls_today: Mapping[Owner, int] = {}
    """Calls that count against quotas."""


UNREACHED = "descriptors"
"""Reason of a server that is ready but has no pipe to a front, for lack of descriptors."""


def collect(
    facts: GatewayFacts,
    entries: Mapping[str, ServerEntry],
    slots: list[FrontProcess | None],
    metrics: Metrics,
    usages: Mapping[MeasuredProcess, Usage],
) -> GatewayStatus:
    config = facts.config
    exposed_servers = find_exposed_servers(config)
    return GatewayStatus(
        version=facts.version,
        pid=os.getpid(),
        state=facts.state,
        up_s=facts.now - facts.started,
        url=url(config, facts.listen),
        ops_url=_ops_url(facts.ops_listen),
        config_hash=facts.config_hash,
        config_files=tuple(map(str, config.files)),
        config_age_s=facts.now - facts.config_read,
        reload_refused=facts.reload_refused,
        keys_unusable=facts.keys_unusable,
        store_unread=facts.store_unread,
        store_trouble=facts.store_trouble,
        store=masked_url(config.gateway.store.url_written) if config.gateway.store else "",
        state_dir=str(config.gateway.state_dir),
        nursery_pid=facts.nursery_pid,
        roles=tuple(
            structs.replace(role, memory_bytes=usage.held_bytes)
            if (usage := usages.get(MeasuredProcess(role.role))) and usage.pid == role.pid
            else role
            for role in facts.roles
        ),
        upgrades=facts.upgrades,
        overrides=facts.overrides,
        fronts=tuple(_front(slot, front, facts.now) for slot, front in enumerate(slots)),
        servers=tuple(
            _server(entries[name], entries[name].base in exposed_servers, metrics, usages, facts)
            for name in per_client.in_order(entries)
        ),
        endpoints=urls(config, facts.listen),
        limits=limits(facts, metrics.count_refusals()),
    )


LIMITS = ("calls_per_minute", "calls_per_day", "in_flight", "streams", "body_max")
"""Limits that refuse something."""


def limits(
    facts: GatewayFacts, refused: Mapping[tuple[str, str, str], int]
) -> tuple[LimitStatus, ...]:
    """Return the limits of use that are set. `refused`: requests by kind, name and limit."""
    config, today = facts.config, facts.calls_today
    owned: dict[Owner, UseLimits] = {}
    owned |= {("endpoint", name): endpoint.limits for name, endpoint in config.endpoints.items()}
    owned |= {("server", name): server.limits for name, server in config.servers.items()}
    owned |= {
        ("workspace", name): use_limits for name, use_limits in config.workspace_limits.items()
    }
    statuses = [
        _limit(owner, {use_limits}, [(today.get(owner, 0), use_limits.calls_per_day)], refused)
        for owner, use_limits in owned.items()
        if use_limits != UNLIMITED
    ]
    if keys := facts.key_limits:
        quotas = [
            (calls, keys[name].calls_per_day)
            for (kind, name), calls in today.items()
            if kind == "key" and name in keys
        ]
        statuses.append(_limit(("key", ""), set(keys.values()), quotas, refused))
    return tuple(statuses)


def _limit(
    owner: Owner,
    limit_sets: Collection[UseLimits],
    quotas: Iterable[tuple[int, int]],
    refused: Mapping[tuple[str, str, str], int],
) -> LimitStatus:
    """Return the use of these limits. `quotas`: calls of today, and as many as there may be."""
    used = [(calls / most, calls, most) for calls, most in quotas if most]
    _, calls, most = max(used, default=(0.0, 0, 0))
    return LimitStatus(
        kind=owner[0],
        name=owner[1],
        refused={
            limit: refused.get((*owner, limit), 0)
            for limit in LIMITS
            if any(getattr(limit_set, limit) for limit_set in limit_sets)
        },
        calls_today=calls,
        calls_per_day=most,
    )


def particulars(config: Config, entry: ServerEntry, now: float) -> ServerDetails:
    """Return the details that `describe` shows in addition to the status of a server."""
    life, server = entry.life, entry.server
    recent = sum(now - failed <= life.patience.window_s for failed in life.window)
    servers = table_of(tables(config)["servers"]) or {}
    return ServerDetails(
        config=table_of(servers.get(entry.base)) or {},
        source=config.origin(f"servers.{entry.base}", "") or server.source,
        endpoints=tuple(
            name
            for name, endpoint in config.endpoints.items()
            if entry.base in config.namespaces[endpoint.namespace].servers
        ),
        list_hash=entry.offer.list_hash,
        tries=Tries(
            failures=life.failures,
            recent=recent,
            recent_max=life.patience.restarts_max,
            window_s=life.patience.window_s,
            trips=life.trips,
            restart=server.restart,
            start_timeout_s=server.start_timeout_s,
            degraded=life.degraded,
            parted=life.parted,
            probing=life.probing,
            for_others=life.planned_at is not None,
        ),
        hidden=_secret_replacements(server),
        left_out=entry.offer.left_out,
    )


def _secret_replacements(server: Server) -> dict[str, str]:
    """Return replacements for secret texts: a resolved reference is shown as the reference, a value
    of the environment as a mask."""
    replacements = {
        value: MASK for value in server.env.values() if len(value) >= SECRET_CHARACTERS_MIN
    }
    # Both have the same length, unless the file has no command at all.
    pairs = zip(server.command, server.command_written, strict=False)
    return replacements | {real: written for real, written in pairs if real != written and real}


def _scheme(config: Config) -> str:
    return "http" if config.gateway.tls is None else "https"


def url(config: Config, listen: Address) -> str:
    """Return the URL of the default endpoint."""
    base = f"{_scheme(config)}://{reachable(listen)}"
    return f"{base}/mcp" if default_endpoint(config) is not None else base


def urls(config: Config, listen: Address) -> dict[str, str]:
    """Return the URL of each endpoint, by name."""
    return {
        name: f"{_scheme(config)}://{reachable(listen)}/metamcp/{endpoint.path or name}/mcp"
        for name, endpoint in config.endpoints.items()
    }


def _ops_url(listen: AnyAddress) -> str:
    """Return the URL of the health pages, or the address of a Unix socket as configured."""
    return str(listen) if isinstance(listen, UnixAddress) else f"http://{reachable(listen)}"


def _front(slot: int, front: FrontProcess | None, now: float) -> FrontStatus:
    if front is None:
        return FrontStatus(number=slot, pid=0, state=front_state(None), up_s=0.0)
    summary = front.summary
    return FrontStatus(
        number=slot,
        pid=front.pid,
        state=front_state(front),
        up_s=now - front.since,
        connections=summary.connections if summary else 0,
        streams=summary.streams if summary else 0,
        sessions=sum(summary.sessions.values()) if summary else 0,
    )


def _server(
    entry: ServerEntry,
    is_exposed: bool,
    metrics: Metrics,
    usages: Mapping[MeasuredProcess, Usage],
    facts: GatewayFacts,
) -> ServerStatus:
    life, instance, offer, now = entry.life, entry.instance, entry.offer, facts.now
    calls, errors, inflight = metrics.calls(entry.name)
    p50_s, p95_s = metrics.lately_s(entry.name)
    used = [*filter(None, (usages.get(MeasuredProcess(role, entry.name)) for role in USED_FOR))]
    state = "draining" if life.parted else PUBLIC[life.phase]
    reason, message = str(life.reason or ""), life.message
    if life.phase is ServerPhase.READY and entry.name in facts.missing:
        state, reason, message = "error", UNREACHED, facts.missing[entry.name]
    throttled = entry.serving is not None and catalog_changes.is_throttled(entry.serving.flood, now)
    return ServerStatus(
        name=entry.name,
        state="active" if state == "ready" and is_exposed else state,
        phase=life.phase,
        generation=life.generation,
        **_processes(entry),
        protocol=instance.protocol if instance else "",
        origin=origin(entry.server.url) if entry.server.url is not None else "",
        up_s=now - life.ready_at if life.ready_at is not None else 0.0,
        start_s=instance.start_s if instance else 0.0,
        tools=offer.tools,
        prompts=offer.prompts,
        resources=offer.resources,
        token_cost=offer.token_cost,
        from_cache=offer.from_cache,
        calls=calls,
        errors=errors,
        # Calls of an own process of a client count with its server, except those in flight.
        inflight=instance.inflight if entry.own and instance else inflight,
        p50_s=p50_s,
        p95_s=p95_s,
        unroutable_requests=metrics.read_event_count(entry.name, "unroutable_request"),
        unattributed_logs=metrics.read_event_count(entry.name, "unattributed_log"),
        rss_bytes=sum(usage.rss_bytes for usage in used),
        memory_bytes=sum(usage.held_bytes for usage in used),
        cpu_s=sum(usage.cpu_s for usage in used),
        restarts=entry.restarts,
        reason=catalog_changes.THROTTLED if throttled else reason,
        message=catalog_changes.HELD_BACK if throttled else message,
        retry_in_s=None if life.retry_at is None else max(0.0, life.retry_at - now),
        required=entry.server.required,
        drift=facts.drift.get(entry.name, {}),
        left_out=offer.invalid,
        left_out_first=next(iter(offer.left_out), ""),
        schemas=offer.schemas,
        sandbox=sandboxes.profile(entry.server) if entry.server.command else "",
        achieved=instance.achieved if instance else "",
        lacking=instance.lacking if instance else (),
        opened=sandboxes.needs_text(entry.server),
        refusals=refusals(entry.server, metrics.find_denied_rights(entry.base)),
        decision=facts.decisions.get(entry.name),
    )


def _processes(entry: ServerEntry) -> dict[str, Any]:
    """Return the members about the processes of a server."""
    instance = entry.instance
    return {
        "pid": instance.server_pid if instance and not instance.reported else 0,
        "worker_pid": instance.pid if instance else 0,
        "worker_pids": tuple(copy.instance.pid for copy in entry.copies if copy.instance),
        "worker": instance.shared if instance else "",
    }


def roots(
    entries: Mapping[str, ServerEntry],
    slots: list[FrontProcess | None],
    nursery_pid: int,
    roles: Mapping[str, SingletonProcess],
) -> dict[MeasuredProcess, int]:
    """Return the processes whose memory and processor time are measured, by part; 0 for a process
    that does not run."""
    pids = {MeasuredProcess("supervisor"): os.getpid(), MeasuredProcess("nursery"): nursery_pid}
    pids |= {MeasuredProcess(role): process.pid for role, process in roles.items() if process.pid}
    for front in slots:
        if front is not None:
            pids[MeasuredProcess("front", number=front.slot)] = front.pid
    for entry in entries.values():
        for copy in entry.copies:
            if copy.instance is not None:
                number = number_of(copy)
                shared = copy.instance.shared
                worker = MeasuredProcess("worker", shared or entry.name, 0 if shared else number)
                pids[worker] = copy.instance.pid
                pids[MeasuredProcess("server", entry.name, number)] = copy.instance.server_pid
    return pids


def number_of(copy: Copy) -> int:
    """Return the number of a copy in `MeasuredProcess`: 0 for the serving copy, else its
    generation."""
    return 0 if copy is copy.entry.serving else copy.generation
