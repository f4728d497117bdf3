"""The gateway: all parts joined, started in order, steered, reloaded, and stopped in order.

Owns: the order of start and stop, the exit code. Never: rules of restarting (`server`), processes
(`copies`, `fronts`), the configuration (`sources`, `reload`), the meaning of signals (`signals`),
printing (`cli`).

Start: lock and control socket, listeners, nursery, then fronts and servers in parallel. Stop: the
gateway is not ready any more, fronts finish their requests and end, servers are stopped in
parallel, the nursery ends with what is left, and the files of the runtime directory are removed.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from msgspec import structs

from metamcp_supervisor import runtime
from metamcp_supervisor.config import workspaces
from metamcp_supervisor.config.config import Address, Config, ConfigInvalid, GatewayConfig
from metamcp_supervisor.config.units import DURATION_S_MAX
from metamcp_supervisor.control.console_sessions import ConsoleSessions
from metamcp_supervisor.control.control import DESCRIPTORS_KEPT, Control
from metamcp_supervisor.control.services import NotNow, ServerDetails, UnknownName
from metamcp_supervisor.fronts.front import FrontNotReplaced
from metamcp_supervisor.fronts.fronts import Fronts
from metamcp_supervisor.gateway import upgrade_state
from metamcp_supervisor.gateway.front_services import GatewayFrontServices
from metamcp_supervisor.gateway.reload import Ask, Reloads
from metamcp_supervisor.gateway.upgrade import SurvivingParts, UpgradeHandover
from metamcp_supervisor.gateway.upgrade_state import StateUnreadable, UpgradeState
from metamcp_supervisor.keys.api_keys import ApiKeys
from metamcp_supervisor.processes import cgroups
from metamcp_supervisor.processes.generations import Nurseries
from metamcp_supervisor.processes.heartbeats import Heartbeats
from metamcp_supervisor.processes.nursery import NurseryDown
from metamcp_supervisor.servers import reports, scrape, server_io, specs, status
from metamcp_supervisor.servers.bounds import LimitEnforcer
from metamcp_supervisor.servers.catalogues import Catalogues
from metamcp_supervisor.servers.decisions import Decisions
from metamcp_supervisor.servers.gauges import Gauges
from metamcp_supervisor.servers.publish import Routes
from metamcp_supervisor.servers.quarantine_io import ToolQuarantine
from metamcp_supervisor.servers.server_io import ServerManager
from metamcp_supervisor.servers.status import GatewayFacts
from metamcp_supervisor.servers.tokens import TokenKeys
from metamcp_supervisor.signals import Signals
from metamcp_supervisor.store.database import StoreError, StoreUnfit, count_rows
from metamcp_supervisor.systemd import listen
from metamcp_supervisor.systemd.sd_notify import SystemdNotifier
from metamcp_supervisor.systemd.sd_service import Service
from metamcp_supervisor.systemd.sd_sockets import Inherited
from metamcp_supervisor.telemetry.admin import Admin
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.telemetry.logs import LAST_LINES, LogFiles, ServerLogs, event_file
from metamcp_supervisor.telemetry.metrics import Metrics
from metamcp_supervisor.telemetry.page_rows import Values, by_one
from metamcp_supervisor.telemetry.traces import Traces
from metamcp_supervisor.verbs import (
    CallsUnderWay,
    ConfigTree,
    Exit,
    GatewayStatus,
    OverriddenSetting,
    ReloadPlan,
    Upgrade,
)
from metamcp_supervisor.views.views import Views
from metamcp_worker.confinement.denials import DeniedRight
from metamcp_worker.http.serve import HttpServer
from metamcp_worker.ipc.disclosure import ViewStats
from metamcp_worker.ipc.errors import MetaMCPError, TlsUnfit
from metamcp_worker.ipc.figures import CallPath, PathQuery, ShownTools, ToolQuery, ToolStats
from metamcp_worker.ipc.messages import WorkerExit
from metamcp_worker.ipc.spec import FrontSpec

T = TypeVar("T")
FRONT_GRACE_S = 20.0
"""Seconds that clients' open requests have to end when the gateway stops."""
SERVERS_S_MAX = 60.0
"""Maximum seconds to stop all servers, whatever their `stop_grace`."""
ADMIN_GRACE_S = 1.0
"""Seconds that a scrape has to end when the gateway stops."""
RENEW_S = 6 * 3600.0
"""Seconds between two looks whether the gateway's own certificate is to be renewed."""
EXPIRY_S = 60.0
"""Seconds between two looks at the ends of certificates and tokens."""
START_AGAIN = (
    "something ends its processes: the events before this one name signals and exit codes, 'dmesg'"
    " tells of memory that ran out; mend that and start the gateway again"
)
"""Advice in the last message of a gateway that gave up."""
#: Errors that keep the gateway from starting, each with its exit code.
_CODES: dict[type[Exception], Exit] = {
    runtime.AlreadyRunning: Exit.ALREADY_RUNNING,
    runtime.RuntimeDirUnfit: Exit.NO_PERMISSION,
    listen.CannotBind: Exit.CANNOT_BIND,
    NurseryDown: Exit.INTERNAL,
    StateUnreadable: Exit.INTERNAL,
    TlsUnfit: Exit.CONFIG,
    ConfigInvalid: Exit.CONFIG,
    StoreUnfit: Exit.CONFIG,
    StoreError: Exit.ALREADY_RUNNING,
}


class CannotStart(MetaMCPError):
    """The gateway cannot start. `code`: the exit code."""

    def __init__(self, message: str, code: Exit) -> None:
        super().__init__(message)
        self.code = code


class Expiries:
    """Ends of certificates and tokens, a source of metrics. `tokens`: of remote servers; `config`:
    returns the configuration in force."""

    def __init__(self, tokens: TokenKeys, config: Callable[[], Config]) -> None:
        self._tokens = tokens
        self._config = config
        self._certificates: Mapping[str, float] = {}
        self._servers: Mapping[str, float] = {}

    async def run(self) -> None:
        """Look at the files again and again."""
        while True:
            config = self._config()
            if config.gateway.tls is not None:
                self._certificates = await asyncio.to_thread(_read_ends, config.gateway)
            remote = [server for server in config.servers.values() if server.oauth is not None]
            ends = [(each.name, await asyncio.to_thread(self._tokens.read_end, each))
                    for each in remote]  # fmt: skip
            self._servers = {name: end for name, end in ends if end is not None}
            await asyncio.sleep(EXPIRY_S)

    def metric_rows(self) -> Iterator[tuple[str, Values]]:
        yield "metamcp_certificate_expiry_timestamp_seconds", by_one(self._certificates)
        yield "metamcp_token_expiry_timestamp_seconds", by_one(self._servers)


def _read_ends(gateway: GatewayConfig) -> dict[str, float]:
    """Return the ends of the certificates of a gateway with TLS. Blocks."""
    from metamcp_supervisor.certificates import authority

    tls = gateway.tls
    assert tls is not None
    ca = gateway.state_dir / authority.CA if tls.local else None
    paths = {"gateway": tls.cert, "authority": ca, "client_ca": tls.client_ca}
    ends = {name: authority.read_end(path) for name, path in paths.items() if path is not None}
    return {name: end for name, end in ends.items() if end is not None}


class Gateway:
    """The gateway, as `ctl` steers it: an implementation of `control.services.GatewayControl`.

    `load`: reads the configuration again. `permit`: raises NotConfirmed for a configuration whose
    commands may not be started, unless its second argument confirms them. `environ`: environment
    variables of the gateway; servers get a part of them. `hangup_ends`: see `signals`. `notify`:
    reports the state of the gateway to systemd; `inherited`: sockets from systemd to listen on;
    both are closed at the end. `handed`: state of the previous program, whose processes run already
    (`upgrade`).
    """

    _starting: asyncio.Task[None] | None = None

    def __init__(
        self,
        config: Config,
        load: Callable[[], Config],
        permit: Callable[[Config, bool], None],
        environ: Mapping[str, str],
        version: str,
        *,
        hangup_ends: bool = False,
        notify: SystemdNotifier | None = None,
        inherited: Inherited | None = None,
        handed: UpgradeState | None = None,
    ) -> None:
        self.version, self._handed = version, handed
        self._loop = asyncio.get_running_loop()
        disk = config.gateway.state_dir, self._on_disk_refused
        self.journal = Journal(time.time, store=event_file(*disk))
        self.logs = ServerLogs(time.time, files=LogFiles(*disk))
        metrics = self.metrics = Metrics(version)
        self._traces = Traces(version, metrics.spans)
        notifier = notify or SystemdNotifier()
        self._service = Service(notifier, inherited or {}, self.status, self.journal)
        self.listen, self.ops_listen = config.gateway.listen, config.gateway.ops_listen
        self._listeners: list[socket.socket] = []
        if handed is not None:
            self.listen = Address(*handed.gateway.listen)
            self.ops_listen = upgrade_state.ops_listen(handed.gateway)
        self._serving = self._draining = self._closed = self._disk_refused = False
        self._signals = Signals(hangup_ends=hangup_ends)
        self._stopping = self._signals.stopping
        self._code, self._end = Exit.OK, ""
        nursery = self._nursery = Nurseries(
            on_exit=self._on_worker_exit,
            on_halt=self._on_halt_changed,
            on_lost=self.hopeless,
            on_event=lambda sentence: self._note("nursery", sentence),
        )
        self._heartbeats = Heartbeats(nursery.signal, self._loop.time, metrics.lag, nursery.pulse)
        self._services = GatewayFrontServices(metrics, self.hopeless, nursery, self._heartbeats)
        self._fronts = Fronts(
            self._nursery, self._heartbeats, self.journal, self._services,
            self._front_spec, self._listeners, spans=self._traces.take,
            crowded_out=lambda number: self._manager.crowded_out(signal=number),
        )  # fmt: skip
        self._routes = Routes(self._fronts)
        self._catalogues = Catalogues(config.gateway.state_dir, self._note)
        self._services.manager = self._manager = self._make_manager(config, environ)
        self._reloads = self.settings = Reloads(
            config, load, permit, self._check_not_ending,
            fronts=self._fronts, manager=self._manager, service=self._service,
            metrics=self.metrics, journal=self.journal, traces=self._traces,
        )  # fmt: skip
        self._reloads.processes = self._pids
        self._control = self._make_control(config)
        self.upgrade_handover = self._prepare_handover(environ)
        own = self._nursery, self._services.roles
        self._gauges = Gauges(self._manager, self.metrics, self.journal, self._fronts, *own)
        admin = self._make_admin(config)
        self._admin = HttpServer(admin, reserve=DESCRIPTORS_KEPT)
        self._health = HttpServer(admin.health, reserve=DESCRIPTORS_KEPT)

    @property
    def config(self) -> Config:
        return self._reloads.config

    @property
    def shelf(self) -> Views:
        return self._services.views

    @property
    def keys(self) -> ApiKeys:
        return self._services.keys

    @property
    def sessions(self) -> ConsoleSessions:
        return self._services.sessions

    def service(self, kind: type[T]) -> T:
        service = self._services.services[kind]
        assert isinstance(service, kind)
        return service

    def figures(self) -> dict[str, object]:
        return self._services.figures()

    def on_keys_changed(self) -> None:
        for service in self._services.services.values():
            service.on_keys_changed()

    def _make_admin(self, config: Config) -> Admin:
        reader = scrape.StateReader(
            self._manager.entries, self._fronts, self._heartbeats, self._nursery,
            self._services.roles, self._listeners, self._services.count_waiting,
        )  # fmt: skip
        return Admin(
            self.status, reader, self.metrics, self.ops_listen, self._loop.time,
            config.gateway.allowed_hosts, self.keys.may_read_metrics,
        )  # fmt: skip

    def _make_manager(self, config: Config, environ: Mapping[str, str]) -> ServerManager:
        tokens = TokenKeys(config.gateway.state_dir, environ)
        self._expiries = Expiries(tokens, lambda: self.config)
        return ServerManager(
            forker=self._nursery,
            heartbeats=self._heartbeats,
            routes=self._routes,
            catalogues=self._catalogues,
            journal=self.journal,
            logs=self.logs,
            metrics=self.metrics,
            bounds=LimitEnforcer(
                cgroups.find_delegated(),
                self.journal,
                cgroups.find_memory_group(),
                lambda: specs.private_places(self.config, (self.listen, self.ops_listen)),
            ),
            tokens=tokens,
            approvals=ToolQuarantine(
                config.gateway.state_dir, self.journal, self._fronts.reconfigure
            ),
            decisions=Decisions(config.gateway.state_dir, self.journal, time.time),
            environ=environ,
            version=self.version,
            gateway_id=self._services.gateway_id,
            workers=config.gateway.workers,
        )

    def _make_control(self, config: Config) -> Control:
        return Control(
            self,
            config.gateway.runtime_dir,
            self.version,
            state_dir=config.gateway.state_dir,
            config=str(config.files[0]) if config.files else "",
        )

    def _prepare_handover(self, environ: Mapping[str, str]) -> UpgradeHandover:
        self._services.furnish(
            self._fronts, self._routes, self.journal, lambda: self.config, self.version, environ
        )
        self.metrics.sources = (*self.metrics.sources, self.keys, self._expiries)
        parts = SurvivingParts(
            self._nursery, self._heartbeats, self._fronts, self._routes, self._catalogues,
            self._manager, self._control, self.journal, self.logs, self.metrics,
        )  # fmt: skip
        return UpgradeHandover(
            self.version, parts, self._listeners, lambda: (self.listen, self.ops_listen),
            reloads=self._reloads, service=self._service, views=self.shelf, keys=self.keys,
            quotas=self._services.quotas, roles=self._services.sockets,
            signals=self._signals, check=self._check_not_ending,
        )  # fmt: skip

    # Up and down

    async def run(self, on_up: Callable[[], None]) -> int:
        """Start, call `on_up`, serve until a signal or a fault of the gateway ends it, and stop all
        parts. Return the exit code. Raises CannotStart; then no part is left running."""
        runtime.no_core()
        self._signals.listen()
        self._service.start()
        try:
            if await self._rise():
                on_up()
                watch = self._services.database.watch()
                looks = self._gauges.run(), self._expiries.run(), watch
                tasks = [asyncio.create_task(look) for look in looks]
                await self._stopping.wait()
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)
                await self._wind_down()
        finally:
            await self._close()
            self._signals.close()
        self.journal.add("gateway", "stopped", self._end)
        return self._code

    async def _rise(self) -> bool:
        """Start; return False if a signal ends the start. Raises CannotStart."""
        try:
            if (handed := self._handed) is not None:
                self._handed = None  # the state may be large
                with suppress(StoreError):  # each order tries again
                    await self._services.database.open()
                await self.shelf.begin([record for _, record in handed.fronts.sessions])
                await self.keys.begin()
                await self._services.quotas.begin()
                await self._services.begin(fresh=False)
                self._starting = await self.upgrade_handover.go_on(handed)
                self._services.on_taken_over()
                await self._admin.start(self.upgrade_handover.ops)
                await self._begin_health()
                self._renew_again()
                return True
            self._check_tls()
            note = await self._services.open_database()
            await self._control.start(admits=False)  # until every server is known
            self.journal.begin()
            if note:
                self.journal.add("gateway", "note", note)
            self.logs.begin(self.config.servers)
            self._manager.decisions.load(self.config.servers)
            self._reloads.recall()
            await self._manager.approvals.begin(self.config)
            self._manager.bounds.adopt()
            self._starting = asyncio.create_task(self._nursery.start())
            await self.shelf.begin()
            await self.keys.begin()
            await self._services.quotas.begin()
            await self._services.begin(fresh=True)
            ops = self._bind()
            self._populate()  # at once: the status shows every server from now on
            self._control.admit(True)
            await self._admin.start(ops)
            await self._begin_health()
            return await self._signals.before_the_end(self._starting)
        except tuple(_CODES) as error:
            code = next(code for kind, code in _CODES.items() if isinstance(error, kind))
            raise CannotStart(str(error), code) from None

    def _check_tls(self) -> None:
        """Check the files of TLS, and make them if they are the gateway's own. Raises TlsUnfit."""
        gateway = self.config.gateway
        if gateway.tls is None:
            return
        self._renew()
        from metamcp_worker.http.tls_files import context_of

        spec = specs.tls_spec(gateway.tls)
        assert spec is not None
        context_of(spec)
        if gateway.tls.local:
            from metamcp_supervisor.certificates import authority

            listens = gateway.listen, gateway.console_listen or gateway.listen
            if any(authority.narrow(gateway.state_dir, address.host) for address in listens):
                text = f"the certificate is for localhost alone; {authority.WIDEN}"
                self.journal.add("gateway", "note", text)

    def _renew(self) -> None:
        """Make or renew the certificate that fronts find, if it is the gateway's own; look again
        later. Raises TlsUnfit."""
        config = self.config.gateway
        if config.tls is None or not config.tls.local:
            return
        from metamcp_supervisor.certificates import authority

        names = (*specs.hosts(config.listen), *specs.hosts(config.console_listen or config.listen))
        try:
            if authority.ensure(config.state_dir, names):
                self.journal.add("gateway", "certificate", "made anew")
        except authority.AuthorityUnfit as error:
            raise TlsUnfit(f"TLS: {error}") from None
        self._loop.call_later(RENEW_S, self._renew_again)

    def _renew_again(self) -> None:
        try:
            self._renew()
        except TlsUnfit as error:
            self.journal.add("gateway", "error", str(error))
            self._loop.call_later(RENEW_S, self._renew_again)

    def _populate(self) -> None:  # fronts and servers wait for the nursery themselves
        self._fronts.start(self.config.gateway.fronts)
        for server in self.config.servers.values():
            self._manager.add(server)
        self._reloads.begin(self._signals.hangup)

    async def _begin_health(self) -> None:
        """Listen on `health_listen` and `console_listen`, if they are set. Raises CannotBind."""
        self._services.listen()
        if address := self.config.gateway.health_listen:
            await self._health.start(listen.bind(address, "--health-listen"))

    def _front_spec(self) -> FrontSpec:
        approvals = self._manager.approvals
        spec = specs.front_spec(self.config, self.version, self.listen, approvals)
        return structs.replace(
            self._services.with_roles(spec), handle_key=self._services.handle_key()
        )

    def _pids(self) -> list[int]:
        fronts = [front.pid for front in self._fronts.slots if front is not None]
        return [pid for pid in (self._nursery.pid, *fronts) if pid > 0]

    def _bind(self) -> list[socket.socket]:
        """Listen for clients; return the listeners of the ops port. Raises CannotBind."""
        clients, self.listen, ops, self.ops_listen = self._service.listeners(self.config.gateway)
        self._listeners += clients
        self.upgrade_handover.ops = ops
        self._tell_start()
        return ops

    def _tell_start(self) -> None:
        main = self.config.files[0] if self.config.files else "none"
        state = self.config.gateway.state_dir
        start_text = f"version {self.version}, configuration {main}, state directory {state}"
        self.journal.add("gateway", "starting", start_text)
        also = f" and {self.config.gateway.socket}" if self.config.gateway.socket else ""
        listen_text = f"clients at {self.listen}{also}, metrics and health at {self.ops_listen}"
        self.journal.add("gateway", "listening", listen_text)

    async def _wind_down(self) -> None:
        self._draining = True  # from here on /readyz says so
        self._service.notify_stopping()
        self.journal.add("gateway", "draining")
        await self._unless_now(asyncio.sleep(self.config.gateway.drain_delay_s), DURATION_S_MAX)
        for listener in self._listeners:
            listener.close()  # the fronts' own copies are the last ones: new clients are refused
        await self._unless_now(self._fronts.drain(FRONT_GRACE_S), FRONT_GRACE_S * 2)
        await self._unless_now(self._manager.close(), SERVERS_S_MAX)

    async def _close(self) -> None:
        """End all remaining parts at once."""
        self._closed = True
        await self._reloads.close()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.gather(self._starting, return_exceptions=True)
        self._manager.abandon()
        self._routes.close()
        await self._fronts.close()
        await self._services.close()
        self._heartbeats.close()
        await self._nursery.close()
        await self._traces.close()
        await self._catalogues.close()
        await self._manager.approvals.close()
        await self._manager.decisions.close()
        await self._admin.drain(ADMIN_GRACE_S)
        await self._health.drain(ADMIN_GRACE_S)
        for listener in self._listeners:
            listener.close()
        await self._control.close()
        await self._service.close()

    async def _unless_now(self, work: Coroutine[None, None, None], limit_s: float) -> None:
        if (error := await self._signals.unless_now(work, limit_s)) is not None:
            self.journal.add("gateway", "bug", repr(error))

    # Steering

    def status(self, names: Collection[str] | None = None) -> GatewayStatus:
        slots = self._fronts.slots
        self._serving = self._serving or any(front and front.ready for front in slots)
        state = "draining" if self._draining else "active" if self._serving else "starting"
        facts = GatewayFacts(
            version=self.version,
            state=state,
            now=self._loop.time(),
            started=self.upgrade_handover.started,
            upgrades=self.upgrade_handover.upgrades,
            listen=self.listen,
            ops_listen=self.ops_listen,
            config=self.config,
            config_hash=self._reloads.hash,
            config_read=self._reloads.read_at,
            reload_refused=self._reloads.refused,
            store_trouble=self._services.database.trouble,
            store_unread=self.shelf.unread,
            keys_unusable=self.keys.unusable if specs.asks_for_keys(self.config) else "",
            nursery_pid=self._nursery.pid,
            roles=tuple(each.status() for each in self._services.roles.values() if each.is_wanted),
            overrides=self._reloads.overridden(),
            drift=self._manager.approvals.drift,
            decisions=self._manager.decisions.list_servers(),
            missing=self._manager.deliveries.missing,
            key_limits=self.keys.limits,
            calls_today=self._services.quotas.today(),
        )
        every = self._manager.entries
        entries = every if names is None else {name: every[name] for name in every.keys() & names}
        return status.collect(facts, entries, slots, self.metrics, self._gauges.usages)

    def count_waiting(self) -> dict[str, int]:
        return self._services.count_waiting()

    def longest_s(self) -> dict[str, float]:
        return self.metrics.longest_s()

    def latencies(self) -> dict[str, tuple[int, ...]]:
        return self.metrics.latencies()

    def views(self) -> tuple[ViewStats, ...]:
        return self.metrics.views()

    def tree(self) -> ConfigTree:
        gateway_status = self.status()
        states = {server.name: server.state for server in gateway_status.servers}
        tree = workspaces.tree(self.config, gateway_status.endpoints, states)
        return structs.replace(tree, limits=gateway_status.limits)

    def particulars(self, name: str) -> ServerDetails:
        particulars = status.particulars(
            self.config, self._manager.entries[name], self._loop.time()
        )
        lines = [line.text for line in self.logs.tail(name, LAST_LINES)]
        return structs.replace(
            particulars,
            overrides=self._reloads.overridden(name),
            drift=self._manager.approvals.describe_drift(name),
            withheld=self._manager.copies.withheld(self._manager.entries[name], lines),
        )

    def start(self, names: Sequence[str]) -> None:
        self._each(names, self._manager.start)

    def stop(self, names: Sequence[str], by: str) -> None:
        self._each(names, partial(self._manager.stop, by=by))

    def restart(self, names: Sequence[str], worker: str = "") -> None:
        self._manager.copies.shared.replace(worker)
        self._each(names, self._manager.restart)

    def drain(self, names: Sequence[str], by: str, *, yes: bool) -> None:
        self._each(names, partial(self._manager.part, by=by, yes=yes))

    def quarantine(self, names: Sequence[str], reason: str, by: str) -> None:
        self._each(names, partial(self._manager.quarantine, reason=reason, by=by))

    async def save_decisions(self) -> str:
        return await self._manager.decisions.save()

    def trial(self, name: str, rights: set[DeniedRight] | None) -> None:
        self._each([name], partial(self._manager.trial, rights=rights))

    def signal(self, name: str, number: int) -> int:
        self._each([name], lambda _: None)
        return server_io.send(self._manager.entries[name], number)

    def override(self, name: str, settings: Mapping[str, str], for_s: float, by: str) -> None:
        self._reloads.override(name, settings, for_s, by)

    def as_written(self, name: str) -> tuple[OverriddenSetting, ...]:
        return self._reloads.as_written(name)

    async def stacks(self, name: str) -> str:
        self._each([name], lambda _: None)
        return await self._manager.copies.stacks(self._manager.entries[name], self._nursery.dump)

    async def calls(self, names: Sequence[str], slow_s: float) -> CallsUnderWay:
        self._check_known(names)
        every = self._manager.entries.values()
        return await reports.calls(self._fronts.list_serving(), every, names, slow_s)

    async def reach_fronts(self) -> None:
        await reports.reach(self._fronts.list_serving())

    async def path(self, query: PathQuery) -> CallPath:
        path = await reports.path(
            [front for front in self._fronts.list_serving() if front.able], query
        )
        if path is None:
            raise NotNow("no front answers; see 'metamcp status'")
        return path

    async def tools(self, query: ToolQuery) -> ShownTools:
        page = await reports.tools(
            [front for front in self._fronts.list_serving() if front.able], query
        )
        if page is None:
            raise NotNow("no front answers; see 'metamcp status'")
        return page

    def tool_stats(self) -> Mapping[str, ToolStats]:
        return self.metrics.tool_stats()

    async def roll(self) -> None:
        self._check_not_ending()
        try:
            await self._fronts.roll()
        except FrontNotReplaced as error:
            raise NotNow(str(error)) from None

    def _each(self, names: Sequence[str], act: Callable[[str], None]) -> None:
        """Call `act` for each server, or for none at all. Raises NotNow and UnknownName."""
        self._check_not_ending()
        self._check_known(names)
        for name in names:
            act(name)

    def _check_known(self, names: Sequence[str]) -> None:
        """Check that all servers exist. Raises UnknownName."""
        if unknown := [name for name in names if name not in self._manager.entries]:
            raise UnknownName(unknown, self._manager.entries)

    def _check_not_ending(self) -> None:
        """Check that the gateway does not stop. Raises NotNow."""
        if self._stopping.is_set():
            raise NotNow("nothing is changed: the gateway stops")

    async def upgrade(self, on_execute: Callable[[Upgrade], None]) -> None:
        if self.config.gateway.store is not None:  # the next program starts without keys else
            try:
                await self._services.database.read(count_rows, None)
            except StoreError as error:
                raise NotNow(str(error)) from None
        await self.upgrade_handover.upgrade(on_execute)

    async def reload(self, dry_run: bool, expect: str | None, yes: bool = False) -> ReloadPlan:
        return await self._reloads.reload(dry_run, expect, yes)

    def ask_with(self, ask: Ask) -> None:
        """Set how to ask an operator whether a changed configuration may be applied."""
        self._reloads.ask = ask

    # Reports of fronts, nursery and disk

    def hopeless(self, reason: str) -> None:
        self.journal.add("gateway", "error", f"{reason}; the gateway ends")
        self._code, self._end = Exit.INTERNAL, f"{reason}; {START_AGAIN}"
        self._stopping.set()

    def _on_worker_exit(self, end: WorkerExit) -> None:
        if not (self._closed or self._fronts.on_exit(end) or self._services.on_exit(end)):
            self._manager.copies.on_exit(end)

    def _on_halt_changed(self, pid: int, yes: bool) -> None:
        self._heartbeats.on_halt(pid, yes)
        self._fronts.on_halt(pid, yes)
        self._manager.copies.on_halt(pid, yes)

    def _note(self, who: str, sentence: str) -> None:
        self.journal.add(who, "note", sentence)

    def _on_disk_refused(self, sentence: str) -> None:
        """Report once that events and lines cannot be kept; there would be a report for each."""
        if not self._disk_refused:
            self._disk_refused = True
            self._note("gateway", sentence)
