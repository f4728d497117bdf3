"""Who gets a process of a server for itself, what such a process is, and when there is none.

Owns: these decisions. Never: starting and stopping (`per_client_io`), the names (the worker's
`sharing`).

Theory. A process that serves one client alone is a server like any other: it has a life of its own,
with everything that belongs to that. It differs in what is wanted of it: it starts when its client
calls, and nothing is left of it when its client has gone or has not needed it for `idle_stop`. What
it keeps for its client is gone with it, so no other client ever takes its place.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from metamcp_supervisor.config.config import TENANT_IDLE_STOP_S, Server
from metamcp_supervisor.config.references import PROJECT
from metamcp_supervisor.servers.server import Life
from metamcp_supervisor.servers.states import DOWN, PUBLIC, Phase
from metamcp_worker.ipc import process_names, roots
from metamcp_worker.ipc.messages import Tenant
from metamcp_worker.ipc.process_names import (
    CLIENT_PROCESSES_MAX,
    PROCESSES_MAX,
    SESSIONS_PROCESSES_MAX,
    By,
)
from metamcp_worker.ipc.roots import Asked

CONTESTED = "contested_request"
"""The counter of questions that a server asked while several callers could have caused them."""
SWITCHED = (
    "it asked a client something while several called it: from now on each client that says who it"
    " is gets a process of its own"
)
ROOTED = (
    "it asked for the roots of its client: from now on each client that has roots gets a process of"
    " its own"
)
LENT_ROOTS = "lent_roots"
"""The counter of a process for all that was told the roots of one client in a call, and asked ahead
too: it may keep them."""
PARTED = "an operator keeps calls from it for now"
_FULL = f"{SESSIONS_PROCESSES_MAX} clients have a process of it, which is as many as there may be"
_FULL_CLIENT = (
    f"this client has {CLIENT_PROCESSES_MAX} processes of it, for other roots each, which is as"
    " many as one may have"
)
_FULL_GATEWAY = f"{PROCESSES_MAX} processes serve single clients, which is as many as there may be"
_OVER = "it has no processes for single clients any more; try again"
TOO_MANY_ROOTS = "too_many_roots"
NO_FOLDER = "no_folder"
NO_FOLDER_TEXT = (
    "${project} stands for the first root of its client, and that is no folder of this machine:"
    " start the client in a folder, or let it name one with a file: URI"
)
_LEFT = frozenset({Phase.FAILED, Phase.DISABLED, Phase.QUARANTINED})
_AWAY = frozenset({Phase.DISABLED, Phase.QUARANTINED})
LEAVING = frozenset({Phase.DRAINING, Phase.STOPPING})


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a client gets no process of its own. `state`, `reason`, `message`: as fronts are told of
    a server (`messages.ServerState`)."""

    state: str
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Division:
    """For whom a server has processes of their own (`messages.ServerState`)."""

    by: By = ""
    roots: Asked = ""
    both: bool = False

    def __bool__(self) -> bool:
        """Is there any such process for a single client, or project?"""
        return bool(self.by or self.roots)

    @property
    def by_era(self) -> bool:
        """Is there one for all clients of the earlier era? Where each client has its own, that
        speaks the era of its client."""
        return self.both and self.by != "client"


def own(server: Server, name: str) -> Server:
    """What is wanted of the process of this name, which serves one client of `server`, or those of
    one era: what these build up there stays for as long as with the server itself."""
    one = replace(server, name=name, spares=0, required=False)
    if process_names.whose(name) == process_names.LEGACY:
        return replace(one, era="legacy")
    rest_s = TENANT_IDLE_STOP_S if server.idle_stop_s is None else server.idle_stop_s
    return replace(one, start="lazy", idle_stop_s=rest_s)


def wanted(servers: Mapping[str, Server], name: str) -> Server | None:
    """What is wanted under this name: a server that is configured, or a process of one for a single
    client. None: nothing."""
    if not process_names.whose(name):
        return servers.get(name)
    server = servers.get(process_names.base(name))
    return None if server is None else own(server, name)


def division(server: Server, *, contested: bool, asks_roots: Asked) -> Division:
    """For whom it has processes of their own. `contested`: it asked what nobody could be asked;
    `asks_roots`: when it asked for the roots of its client. One that asks in a call is answered by
    who called, so nobody needs a process; one that asks ahead is told those of one client."""
    if server.sharing == "per-project":
        return Division("project", "ahead")
    auto = server.sharing == "auto"
    by: By = "client" if server.sharing == "per-session" or (auto and contested) else ""
    ahead = auto and asks_roots == "ahead"
    return Division(by, asks_roots if by or ahead else "")


@dataclass(frozen=True, slots=True)
class Count:
    """How many processes there are that are not for all: of this server, of this server for the
    client that wants one more, and of all servers."""

    server: int = 0
    client: int = 0
    gateway: int = 0


def refusal(life: Life | None, *, shared: bool, count: Count) -> Refusal | None:
    """Why no process is started for one more client. `life`: of the server itself, None if there is
    none; `shared`: all clients have the same process."""
    if life is None or shared:
        return Refusal("stopped", message=_OVER)
    stopping = life.phase in LEAVING and not (life.restarting or life.resting)
    if stopping or life.phase in _AWAY:
        state = "stopped" if stopping else PUBLIC[life.phase]
        return Refusal(state, str(life.reason or "") if state in DOWN else "", life.message)
    if life.parted:
        return Refusal("draining", message=PARTED)
    if count.client >= CLIENT_PROCESSES_MAX:
        return Refusal("error", TOO_MANY_ROOTS, _FULL_CLIENT)
    if count.server >= SESSIONS_PROCESSES_MAX or count.gateway >= PROCESSES_MAX:
        full = count.server >= SESSIONS_PROCESSES_MAX
        return Refusal("error", process_names.NO_PLACE, _FULL if full else _FULL_GATEWAY)
    return None


def placed(server: Server, tenant: Tenant | None) -> bool:
    """Is there what stands for the folder of a project, if anything does?"""
    written = (*server.command, *server.env.values(), str(server.cwd))
    if server.sharing != "per-project" or all(PROJECT not in text for text in written):
        return True
    return tenant is None or bool(roots.folder(tenant.roots.encode()))


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
    return sorted(
        every,
        key=lambda name: (places.get(process_names.base(name), -1), process_names.whose(name)),
    )
