"""Is the gateway alive, ready, started? Answers from its status, each with the reasons.

Owns: which states count as working, and the lines of the health pages. Never: probing anything,
HTTP (`admin`).
"""

from collections.abc import Sequence

from msgspec import Struct

from metamcp_supervisor.verbs import GatewayStatus, ServerStatus
from metamcp_worker import sharing

#: States in which a server does its work; an idle one starts with the first call.
READY_STATES = frozenset({"ready", "active", "idle"})
#: States that somebody asked for: such a server is not missed.
UNWANTED_STATES = frozenset({"stopped", "draining"})
#: States in which the first start of a server is not decided yet.
STARTING_STATES = frozenset({"warming"})


class Check(Struct, frozen=True):
    """One line: `[+]name ok` or `[-]name reason`."""

    name: str
    reason: str = ""

    @property
    def ok(self) -> bool:
        return not self.reason

    def __str__(self) -> str:
        return f"[+]{self.name} ok" if self.ok else f"[-]{self.name} {self.reason}"


def live(status: GatewayStatus) -> list[Check]:
    """Would a restart of the whole gateway help? Never depends on the servers."""
    return [
        Check("nursery", "" if status.nursery_pid else "not running"),
        Check("fronts", _no_front(status)),
    ]


def ready(status: GatewayStatus) -> list[Check]:
    """Should clients be sent here? Depends on the servers that are marked `required`, no others."""
    return [
        Check("gateway", "" if status.state == "active" else status.state),
        Check("fronts", _no_front(status)),
        *(_server(server) for server in status.servers if server.required),
    ]


def started(status: GatewayStatus) -> list[Check]:
    """Is the first warm-up over, however it ended? Only `required` servers are waited for."""
    return [
        Check("gateway", "starting" if status.state == "starting" else ""),
        *(
            Check(f"server:{server.name}", "warming")
            if server.state in STARTING_STATES and server.generation <= 1
            else Check(f"server:{server.name}")
            for server in status.servers
            if server.required
        ),
    ]


def not_ready(status: GatewayStatus, names: Sequence[str] = ()) -> list[ServerStatus]:
    """The servers that should work and do not: of the named ones, or of all that are wanted. What
    serves a single client comes and goes with it, and is missed only by name."""
    if names:
        return [s for s in status.servers if s.name in names and s.state not in READY_STATES]
    every = [s for s in status.servers if not sharing.whose(s.name)]
    return [s for s in every if s.state not in READY_STATES | UNWANTED_STATES]


def passes(checks: Sequence[Check]) -> bool:
    return all(check.ok for check in checks)


def _no_front(status: GatewayStatus) -> str:
    states = [front.state for front in status.fronts]
    if any(state in READY_STATES for state in states):
        return ""
    return f"none serves ({', '.join(states) or 'there is none'})"


def _server(server: ServerStatus) -> Check:
    if server.state in READY_STATES:
        return Check(f"server:{server.name}")
    # The message of a server may hold anything; only our own word for it goes to a health page.
    why = f"{server.state}: {server.reason}" if server.reason else server.state
    return Check(f"server:{server.name}", why)
