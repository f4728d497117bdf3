"""The verb `wait`: until servers are as somebody wants them.

Owns: which states fulfil which wish, and when waiting is in vain. Never: making it come true.
"""

import asyncio
from typing import Literal

from msgspec import Struct

from metamcp_supervisor.verbs import VERSION, Exit, ServerStatus
from metamcp_supervisor.watched.health import READY_STATES, UNWANTED_STATES
from metamcp_supervisor.watched.line import Line, known
from metamcp_supervisor.watched.steering import Steering
from metamcp_worker.errors import Refused

WAIT_S_MAX = 24 * 3600.0
"""Nobody waits longer than a day at a prompt."""
WAIT_RECHECK_S = 1.0
"""`wait` looks again at every event, and this often in case one tells nothing."""

Condition = Literal["ready", "active", "idle", "stopped", "error"]
#: Which states fulfil what `wait` waits for.
FULFILS: dict[Condition, frozenset[str]] = {
    "ready": READY_STATES,
    "active": frozenset({"active"}),
    "idle": frozenset({"idle"}),
    "stopped": frozenset({"stopped", "idle"}),
    "error": frozenset({"error"}),
}
#: Those that a start brings about: a server that nobody wants to run is not waited for.
_UP: frozenset[Condition] = frozenset({"ready", "active"})
#: Phases out of which no start leads soon: whoever waits wants to know it now.
HOPELESS_PHASES = frozenset({"failed", "quarantined"})


class Wait(Struct, frozen=True, forbid_unknown_fields=True, rename={"wanted": "for"}):
    """No names: every server that is wanted. `above`: a server's state counts only once its
    generation is higher, so that one that is about to restart does not pass as ready."""

    names: tuple[str, ...] = ()
    wanted: Condition = "ready"
    timeout_s: float = 30.0
    above: dict[str, int] = {}


async def wait(steering: Steering, line: Line, params: Wait) -> object:
    known(steering, params.names)
    timeout_s = min(max(params.timeout_s, 0.0), WAIT_S_MAX)
    follower = steering.journal.follow(line.wake)
    try:
        async with asyncio.timeout(timeout_s):
            while _missing(steering, params):
                await line.woken(WAIT_RECHECK_S)
                follower.take()
    except TimeoutError:
        names = _missing(steering, params)
        if names:
            raise Refused(
                Exit.TIMEOUT, f"not {params.wanted} after {timeout_s:g} s: {'; '.join(names)}"
            ) from None
    finally:
        steering.journal.unfollow(follower)
    return {"v": VERSION}


def _missing(steering: Steering, params: Wait) -> list[str]:
    """Who is not there yet, and why. Raises Refused for one that will not come by waiting."""
    missing: list[str] = []
    status = steering.status()
    up = params.wanted in _UP
    if status.state == "starting" and up:
        missing.append("the gateway is starting")
    for server in status.servers:
        if params.names and server.name not in params.names:
            continue
        if not params.names and up and server.state in UNWANTED_STATES:
            continue
        fresh = server.generation > params.above.get(server.name, -1)
        if fresh and server.state in FULFILS[params.wanted]:
            continue
        if fresh and up:
            _check_hope(server)
        why = f" ({server.message or server.reason})" if server.reason or server.message else ""
        missing.append(f"{server.name} is {server.state}{why}")
    return missing


def _check_hope(server: ServerStatus) -> None:
    if server.state == "stopped":
        raise Refused(
            Exit.SERVER_NOT_RUNNING,
            f"{server.name} is stopped; start it with 'metamcp ctl start {server.name}'",
        )
    if server.phase in HOPELESS_PHASES or (server.state == "error" and server.retry_in_s is None):
        raise Refused(
            Exit.FAILED,
            f"{server.name} failed: {server.message or server.reason};"
            f" 'metamcp ctl logs {server.name}' shows what it wrote",
        )
