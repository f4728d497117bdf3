"""The end of the nursery's process and of what it left, as its parent sees it.

Owns: the wait for an exit, the sweep of orphans in steps that leave the event loop free. Never: why
something ends (`spawn`), how orphans are found and killed (`metamcp_worker.runtime.orphans`).
"""

import asyncio
from collections.abc import Callable, Collection

from metamcp_supervisor.processes.offspring import Process
from metamcp_worker.runtime import orphans

PAUSE_S = 0.005
"""Between two looks at a process that was killed, or at what is left to sweep. One look holds the
event loop for well under a millisecond."""


async def sweep(spared: Callable[[], Collection[int]]) -> tuple[set[int], bool]:
    """Kill every child of this process that nobody owns. Whom it had to kill, and whether all of
    them are gone."""
    work = orphans.Sweep()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + orphans.SWEEP_S_MAX
    while not work.step(spared()):
        if loop.time() > deadline:
            return work.killed, False
        await asyncio.sleep(PAUSE_S)
    return work.killed, True


async def ended(process: Process, within_s: float) -> bool:
    """Has the process ended within this time? It is reaped then."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while process.poll() is None:
        if loop.time() > deadline:
            return False
        await asyncio.sleep(PAUSE_S)
    return True


def how(process: Process) -> str:
    code = process.returncode
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
