"""Services of the gateway for fronts: pass on what a front says to the parts that it concerns.

Owns: which part gets which message, as an implementation of `fronts.front.FrontServices`; when the
commands of `[notify]` and `[hooks]` run, and what they get. Never: the actions of these parts,
fronts themselves (`fronts.fronts`), whether a command may run (`config.confirmation`)."""

import asyncio
import secrets
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

from msgspec import Struct, structs

from metamcp_supervisor.config import environment, files, workspaces
from metamcp_supervisor.config.config import SERVER_EVENTS, Config, HookConfig
from metamcp_supervisor.config.document import printable
from metamcp_supervisor.config.printed_values import program_output
from metamcp_supervisor.config.references import Unresolved
from metamcp_supervisor.control.console_sessions import ConsoleSessions
from metamcp_supervisor.features import all_features
from metamcp_supervisor.fronts.front import Forker, FrontProcess
from metamcp_supervisor.fronts.fronts import Fronts
from metamcp_supervisor.keys.api_keys import ApiKeys
from metamcp_supervisor.keys.key_rules import HANDLE_KEY
from metamcp_supervisor.keys.quotas import Quotas
from metamcp_supervisor.processes.heartbeats import Heartbeats
from metamcp_supervisor.roles.role_process import (
    GatewayService,
    RoleProcess,
    ServiceContext,
    SocketProcess,
)
from metamcp_supervisor.servers.publish import Routes
from metamcp_supervisor.servers.server_io import ServerManager
from metamcp_supervisor.servers.states import ServerPhase
from metamcp_supervisor.store.database import (
    Database,
    StoreError,
    StoreUnfit,
    make_database,
    own_key,
)
from metamcp_supervisor.telemetry.journal import ARROW, WAITING, Follower, Journal
from metamcp_supervisor.telemetry.metrics import Metrics
from metamcp_supervisor.verbs import JournalEvent
from metamcp_supervisor.views.views import Views
from metamcp_worker.ipc.disclosure import OrderRequest, ServerListsChanged
from metamcp_worker.ipc.engine_runs import ROLE
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.figures import DayCount
from metamcp_worker.ipc.messages import Figures, FrontStats, Tenant, WorkerExit
from metamcp_worker.ipc.server_catalog import gateway_id
from metamcp_worker.ipc.spec import FrontSpec

HANDLE_KEY_BYTES = 32
DATABASE_S_MAX = 15.0
"""Seconds that a start waits for a database that cannot be used. The unit of systemd allows 8
starts in 60 s: longer ones never use them up."""
DATABASE_STEP_S = 0.5
LOST = (
    "ids of tasks and states of calls that clients have now end with this gateway, because the key"
    " in {} cannot be used"
)

HOOK_TABLES = ("notify", "hooks")
HOOK_PAUSE_S = 1.0
"""Seconds between two starts of a command of `[notify]` or `[hooks]` at least."""
HOOK_SERVERS_MAX = 50
"""Maximum number of servers that a command gets by name; it gets the newest ones."""
HOOK_CHARACTERS_MAX = 8000
"""Maximum characters of the sentence that it gets: a variable has a limit of its own."""
_STEPS = {WAITING: "approval", "tools drifted": "drifted", "reload refused": "reload-refused"}
"""Event of the journal that is not a change of state -> name in `on`."""


class HookNames:
    """Names in `on` of events of the journal. A server that failed is tried again and again, so it
    counts once, until it is ready or stopped. `failed`: returns the servers that have failed;
    `down`: servers that count already."""

    def __init__(self, failed: Callable[[], Collection[str]]) -> None:
        self._failed = failed
        self.down: set[str] = set()

    def find(self, event: JournalEvent) -> str:
        """Return the name of an event; empty for one without."""
        server, (_, arrow, state) = event.who, event.what.partition(ARROW)
        if not arrow:
            return _STEPS.get(event.what, "")
        if state == "quarantined":
            self.down.add(server)
            return state
        if state == "error" and server not in self.down and server in self._failed():
            self.down.add(server)
            return "failed"
        was_down = server in self.down
        if state in {"ready", "stopped"}:
            self.down.discard(server)
        return "recovered" if was_down and state == "ready" else ""


class HookBatch(Struct):
    """Events of one name since the command ran for it last: the newest, how many there are, and
    their servers."""

    newest: JournalEvent
    count: int = 0
    servers: dict[str, None] = {}

    def add(self, event: JournalEvent) -> None:
        self.newest = event
        self.count += 1
        self.servers.pop(event.who, None)
        self.servers[event.who] = None

    def variables(self, name: str, waiting: int) -> dict[str, str]:
        """Return what the command gets. `waiting`: how many runs and calls wait."""
        text = printable(self.newest.cause or self.newest.what)[:HOOK_CHARACTERS_MAX]
        servers = [*self.servers] if name in SERVER_EVENTS else []
        variables = {
            "METAMCP_HOOK_EVENT": name,
            "METAMCP_HOOK_SERVER": ",".join(servers[-HOOK_SERVERS_MAX:]),
            "METAMCP_HOOK_TEXT": text,
            "METAMCP_HOOK_COUNT": str(self.count),
        }
        if name == "approval":
            variables["METAMCP_NOTIFY_KIND"] = "run" if self.newest.who == ROLE else "consent"
            variables["METAMCP_NOTIFY_TEXT"] = text
            variables["METAMCP_NOTIFY_WAITING"] = str(waiting)
        return variables


class Notifier:
    """The commands of `[notify]` and `[hooks]`, which run when something happens, one of each at a
    time. `config`: returns the configuration in force; `environ`: environment variables of the
    gateway; `waiting`: returns how many runs and calls wait, by kind; `failed`: returns the servers
    that have failed; `down`: these and those in quarantine."""

    def __init__(
        self,
        journal: Journal,
        config: Callable[[], Config],
        environ: Mapping[str, str],
        waiting: Callable[[], Mapping[str, int]],
        failed: Callable[[], Collection[str]],
        down: Callable[[], Collection[str]],
        pause_s: float = HOOK_PAUSE_S,
    ) -> None:
        self._journal = journal
        self._config = config
        names = environment.select_variables(environ, ["*"])
        self._environ = {name: environ[name] for name in names}
        self._waiting = waiting
        self._down = down
        self._pause_s = pause_s
        self._names = HookNames(failed)
        self._batches: dict[str, dict[str, HookBatch]] = {table: {} for table in HOOK_TABLES}
        """Events for which the command of a table is to run, by their names."""
        self._woken = {table: asyncio.Event() for table in HOOK_TABLES}
        self._follower: Follower[JournalEvent] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def begin(self) -> None:
        self._names.down |= set(self._down())
        self._follower = self._journal.follow(self._on_events)
        self._tasks = [asyncio.create_task(self._run(table), name=table) for table in HOOK_TABLES]

    async def close(self) -> None:
        """Run the commands no more; one that runs goes on to its end."""
        if self._follower is not None:
            self._journal.unfollow(self._follower)
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)

    def _on_events(self) -> None:
        """Sort new events, at once: whether a server has failed is asked when its event comes."""
        assert self._follower is not None
        config = self._config()
        for event in self._follower.take():
            name = self._names.find(event)
            for table, batches in self._batches.items():
                hook = _hook(config, table)
                if hook.command and name in hook.on:
                    batches.setdefault(name, HookBatch(event)).add(event)
                    self._woken[table].set()

    async def _run(self, table: str) -> None:
        """Run the command of a table for its events, the most urgent ones first."""
        batches = self._batches[table]
        while True:
            await self._woken[table].wait()
            self._woken[table].clear()
            while names := [name for name in _hook(self._config(), table).on if name in batches]:
                batch = batches.pop(names[0])
                await self._run_command(table, batch.variables(names[0], self._count_waiting()))
                await asyncio.sleep(self._pause_s)

    def _count_waiting(self) -> int:
        return sum(self._waiting().values())

    async def _run_command(self, table: str, variables: dict[str, str]) -> None:
        config = self._config()
        folder = config.files[0].parent if config.files else Path("/")
        command, environ = _hook(config, table).command, self._environ | variables
        subject = f"the command of [{table}]"
        if command:
            _, error = await asyncio.to_thread(program_output, command, folder, environ, subject)
            if error:
                self._journal.add("gateway", "error", error)


def _hook(config: Config, table: str) -> HookConfig:
    if table == "notify":
        return HookConfig(on=("approval",), command=config.notify)
    return config.hooks


class GatewayFrontServices:
    """An implementation of `fronts.front.FrontServices`. `manager`, `views` and so on: set later,
    but before the first front starts, because `Fronts` needs this object first."""

    manager: ServerManager
    views: Views
    keys: ApiKeys
    quotas: Quotas
    notifier: Notifier
    sessions: ConsoleSessions
    services: Mapping[type, GatewayService]
    """Parts of the features, in the order in which they are closed."""
    sockets: Mapping[str, SocketProcess]
    """Processes whose waiting connections survive an upgrade, by name."""
    roles: Mapping[str, RoleProcess]
    """Processes that exist at most once, by name; those of middleware as they come up."""

    def __init__(
        self,
        metrics: Metrics,
        hopeless: Callable[[str], None],
        forker: Forker,
        heartbeats: Heartbeats,
    ) -> None:
        self._metrics = metrics
        self._hopeless = hopeless
        self._forker = forker
        self._heartbeats = heartbeats
        self._handle_key = b""

    def furnish(
        self,
        fronts: Fronts,
        routes: Routes,
        journal: Journal,
        config: Callable[[], Config],
        version: str,
        environ: Mapping[str, str],
    ) -> None:
        """Make the parts that are left; see the attributes. `config`: returns the one in force;
        `version`, `environ`: of the gateway."""
        self._journal, self._config = journal, config

        def note(sentence: str, event: str = "error") -> None:
            journal.add("gateway", event, sentence)

        database = self.database = make_database(config().gateway)
        self.views = Views(
            fronts,
            routes,
            journal,
            config,
            database,
            lambda: self.manager.approvals.quarantined_tools,
        )
        self.keys = ApiKeys(
            database,
            lambda: workspaces.of_endpoints(config()),
            time.time,
            fronts,
            note,
            servers=lambda: workspaces.labels(config()),
        )
        self.quotas = Quotas(
            database, time.time, fronts.list_serving, lambda: config().gateway.fronts, note
        )
        self.sessions = ConsoleSessions(asyncio.get_running_loop().time, self.keys.has)
        self._make_services(fronts, database, version)
        down = partial(self._servers_in, ServerPhase.FAILED, ServerPhase.QUARANTINED)
        self.notifier = Notifier(
            journal, config, environ, self.count_waiting,
            failed=partial(self._servers_in, ServerPhase.FAILED), down=down,
        )  # fmt: skip

    def _make_services(self, fronts: Fronts, database: Database, version: str) -> None:
        roles: dict[str, RoleProcess] = {}
        context = ServiceContext(
            forker=self._forker, heartbeats=self._heartbeats, journal=self._journal,
            metrics=self._metrics, config=self._config, version=version, keys=self.keys,
            sessions=self.sessions, fronts=fronts, database=database,
            roles=roles,
        )  # fmt: skip
        kinds = [resolve_name(feature.service) for feature in all_features() if feature.service]
        self.services = {kind: kind(context) for kind in kinds}
        self._metrics.sources = tuple(self.services.values())
        own = [service for service in self.services.values() if isinstance(service, RoleProcess)]
        roles |= {role.who: role for role in own}
        self.roles = roles
        self.sockets = {role.who: role for role in own if isinstance(role, SocketProcess)}

    async def open_database(self) -> str:
        """Take the database, which may come up later than this machine. Return a sentence for the
        operator, if there is one. Raises StoreError."""
        end = asyncio.get_running_loop().time() + DATABASE_S_MAX
        waits = False
        while True:
            try:
                return await self.database.open()
            except StoreUnfit:
                raise
            except StoreError as error:
                if asyncio.get_running_loop().time() > end:
                    raise
                if not waits:
                    self._journal.add("gateway", "waits", str(error))
                waits = True
                await asyncio.sleep(DATABASE_STEP_S)

    async def begin(self, *, fresh: bool) -> None:
        if self.database.secrets is not None:
            try:
                self._handle_key = await own_key(
                    self.database.secrets, HANDLE_KEY, HANDLE_KEY_BYTES
                )
            except StoreError as error:
                self._journal.add("gateway", "error", f"{LOST.format(HANDLE_KEY)}: {error}")
        for service in self.services.values():
            await service.begin(fresh=fresh)
        if fresh:
            self.notifier.begin()

    def on_taken_over(self) -> None:
        for service in self.services.values():
            service.on_taken_over()
        self.notifier.begin()

    def figures(self) -> dict[str, object]:
        figures: dict[str, object] = {}
        for service in self.services.values():
            figures |= service.figures()
        return figures

    def listen(self) -> None:
        """Listen where services do. Raises listen.CannotBind."""
        for service in self.services.values():
            service.listen()

    def with_roles(self, spec: FrontSpec) -> FrontSpec:
        """Return the specification of fronts with what they know of these processes, which take
        connections from now on as the configuration says."""
        for service in self.services.values():
            spec = service.add_settings(spec)
        return structs.replace(spec, roles=tuple(self.connectors()))

    def connectors(self) -> dict[str, socket.socket]:
        connectors = {name: role.connector for name, role in self.roles.items()}
        return {name: connector for name, connector in connectors.items() if connector is not None}

    def handle_key(self) -> bytes:
        """Return the key of ids and states that are of use to one client alone, which all fronts
        and later gateways on this state directory have. A key that cannot be kept lasts as long as
        this gateway; then an event says why."""
        if not self._handle_key:
            path = self._config().gateway.state_dir / HANDLE_KEY
            try:
                self._handle_key = files.own_key(path, HANDLE_KEY_BYTES)
            except (OSError, Unresolved, ValueError) as unfit:
                reason = unfit.strerror if isinstance(unfit, OSError) else unfit
                self._handle_key = secrets.token_bytes(HANDLE_KEY_BYTES)
                self._journal.add("gateway", "error", f"{LOST.format(path)}: {reason}")
        return self._handle_key

    def gateway_id(self) -> str:
        """Return the id by which this gateway recognizes itself behind one of its servers."""
        return gateway_id(self.handle_key())

    def _servers_in(self, *phases: ServerPhase) -> set[str]:
        entries = self.manager.entries.values()
        return {entry.name for entry in entries if entry.life.phase in phases}

    def count_waiting(self) -> dict[str, int]:
        """Return how many runs and calls wait for a person."""
        counts: dict[str, int] = {}
        for service in self.services.values():
            counts |= service.count_waiting()
        return counts

    def welcome(self, front: FrontProcess) -> None:
        self.manager.welcome(front)
        self.views.welcome(front)
        self.keys.welcome(front)
        self.quotas.welcome(front)
        for service in self.services.values():
            service.welcome(front)

    def on_server_wanted(self, server: str, tenant: Tenant | None) -> None:
        self.manager.on_server_wanted(server, tenant)

    def on_roots_changed(self, who: str, roots: str) -> None:
        self.manager.per_client.on_roots_changed(who, roots)

    def on_sessions_ended(self, sessions: Sequence[str]) -> None:
        self.manager.per_client.on_sessions_ended(sessions)
        self.views.on_sessions_ended(sessions)

    def on_request(
        self, front: FrontProcess, message: OrderRequest | ServerListsChanged, blob: bytes
    ) -> None:
        if isinstance(message, ServerListsChanged):
            self.views.news(message.number)
        else:
            self.views.carry_out_order(front, message.ticket, blob)

    def on_other_message(self, front: FrontProcess, message: Message, blob: bytes) -> None:
        for service in self.services.values():
            service.on_front_message(front, message, blob)

    def on_attach_failed(self, front: FrontProcess, server: str, generation: int) -> None:
        if generation:
            self.manager.deliveries.connect_again(server, front.number)
        else:
            self.manager.deliveries.offer_again(server, front.number)

    def on_front_stats(self, front: FrontProcess, figures: Figures, summary: FrontStats) -> None:
        self._metrics.front_stats(front.number, figures, summary)
        self.manager.on_call_stats(front.number, figures.calls)

    def on_day_counts(self, front: FrontProcess, counts: Sequence[DayCount]) -> None:
        self.quotas.on_day_counts(front, counts)

    def on_front_gone(self, number: int) -> None:
        for service in self.services.values():
            service.on_front_gone(number)
        self._metrics.front_gone(number)
        self.manager.front_left(number)
        self.views.on_front_gone(number)

    def on_exit(self, end: WorkerExit) -> bool:
        """A worker ended; return whether it was one of the services for fronts."""
        return any(each.on_exit(end) for each in self.roles.values())

    async def close(self) -> None:
        await self.notifier.close()
        await self.keys.close()
        await self.quotas.close()
        for service in self.services.values():
            await service.close()
        await self.views.close()

    def hopeless(self, reason: str) -> None:
        self._hopeless(reason)
