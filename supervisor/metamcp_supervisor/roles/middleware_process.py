"""The processes of middleware, one for each line of `[[middleware]]`.

Owns: the settings of each process, which processes there are, their figures. Never: hooks
(`metamcp_worker.middleware`), the requests that go through them (fronts), connections of fronts
(`socket_process`).

Each middleware has a process of its own, so that one that hangs, leaks or dies takes no other with
it. A process costs a fork, and what its package imports.
"""

import signal
from collections.abc import Callable
from functools import partial

from msgspec import Raw, structs

from metamcp_supervisor.config.config import Config, MiddlewareConfig
from metamcp_supervisor.fronts.ports import Forker
from metamcp_supervisor.processes.heartbeats import Heartbeats
from metamcp_supervisor.roles.role_process import RoleProcess
from metamcp_supervisor.roles.socket_process import SocketProcess
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.verbs import RoleStatus
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.messages import Heartbeat, WorkerExit
from metamcp_worker.ipc.middleware_calls import (
    EXIT_MEMORY,
    ROLE,
    MiddlewareFigures,
    MiddlewareOn,
    MiddlewareSpec,
    role_of,
)
from metamcp_worker.ipc.spec import FrontSpec

END_S_MAX = 35.0
"""Seconds that requests have to end when their process is replaced."""
HANG_S = 1.0
"""Seconds beyond its time limit after which a middleware that does not let its event loop turn is
ended by the kernel."""

_read = codec.reader(MiddlewareFigures | Heartbeat)


class MiddlewareProcess(SocketProcess):
    """Process of one middleware. `name`: of its line."""

    loss = "requests that it had end as its mode says; it starts again"
    end_s_max = END_S_MAX
    off = "the configuration does not name it any more"
    lasting = True

    def __init__(
        self,
        name: str,
        forker: Forker,
        heartbeats: Heartbeats,
        journal: Journal,
        config: Callable[[], Config],
    ) -> None:
        self.who, self.role = role_of(name), ROLE
        super().__init__(forker, heartbeats, journal, config, _read, partial(_order, name))
        self._now = MiddlewareFigures()

    def status(self) -> RoleStatus:
        now = self._now
        counts = {"requests": now.requests, "running": now.running} if self._pid else {}
        return structs.replace(super().status(), counts=counts, trouble=now.trouble)

    def _how(self, end: WorkerExit) -> str:
        if end.signal == signal.SIGALRM:
            return "because it hung"
        return "because its memory was used up" if end.code == EXIT_MEMORY else super()._how(end)

    def _part(self) -> None:
        super()._part()
        self._now = MiddlewareFigures()

    def _on_message(self, message: Message, fds: list[int]) -> None:
        if isinstance(message, MiddlewareFigures):
            if message.trouble and message.trouble != self._now.trouble:
                self._journal.add(self.who, "error", message.trouble)
            self._now = message


class Middlewares:
    """Processes of all middleware. `roles`: gets each process under its name."""

    def __init__(
        self,
        forker: Forker,
        heartbeats: Heartbeats,
        journal: Journal,
        config: Callable[[], Config],
        roles: dict[str, RoleProcess],
    ) -> None:
        self._make = partial(_make_process, forker, heartbeats, journal, config)
        self._config = config
        self._roles = roles
        self._processes: dict[str, MiddlewareProcess] = {}

    def with_middleware(self, spec: FrontSpec) -> FrontSpec:
        """Return the specification of fronts with all middleware, in their order."""
        lines = self._config().middleware
        for line in lines:
            if line.name not in self._processes:
                made = self._processes[line.name] = self._make(line.name)
                self._roles[made.who] = made
        for process in self._processes.values():
            process.adapt()
        in_order = sorted(lines, key=lambda line: line.order)
        return structs.replace(spec, middleware=tuple(map(_spec, in_order)))


def _make_process(
    forker: Forker,
    heartbeats: Heartbeats,
    journal: Journal,
    config: Callable[[], Config],
    name: str,
) -> MiddlewareProcess:
    return MiddlewareProcess(name, forker, heartbeats, journal, config)


def _order(name: str, config: Config) -> MiddlewareOn | None:
    line = next((each for each in config.middleware if each.name == name), None)
    if line is None:
        return None
    return MiddlewareOn(
        name=name, entry=line.uses, options=Raw(line.options.encode()),
        hang_s=line.timeout_s + HANG_S, memory_bytes=line.memory_bytes,
    )  # fmt: skip


def _spec(line: MiddlewareConfig) -> MiddlewareSpec:
    return MiddlewareSpec(
        name=line.name, match=line.match, timeout_ms=round(line.timeout_s * 1000),
        enforce=line.mode == "enforce",
    )  # fmt: skip
