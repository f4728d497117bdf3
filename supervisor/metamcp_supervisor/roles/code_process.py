"""The process of the sandboxes, in which code of clients runs, started at the first connection.

Owns: the settings of the process, its figures. Never: sandboxes (`metamcp_worker.sandbox`), runs
(fronts), connections of fronts (`socket_process`).
"""

import os
from collections.abc import Callable, Mapping

from msgspec import structs

from metamcp_supervisor.config import code_mode, installation
from metamcp_supervisor.config.config import Config
from metamcp_supervisor.fronts.ports import Forker
from metamcp_supervisor.processes.heartbeats import Heartbeats
from metamcp_supervisor.roles.socket_process import SocketProcess
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.verbs import RoleStatus
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.code_runs import ROLE, CodeFigures, CodeOn
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.messages import Heartbeat

END_S_MAX = 30.0
"""Seconds that runs have to end when `[code]` is gone."""

_read = codec.reader(CodeFigures | Heartbeat)


class CodeProcess(SocketProcess):
    """`config`: returns the configuration in force. `count`: called with the runs by outcome, as
    increments, and the figures of this moment; None when code mode is switched off."""

    who = ROLE
    loss = "its runs failed; the next run starts another one"
    end_s_max = END_S_MAX
    off = "code mode is switched off"

    def __init__(
        self,
        forker: Forker,
        heartbeats: Heartbeats,
        journal: Journal,
        config: Callable[[], Config],
        count: Callable[[Mapping[str, int], CodeFigures | None], None],
    ) -> None:
        super().__init__(forker, heartbeats, journal, config, _read, _order)
        self._count = count
        self._now = CodeFigures(counts={})

    def status(self) -> RoleStatus:
        now = self._now
        counts = {"runs": sum(now.counts.values())} if self._pid else {}
        figures = {"running": now.running, "waiting": now.waiting, "warm": now.warm}
        return structs.replace(
            super().status(), counts={**counts, **figures}, confined=now.confined
        )

    def on_settings_changed(self, *, on: bool) -> None:
        self._count({}, self._now if on else None)

    def _part(self) -> None:
        super()._part()
        self._now = CodeFigures(counts={})
        if self._on is not None:
            self._count({}, self._now)

    def _on_message(self, message: Message, fds: list[int]) -> None:
        if isinstance(message, CodeFigures):
            self._now = message
            self._count(self._count_growth(message.counts), message)


def _order(config: Config) -> CodeOn | None:
    settings = config.code
    if not settings.enabled:
        return None
    return CodeOn(
        deno=installation.deno(),
        runs_max=settings.runs_max or os.cpu_count() or 1,
        warm=settings.warm,
        idle_s=settings.idle_s,
        memory_bytes=code_mode.largest_memory(config),
        jit=settings.jit,
        confinement=settings.confinement,
    )
