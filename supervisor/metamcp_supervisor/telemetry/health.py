"""Checks whether the gateway is alive, ready and started, with the reasons if it is not.

Owns: the readings of a scrape beside the status, which states count as working, the lines of the
health pages, the faults that keep back the sign of life to systemd, and the sentence for `systemctl
status`. Never: reading them (`servers.scrape`), probing anything, HTTP (`admin`), sending anything
(`sd_service`).

Servers do not count for the sign of life: a restart of the whole gateway does not heal a server.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from metamcp_supervisor.verbs import GatewayStatus, ServerStatus
from metamcp_worker.ipc import process_names


class GatewayPulse(Struct, frozen=True, kw_only=True):
    """Readings for the liveness check, the most frequent question to the gateway. `fronts`: state
    of each front's slot; `nursery_pid`: 0 without a nursery; `loop_lag_s`: delay of the
    supervisor's event loop in seconds."""

    fronts: tuple[str, ...] = ()
    nursery_pid: int = 0
    loop_lag_s: float = 0.0


class Readings(Struct, frozen=True, kw_only=True):
    """Readings by server, unless another key is named. `beat_ages_s`: seconds since the last
    heartbeat, by server and role; processes of the gateway itself have an empty server; `queued`:
    calls that wait for their turn at a worker; `spares`: ready spare copies; `limits_bytes`: limits
    of memory, where set; `oom_kills`: processes killed by the kernel, in control groups that still
    exist; `accept_queue`: connections that wait for a front, None where the system does not report
    it; `probing`: servers with the single attempt of an open circuit under way; `waiting`: runs and
    calls that wait for a person, by kind."""

    beat_ages_s: dict[tuple[str, str], float] = {}
    queued: dict[str, int] = {}
    spares: dict[str, int] = {}
    limits_bytes: dict[str, int] = {}
    oom_kills: dict[str, int] = {}
    accept_queue: int | None = None
    probing: frozenset[str] = frozenset()
    waiting: dict[str, int] = {}


#: States in which a server does its work; an idle one starts with the first call.
READY_STATES = frozenset({"ready", "active", "idle"})
#: States that an operator asked for: servers in them are not missed.
UNWANTED_STATES = frozenset({"stopped", "draining"})
#: States in which the first start of a server is still under way.
STARTING_STATES = frozenset({"warming"})


LAG_S_MAX = 5.0
"""Seconds from which on an event loop is too late to do its work."""
FRONTLESS_S_MAX = 60.0
"""Maximum seconds without any front that serves. A new front needs at most 20 s
(`fronts.READY_S_MAX`), and fronts that crash again and again end the gateway by themselves; a
longer time has an unforeseen cause."""
UNNURSED_S_MAX = 60.0
"""Maximum seconds without a nursery, whose own start has 30 s (`nursery.BORN_S_MAX`)."""
NAMES_MAX = 3
"""Maximum servers that the sentence names; the rest is a number."""
NAME_CHARACTERS_MAX = 100
"""Maximum characters of a name from a query that an answer repeats."""


class HealthCheck(Struct, frozen=True):
    """A line of a health page: `[+]name ok` or `[-]name reason`. `excluded`: the query excludes
    this check, so it counts as passed."""

    name: str
    reason: str = ""
    excluded: bool = False

    @property
    def ok(self) -> bool:
        return self.excluded or not self.reason

    def __str__(self) -> str:
        if self.excluded:
            return f"[+]{self.name} excluded: ok"
        return f"[+]{self.name} ok" if self.ok else f"[-]{self.name} {self.reason}"


def live(pulse: GatewayPulse) -> list[HealthCheck]:
    """Check whether a restart of the whole gateway would help. Servers do not count."""
    late = f"{pulse.loop_lag_s:.1f} s late" if pulse.loop_lag_s >= LAG_S_MAX else ""
    return [
        HealthCheck("loop", late),
        HealthCheck("nursery", "" if pulse.nursery_pid else "not running"),
        HealthCheck("fronts", _no_front(pulse.fronts)),
    ]


def ready(status: GatewayStatus) -> list[HealthCheck]:
    """Check whether the gateway can serve clients. Only `required` servers count, and API keys if
    endpoints ask for them and none is valid."""
    return [
        HealthCheck("gateway", "" if status.state == "active" else status.state),
        HealthCheck("fronts", _no_front([front.state for front in status.fronts])),
        *([HealthCheck("keys", "none is valid")] if status.keys_unusable else []),
        *(_server(server) for server in status.servers if server.required),
    ]


def check_startup(status: GatewayStatus) -> list[HealthCheck]:
    """Check whether the first start is over, with success or not. Only `required` servers count."""
    return [
        HealthCheck("gateway", "starting" if status.state == "starting" else ""),
        *(
            HealthCheck(f"server:{server.name}", "warming")
            if server.state in STARTING_STATES and server.generation <= 1
            else HealthCheck(f"server:{server.name}")
            for server in status.servers
            if server.required
        ),
    ]


def not_ready(status: GatewayStatus, names: Sequence[str] = ()) -> list[ServerStatus]:
    """Return the servers that do not work but should: of the named ones or, without names, of those
    that are not stopped on purpose and those that `ready` checks. Processes for single clients come
    and go with their clients, and are returned only by name."""
    if names:
        return [s for s in status.servers if s.name in names and s.state not in READY_STATES]
    every = [s for s in status.servers if not process_names.parse_client(s.name)]
    missed = [s for s in every if s.state not in READY_STATES]
    return [s for s in missed if s.required or s.state not in UNWANTED_STATES]


def without(
    checks: Sequence[HealthCheck], names: Sequence[str]
) -> tuple[list[HealthCheck], list[str]]:
    """Return the checks with those of these names excluded, and a sentence for each name that does
    not belong to a check."""
    marked = [replace(check, excluded=check.name in names) for check in checks]
    unknown = dict.fromkeys(name for name in names if all(name != check.name for check in checks))
    return marked, [f"no check here is named {quote_name(name)}" for name in unknown]


def quote_name(name: str) -> str:
    """Return a name in quotes, cut to a limit and without control characters."""
    cut = name if len(name) <= NAME_CHARACTERS_MAX else f"{name[:NAME_CHARACTERS_MAX]}…"
    return f"'{cut if cut.isprintable() else ascii(cut)[1:-1]}'"


def passes(checks: Sequence[HealthCheck]) -> bool:
    return all(check.ok for check in checks)


def _no_front(states: Sequence[str]) -> str:
    if any(state in READY_STATES for state in states):
        return ""
    return f"none serves ({', '.join(states) or 'there is none'})"


def _server(server: ServerStatus) -> HealthCheck:
    if server.state in READY_STATES:
        return HealthCheck(f"server:{server.name}")
    # The message of a server may hold anything; only our own word for it goes to a health page.
    reason = f"{server.state}: {server.reason}" if server.reason else server.state
    return HealthCheck(f"server:{server.name}", reason)


def faults(status: GatewayStatus, *, frontless_s: float, unnursed_s: float) -> list[str]:
    """Return the reasons to keep back the sign of life. `frontless_s`, `unnursed_s`: seconds
    without a front that serves, and without a nursery, until now."""
    if status.state == "draining":  # everything ends one after the other, in bounded time
        return []
    reasons: list[str] = []
    if unnursed_s > UNNURSED_S_MAX:
        reasons.append(f"no nursery for {unnursed_s:.0f} s")
    if frontless_s > FRONTLESS_S_MAX:
        reasons.append(f"no front serves for {frontless_s:.0f} s")
    return reasons


def has_front(status: GatewayStatus) -> bool:
    return any(front.state == "ready" for front in status.fronts)


def sentence(status: GatewayStatus, *, refused: bool) -> str:
    """Return the status, as in `4 of 5 servers ready; not ready: linear (backoff: connect)`.
    `refused`: the last reload was refused."""
    if status.state == "draining":
        return "stops: clients get what they wait for, then servers are stopped"
    wanted_servers = [
        server
        for server in status.servers
        if server.required or server.state not in UNWANTED_STATES
    ]
    missing = not_ready(status)
    parts = [
        f"{len(wanted_servers) - len(missing)} of {len(wanted_servers)} servers ready"
        if wanted_servers
        else "no server is wanted"
    ]
    if status.state == "starting":
        parts.insert(0, "starts")
    if missing:
        named = [
            f"{server.name} ({': '.join(filter(None, (server.phase, server.reason)))})"
            for server in missing[:NAMES_MAX]
        ]
        if len(missing) > NAMES_MAX:
            named.append(f"{len(missing) - NAMES_MAX} more")
        parts.append(f"not ready: {', '.join(named)}")
    if status.keys_unusable:
        parts.append("no API key is valid, see 'metamcp status'")
    if refused:
        parts.append("the last reload was refused, see 'metamcp ctl events'")
    return "; ".join(parts)
