"""One program of the gateway after another: what of the whole crosses, and what follows.

Owns: whether the gateway as a whole is settled, the facts that outlast a program, how a new program
begins. Never: executing one (`upgrading`), the parts (`gateway.adopting`).
"""

import asyncio
import socket
from collections.abc import Callable

from metamcp_supervisor.config.config import Address, AnyAddress, UnixAddress
from metamcp_supervisor.fronts.house import NotRolled
from metamcp_supervisor.gateway import adopting, handing
from metamcp_supervisor.gateway.adopting import Parts
from metamcp_supervisor.gateway.reloading import Reloads
from metamcp_supervisor.gateway.upgrading import Upgrades
from metamcp_supervisor.signals import Signals
from metamcp_supervisor.systemd.service import Service
from metamcp_supervisor.views.viewing import Views
from metamcp_worker.ipc import codec


class Succession:
    """`clients`: the listeners for them; `addresses`: what they and those of the ops port listen
    on; `check`: raises NotNow while nothing may be changed.

    `ops`: the listeners of the ops port; `started`: when the first program did; `upgrades`: how
    many took over since then; `flush`: writes what is still to be written.
    """

    def __init__(
        self,
        version: str,
        parts: Parts,
        clients: list[socket.socket],
        addresses: Callable[[], tuple[Address, AnyAddress]],
        *,
        reloads: Reloads,
        service: Service,
        views: Views,
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
        self._signals = signals
        self.upgrade = Upgrades(
            version,
            check=check,
            unsettled=self._unsettled,
            asked=lambda: parts.control.busy,
            admit=parts.control.admit,
            collect=self._collect,
            environ=service.handing_over,
            undone=service.goes_on,
            flush=lambda: self.flush(),  # noqa: PLW0108 - it is set later
            spared=parts.nurseries.spared,
            journal=parts.journal,
        ).upgrade

    async def go_on(self, state: handing.State) -> asyncio.Task[None]:
        """Begin where the program before ended. The task that makes fronts and nursery those of
        this program. Raises handing.Unreadable, runtime.RuntimeDirUnfit and ConfigInvalid."""
        parts, before = self._parts, state.gateway
        offered = {each.name: each.catalogue for each in state.servers if each.catalogue}
        lock = state.gateway.lock
        if await parts.tree.pinned.begin(self._reloads.config, lock, offered):
            self.read_again()
        self.started, self.upgrades = before.started, before.upgrades
        self._clients += [socket.socket(fileno=fd) for fd in before.clients]
        self.ops = [socket.socket(fileno=fd) for fd in before.ops]
        address = handing.ops_listen(before)
        if before.ops_made and isinstance(address, UnixAddress):
            self._service.made = address
        try:
            parts.journal.go_on(state.events, state.last_event)
            self._reloads.go_on(before.overrides)  # no server is without its own for a moment
            adopting.take_over(parts, state, self._reloads.config)
        except codec.Malformed as error:
            raise handing.Unreadable(f"what runs cannot be taken over: {error}") from None
        parts.fronts.reconfigure()
        self._reloads.begin(self._signals.hangup)
        await parts.control.start(state.control)
        kept = sum(bool(server.copies) for server in state.servers)
        servers = "1 server" if kept == 1 else f"{kept} servers"
        what = f"{before.version} → {self._version}; {servers} kept"
        parts.journal.add("gateway", "upgraded", what)
        return asyncio.create_task(self._renew(), name="renewal")

    def read_again(self) -> None:
        """What the files say is not what is in force: once more, when everything is up."""
        self._signals.hangup.set()

    async def _renew(self) -> None:
        """Fork from a nursery of this program, the fronts first. Workers stay until their servers
        are started the next time."""
        parts = self._parts
        try:
            if not await parts.nurseries.renew():
                return
            await parts.fronts.roll()
            parts.journal.add("gateway", "renewed", "the fronts are of this version, too")
        except NotRolled as error:
            parts.journal.add("gateway", "note", f"fronts are of the version before: {error}")
        except Exception as error:  # noqa: BLE001 - the root of a task
            parts.journal.add("gateway", "bug", f"fronts are of the version before: {error!r}")

    def _unsettled(self) -> str:
        if self._reloads.busy:
            return "a reload is under way"
        if self._views.busy:
            return "an order about tool sets is carried out"
        return adopting.unsettled(self._parts)

    def _collect(self) -> handing.State:
        listen, ops = self._addresses()
        ops_listen, ops_path = handing.ops_written(ops)
        gateway = handing.Gateway(
            version=self._version,
            upgrades=self.upgrades + 1,
            started=self.started,
            hangup_ends=self._signals.hangup_ends,
            listen=(listen.host, listen.port),
            ops_listen=ops_listen,
            ops_path=ops_path,
            ops_made=self._service.made is not None,
            clients=tuple(sock.fileno() for sock in self._clients),
            ops=tuple(sock.fileno() for sock in self.ops),
            overrides=self._reloads.handed(),
            config=handing.pack_config(self._reloads.written),
            lock=self._parts.tree.pinned.handed(),
        )
        return adopting.collect(self._parts, gateway)
