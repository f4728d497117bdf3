"""A process of a running gateway that gets no descriptor any more, until it does again."""

import os
import resource
import time
from collections.abc import Generator
from contextlib import contextmanager

from tests.live import processes
from tests.waiting import until

WATCHED_S = 1.0
"""Long enough for a loop that spins to show, in ticks of ten milliseconds."""
CPU_MAX = 0.05
"""Of one core."""


@contextmanager
def starving(pid: int, *, at: int | None = None) -> Generator[int, None, None]:
    """It may open descriptors below `at` only; without it: below the highest that it has, so that
    the few free numbers below that are soon used up. The limit."""
    assert pid > 0, "0 would be this process itself"
    now = at or max(map(int, os.listdir(f"/proc/{pid}/fd"))) + 1
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (now, before[1]))
    try:
        yield now
    finally:
        if processes.alive({pid}):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def share_of_a_core(pid: int) -> float:
    """How much of a core this process uses, watched for a while."""
    used, begun = processes.cpu_s(pid), time.monotonic()
    until(lambda: time.monotonic() - begun > WATCHED_S, "the while is over")
    return (processes.cpu_s(pid) - used) / (time.monotonic() - begun)
