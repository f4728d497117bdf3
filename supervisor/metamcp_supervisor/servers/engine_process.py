"""The engine, which carries out agents, suggestions and workflows, started at the first connection.

Owns: the settings of the process. Never: orders (`metamcp_worker.engine`), fronts, its socket and
the process itself (`role_process`).

The socket listens as long as the configuration has something for the engine. With workflows, each
front connects at once, so that runs go on after any failure.
"""

from msgspec import Raw, structs

from metamcp_supervisor.config.config import AiConfig, Config
from metamcp_supervisor.servers.role_process import SocketProcess
from metamcp_supervisor.verbs import RoleStatus
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.engine_runs import SOCKET, AiSettings, EngineFigures, EngineOn
from metamcp_worker.ipc.messages import Beat
from metamcp_worker.ipc.spec import FrontSpec

JOURNAL = "workflows.db"
"""File in the state directory with the runs of workflows."""


class EngineProcess(SocketProcess[EngineFigures]):
    """`count`: called with the orders by method and outcome, as increments."""

    who = "engine"
    loss = "agents under way failed; workflows go on in the next one"
    end_s_max = 35.0
    """Some seconds more than the engine gives its orders and steps."""
    read = staticmethod(codec.reader(EngineFigures | Beat))
    socket_name = SOCKET
    zero = EngineFigures(counts={})
    off = "the configuration has no workflow, model or rule any more"
    deaf = "agents and workflows do not run"

    def status(self) -> RoleStatus:
        counts = {"orders": sum(self._now.counts.values())} if self._pid else {}
        return structs.replace(super().status(), counts={**counts, **self._now.runs})

    def with_engine(self, spec: FrontSpec) -> FrontSpec:
        """Return the specification of fronts with the socket of the engine, if there is something
        for it; it listens from now on."""
        at_once = bool(self._config().workflows.definitions)
        return structs.replace(spec, engine_socket=self._adapted(), engine_at_once=at_once)

    def socket_path(self) -> str:
        """Return the path of the socket, if it listens."""
        return self._path() if self._listener is not None else ""

    def _order(self, found: Config) -> EngineOn | None:
        files, runs = found.workflows, found.engine
        named = any(endpoint.builtins for endpoint in found.endpoints.values())
        if not (found.ai.url or files.definitions or files.rules or named):
            return None
        return EngineOn(
            journal=str(found.gateway.state_dir / JOURNAL),
            ai=_settings(found.ai) if found.ai.url else None,
            definitions={
                workspace: {name: Raw(data) for name, data in each.items()}
                for workspace, each in files.definitions.items()
            },
            rules=tuple(map(Raw, files.rules)),
            sync=runs.sync,
            keep_s=runs.keep_s,
            runs_max=runs.runs_max,
        )


def _settings(ai: AiConfig) -> AiSettings:
    return AiSettings(
        provider=ai.provider,
        url=ai.url,
        model=ai.model,
        key=ai.key,
        steps_max=ai.steps_max,
        tokens_max=ai.tokens_max,
        timeout_ms=round(ai.timeout_s * 1000),
        answer_tokens_max=ai.answer_tokens_max,
        cost_max=ai.cost_max,
        input_price=ai.input_price,
        output_price=ai.output_price,
    )
