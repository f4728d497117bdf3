"""The process of the sandboxes, in which code of clients runs, started at the first connection.

Owns: the settings of the process. Never: sandboxes (`metamcp_worker.sandbox`), runs (fronts), its
socket and the process itself (`role_process`).

The socket listens as long as the configuration has `[code]`. A process that fails ends its runs.
"""

import os

from msgspec import structs

from metamcp_supervisor.config import code_mode, installation
from metamcp_supervisor.config.config import Config
from metamcp_supervisor.servers.role_process import SocketProcess
from metamcp_supervisor.verbs import RoleStatus
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.code_runs import SOCKET, CodeFigures, CodeOn
from metamcp_worker.ipc.messages import Beat
from metamcp_worker.ipc.spec import FrontSpec


class CodeProcess(SocketProcess[CodeFigures]):
    """`count`: called with the runs by outcome, as increments."""

    who = "code"
    loss = "its runs failed; the next run starts another one"
    end_s_max = 30.0
    read = staticmethod(codec.reader(CodeFigures | Beat))
    socket_name = SOCKET
    zero = CodeFigures(counts={})
    off = "code mode is switched off"
    deaf = "code is not run"

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
        return structs.replace(spec, code_socket=self._adapted())

    def _order(self, found: Config) -> CodeOn | None:
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
