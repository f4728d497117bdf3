"""The engine, which runs agents and workflows, started at the first connection.

Owns: the settings of the process, its figures. Never: runs (`metamcp_worker.engine`), what a run
asks for (fronts), connections of fronts and of orders of operators (`role_process`).
"""

import socket
from collections.abc import Iterator
from pathlib import Path

from msgspec import Raw, structs

from metamcp_supervisor.config.config import AiConfig, Config
from metamcp_supervisor.roles.role_process import ServiceContext, SocketProcess
from metamcp_supervisor.telemetry.journal import WAITING
from metamcp_supervisor.telemetry.metric_names import MetricFamily
from metamcp_supervisor.telemetry.page_rows import Values, by_one
from metamcp_supervisor.verbs import RoleStatus
from metamcp_supervisor.workflows.engine_settings import EngineConfig
from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.engine_runs import (
    JOURNAL,
    ROLE,
    AiSettings,
    EngineFigures,
    EngineOn,
    EngineSettings,
    ReportedRun,
)
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.messages import Heartbeat
from metamcp_worker.ipc.spec import FrontSpec

END_S_MAX = 35.0
"""Seconds that steps and orders under way have to end when the engine is not wanted any more."""

_read = codec.reader(EngineFigures | Heartbeat)


METRICS = (
    MetricFamily("metamcp_engine_orders_total", "counter", ("method", "outcome"),
           "Orders to the engine that ended. Absent without an engine."),
    MetricFamily("metamcp_engine_runs", "gauge", ("status",),
           "Runs of workflows that have not ended, by status."),
)  # fmt: skip


class EngineProcess(SocketProcess):
    who = ROLE
    loss = "its runs go on in the next one, which the next connection starts"
    end_s_max = END_S_MAX
    off = "no workflow, model or built-in tool of an endpoint needs it any more"

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context, _read, settings)
        self._orders = context.metrics.counter(METRICS[0].name)
        """Orders by `METHOD:OUTCOME`."""
        self._fronts = context.fronts
        self._now = EngineFigures(counts={})
        self._parked: tuple[ReportedRun, ...] = ()
        """Runs of the last figures, also of an engine that has ended."""
        self._database = ""

    def count_waiting(self) -> dict[str, int]:
        return {"run": self._now.waiting_count}

    def status(self) -> RoleStatus:
        counts = {"orders": sum(self._now.counts.values())} if self._pid else {}
        return structs.replace(
            super().status(), counts={**counts, **self._now.runs}, trouble=self._now.trouble
        )

    def add_settings(self, spec: FrontSpec) -> FrontSpec:
        """Return the specification of fronts, which connect at once to an engine that goes on with
        runs, or that runs because an operator gave it an order."""
        self.adapt()
        at_once = self._pid != 0 or bool(self._config().workflows.definitions)
        return structs.replace(spec, engine_at_once=at_once)

    def metric_rows(self) -> Iterator[tuple[str, Values]]:
        if self._on is not None:
            orders = ((name.rpartition(":")[::2], n) for name, n in self._orders.items())
            yield METRICS[0].name, list(orders)
            yield METRICS[1].name, by_one(self._now.runs)

    def connect(self) -> socket.socket | None:
        """Return a new connection to the engine; None if the configuration has nothing for it.
        Raises OSError."""
        self.adapt()
        return None if self.connector is None else packets.connect(self.connector)

    def _tell(self, on: Message, fds: tuple[int, ...] = ()) -> None:
        assert self._channel is not None
        assert isinstance(on, EngineOn)
        if not fds and on.database != self._database:
            self._renew()
            return
        self._database = on.database
        try:
            blob = packets.blob(codec.dump(on))
        except OSError:
            packets.close_all(fds)
            raise
        self._channel.send(messages.pack(EngineSettings()), [blob, *fds])

    def _send_first_messages(self) -> None:
        super()._send_first_messages()
        if not self._config().workflows.definitions:  # else fronts connect to each engine anyway
            self._fronts.reconfigure()

    def _part(self) -> None:
        super()._part()
        self._now = EngineFigures(counts={})

    def _on_message(self, message: Message, fds: list[int]) -> None:
        if isinstance(message, EngineFigures):
            for run in message.parked:
                if run not in self._parked:
                    self._journal.add(self.who, WAITING, _waits(run))
            self._now, self._parked = message, message.parked
            self._count_growth(message.counts, self._orders)


def _waits(parked: ReportedRun) -> str:
    decides = parked.status == "needs_decision"
    needs, verb = ("a decision", "decide") if decides else ("an answer", "answer")
    how = f"'metamcp workflow {verb} {parked.run} {parked.step}'"
    return f"the workflow {parked.workflow} needs {needs}: {how}"


def settings(config: Config) -> EngineOn | None:
    """Return the settings of the engine; None if nothing needs it."""
    files, model = config.workflows, config.ai if config.ai.url else None
    used = any(endpoint.builtins for endpoint in config.endpoints.values())
    engine, store = config.table(EngineConfig), config.gateway.store
    if not (files.definitions or files.rules or model or used):
        return None
    return EngineOn(
        journal=str(Path(config.gateway.state_dir) / JOURNAL),
        database=engine.database or (store.url if store else ""),
        ai=None if model is None else _model(model),
        definitions={
            workspace: {name: Raw(data) for name, data in of.items()}
            for workspace, of in files.definitions.items()
        },
        rules=tuple(Raw(rule) for rule in files.rules),
        sync=engine.sync,
        keep_s=engine.keep_s,
        runs_max=engine.runs_max,
    )


def _model(ai: AiConfig) -> AiSettings:
    return AiSettings(
        provider=ai.provider, url=ai.url, model=ai.model, key=ai.key, steps_max=ai.steps_max,
        tokens_max=ai.tokens_max, timeout_ms=round(ai.timeout_s * 1000),
        answer_tokens_max=ai.answer_tokens_max, cost_max=ai.cost_max, input_price=ai.input_price,
        output_price=ai.output_price, consent=ai.consent,
    )  # fmt: skip
