"""The entry of one configured server in the tree, and its sentences in the journal.

Owns: the entry, the copies of its server, and their timers. Never: decisions about the server
(`server_io`), the rules (`server`).
"""

import asyncio
import os
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from metamcp_supervisor.backoff import EntryRateLimiter, RestartLimits
from metamcp_supervisor.config.config import Server
from metamcp_supervisor.config.sections import origin
from metamcp_supervisor.processes.cgroups import Leaf
from metamcp_supervisor.servers import per_client
from metamcp_supervisor.servers.catalog_changes import CHANGES_TOLD_MAX, Flood
from metamcp_supervisor.servers.catalogues import CatalogueFigures
from metamcp_supervisor.servers.instances import Instance, InstanceSnapshot
from metamcp_supervisor.servers.server import ServerLife
from metamcp_supervisor.servers.states import ServerPhase
from metamcp_worker.confinement.denials import DeniedRight
from metamcp_worker.ipc import process_names as words
from metamcp_worker.ipc.messages import Tenant
from metamcp_worker.ipc.roots import Asked


class CopySnapshot(Struct, frozen=True, kw_only=True):
    """State of a copy, for the program after this one. `role`: serving, spare or leaving; `leaf`:
    path of its control group; `due`: deadline for its worker to be up, or gone."""

    role: str
    generation: int
    instance: InstanceSnapshot
    ready: bool
    stopping: bool
    halted: bool
    lists: bytes = b""
    leaf: str = ""
    due: float | None = None


class ServerSnapshot(Struct, frozen=True, kw_only=True):
    """State of a server, for the program after this one. `launched`: digest that shows whether the
    server is started in the same way (`config.reload`); `list_changes`, `list_turns_at`: see
    `PublishedServer` in `servers.publish`. `kept`: tools in quarantine, with the reason, of a
    process for one client."""

    name: str
    enabled: bool
    launched: str
    life: ServerLife
    generation: int
    replacing: bool
    spare_failures: int
    restarts: int
    rested: bool
    probe: bool
    contested: bool = False
    one_era: str = ""
    used_at: float = 0.0
    tenants: tuple[Tenant, ...] = ()
    asks_roots: Asked = ""
    removed: bool
    answered: dict[int, int]
    copies: tuple[CopySnapshot, ...]
    catalogue: bytes
    from_cache: bool
    listed: bool
    list_changes: tuple[float, ...] = ()
    list_turns_at: float | None = None
    kept: tuple[tuple[str, str], ...] = ()


class Copy:
    """A copy of a server, from the order to start it until its last process is gone.

    `instance`: set from the fork to the end of everything below the worker. `stopping`: the copy
    was asked to stop. `ready`: the copy was ready once; `lists`: its catalogue then, if it differed
    from the one before. `leaf`: its control group, if it has one. `flood`: how long it has been
    slowed down.
    """

    def __init__(self, entry: "ServerEntry", generation: int) -> None:
        self.entry = entry
        self.generation = generation
        self.instance: Instance | None = None
        self.launch: asyncio.Task[None] | None = None
        self.ready = False
        self.stopping = False
        self.lists = b""
        self.leaf: Leaf | None = None
        self.flood = Flood()
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def is_starting(self) -> bool:
        """Whether the copy is starting."""
        down = self.instance is not None and self.instance.reported
        return not (self.ready or self.stopping or down)

    def deadline(self, seconds: float, overdue: Callable[["Copy"], None]) -> None:
        """Call `overdue` after these seconds; replaces an earlier deadline."""
        self.no_deadline()
        self._deadline = asyncio.get_running_loop().call_later(seconds, overdue, self)

    @property
    def due(self) -> float | None:
        """Time of the deadline, if there is one."""
        return None if self._deadline is None else self._deadline.when()

    def no_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def abandon(self) -> None:
        self.no_deadline()
        if self.launch is not None:
            self.launch.cancel()
        if self.instance is not None:
            self.instance.close()


def patience(server: Server) -> RestartLimits:
    """Return the configured patience with a server."""
    return RestartLimits(server.restarts_max, server.restart_window_s, server.restart_delay_max_s)


class ServerEntry:
    """A configured server, or a process of one for a single client. `serving`: the copy that the
    fronts know; `spare`: a copy that can take its place, or is starting; `leaving`: copies that are
    stopping.

    `restarts`: how often another copy took the place of the serving one; `rested`: the server has
    been idle, or on its way there, since a copy last started, so the next start is not a restart.
    `replacing`: the spare takes the place as soon as it is ready. `spare_failures`: spares in a row
    that did not become ready. `probe`: ask the server first whether it is modern. `removed`: not
    configured any more, dropped as soon as it is down. `answered`: calls that it answered so far,
    by front. `contested`: it asked something that several callers could have caused. `used_at`:
    when a process for a single client was last used. `tenants`: the clients of a process that is
    not for all, by their keys, the newest last. `changes`: limits the journal's entries about
    changed lists. `trial`: rights that it used and would lack in its sandbox, while it is in a
    trial without it. `one_era`: the identity (`CatalogueFigures`) of the server when it refused to
    speak the other era.
    """

    def __init__(self, server: Server, offer: CatalogueFigures) -> None:
        phase = ServerPhase.IDLE if server.enabled else ServerPhase.DISABLED
        self.server = server
        self.life = ServerLife(
            phase=phase, restart=server.restart, lazy=server.lazy, patience=patience(server),
            mistake=server.mistake,
        )  # fmt: skip
        self.offer = offer
        self.serving: Copy | None = None
        self.spare: Copy | None = None
        self.leaving: set[Copy] = set()
        self.replacing = False
        self.spare_failures = 0
        self.restarts = 0
        self.rested = True
        self.answered: dict[int, int] = {}
        self.contested = False
        self.used_at = 0.0
        self.tenants: dict[str, Tenant] = {}
        self.probe = True
        self.removed = False
        self.changes = EntryRateLimiter(CHANGES_TOLD_MAX)
        self.one_era = ""
        self.trial: set[DeniedRight] | None = None
        self._generation = 0
        self._retry: asyncio.TimerHandle | None = None
        self._spare: asyncio.TimerHandle | None = None

    @property
    def name(self) -> str:
        return self.server.name

    @property
    def base(self) -> str:
        """Name of the server that a process for a single client belongs to; else its own name."""
        return words.base(self.name)

    @property
    def own(self) -> bool:
        """Whether this is a process for a single client, project or era, not for all clients."""
        return bool(words.parse_client(self.name))

    @property
    def legacy(self) -> bool:
        """Whether this process serves the clients of the earlier era, of a server that speaks
        both."""
        return words.parse_client(self.name) == words.LEGACY

    @property
    def both(self) -> bool:
        """Whether the server speaks both eras; True until that was tried."""
        may_speak_both = self.offer.modern and self.offer.identity != self.one_era
        return may_speak_both and self.server.era == "auto"

    @property
    def division(self) -> per_client.ProcessSharing:
        """Return which clients get processes of their own."""
        division = per_client.division(
            self.server, contested=self.contested, asks_roots=self.offer.asks_roots
        )
        return replace(division, both=self.both)

    @property
    def tenant(self) -> Tenant | None:
        """Client that this process serves, None if it is for all; the newest client of a
        project."""
        return next(reversed(self.tenants.values()), None)

    def unknown(self) -> None:
        """Forget what was learned about a server that is started in another way now, because it
        may be a different server."""
        self.contested, self.one_era = False, ""
        self.offer = replace(self.offer, asks_roots="")

    @property
    def is_running(self) -> bool:
        """Whether the server has a copy, running or about to start."""
        return bool(self.copies)

    @property
    def spent(self) -> bool:
        """Whether the server does not run, and stays down until a client, an operator or a timer
        starts it."""
        return per_client.spent(self.life, running=self.is_running)

    @property
    def copies(self) -> list[Copy]:
        return [*filter(None, (self.serving, self.spare)), *self.leaving]

    @property
    def instance(self) -> Instance | None:
        """Instance of the serving copy."""
        return None if self.serving is None else self.serving.instance

    def new_generation(self) -> int:
        self._generation += 1
        return self._generation

    @property
    def generation(self) -> int:
        """Highest generation that a copy of the server had."""
        return self._generation

    def go_on(self, snapshot: ServerSnapshot) -> None:
        """Continue from the state that the previous program handed over."""
        self.life, self._generation = snapshot.life, snapshot.generation
        self.replacing, self.spare_failures = snapshot.replacing, snapshot.spare_failures
        self.restarts, self.rested = snapshot.restarts, snapshot.rested
        self.probe, self.removed = snapshot.probe, snapshot.removed
        self.contested, self.used_at = snapshot.contested, snapshot.used_at
        self.one_era = snapshot.one_era
        self.tenants = {tenant.who: tenant for tenant in snapshot.tenants}
        self.answered = dict(snapshot.answered)

    @property
    def launcher(self) -> str:
        """Program or host that the server depends on; servers that share a launcher fail
        together."""
        server = self.server
        if server.url is not None:
            return origin(server.url)
        if server.command:
            return os.path.basename(server.command[0])
        return "module" if server.module is not None else server.transport

    def retry_at(self, when: float, start: Callable[["ServerEntry"], None]) -> None:
        """Call `start` at this time; replaces an earlier plan."""
        self.no_retry()
        self._retry = asyncio.get_running_loop().call_at(when, start, self)

    def no_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def spare_in(self, seconds: float, start: Callable[["ServerEntry"], None]) -> None:
        """Call `start` after these seconds; replaces an earlier plan."""
        self.no_spare()
        self._spare = asyncio.get_running_loop().call_later(seconds, start, self)

    def no_spare(self) -> None:
        if self._spare is not None:
            self._spare.cancel()
            self._spare = None


def news(life: ServerLife) -> tuple[object, ...]:
    """Return the part of a life whose changes are reported to fronts and journal."""
    return life.phase, life.degraded, life.parted, life.retry_at, life.generation


def describe_failure(life: ServerLife, now: float) -> str:
    """Return the journal's text about a server that went down."""
    text = f"{life.reason}: {life.message}" if life.reason is not None else ""
    if life.retry_at is not None:
        text += f"; next start in {max(0.0, life.retry_at - now):.1f} s"
    return text
