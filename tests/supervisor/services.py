"""Values for the service of a feature in a test, in which there are no fronts and no keys."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import structs

from metamcp_supervisor.config.config import Config
from metamcp_supervisor.control.console_sessions import ConsoleSessions
from metamcp_supervisor.fronts.front import Forker, FrontProcess
from metamcp_supervisor.keys.api_keys import ApiKeys
from metamcp_supervisor.processes.heartbeats import Heartbeats
from metamcp_supervisor.roles.role_process import ServiceContext
from metamcp_supervisor.store.database import DatabaseFile
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.telemetry.metrics import Metrics


class NoFronts:
    def list_serving(self) -> tuple[FrontProcess, ...]:
        return ()

    def reconfigure(self) -> None: ...

    def untold(self, front: FrontProcess, error: OSError) -> None: ...


def service_context(forker: Forker, config: Callable[[], Config], **more: Any) -> ServiceContext:
    keys = ApiKeys(DatabaseFile(Path("/nowhere")), lambda: None, time.time)
    context = ServiceContext(
        forker=forker,
        heartbeats=Heartbeats(forker.signal, asyncio.get_running_loop().time),
        journal=Journal(lambda: 0.0),
        metrics=Metrics("9.9"),
        config=config,
        version="9.9",
        keys=keys,
        sessions=ConsoleSessions(time.monotonic, keys.has),
        fronts=NoFronts(),
        database=DatabaseFile(Path("/nowhere")),
        roles={},
    )
    return structs.replace(context, **more)
