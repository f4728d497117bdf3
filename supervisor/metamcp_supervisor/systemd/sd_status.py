"""Health of the gateway itself: the condition for a sign of life, and the status in one line.

Owns: the faults that keep back the sign of life to systemd, and the sentence for `systemctl
status`. Never: the health pages (`telemetry.health`), sending anything (`sd_service`).

Servers do not count for the sign of life: a restart of the whole gateway does not heal a server.
"""

from metamcp_supervisor.telemetry import health
from metamcp_supervisor.verbs import GatewayStatus

FRONTLESS_S_MAX = 60.0
"""Maximum seconds without any front that serves. A new front needs at most 20 s
(`fronts.READY_S_MAX`), and fronts that crash again and again end the gateway by themselves; a
longer time has an unforeseen cause."""
UNNURSED_S_MAX = 60.0
"""Maximum seconds without a nursery, whose own start has 30 s (`nursery.BORN_S_MAX`)."""
NAMES_MAX = 3
"""Maximum servers that the sentence names; the rest is a number."""


def faults(status: GatewayStatus, *, frontless_s: float, unnursed_s: float) -> list[str]:
    """Return the reasons to keep back the sign of life. `frontless_s`, `unnursed_s`: seconds
    without a front that serves, and without a nursery, until now."""
    if status.state == "draining":  # everything ends one after the other, in bounded time
        return []
    found: list[str] = []
    if unnursed_s > UNNURSED_S_MAX:
        found.append(f"no nursery for {unnursed_s:.0f} s")
    if frontless_s > FRONTLESS_S_MAX:
        found.append(f"no front serves for {frontless_s:.0f} s")
    return found


def has_front(status: GatewayStatus) -> bool:
    return any(front.state == "ready" for front in status.fronts)


def sentence(status: GatewayStatus, *, refused: bool) -> str:
    """Return the status, as in `4 of 5 servers ready; not ready: linear (backoff: connect)`.
    `refused`: the last reload was refused."""
    if status.state == "draining":
        return "stops: clients get what they wait for, then servers are stopped"
    wanted = [
        server
        for server in status.servers
        if server.required or server.state not in health.UNWANTED_STATES
    ]
    missing = health.not_ready(status)
    parts = [
        f"{len(wanted) - len(missing)} of {len(wanted)} servers ready"
        if wanted
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
    if refused:
        parts.append("the last reload was refused, see 'metamcp ctl events'")
    return "; ".join(parts)
