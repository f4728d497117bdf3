"""Upgrade in place: the state that one program hands to the next, and the order of taking over.

Owns: whether the gateway is settled enough for an upgrade, and which parts belong to its state.
Never: executing the new program (`upgrade_exec`), the values (`upgrade_state`).

Collecting changes nothing, so that the gateway can go on if the next program cannot be executed.
Taking over starts nothing: processes, sockets and files exist already. Changes of the configuration
since the last program read it are then applied as by a reload.
"""

import asyncio
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from metamcp_supervisor.config.config import Address, AnyAddress, Config, Server, UnixAddress
from metamcp_supervisor.config.reload import hash_launch
from metamcp_supervisor.control.control import Control
from metamcp_supervisor.fronts.front import FrontNotReplaced
from metamcp_supervisor.fronts.fronts import Fronts, FrontsSnapshot
from metamcp_supervisor.gateway import upgrade_state
from metamcp_supervisor.gateway.reload import Reloads
from metamcp_supervisor.gateway.upgrade_exec import Upgrades
from metamcp_supervisor.keys.api_keys import ApiKeys
from metamcp_supervisor.keys.quotas import Quotas
from metamcp_supervisor.processes.cgroups import Leaf
from metamcp_supervisor.processes.generations import Nurseries
from metamcp_supervisor.processes.heartbeats import Heartbeats
from metamcp_supervisor.roles.role_process import SocketProcess
from metamcp_supervisor.servers import per_client
from metamcp_supervisor.servers.catalogues import CatalogueFigures, Catalogues, offer
from metamcp_supervisor.servers.entry import Copy, CopySnapshot, ServerEntry, ServerSnapshot
from metamcp_supervisor.servers.publish import Routes
from metamcp_supervisor.servers.server import WorkerResponds
from metamcp_supervisor.servers.server_io import ServerManager
from metamcp_supervisor.servers.states import ServerPhase
from metamcp_supervisor.signals import Signals
from metamcp_supervisor.systemd.sd_service import Service
from metamcp_supervisor.telemetry.journal import EVENTS_MAX, Journal
from metamcp_supervisor.telemetry.logs import ServerLogs
from metamcp_supervisor.telemetry.metrics import Metrics
from metamcp_supervisor.views.views import Views
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc import process_names as words
from metamcp_worker.ipc.roots import wider

LOGS_BYTES_MAX = 16 * 1024 * 1024
"""Maximum bytes of log lines of all servers together that are handed over, the newest of each
server; packing so many takes only a moment."""
SERVING, SPARE, LEAVING = "serving", "spare", "leaving"


class SurvivingParts(NamedTuple):
    """Parts of the gateway whose state survives an upgrade."""

    nurseries: Nurseries
    heartbeats: Heartbeats
    fronts: Fronts
    routes: Routes
    catalogues: Catalogues
    manager: ServerManager
    control: Control
    journal: Journal
    logs: ServerLogs
    metrics: Metrics


def find_blocker(parts: SurvivingParts) -> str:
    """Return why the state cannot be handed over now, as a sentence, or ""."""
    if reason := parts.nurseries.find_blocker() or parts.fronts.find_blocker():
        return reason
    for entry in parts.manager.entries.values():
        if entry.trial is not None:
            return f"{entry.name} is in a trial without its sandbox"
        for copy in entry.copies:
            instance = copy.instance
            if copy.launch is not None or instance is None:
                return f"{entry.name} is being started"
            if instance.silent or instance.end is not None:
                return f"a worker of {entry.name} ends"
    if parts.manager.approvals.busy:
        return "tools are compared with what was approved"
    if parts.manager.decisions.busy:
        return "what an operator decided is being written"
    if parts.manager.deliveries.owed:
        return "a front waits for a descriptor"
    return "a catalogue is being written" if parts.catalogues.busy else ""


# Collecting


def collect(
    parts: SurvivingParts, gateway: upgrade_state.GatewayState
) -> upgrade_state.UpgradeState:
    """Collect the whole state. Call this only while `unsettled` returns ""."""
    return upgrade_state.UpgradeState(
        gateway=gateway,
        control=parts.control.take_snapshot(),
        nurseries=parts.nurseries.take_snapshot(),
        fronts=_fronts_of(parts),
        servers=tuple(_server(parts, entry) for entry in parts.manager.entries.values()),
        shared=parts.manager.copies.shared.take_snapshot(),
        events=tuple(parts.journal.since(parts.journal.last - EVENTS_MAX)),
        last_event=parts.journal.last,
        histories=tuple(parts.journal.histories.all().values()),
        lines=tuple(parts.logs.newest(LOGS_BYTES_MAX)),
        last_line=parts.logs.last,
        figures=parts.metrics.take_snapshot(),
    )


def _fronts_of(parts: SurvivingParts) -> FrontsSnapshot:
    roster, heartbeats = parts.fronts.roster, parts.heartbeats
    return FrontsSnapshot(
        fronts=tuple(
            front.take_snapshot(halted=heartbeats.is_halted(front.pid))
            for front in roster.list_serving()
        ),
        last=roster.last,
        crashes=roster.crashes,
        sessions=tuple(parts.fronts.sessions.take_snapshot()),
        moving=parts.fronts.handovers.take_snapshot(),
    )


def _server(parts: SurvivingParts, entry: ServerEntry) -> ServerSnapshot:
    published = parts.routes.find_published(entry.name)
    return ServerSnapshot(
        name=entry.name,
        enabled=entry.server.enabled,
        launched=hash_launch(entry.server),
        life=entry.life,
        generation=entry.generation,
        replacing=entry.replacing,
        spare_failures=entry.spare_failures,
        restarts=entry.restarts,
        rested=entry.rested,
        probe=entry.probe,
        contested=entry.contested,
        one_era=entry.one_era,
        used_at=entry.used_at,
        tenants=tuple(entry.tenants.values()),
        asks_roots=entry.offer.asks_roots,
        removed=entry.removed,
        answered=entry.answered,
        copies=tuple(_copies(parts.heartbeats, entry)),
        catalogue=published.catalogue,
        from_cache=entry.offer.from_cache,
        listed=published.listed,
        list_changes=published.changes,
        list_turns_at=published.turns_at,
        kept=tuple(
            (each.tool, each.reason) for each in parts.manager.approvals.last(entry.name).kept
        )
        if entry.own
        else (),
    )


def _copies(heartbeats: Heartbeats, entry: ServerEntry) -> Iterator[CopySnapshot]:
    for copy in entry.copies:
        assert copy.instance is not None, "nothing is handed over while a copy is forked"
        serves, spare = copy is entry.serving, copy is entry.spare
        yield CopySnapshot(
            role=SERVING if serves else SPARE if spare else LEAVING,
            generation=copy.generation,
            instance=copy.instance.take_snapshot(),
            ready=copy.ready,
            stopping=copy.stopping,
            halted=heartbeats.is_halted(copy.instance.pid),
            lists=copy.lists,
            leaf=str(copy.leaf.path) if copy.leaf is not None else "",
            due=copy.due,
        )


# Taking over


def take_over(parts: SurvivingParts, state: upgrade_state.UpgradeState, config: Config) -> None:
    """Continue where the previous program ended, with the current configuration. Raises
    codec.Malformed."""
    parts.metrics.go_on(state.figures)
    parts.logs.begin(config.servers, state.lines, state.last_line)
    parts.journal.histories.go_on(state.histories)
    copies = [copy for server in state.servers for copy in server.copies]
    parts.manager.bounds.adopt([Path(copy.leaf) for copy in copies if copy.leaf])
    parts.nurseries.adopt(state.nurseries)
    _fronts(parts.fronts, state.fronts)
    parts.manager.copies.shared.adopt(state.shared)
    snapshots = {server.name: server for server in state.servers}
    order = [*config.servers, *(name for name in snapshots if name not in config.servers)]
    for name in order:
        if name in snapshots:
            _entry(parts, snapshots[name], per_client.find_settings(config.servers, name))
    for name in order:
        if not words.parse_client(name):  # processes for single clients follow their server
            _reconcile(parts.manager, name, snapshots.get(name), config.servers.get(name))


def _fronts(fronts: Fronts, snapshot: FrontsSnapshot) -> None:
    fronts.sessions.fronts = len(snapshot.fronts)
    for holder, record in snapshot.sessions:
        fronts.sessions.keep(holder, record)
    fronts.roster.last, fronts.roster.crashes = snapshot.last, snapshot.crashes
    for front in snapshot.fronts:
        fronts.adopt(front)
    fronts.handovers.adopt(snapshot.moving)


def _entry(parts: SurvivingParts, snapshot: ServerSnapshot, configured: Server | None) -> None:
    """Restore a server as it was. `configured`: its current configuration; None if it was
    removed."""
    manager = parts.manager
    server = configured or Server(name=snapshot.name, source="the program before")
    server = replace(server, enabled=snapshot.enabled)
    base = manager.entries.get(words.base(snapshot.name))
    legacy = words.parse_client(snapshot.name) == words.LEGACY
    figures = CatalogueFigures() if base is None or legacy else base.offer
    if snapshot.catalogue:
        figures = offer(snapshot.catalogue, from_cache=snapshot.from_cache)
    figures = replace(figures, asks_roots=wider(figures.asks_roots, snapshot.asks_roots))
    entry = manager.entries[snapshot.name] = ServerEntry(server, figures)
    entry.go_on(snapshot)
    manager.approvals.go_on(snapshot.name, snapshot.kept)
    if snapshot.catalogue:
        manager.approvals.on_catalogue(snapshot.name, snapshot.catalogue)
    parts.routes.go_on(snapshot, figures.list_hash)
    if not entry.own:
        parts.routes.share(snapshot.name, entry.division)
    for saved in snapshot.copies:
        copy = Copy(entry, saved.generation)
        copy.ready, copy.stopping, copy.lists = saved.ready, saved.stopping, saved.lists
        copy.leaf = Leaf(Path(saved.leaf)) if saved.leaf else None
        if saved.role == SERVING:
            entry.serving = copy
        elif saved.role == SPARE:
            entry.spare = copy
        else:
            entry.leaving.add(copy)
        manager.copies.adopt(copy, saved)
    serves = next((each for each in snapshot.copies if each.role == SERVING), None)
    if entry.life.degraded and not (serves and serves.halted):
        manager.feed(entry, WorkerResponds(yes=True))  # the full time to respond begins again
    if entry.life.retry_at is not None:
        when = max(entry.life.retry_at, asyncio.get_running_loop().time())
        entry.retry_at(when, manager.retry)
    if entry.life.phase is ServerPhase.QUEUED:
        manager.starting.join(entry)
    manager.per_client.drop_if_idle(entry)


def _reconcile(
    manager: ServerManager, name: str, snapshot: ServerSnapshot | None, configured: Server | None
) -> None:
    """Bring a server in line with the current configuration: remove, add or change it."""
    if configured is None:
        manager.remove(name)
    elif snapshot is None or snapshot.removed:
        manager.add(configured)
    else:
        other = hash_launch(configured) != snapshot.launched
        if other:
            manager.entries[name].unknown()
        manager.change(configured, restart=other or configured.enabled != snapshot.enabled)


class UpgradeHandover:
    """Both sides of an upgrade: handing over and taking over. `clients`: listeners for clients;
    `addresses`: returns the addresses for clients and of the ops port; `check`: raises NotNow while
    nothing may be changed.

    `roles`: processes whose listeners or acceptors are handed over; `ops`: listeners of the ops
    port; `started`: monotonic time of the start of the first program; `upgrades`: number of
    upgrades since then; `flush`: writes output that still waits.
    """

    def __init__(
        self,
        version: str,
        parts: SurvivingParts,
        clients: list[socket.socket],
        addresses: Callable[[], tuple[Address, AnyAddress]],
        *,
        reloads: Reloads,
        service: Service,
        views: Views,
        keys: ApiKeys,
        quotas: Quotas,
        roles: Mapping[str, SocketProcess],
        signals: Signals,
        check: Callable[[], None],
    ) -> None:
        self.ops: list[socket.socket] = []
        self.started = asyncio.get_running_loop().time()
        self.upgrades = 0
        self.flush: Callable[[], None] = lambda: None
        self._version = version
        self._parts = parts
        self._clients = clients
        self._addresses = addresses
        self._reloads = reloads
        self._service = service
        self._views = views
        self._keys = keys
        self._quotas = quotas
        self._roles = roles
        self._signals = signals
        self.upgrade = Upgrades(
            version,
            check=check,
            unsettled=self._upgrade_blocker,
            has_orders=lambda: parts.control.busy,
            shares=lambda: bool(parts.manager.copies.shared.take_snapshot()),
            admit=parts.control.admit,
            collect=self._collect,
            environ=service.handing_over,
            undone=service.goes_on,
            flush=lambda: self.flush(),  # noqa: PLW0108 - it is set later
            spared=parts.nurseries.spared,
            journal=parts.journal,
        ).upgrade

    async def go_on(self, state: upgrade_state.UpgradeState) -> asyncio.Task[None]:
        """Continue where the previous program ended. Return the task that replaces nursery and
        fronts by those of this program. Raises StateUnreadable, runtime.RuntimeDirUnfit and
        ConfigInvalid."""
        parts, before = self._parts, state.gateway
        offered = {each.name: each.catalogue for each in state.servers if each.catalogue}
        lock = state.gateway.lock
        if await parts.manager.approvals.begin(self._reloads.config, lock, offered):
            self.read_again()
        self.started, self.upgrades = before.started, before.upgrades
        self._clients += [socket.socket(fileno=fd) for fd in before.clients]
        self.ops = [socket.socket(fileno=fd) for fd in before.ops]
        address = upgrade_state.ops_listen(before)
        if before.ops_made and isinstance(address, UnixAddress):
            self._service.made.append(address)
        if (clients := self._reloads.config.gateway.socket) is not None:
            self._service.made.append(clients)
        try:
            parts.journal.begin(state.events, state.last_event)
            has_record = parts.manager.decisions.load(()) and before.decides
            self._reloads.go_on(before.overrides)  # before any server could run without them
            take_over(parts, state, self._reloads.config)
            if not has_record:
                version = f"an operator of version {before.version}"
                parts.manager.record_decisions(version)
                self._reloads.record_all(version)
        except codec.Malformed as error:
            raise upgrade_state.StateUnreadable(
                f"what runs cannot be taken over: {error}"
            ) from None
        for name, fds in before.roles.items():
            if name in self._roles:
                self._roles[name].adopt(fds)
            else:  # this program lacks that feature
                packets.close_all(fds)
        parts.fronts.reconfigure()
        self._reloads.begin(self._signals.hangup)
        await parts.control.start(state.control)
        count = sum(bool(server.copies) for server in state.servers)
        servers = "1 server" if count == 1 else f"{count} servers"
        text = f"{before.version} → {self._version}; {servers} kept"
        parts.journal.add("gateway", "upgraded", text)
        return asyncio.create_task(self._renew(), name="renewal")

    def read_again(self) -> None:
        """Ask for a reload when all is up: the files differ from the configuration in force."""
        self._signals.hangup.set()

    async def _renew(self) -> None:
        """Start a nursery of this program and replace the fronts. Workers of the previous program
        stay until the next start of their servers."""
        parts = self._parts
        try:
            if not await parts.nurseries.renew():
                return
            await parts.fronts.roll()
            parts.journal.add("gateway", "renewed", "the fronts are of this version, too")
        except FrontNotReplaced as error:
            parts.journal.add("gateway", "note", f"fronts are of the version before: {error}")
        except Exception as error:  # noqa: BLE001 - the root of a task
            parts.journal.add("gateway", "bug", f"fronts are of the version before: {error!r}")

    def _upgrade_blocker(self) -> str:
        if self._reloads.busy:
            return "a reload is under way"
        if self._views.busy:
            return "an order about tool sets is carried out"
        if self._keys.busy:
            return "an order about API keys is carried out"
        if self._quotas.busy:
            return "the use of quotas is being written"
        return find_blocker(self._parts)

    def _collect(self) -> upgrade_state.UpgradeState:
        listen, ops = self._addresses()
        ops_listen, ops_path = upgrade_state.ops_written(ops)
        gateway = upgrade_state.GatewayState(
            version=self._version,
            upgrades=self.upgrades + 1,
            started=self.started,
            hangup_ends=self._signals.hangup_ends,
            listen=(listen.host, listen.port),
            ops_listen=ops_listen,
            ops_path=ops_path,
            ops_made=ops in self._service.made,
            clients=tuple(sock.fileno() for sock in self._clients),
            ops=tuple(sock.fileno() for sock in self.ops),
            roles={name: role.take_snapshot() for name, role in self._roles.items()},
            overrides=self._reloads.take_snapshot(),
            decides=not self._parts.manager.decisions.problem,
            config=upgrade_state.pack_config(self._reloads.written_config),
            lock=self._parts.manager.approvals.pack_lock(),
        )
        return collect(self._parts, gateway)
