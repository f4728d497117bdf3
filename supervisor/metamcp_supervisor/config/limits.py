"""What one server may use, as its table in metamcp.toml says.

Owns: the keys of the limits and the rules between them. Never: single values (`units`), how a limit
is enforced or judged (`metamcp_supervisor.processes.limits`).
"""

from dataclasses import replace

from metamcp_supervisor.config.config import Server
from metamcp_supervisor.config.table import Table
from metamcp_supervisor.config.units import size_text

MEMORY_BYTES_MIN = 16 * 1024 * 1024
"""An interpreter that does nothing needs about as much: a smaller limit can only be a mistake."""
PROCESSES_MAX = 65_536
NOFILE_MIN, NOFILE_MAX = 16, 1_048_576
"""Below, programs do not find their libraries; above, the kernel refuses by default."""

_OF_MEMORY = ("memory_max", "memory_high")
_OF_PROCESSES = ("memory_rlimit", "cpu_max", "processes_max", "nofile_max")


def read(table: Table, server: Server) -> Server:
    """The server with the limits that are in its table; what does not fit it is reported."""
    for key in (*_OF_MEMORY, *_OF_PROCESSES):
        if not table.has(key):
            continue
        if server.url is not None:
            table.error(key, "means nothing for a server with 'url': it has no process here")
        elif key in _OF_PROCESSES and not server.command:
            table.error(key, "is only for a server with 'command', which has its own process")
    most = table.size("memory_max", low=MEMORY_BYTES_MIN)
    high = table.size("memory_high", low=MEMORY_BYTES_MIN)
    if most is not None and high is not None and high > most:
        table.error("memory_high", f"is above memory_max, which is {size_text(most)}")
    rlimit = table.flag("memory_rlimit", default=False)
    if rlimit and not table.has("memory_max"):
        table.error("memory_rlimit", "needs 'memory_max', which says how much")
    return replace(
        server,
        memory_max=most,
        memory_high=high,
        memory_rlimit=rlimit,
        cpu_max=table.cores("cpu_max"),
        processes_max=_count(table, "processes_max", 1, PROCESSES_MAX),
        nofile_max=_count(table, "nofile_max", NOFILE_MIN, NOFILE_MAX),
    )


def _count(table: Table, key: str, low: int, high: int) -> int | None:
    return table.whole(key, default=low, low=low, high=high) if table.has(key) else None
