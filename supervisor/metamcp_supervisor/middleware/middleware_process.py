"""The processes of middleware, one for each line of `[[middleware]]`.

Owns: the settings of each process, which processes there are, their figures. Never: hooks
(`metamcp_worker.middleware`), the requests that go through them (fronts), connections of fronts
(`role_process`).

Each middleware has a process of its own, so that one that hangs, leaks or dies takes no other with
it. A process costs a fork, and what its package imports.
"""

import signal
from functools import partial

from msgspec import Raw, structs

from metamcp_supervisor.config.config import Config, MiddlewareConfig
from metamcp_supervisor.roles.role_process import GatewayService, ServiceContext, SocketProcess
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

    def __init__(self, context: ServiceContext, name: str) -> None:
        self.who, self.role = role_of(name), ROLE
        super().__init__(context, _read, partial(_order, name))
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


class Middlewares(GatewayService):
    """Processes of all middleware."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context
        self._processes: dict[str, MiddlewareProcess] = {}

    def add_settings(self, spec: FrontSpec) -> FrontSpec:
        lines = self._context.config().middleware
        for line in lines:
            if line.name not in self._processes:
                process = self._processes[line.name] = MiddlewareProcess(self._context, line.name)
                self._context.roles[process.who] = process
        for process in self._processes.values():
            process.adapt()
        in_order = sorted(lines, key=lambda line: line.order)
        return structs.replace(spec, middleware=tuple(map(_spec, in_order)))

    async def close(self) -> None:
        for process in self._processes.values():
            await process.close()


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
