"""The process of the sandboxes, in which code of clients runs, started at the first connection.

Owns: the settings of the process, its figures. Never: sandboxes (`metamcp_worker.sandbox`), runs
(fronts), connections of fronts (`role_process`).
"""

import os
from collections.abc import Iterator
from typing import get_args

from msgspec import structs

from metamcp_supervisor.config import installation, sections
from metamcp_supervisor.config.config import Config
from metamcp_supervisor.roles.role_process import ServiceContext, SocketProcess
from metamcp_supervisor.telemetry.metric_names import MetricFamily
from metamcp_supervisor.telemetry.page_rows import Values, by_one
from metamcp_supervisor.verbs import RoleStatus
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.code_runs import ROLE, CodeFigures, CodeOn, Failure
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.messages import Heartbeat
from metamcp_worker.ipc.spec import FrontSpec

END_S_MAX = 30.0
"""Seconds that runs have to end when `[code]` is gone."""

_read = codec.reader(CodeFigures | Heartbeat)


#: Outcomes that have series before their first event.
OUTCOMES = ("ok", *get_args(Failure))
METRICS = (
    MetricFamily("metamcp_code_runs_total", "counter", ("outcome",),
           "Runs of code that ended: `ok`, or the kind of failure. Absent without `[code]`."),
    MetricFamily("metamcp_code_running", "gauge", (),
           "Runs of code under way."),
    MetricFamily("metamcp_code_waiting", "gauge", (),
           "Runs of code that wait for their turn."),
    MetricFamily("metamcp_code_warm", "gauge", (),
           "Sandboxes that wait for a run."),
)  # fmt: skip


class CodeProcess(SocketProcess):
    who = ROLE
    loss = "its runs failed; the next run starts another one"
    end_s_max = END_S_MAX
    off = "code mode is switched off"

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context, _read, _order)
        self._runs = context.metrics.counter(METRICS[0].name, OUTCOMES)
        self._now = CodeFigures(counts={})

    def status(self) -> RoleStatus:
        now = self._now
        counts = {"runs": sum(now.counts.values())} if self._pid else {}
        figures = {"running": now.running, "waiting": now.waiting, "warm": now.warm}
        return structs.replace(
            super().status(), counts={**counts, **figures}, confined=now.confined
        )

    def add_settings(self, spec: FrontSpec) -> FrontSpec:
        self.adapt()
        return spec

    def metric_rows(self) -> Iterator[tuple[str, Values]]:
        if self._on is not None:
            now = self._now.running, self._now.waiting, self._now.warm
            yield METRICS[0].name, by_one(self._runs)
            yield from ((row.name, [((), n)]) for row, n in zip(METRICS[1:], now, strict=True))

    def _part(self) -> None:
        super()._part()
        self._now = CodeFigures(counts={})

    def _on_message(self, message: Message, fds: list[int]) -> None:
        if isinstance(message, CodeFigures):
            self._now = message
            self._count_growth(message.counts, self._runs)


def _order(config: Config) -> CodeOn | None:
    settings = config.code
    if not settings.enabled:
        return None
    return CodeOn(
        deno=installation.deno(),
        runs_max=settings.runs_max or os.cpu_count() or 1,
        warm=settings.warm,
        idle_s=settings.idle_s,
        memory_bytes=sections.largest_memory(config),
        jit=settings.jit,
        confinement=settings.confinement,
    )
