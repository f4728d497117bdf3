"""The engine, which runs agents and workflows, started at the first connection.

Owns: the settings of the process, its figures. Never: runs (`metamcp_worker.engine`), what a run
asks for (fronts), connections of fronts and of orders of operators (`socket_process`).
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Raw, structs

from metamcp_supervisor.config.config import AiConfig, Config
from metamcp_supervisor.fronts.ports import Forker
from metamcp_supervisor.processes.heartbeats import Heartbeats
from metamcp_supervisor.roles.socket_process import SocketProcess
from metamcp_supervisor.telemetry.journal import WAITING, Journal
from metamcp_supervisor.verbs import RoleStatus
from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.engine_runs import (
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

JOURNAL = "workflows.db"
"""Database of runs, in the state directory."""
END_S_MAX = 35.0
"""Seconds that steps and orders under way have to end when the engine is not wanted any more."""

_read = codec.reader(EngineFigures | Heartbeat)


class EngineProcess(SocketProcess):
    """`config`: returns the configuration in force. `count`: called with orders by method and
    outcome, as increments, and the figures of this moment; None when the engine is not wanted.
    `reconfigure`: gives fronts their specification again."""

    who = ROLE
    loss = "its runs go on in the next one, which the next connection starts"
    end_s_max = END_S_MAX
    off = "no workflow, model or built-in tool of an endpoint needs it any more"

    def __init__(
        self,
        forker: Forker,
        heartbeats: Heartbeats,
        journal: Journal,
        config: Callable[[], Config],
        count: Callable[[Mapping[str, int], EngineFigures | None], None],
        reconfigure: Callable[[], None],
    ) -> None:
        super().__init__(forker, heartbeats, journal, config, _read, settings)
        self._count = count
        self._reconfigure = reconfigure
        self._now = EngineFigures(counts={})
        self._parked: tuple[ReportedRun, ...] = ()
        """Runs of the last figures, also of an engine that has ended."""
        self._database = ""

    @property
    def waiting_count(self) -> int:
        """Number of runs that wait for a person."""
        return self._now.waiting_count

    def status(self) -> RoleStatus:
        counts = {"orders": sum(self._now.counts.values())} if self._pid else {}
        return structs.replace(
            super().status(), counts={**counts, **self._now.runs}, trouble=self._now.trouble
        )

    def with_engine(self, spec: FrontSpec) -> FrontSpec:
        """Return the specification of fronts, which connect at once to an engine that goes on with
        runs, or that runs because an operator gave it an order."""
        self.adapt()
        at_once = self._pid != 0 or bool(self._config().workflows.definitions)
        return structs.replace(spec, engine_at_once=at_once)

    def on_settings_changed(self, *, on: bool) -> None:
        self._count({}, self._now if on else None)

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
            self._reconfigure()

    def _part(self) -> None:
        super()._part()
        self._now = EngineFigures(counts={})
        if self._on is not None:
            self._count({}, self._now)

    def _on_message(self, message: Message, fds: list[int]) -> None:
        if isinstance(message, EngineFigures):
            for run in message.parked:
                if run not in self._parked:
                    self._journal.add(self.who, WAITING, _waits(run))
            self._now, self._parked = message, message.parked
            self._count(self._count_growth(message.counts), message)


def _waits(parked: ReportedRun) -> str:
    decides = parked.status == "needs_decision"
    needs, verb = ("a decision", "decide") if decides else ("an answer", "answer")
    how = f"'metamcp workflow {verb} {parked.run} {parked.step}'"
    return f"the workflow {parked.workflow} needs {needs}: {how}"


def settings(config: Config) -> EngineOn | None:
    """Return the settings of the engine; None if nothing needs it."""
    files, model = config.workflows, config.ai if config.ai.url else None
    used = any(endpoint.builtins for endpoint in config.endpoints.values())
    if not (files.definitions or files.rules or model or used):
        return None
    return EngineOn(
        journal=str(Path(config.gateway.state_dir) / JOURNAL),
        database=config.engine.database,
        ai=None if model is None else _model(model),
        definitions={
            workspace: {name: Raw(data) for name, data in of.items()}
            for workspace, of in files.definitions.items()
        },
        rules=tuple(Raw(rule) for rule in files.rules),
        sync=config.engine.sync,
        keep_s=config.engine.keep_s,
        runs_max=config.engine.runs_max,
    )


def _model(ai: AiConfig) -> AiSettings:
    return AiSettings(
        provider=ai.provider, url=ai.url, model=ai.model, key=ai.key, steps_max=ai.steps_max,
        tokens_max=ai.tokens_max, timeout_ms=round(ai.timeout_s * 1000),
        answer_tokens_max=ai.answer_tokens_max, cost_max=ai.cost_max, input_price=ai.input_price,
        output_price=ai.output_price, consent=ai.consent,
    )  # fmt: skip
