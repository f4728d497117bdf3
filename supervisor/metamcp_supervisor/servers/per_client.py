"""Processes of a server for single clients: which clients get one, and its settings.

Owns: these decisions. Never: starting and stopping (`per_client_io`), the names (the worker's
`process_names`).

Theory. A process that serves a single client is a server like any other, with a life of its own.
But it starts when its client calls, and it is removed when the client has gone or has not used it
for `idle_stop`. The data that it keeps for the client ends with the process, so another client
never gets the process.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from metamcp_supervisor.config.config import TENANT_IDLE_STOP_S, Server
from metamcp_supervisor.config.references import PROJECT
from metamcp_supervisor.servers.server import ServerLife
from metamcp_supervisor.servers.states import DOWN, PUBLIC, ServerPhase
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
"""Counter of requests that a server sent to a client while several callers could have caused
them."""
SWITCHED = (
    "it asked a client something while several called it: from now on each client that says who it"
    " is gets a process of its own"
)
ROOTED = (
    "it asked for the roots of its client: from now on clients with the same roots get a process of"
    " their own"
)
LENT_ROOTS = "lent_roots"
"""Counter of a shared process that got the roots of one client in a call and keeps roots."""
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
    "${project} stands for the first root of its client, and that is not a folder of this machine:"
    " start the client in a folder, or let it name one with a file: URI"
)
_LEFT = frozenset({ServerPhase.FAILED, ServerPhase.DISABLED, ServerPhase.QUARANTINED})
_AWAY = frozenset({ServerPhase.DISABLED, ServerPhase.QUARANTINED})
LEAVING = frozenset({ServerPhase.DRAINING, ServerPhase.STOPPING})


class ProcessRefusal(Struct, frozen=True):
    """The reason why a client does not get a process of its own. `state`, `reason`, `message`: as
    in `messages.ServerState`."""

    state: str
    reason: str = ""
    message: str = ""


class ProcessSharing(Struct, frozen=True):
    """The clients that get processes of their own (fields as in `messages.ServerState`)."""

    by: By = ""
    roots: Asked = ""
    both: bool = False

    def __bool__(self) -> bool:
        """Whether single clients or projects get processes of their own."""
        return bool(self.by or self.roots)

    @property
    def by_era(self) -> bool:
        """Whether all clients of the earlier era share a process. If each client has its own
        process, that speaks the era of its client."""
        return self.both and self.by != "client"


def own(server: Server, name: str) -> Server:
    """Return the settings of the process of this name, which serves one client of `server`, or the
    clients of one era. A process for an era has the idle time of the server itself, because clients
    keep state there."""
    settings = replace(server, name=name, spares=0, required=False)
    if process_names.parse_client(name) == process_names.LEGACY:
        return replace(settings, era="legacy")
    rest_s = TENANT_IDLE_STOP_S if server.idle_stop_s is None else server.idle_stop_s
    return replace(settings, start="lazy", idle_stop_s=rest_s)


def find_settings(servers: Mapping[str, Server], name: str) -> Server | None:
    """Return the settings for this name: of a configured server, or of a process of one for a
    single client. None if there is not such a server."""
    if not process_names.parse_client(name):
        return servers.get(name)
    server = servers.get(process_names.base(name))
    return None if server is None else own(server, name)


def division(server: Server, *, contested: bool, asks_roots: Asked) -> ProcessSharing:
    """Return which clients get processes of their own. `contested`: the server sent a request for a
    client while several callers could have caused it; `asks_roots`: when the server asked for the
    roots of its client. A server that asks during a call gets the roots of the caller, so clients
    need no processes of their own; a server that asks ahead has its roots for all clients that have
    the same."""
    if server.sharing == "per-project":
        return ProcessSharing("project", "ahead")
    auto = server.sharing == "auto"
    by: By = "client" if server.sharing == "per-session" or (auto and contested) else ""
    ahead = auto and asks_roots == "ahead"
    return ProcessSharing(by, asks_roots if by or ahead else "")


class ProcessCount(Struct, frozen=True):
    """How many processes are not for all clients: of this server, of this server for the client
    that wants one more, and of all servers."""

    server: int = 0
    client: int = 0
    gateway: int = 0


def refusal(life: ServerLife | None, *, shared: bool, count: ProcessCount) -> ProcessRefusal | None:
    """Return why a process is not started for one more client; None if it may start. `life`: of the
    server itself, None if it is not configured; `shared`: all clients share a process."""
    if life is None or shared:
        return ProcessRefusal("stopped", message=_OVER)
    stopping = life.phase in LEAVING and not (life.restarting or life.resting)
    if stopping or life.phase in _AWAY:
        state = "stopped" if stopping else PUBLIC[life.phase]
        return ProcessRefusal(state, str(life.reason or "") if state in DOWN else "", life.message)
    if life.parted:
        return ProcessRefusal("draining", message=PARTED)
    if count.client >= CLIENT_PROCESSES_MAX:
        return ProcessRefusal("error", TOO_MANY_ROOTS, _FULL_CLIENT)
    if count.server >= SESSIONS_PROCESSES_MAX or count.gateway >= PROCESSES_MAX:
        full = count.server >= SESSIONS_PROCESSES_MAX
        return ProcessRefusal("error", process_names.NO_PLACE, _FULL if full else _FULL_GATEWAY)
    return None


def is_project_known(server: Server, tenant: Tenant | None) -> bool:
    """Whether the folder of the client's project is known, if the settings of the server need
    it."""
    written = (*server.command, *server.env.values(), str(server.cwd))
    if server.sharing != "per-project" or all(PROJECT not in text for text in written):
        return True
    return tenant is None or bool(roots.folder(tenant.roots.encode()))


def spent(life: ServerLife, *, running: bool) -> bool:
    """Whether this process for one client is down and does not start by itself, so it only takes a
    place."""
    return not running and life.phase in _LEFT


def forgotten(life: ServerLife, idle_s: float, idle_stop_s: float) -> bool:
    """Whether this process for one client went down, and its client has not used it for so long
    that another start is not worth it."""
    return life.phase in (ServerPhase.BACKOFF, ServerPhase.FAILED) and idle_s >= idle_stop_s


def in_order(names: Iterable[str]) -> list[str]:
    """Sort names: each server, followed by its processes for single clients."""
    every = list(names)
    positions = {name: position for position, name in enumerate(every)}
    return sorted(
        every,
        key=lambda name: (
            positions.get(process_names.base(name), -1),
            process_names.parse_client(name),
        ),
    )
