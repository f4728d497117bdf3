"""Checks whether the gateway is alive, ready and started, with the reasons if it is not.

Owns: the readings of a scrape beside the status, which states count as working, and the lines of
the health pages. Never: reading them (`servers.scrape`), probing anything, HTTP (`admin`).
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
    heartbeat, by server and role; processes of the gateway itself have an empty server;
    `queued`: calls that wait for their turn at a worker; `spares`: ready spare copies;
    `limits_bytes`: limits of memory, where set; `oom_kills`: processes killed by the kernel, in
    control groups that still exist; `accept_queue`: connections that wait for a front, None where
    the system does not tell; `probing`: servers with the single attempt of an open circuit under
    way."""

    beat_ages_s: dict[tuple[str, str], float] = {}
    queued: dict[str, int] = {}
    spares: dict[str, int] = {}
    limits_bytes: dict[str, int] = {}
    oom_kills: dict[str, int] = {}
    accept_queue: int | None = None
    probing: frozenset[str] = frozenset()


#: States in which a server does its work; an idle one starts with the first call.
READY_STATES = frozenset({"ready", "active", "idle"})
#: States that an operator asked for: servers in them are not missed.
UNWANTED_STATES = frozenset({"stopped", "draining"})
#: States in which the first start of a server is still under way.
STARTING_STATES = frozenset({"warming"})


LAG_S_MAX = 5.0
"""Seconds from which on an event loop is too late to do its work."""
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
    """Check whether the gateway can serve clients. Only `required` servers count."""
    return [
        HealthCheck("gateway", "" if status.state == "active" else status.state),
        HealthCheck("fronts", _no_front([front.state for front in status.fronts])),
        *(_server(server) for server in status.servers if server.required),
    ]


def started(status: GatewayStatus) -> list[HealthCheck]:
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
    every = [s for s in status.servers if not process_names.whose(s.name)]
    missed = [s for s in every if s.state not in READY_STATES]
    return [s for s in missed if s.required or s.state not in UNWANTED_STATES]


def without(
    checks: Sequence[HealthCheck], names: Sequence[str]
) -> tuple[list[HealthCheck], list[str]]:
    """Return the checks with those of these names excluded, and a sentence for each name that does
    not belong to a check."""
    found = [replace(check, excluded=check.name in names) for check in checks]
    unknown = dict.fromkeys(name for name in names if all(name != one.name for one in checks))
    return found, [f"no check here is named {shown(name)}" for name in unknown]


def shown(name: str) -> str:
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
    why = f"{server.state}: {server.reason}" if server.reason else server.state
    return HealthCheck(f"server:{server.name}", why)
