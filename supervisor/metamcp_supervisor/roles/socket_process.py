"""A process of the gateway that is started at the first connection: the process of the sandboxes,
the engine, middleware, the writer of the audit, the console.

Owns: its acceptor and the connector for fronts (`packets`), or a listening socket; when the process
starts, its settings at a reload. Never: the settings themselves and the messages (`code_process`,
`engine_process`), the process itself (`role_process`).

The acceptor is there as long as the configuration has a use for the process, whether the process
runs or not: connections wait in it. The end of the process ends what its connections asked for;
later connections get the next process.
"""

import os
import socket
from collections.abc import Callable, Sequence

from metamcp_supervisor.config.config import Config
from metamcp_supervisor.fronts.ports import Forker
from metamcp_supervisor.processes.heartbeats import Heartbeats
from metamcp_supervisor.roles.role_process import RoleProcess
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_worker.ipc import messages, packets
from metamcp_worker.ipc.envelope import Message


class SocketProcess(RoleProcess):
    """Base of such processes. `off`: words of the journal when the configuration has no use for the
    process any more; `lasting`: whether a process keeps its first settings, so that other ones need
    another process. `config`: returns the configuration in force; `order(config)`: its first
    message, None if the process is not wanted."""

    off: str
    lasting = False

    def __init__(
        self,
        forker: Forker,
        heartbeats: Heartbeats,
        journal: Journal,
        config: Callable[[], Config],
        read: Callable[[bytes], Message],
        order: Callable[[Config], Message | None],
    ) -> None:
        super().__init__(forker, heartbeats, journal, read)
        self._config = config
        self._order = order
        self._listener: socket.socket | None = None
        self._on: Message | None = None

    @property
    def is_wanted(self) -> bool:
        return self._on is not None

    def on_settings_changed(self, *, on: bool) -> None:
        """The settings have changed. `on`: whether the process is wanted."""

    def take_snapshot(self) -> tuple[int, ...]:
        """Return the descriptors of acceptor and connector, or of the listening socket, for the
        program after this one."""
        ends = self._listener, self.connector
        return tuple(end.fileno() for end in ends if end is not None)

    def adopt(self, fds: Sequence[int]) -> None:
        """Continue with what the previous program handed over, whose process ends after its runs,
        as it lost its control socket."""
        self._listener, self.connector, *_ = [
            *(socket.socket(fileno=fd) for fd in fds), None, None
        ]  # fmt: skip

    async def close(self) -> None:
        await super().close()
        self._deaf()

    def adapt(self) -> None:
        """Take connections or not, and send a process other settings, as the configuration says.
        Runs go on with the settings that they began with."""
        on = self._order(self._config())
        listens = self._listener is not None
        if self._closed or (on == self._on and listens == (on is not None)):
            return
        self._on = on
        self.on_settings_changed(on=on is not None)
        if on is None:
            if self._pid:
                self._journal.add(self.who, "stopped", self.off)
            self._dismiss()
            self._deaf()
        elif self._channel is None:
            self._listen()
        elif self.lasting:
            self._renew()
        else:
            try:
                self._tell(on)
            except OSError as error:
                self._journal.add(self.who, "error", f"no free descriptor: {error.strerror}")
                self._renew()

    def _renew(self) -> None:
        """Let the next connection start another process, with the settings in force."""
        self._dismiss()
        self._watch()

    def _tell(self, on: Message, fds: tuple[int, ...] = ()) -> None:
        """Send settings, with the acceptor to a new process. Raises OSError."""
        assert self._channel is not None
        self._channel.send(messages.pack(on), list(fds))

    def _listen(self) -> None:
        if self._listener is None:
            try:
                self._listener, self.connector = packets.acceptor()
            except OSError as error:
                self._journal.add(self.who, "error", f"no free descriptor: {error.strerror}")
                return
        self._watch()

    def _watch(self) -> None:
        """Start the process at the next connection."""
        if self._listener is not None and not self._pid and self._launch is None:
            self._loop.add_reader(self._listener, self._on_connection)

    def _on_connection(self) -> None:
        assert self._listener is not None
        self._loop.remove_reader(self._listener)
        self._start()

    def _deaf(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
        if self.connector is not None:
            self.connector.close()
        self._listener = self.connector = None

    def _send_first_messages(self) -> None:
        if self._on is None or self._listener is None:
            self._dismiss()
        elif self._channel is not None:
            self._tell(self._on, (os.dup(self._listener.fileno()),))

    def _on_failure(self, delay_s: float) -> None:
        self._loop.call_later(delay_s, self._watch)
