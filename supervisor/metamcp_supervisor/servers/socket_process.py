"""A process of the gateway that fronts reach by a socket, started at the first connection: the
process of the sandboxes, the engine.

Owns: the socket, its path in the runtime directory, when the process starts, its settings at a
reload. Never: the settings themselves and the messages (`code_process`, `engine_process`), the
process itself (`role_process`).

The socket listens as long as the configuration has a use for the process, whether the process runs
or not: connections wait in its queue. The end of the process ends what its connections asked for;
connections made after that get the next process.
"""

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from metamcp_supervisor.config.config import Config
from metamcp_supervisor.fronts.ports import Forker
from metamcp_supervisor.processes.heartbeats import Heartbeats
from metamcp_supervisor.servers.role_process import RoleProcess
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_worker.ipc import messages
from metamcp_worker.ipc.envelope import Message

CONNECTIONS_MAX = 128
"""Maximum connections that wait for the process: each front has one."""


class SocketProcess(RoleProcess):
    """Base of such processes. `socket_name`: of the file in the runtime directory; `off`: words of
    the journal when the configuration has no use for the process any more. `config`: returns the
    configuration in force; `order(config)`: its first message, None if the process is not wanted;
    `adapted(on)`: called when the settings have changed, with whether the process is wanted."""

    socket_name: str
    off: str

    def __init__(
        self,
        forker: Forker,
        hearts: Heartbeats,
        journal: Journal,
        config: Callable[[], Config],
        read: Callable[[bytes], Message],
        order: Callable[[Config], Message | None],
    ) -> None:
        super().__init__(forker, hearts, journal, read)
        self._config = config
        self._order = order
        self._listener: socket.socket | None = None
        self._on: Message | None = None

    @property
    def wanted(self) -> bool:
        return self._on is not None

    @property
    def path(self) -> str:
        """Path of the socket; empty if the process is not wanted."""
        self._adapt()
        return self._path() if self._listener else ""

    def adapted(self, *, on: bool) -> None:
        """The settings have changed."""
        raise NotImplementedError

    def handed(self) -> int:
        """Return the descriptor of the listening socket for the program after this one; -1 if there
        is none."""
        return -1 if self._listener is None else self._listener.fileno()

    def adopt(self, fd: int) -> None:
        """Continue with the listening socket of the previous program, whose process ends after its
        runs: it lost its control socket."""
        if fd >= 0:
            self._listener = socket.socket(fileno=fd)

    async def close(self) -> None:
        await super().close()
        self._deaf()

    def _path(self) -> str:
        return str(Path(self._config().gateway.runtime_dir) / self.socket_name)

    def _adapt(self) -> None:
        """Listen or not, and tell a process other settings, as the configuration says. Runs go on
        with the settings that they began with."""
        on = self._order(self._config())
        listens = self._listener is not None
        if self._closed or (on == self._on and listens == (on is not None)):
            return
        self._on = on
        self.adapted(on=on is not None)
        if on is None:
            if self._pid:
                self._journal.add(self.who, "stopped", self.off)
            self._dismiss()
            self._deaf()
        elif self._channel is not None:
            try:
                self._tell(on)
            except OSError as error:  # the next process begins with these settings
                self._journal.add(self.who, "error", f"no free descriptor: {error.strerror}")
                self._dismiss()
                self._watch()
        else:
            self._listen()

    def _tell(self, on: Message, fds: tuple[int, ...] = ()) -> None:
        """Send settings, with the listening socket to a new process. Raises OSError."""
        assert self._channel is not None
        self._channel.send(messages.pack(on), list(fds))

    def _listen(self) -> None:
        if self._listener is None:
            try:
                self._listener = _listener(self._path())
            except OSError as error:
                what = f"{self._path()} cannot be listened on: {error.strerror}; {self.loss}"
                self._journal.add(self.who, "error", what)
                return
        self._watch()

    def _watch(self) -> None:
        """Start the process at the next connection."""
        if self._listener is not None and not self._pid and self._launch is None:
            self._loop.add_reader(self._listener, self._connected)

    def _connected(self) -> None:
        assert self._listener is not None
        self._loop.remove_reader(self._listener)
        self._start()

    def _deaf(self) -> None:
        if self._listener is not None:
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None
            with suppress(OSError):
                os.unlink(self._path())

    def _begun(self) -> None:
        if self._on is None or self._listener is None:
            self._dismiss()
        elif self._channel is not None:
            self._tell(self._on, (os.dup(self._listener.fileno()),))

    def _delayed(self, delay_s: float) -> None:
        self._loop.call_later(delay_s, self._watch)


def _listener(path: str) -> socket.socket:
    """Return a socket that listens at `path`, for this user alone. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.bind(path)
        os.chmod(path, 0o600)
        sock.listen(CONNECTIONS_MAX)
    except OSError:
        sock.close()
        raise
    return sock
