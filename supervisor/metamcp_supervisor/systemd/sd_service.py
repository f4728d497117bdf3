"""The gateway as a service of systemd: reports to systemd, and the sockets that systemd keeps.

Owns: the time to report readiness, reloads, the end and signs of life; which listeners are taken
over and which are given to systemd to keep. Never: the form of the messages (`sd_notify`), reading
the environment (`sd_sockets`), the condition for a sign of life (`telemetry.health`).

Without systemd this module only binds the listeners.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Callable, Iterator

from metamcp_supervisor.config import places
from metamcp_supervisor.config.config import Address, AnyAddress, GatewayConfig, UnixAddress
from metamcp_supervisor.config.units import is_loopback
from metamcp_supervisor.systemd import listen, sd_notify, sd_sockets
from metamcp_supervisor.systemd.sd_notify import SystemdNotifier
from metamcp_supervisor.systemd.sd_sockets import Inherited
from metamcp_supervisor.telemetry import health
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.verbs import GatewayStatus

LOOK_S = 0.1
"""Seconds between two looks whether something happened; a look at a quiet gateway only compares two
numbers."""
BEATS = 2
"""Signs of life within the time that systemd allows, as sd_watchdog_enabled(3) advises."""
LOOKS = 10
"""Minimum looks within that time, so that a gateway that soon is well again does not seem dead."""
LAG_PART_MAX = 0.25
"""Maximum part of that time that the event loop may be late; if it is later, no sign of life is
sent."""
PAIRS_MAX = 50
"""Maximum pairs of ports to try, one after the other, if the operator chose none."""
PAIR_STEP = 4
"""Distance from one pair of ports to the next; between them lies the port to which a browser comes
back (OAuth)."""
LONGER_S = 15.0
"""Seconds by which systemd's limit for the end is put off; every step of the end has its own
limit."""
LONGER_EVERY_S = 5.0
"""Seconds between two such messages; two of them may be lost."""


class Service:
    """Service of systemd. `notify`: sender of the reports; `inherited`: sockets from systemd, which
    belong to this object from now on; `made`: unix sockets whose files are removed at the end."""

    def __init__(
        self,
        notify: SystemdNotifier,
        inherited: Inherited,
        status: Callable[[], GatewayStatus],
        journal: Journal,
    ) -> None:
        self.made: list[UnixAddress] = []
        self._told = notify
        self._given = inherited
        self._status = status
        self._journal = journal
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None
        self._owed: list[str] = []
        """Messages that must arrive in this order and are not sent yet."""
        self._ready = self._stopping = self._refused = self._unwell = False
        self._seen, self._said = -1, ""
        self._beat_at = self._longer_at = 0.0
        self._front_at = self._nursery_at = self._loop.time()

    # Listeners

    def listeners(
        self, config: GatewayConfig
    ) -> tuple[list[socket.socket], Address, list[socket.socket], AnyAddress]:
        """Return the listeners and the address for clients, then those for metrics and health.
        Ports that the operator did not choose are those of the last run, or the next free pair.
        Raises listen.CannotBind."""
        last = places.ports(config.state_dir) if config.movable else None
        *others, final = port_pairs(config, last)
        for listening, ops_listening in others:
            with contextlib.suppress(listen.PortTaken):
                return self._both(listening, ops_listening, config)
        return self._both(*final, config)

    def _both(
        self, listening: Address, ops_listening: AnyAddress, config: GatewayConfig
    ) -> tuple[list[socket.socket], Address, list[socket.socket], AnyAddress]:
        """Listen on both addresses. Raises listen.CannotBind; then neither is bound."""
        sockets, address = self.clients(listening)
        try:
            ops, ops_address = self.ops(ops_listening)
        except listen.CannotBind:
            for sock in sockets:
                sock.close()
            raise
        if config.socket is not None:
            try:
                sockets.append(listen.bind_file(config.socket, "--socket"))
            except listen.CannotBind:
                for sock in (*sockets, *ops):
                    sock.close()
                raise
            self.made.append(config.socket)
        if config.movable and isinstance(ops_address, Address):
            places.keep_ports(config.state_dir, address.port, ops_address.port)
        return sockets, address, ops, ops_address

    def clients(self, address: Address) -> tuple[list[socket.socket], Address]:
        """Return listeners for `address` and their actual address. The listeners are those of the
        socket unit, or kept from the last run, or bound now and given to systemd to keep. Raises
        listen.CannotBind."""
        name = sd_sockets.CLIENTS
        _refuse_strangers(self._given.get(name, []))
        if unit := self._of_unit(name, address):
            return unit, listen.address_of(unit)
        return self._own(address, "--listen", name)

    def ops(self, address: AnyAddress) -> tuple[list[socket.socket], AnyAddress]:
        """Return the same for metrics and health. A unix socket is not given to systemd to keep,
        because its file would not be kept. Raises listen.CannotBind."""
        if unit := self._of_unit(sd_sockets.OPS, address):
            return unit, listen.any_address_of(unit)
        if isinstance(address, UnixAddress):
            bound = listen.bind_file(address, "--ops-listen")
            self.made.append(address)
            return [bound], address
        return self._own(address, "--ops-listen", sd_sockets.OPS)

    def _of_unit(self, name: str, address: AnyAddress) -> list[socket.socket]:
        """Return the listeners of the socket unit. Kept listeners that are not wanted now are
        closed."""
        unit = self._given.pop(name, [])
        stored = self._given.get(sd_sockets.STORED + name, [])
        if stored and (unit or not listen.fits(address, stored)):
            listen.give_up(stored)
            self._owe(sd_notify.forget(sd_sockets.STORED + name))
            del self._given[sd_sockets.STORED + name]
        if unit:
            self._journal.add("gateway", "note", f"{name}: listens on the sockets of systemd")
        return unit

    def _own(self, address: Address, flag: str, name: str) -> tuple[list[socket.socket], Address]:
        if stored := self._given.pop(sd_sockets.STORED + name, []):
            self._journal.add("gateway", "note", f"{name}: goes on with the sockets of before")
            return stored, listen.with_actual_port(address, stored)
        bound = listen.bind(address, flag)
        if len(bound) <= sd_notify.FDS_MAX:  # not kept: a restart binds them again, that is all
            self._told.send(
                sd_notify.store(sd_sockets.STORED + name), fds=[sock.fileno() for sock in bound]
            )
        return bound, listen.with_actual_port(address, bound)

    # News

    def start(self) -> None:
        """Begin to report to systemd, until `close`."""
        if self._told.has_manager:
            self._task = asyncio.create_task(self._attend(), name="service")

    @contextlib.asynccontextmanager
    async def report_reload(self, *, announced: bool) -> AsyncGenerator[None, None]:
        """Report a reload, and its end also if the reload is refused. `announced`: False for a dry
        run."""
        tell = announced and self._ready
        if tell:
            self._owe(sd_notify.build_reloading_message())
        try:
            yield
            self._refused = self._refused and not announced
        except Exception:
            self._refused = self._refused or announced
            raise
        finally:
            self._seen = -1  # the sentence may be another one
            if tell:
                self._owe(sd_notify.READY)

    def handing_over(self) -> dict[str, str]:
        """Report that another program goes on in this process and will say when it is ready. Return
        the environment variables that the program needs for that."""
        if self._ready:
            self._owe(sd_notify.build_reloading_message())
        return self._told.environ()

    def goes_on(self) -> None:
        """Report that this program goes on after all."""
        if self._ready:
            self._owe(sd_notify.READY)

    def notify_stopping(self) -> None:
        self._stopping = True
        self._longer_at = self._loop.time() + LONGER_EVERY_S
        self._owe(f"{sd_notify.STOPPING}\n{sd_notify.longer(LONGER_S)}")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        sd_sockets.close(self._given)
        for address in self.made:  # no front listens there any more
            listen.remove(address)
        self._told.close()

    async def _attend(self) -> None:
        watchdog_s = self._told.watchdog_s
        look_s = min(LOOK_S, watchdog_s / LOOKS) if watchdog_s else LOOK_S
        while True:
            due = self._loop.time() + look_s
            await asyncio.sleep(look_s)
            try:
                self._look(late_s=self._loop.time() - due)
            except Exception as error:  # noqa: BLE001 - the root of a task
                if not self._unwell:
                    self._journal.add("gateway", "bug", f"no sign of life to systemd: {error!r}")
                self._unwell = True

    def _look(self, *, late_s: float) -> None:
        """Look once, and report changes. A message that is sent twice does no harm; a message that
        cannot be sent is sent at the next look."""
        now = self._loop.time()
        beat = bool(self._told.watchdog_s) and now >= self._beat_at
        if beat or self._seen != self._journal.last:
            self._seen = self._journal.last
            status = self._status()
            self._tell(status)
            if beat and self._is_well(status, late_s, now) and self._told.send(sd_notify.WATCHDOG):
                self._beat_at = now + self._told.watchdog_s / BEATS
        if (
            self._stopping
            and now >= self._longer_at
            and self._told.send(sd_notify.longer(LONGER_S))
        ):
            self._longer_at = now + LONGER_EVERY_S
        self._pay()

    def _tell(self, status: GatewayStatus) -> None:
        message = sd_notify.status(health.sentence(status, refused=self._refused))
        if not self._ready and status.state == "active":
            self._ready = True
            self._owe(sd_notify.READY)
        if message != self._said and self._told.send(message):
            self._said = message

    def _is_well(self, status: GatewayStatus, late_s: float, now: float) -> bool:
        if health.has_front(status):
            self._front_at = now
        if status.nursery_pid:
            self._nursery_at = now
        faults = health.faults(
            status, frontless_s=now - self._front_at, unnursed_s=now - self._nursery_at
        )
        if late_s > self._told.watchdog_s * LAG_PART_MAX:
            faults.append(f"the event loop is {late_s:.1f} s late")
        if faults and not self._unwell:
            self._journal.add("gateway", "error", f"no sign of life: {'; '.join(faults)}")
        self._unwell = bool(faults)
        return not faults

    def _owe(self, message: str) -> None:
        """Send a message now, or as soon as it can be sent."""
        self._owed.append(message)
        self._pay()

    def _pay(self) -> None:
        while self._owed and self._told.send(self._owed[0]):
            del self._owed[0]


def port_pairs(
    config: GatewayConfig, last: tuple[int, int] | None
) -> Iterator[tuple[Address, AnyAddress]]:
    """Yield the addresses to listen on, in the order of trying."""

    address, ops = config.listen, config.ops_listen
    first = address.port, ops.port if isinstance(ops, Address) else 0
    more = PAIRS_MAX if config.movable else 1
    pairs = [
        *([last] if last else []),
        *((first[0] + PAIR_STEP * n, first[1] + PAIR_STEP * n) for n in range(more)),
    ]
    for clients_port, ops_port in pairs:
        if "listen" in config.movable:
            address = Address(address.host, clients_port)
        if "ops_listen" in config.movable and isinstance(ops, Address):
            ops = Address(ops.host, ops_port)
        yield address, ops


def _refuse_strangers(sockets: list[socket.socket]) -> None:
    """Raise listen.CannotBind for a socket that other machines can reach, by the same rule as for
    `listen` in the configuration."""
    for sock in sockets:
        address = listen.address_of([sock])
        if not is_loopback(address.host):
            raise listen.CannotBind(
                f"other machines could reach {address}, a socket of systemd, and nothing there asks"
                ' for a key; use ListenStream=127.0.0.1:PORT ("systemctl edit metamcp.socket")'
            )
