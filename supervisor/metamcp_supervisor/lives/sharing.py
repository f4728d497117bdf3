"""Who gets a process of a server for itself, what such a process is, and when there is none.

Owns: these decisions. Never: starting and stopping (`apart`), the names (the worker's `sharing`).

Theory. A process that serves one client alone is a server like any other: it has a life of its own,
with everything that belongs to that. It differs in what is wanted of it: it starts when its client
calls, and nothing is left of it when its client has gone or has not needed it for `idle_stop`. What
it keeps for its client is gone with it, so no other client ever takes its place.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from metamcp_supervisor.lives.server import Life
from metamcp_supervisor.lives.states import PUBLIC, Phase
from metamcp_supervisor.wanted.config import Server
from metamcp_worker import sharing
from metamcp_worker.sharing import SESSIONS_PROCESSES_MAX

CONTESTED = "contested_request"
"""The counter of questions that a server asked while several callers could have caused them."""
SWITCHED = (
    "it asked a client something while several called it: from now on each client that says who it"
    " is gets a process of its own"
)
PARTED = "an operator keeps calls from it for now"
_FULL = f"{SESSIONS_PROCESSES_MAX} clients have a process of it, which is as many as there may be"
_OVER = "it has no processes for single clients any more; try again"
_LEFT = frozenset({Phase.FAILED, Phase.DISABLED, Phase.QUARANTINED})
_AWAY = frozenset({Phase.DISABLED, Phase.QUARANTINED})
_LEAVING = frozenset({Phase.DRAINING, Phase.STOPPING})


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a client gets no process of its own. `state`, `reason`, `message`: as fronts are told of
    a server (`messages.ServerState`)."""

    state: str
    reason: str = ""
    message: str = ""


def own(server: Server, name: str) -> Server:
    """What is wanted of the process of this name, which serves one client of `server`."""
    return replace(server, name=name, start="lazy", spares=0, required=False)


def wanted(servers: Mapping[str, Server], name: str) -> Server | None:
    """What is wanted under this name: a server that is configured, or a process of one for a single
    client. None: nothing."""
    if not sharing.whose(name):
        return servers.get(name)
    server = servers.get(sharing.base(name))
    return None if server is None else own(server, name)


def per_session(server: Server, *, contested: bool) -> bool:
    """Has each client a process of its own? `contested`: it asked what nobody could be asked."""
    return server.sharing == "per-session" or (server.sharing == "auto" and contested)


def refusal(life: Life | None, *, shared: bool, count: int) -> Refusal | None:
    """Why no process is started for one more client. `life`: of the server itself, None if there is
    none; `shared`: all clients have the same process; `count`: of clients that have their own."""
    if life is None or shared:
        return Refusal("stopped", message=_OVER)
    stopping = life.phase in _LEAVING and not (life.restarting or life.resting)
    if stopping or life.phase in _AWAY:
        state = "stopped" if stopping else PUBLIC[life.phase]
        return Refusal(state, str(life.reason or "") if state == "error" else "", life.message)
    if life.parted:
        return Refusal("draining", message=PARTED)
    if count >= SESSIONS_PROCESSES_MAX:
        return Refusal("error", sharing.NO_PLACE, _FULL)
    return None


def spent(life: Life, *, running: bool) -> bool:
    """Does this process for one client only hold a place? Nothing of it runs, and nothing will."""
    return not running and life.phase in _LEFT


def forgotten(life: Life, idle_s: float, idle_stop_s: float) -> bool:
    """Is this process for one client, which went down, not worth another start?"""
    return life.phase in (Phase.BACKOFF, Phase.FAILED) and idle_s >= idle_stop_s


def in_order(names: Iterable[str]) -> list[str]:
    """Each server, and below it the processes that it has for single clients."""
    every = list(names)
    places = {name: place for place, name in enumerate(every)}
    return sorted(every, key=lambda name: (places.get(sharing.base(name), -1), sharing.whose(name)))
