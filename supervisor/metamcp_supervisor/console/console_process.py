"""The web console: its listening socket, and its process, which the first connection starts.

Owns: the address, links to it, the settings of the process, its end when nobody looks. Never:
sessions (`control.console_sessions`), pages (`metamcp_supervisor.console`).

The socket listens all the time, and costs nothing. A process that ended is started again by the
next connection; sessions are kept here, so no browser notices.
"""

from collections.abc import Sequence

from msgspec import structs

from metamcp_supervisor.config import units
from metamcp_supervisor.config.config import Address, Config
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.console_sessions import (
    ConsoleFigures,
    ConsoleIdle,
    ConsoleOn,
)
from metamcp_supervisor.control.services import NotNow
from metamcp_supervisor.roles.role_process import ServiceContext, SocketProcess
from metamcp_supervisor.servers import specs
from metamcp_supervisor.systemd import listen
from metamcp_supervisor.verbs import RoleStatus
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.messages import Heartbeat

WHO = "console"
"""Name of the process for `ps` and in the journal."""
PORT = 6272
PORTS_MAX = 16
"""Maximum ports that are tried from PORT on, when no address is configured."""
FLAG = "console_listen"

_read = codec.reader(ConsoleFigures | ConsoleIdle | Heartbeat)


class ConsoleProcess(SocketProcess):
    who = WHO
    loss = "open pages ask again, which starts the next one"
    off = "nothing asks for it any more"

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context, _read, self._settings)
        self._sessions = context.sessions
        self._version = context.version
        self._now = ConsoleFigures()
        self._address: Address | None = None

    def status(self) -> RoleStatus:
        counts = structs.asdict(self._now) if self._pid else {}
        return structs.replace(super().status(), counts=counts)

    def listen(self) -> None:
        address = self._config().gateway.console_listen
        if address is not None and self._listener is None:
            self._listen_at(address)

    def open(self, role: Role) -> str:
        """Listen, if that is not done yet, and return a link for a login in this role. Raises
        NotNow."""
        if self._closed:
            raise NotNow("no console: the gateway stops")
        if self._listener is None:
            self._listen_at_free_port()
        assert self._address is not None
        scheme = "http" if self._plain else "https"
        host, port = self._address.host, self._address.port
        if not self._plain and specs.hosts(self._address) == specs.LOOPBACK:
            host = "localhost"  # it listens on every address
        address = Address(host, port)
        return f"{scheme}://{address}/#k={self._sessions.link(role)}"

    def adopt(self, fds: Sequence[int]) -> None:
        super().adopt(fds)
        if self._listener is not None:
            self._address = listen.address_of([self._listener])
            self.adapt()

    @property
    def _plain(self) -> bool:
        """Whether the console speaks HTTP without TLS: on loopback."""
        return self._address is not None and units.is_loopback(self._address.host)

    def _settings(self, config: Config) -> ConsoleOn | None:
        if self._address is None:
            return None
        gateway = config.gateway
        return ConsoleOn(
            runtime_dir=str(gateway.runtime_dir),
            version=self._version,
            hosts=specs.allowed_hosts(self._address, gateway),
            tls=None if self._plain else specs.tls_spec(gateway.tls),
        )

    def _listen_at_free_port(self) -> None:
        """Listen on loopback, at the first of some ports that is free. Raises NotNow."""
        for port in range(PORT, PORT + PORTS_MAX):
            try:
                self._listen_at(Address("127.0.0.1", port))
            except listen.PortTaken:
                continue
            except listen.CannotBind as error:
                raise NotNow(str(error)) from None
            return
        last = PORT + PORTS_MAX - 1
        raise NotNow(
            f"the ports {PORT} to {last} on 127.0.0.1 are in use; write console_listen ="
            ' "127.0.0.1:PORT" in [gateway]'
        )

    def _listen_at(self, address: Address) -> None:
        """Raises listen.CannotBind."""
        first, *others = listen.bind(address, FLAG)
        for sock in others:
            sock.close()
        self._listener = first
        self._address = listen.with_actual_port(address, [first])
        self._journal.add(self.who, "listening", f"pages at {self._address}")
        self.adapt()

    def _part(self) -> None:
        super()._part()
        self._now = ConsoleFigures()

    def _on_message(self, message: Message, fds: list[int]) -> None:
        if isinstance(message, ConsoleFigures):
            self._now = message
        elif isinstance(message, ConsoleIdle):
            self._journal.add(self.who, "idle", "no page is open; the next one starts it")
            self._renew()
