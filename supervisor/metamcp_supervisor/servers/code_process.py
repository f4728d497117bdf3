"""The process of the sandboxes, in which code of clients runs, started at the first connection.

Owns: the socket to which fronts connect for runs, and the settings of the process. Never: sandboxes
(`metamcp_worker.sandbox`), runs (fronts), the process itself (`role_process`).

The socket listens as long as the configuration has `[code]`, whether the process runs or not:
connections wait in its queue. A process that fails ends its runs; connections made after that get
the next process.
"""

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from msgspec import structs

from metamcp_supervisor.config import code_mode, installation
from metamcp_supervisor.config.config import Config
from metamcp_supervisor.fronts.ports import Forker
from metamcp_supervisor.processes.heartbeats import Heartbeats
from metamcp_supervisor.servers.role_process import RoleProcess
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.verbs import RoleStatus
from metamcp_worker.ipc import codec, messages
from metamcp_worker.ipc.code_runs import SOCKET, CodeFigures, CodeOn
from metamcp_worker.ipc.codec import Message
from metamcp_worker.ipc.messages import Beat
from metamcp_worker.ipc.spec import FrontSpec

WHO = "code"
"""Name of the process for `ps` and in the journal."""
END_S_MAX = 30.0
"""Seconds that runs have to end when `[code]` is gone."""
CONNECTIONS_MAX = 128
"""Maximum connections that wait for the process: each front has one."""

_read = codec.reader(CodeFigures | Beat)


class CodeProcess(RoleProcess):
    """`config`: returns the configuration in force. `count`: called with the runs by outcome, as
    increments, and the figures of this moment; None when code mode is switched off."""

    who = WHO
    loss = "its runs failed; the next run starts another one"
    end_s_max = END_S_MAX

    def __init__(
        self,
        forker: Forker,
        hearts: Heartbeats,
        journal: Journal,
        config: Callable[[], Config],
        count: Callable[[Mapping[str, int], CodeFigures | None], None],
    ) -> None:
        super().__init__(forker, hearts, journal, _read)
        self._config = config
        self._count = count
        self._listener: socket.socket | None = None
        self._on: CodeOn | None = None
        self._now = CodeFigures(counts={})

    @property
    def wanted(self) -> bool:
        return self._on is not None

    def status(self) -> RoleStatus:
        now = self._now
        counts = {"runs": sum(now.counts.values())} if self._pid else {}
        figures = {"running": now.running, "waiting": now.waiting, "warm": now.warm}
        return structs.replace(
            super().status(), counts={**counts, **figures}, confined=now.confined
        )

    def with_code(self, spec: FrontSpec) -> FrontSpec:
        """Return the specification of fronts with the socket for runs, if there is code mode; it
        listens from now on."""
        self._adapt()
        return structs.replace(spec, code_socket=self._path() if self._listener else "")

    def handed(self) -> int:
        """Return the descriptor of the listening socket for the program after this one; -1 without
        code mode."""
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
        return str(Path(self._config().gateway.runtime_dir) / SOCKET)

    def _adapt(self) -> None:
        """Listen or not, and tell a process other settings, as the configuration says. Runs go on
        with the settings that they began with."""
        on = _order(self._config())
        listens = self._listener is not None
        if self._closed or (on == self._on and listens == (on is not None)):
            return
        self._on = on
        if on is None:
            self._dismiss()
            self._deaf()
            self._count({}, None)
            return
        self._count({}, self._now)
        if self._channel is not None:
            self._channel.send(messages.pack(on))
        else:
            self._listen()

    def _listen(self) -> None:
        if self._listener is None:
            try:
                self._listener = _listener(self._path())
            except OSError as error:
                what = f"{self._path()} cannot be listened on: {error.strerror}; code is not run"
                self._journal.add(WHO, "error", what)
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
            self._channel.send(messages.pack(self._on), [os.dup(self._listener.fileno())])

    def _part(self) -> None:
        super()._part()
        self._now = CodeFigures(counts={})
        if self._on is not None:
            self._count({}, self._now)

    def _delayed(self, delay_s: float) -> None:
        self._loop.call_later(delay_s, self._watch)

    def _heard(self, message: Message, fds: list[int]) -> None:
        if isinstance(message, CodeFigures):
            self._now = message
            self._count(self._grown(message.counts), message)


def _order(found: Config) -> CodeOn | None:
    wanted = found.code
    if not wanted.enabled:
        return None
    return CodeOn(
        deno=installation.deno(),
        runs_max=wanted.runs_max or os.cpu_count() or 1,
        warm=wanted.warm,
        idle_s=wanted.idle_s,
        memory_bytes=code_mode.largest_memory(found),
        jit=wanted.jit,
        confinement=wanted.confinement,
    )


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
