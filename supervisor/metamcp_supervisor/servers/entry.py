"""What the tree keeps of one configured server, and the sentences about it in the journal.

Owns: the entry, the copies of its server, and their timers. Never: what happens to it (`tree`), the
rules (`server`).
"""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace

from msgspec import Struct

from metamcp_supervisor.backoff import Patience
from metamcp_supervisor.config.config import Server
from metamcp_supervisor.config.server_sections import origin
from metamcp_supervisor.processes.cgroups import Leaf
from metamcp_supervisor.rations import Ration
from metamcp_supervisor.servers import per_client
from metamcp_supervisor.servers.catalog_changes import CHANGES_TOLD_MAX
from metamcp_supervisor.servers.catalogues import Offer
from metamcp_supervisor.servers.instances import Instance, InstanceSnapshot
from metamcp_supervisor.servers.rate_limits import Flood
from metamcp_supervisor.servers.server import Life
from metamcp_supervisor.servers.states import Phase
from metamcp_worker.ipc import process_names as words
from metamcp_worker.ipc.messages import Tenant
from metamcp_worker.ipc.roots import Asked


class CopySnapshot(Struct, frozen=True, kw_only=True):
    """`role`: serving, spare or leaving; `leaf`: path of its control group; `due`: until when its
    worker has to be up, or gone."""

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
    """`launched`: what says whether it is started in the same way (`config.reload`);
    `list_changes`, `list_turns_at`: see `servers.routes`. `kept`: tools in quarantine, with the
    reason, of a process for one client."""

    name: str
    enabled: bool
    launched: str
    life: Life
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
    """One copy of a server, from the order to start it until nothing of it is left.

    `instance` is there from the fork to the end of everything below it. `stopping`: it was asked to
    stop. `ready`: it was once; `lists`: its catalogue then, if it was another one than before.
    `leaf`: its control group, if it has one. `flood`: how long it is held back.
    """

    def __init__(self, entry: "Entry", generation: int) -> None:
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
    def warming(self) -> bool:
        """Is it on its way up?"""
        down = self.instance is not None and self.instance.reported
        return not (self.ready or self.stopping or down)

    def deadline(self, seconds: float, overdue: Callable[["Copy"], None]) -> None:
        """Call `overdue` after so long, instead of an earlier deadline."""
        self.no_deadline()
        self._deadline = asyncio.get_running_loop().call_later(seconds, overdue, self)

    @property
    def due(self) -> float | None:
        """When its deadline is over, if it has one."""
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


def patience(server: Server) -> Patience:
    """With this server, as it is configured."""
    return Patience(server.restarts_max, server.restart_window_s, server.restart_delay_max_s)


class Entry:
    """One configured server. `serving`: the copy that the fronts know; `spare`: one that could take
    its place, or is getting there; `leaving`: those that are on their way out.

    `restarts`: how often another copy took its place; `rested`: it has been idle since a copy last
    started, or on its way there, so that the next start is none of these. `replacing`: the spare
    takes the place as soon as it is ready. `spare_failures`: spares in a row that did not come up.
    `probe`: ask it first whether it is modern. `removed`: no longer configured, and gone as soon as
    it is down. `answered`: calls that it answered so far, by front. `contested`: it asked something
    that several callers could have caused. `used_at`: when one for a single client was last of use.
    `tenants`: whom one serves that is not for all, by the words for them, the newest last.
    `changes`: of its lists, for the journal. `one_era`: the identity (`Offer`) that it had when it
    refused to speak the other era.
    """

    def __init__(self, server: Server, offer: Offer) -> None:
        phase = Phase.IDLE if server.enabled else Phase.DISABLED
        self.server = server
        self.life = Life(
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
        self.changes = Ration(CHANGES_TOLD_MAX)
        self.one_era = ""
        self._generation = 0
        self._retry: asyncio.TimerHandle | None = None
        self._spare: asyncio.TimerHandle | None = None

    @property
    def name(self) -> str:
        return self.server.name

    @property
    def base(self) -> str:
        """The server of which it is a process for a single client; else its own name."""
        return words.base(self.name)

    @property
    def own(self) -> bool:
        """Does it serve a single client?"""
        return bool(words.whose(self.name))

    @property
    def legacy(self) -> bool:
        """Does it serve the clients of the earlier era, of a server that speaks both?"""
        return words.whose(self.name) == words.LEGACY

    @property
    def both(self) -> bool:
        """Does the server speak both eras? Yes, until it was tried."""
        found = self.offer.modern and self.offer.identity != self.one_era
        return found and self.server.era == "auto"

    @property
    def division(self) -> per_client.Division:
        """For whom it has processes of their own."""
        found = per_client.division(
            self.server, contested=self.contested, asks_roots=self.offer.asks_roots
        )
        return replace(found, both=self.both)

    @property
    def tenant(self) -> Tenant | None:
        """Whom it serves, if it is not for all: of several clients of a project the newest."""
        return next(reversed(self.tenants.values()), None)

    def unknown(self) -> None:
        """It is started in another way, so it may be another server: nothing is known of it."""
        self.contested, self.one_era = False, ""
        self.offer = replace(self.offer, asks_roots="")

    @property
    def running(self) -> bool:
        """Is there a process of it, or will there be one in a moment?"""
        return bool(self.copies)

    @property
    def spent(self) -> bool:
        """Does nothing of it run, and will nothing, unless somebody or a timer starts it?"""
        return per_client.spent(self.life, running=self.running)

    @property
    def copies(self) -> list[Copy]:
        return [*filter(None, (self.serving, self.spare)), *self.leaving]

    @property
    def instance(self) -> Instance | None:
        """The one that serves."""
        return None if self.serving is None else self.serving.instance

    def new_generation(self) -> int:
        self._generation += 1
        return self._generation

    @property
    def generation(self) -> int:
        """The highest number that a copy of it had."""
        return self._generation

    def go_on(self, found: ServerSnapshot) -> None:
        """After what the program before knew."""
        self.life, self._generation = found.life, found.generation
        self.replacing, self.spare_failures = found.replacing, found.spare_failures
        self.restarts, self.rested = found.restarts, found.rested
        self.probe, self.removed = found.probe, found.removed
        self.contested, self.used_at = found.contested, found.used_at
        self.one_era = found.one_era
        self.tenants = {one.who: one for one in found.tenants}
        self.answered = dict(found.answered)

    @property
    def launcher(self) -> str:
        """What it depends on, such as a program or a host: those who share it fail together."""
        server = self.server
        if server.url is not None:
            return origin(server.url)
        if server.command:
            return os.path.basename(server.command[0])
        return "module" if server.module is not None else server.transport

    def retry_at(self, when: float, start: Callable[["Entry"], None]) -> None:
        """Call `start` at this time, instead of an earlier plan."""
        self.no_retry()
        self._retry = asyncio.get_running_loop().call_at(when, start, self)

    def no_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def spare_in(self, seconds: float, start: Callable[["Entry"], None]) -> None:
        """Call `start` after so long, instead of an earlier plan."""
        self.no_spare()
        self._spare = asyncio.get_running_loop().call_later(seconds, start, self)

    def no_spare(self) -> None:
        if self._spare is not None:
            self._spare.cancel()
            self._spare = None


def news(life: Life) -> tuple[object, ...]:
    """What fronts and journal hear of when it is another than before."""
    return life.phase, life.degraded, life.parted, life.retry_at, life.generation


def why(life: Life, now: float) -> str:
    """What the journal says of a server that went down."""
    text = f"{life.reason}: {life.message}" if life.reason is not None else ""
    if life.retry_at is not None:
        text += f"; next start in {max(0.0, life.retry_at - now):.1f} s"
    return text
