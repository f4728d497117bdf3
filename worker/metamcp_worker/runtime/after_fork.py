"""The first steps of a worker, right after its fork.

Owns: how it becomes a process of its own: session, name, seed, log, stacks, score for when memory
runs out. Never: the fork, what the worker is for.

Each worker takes these steps anew, so they are short ones: whatever Python code runs here, and runs
nowhere else in a worker, costs each of them the pages that it lies on.
"""

import contextlib
import faulthandler
import os
import random
import resource
import signal

from metamcp_worker.ipc.messages import Fork
from metamcp_worker.runtime import fork_hooks, logs, orphans

OOM_SCORE_ADJ = {"child": b"500"}
"""Servers and their workers are what the kernel should take first when memory runs out."""

STACKS_SIGNAL = signal.SIGUSR2
"""What a worker answers by writing the stacks of all its threads; it goes on as if nothing had
happened. The supervisor knows this number too."""


def settle(order: Fork, stacks: int) -> None:
    """Become a process of its own. `stacks`: a descriptor for those of its threads, written without
    the interpreter, so also when that hangs or has crashed."""
    fork_hooks.catch_up()
    os.setsid()
    orphans.become_subreaper()  # what its server turns into a daemon stays below it
    random.seed()
    call_it(f"mmcp:{order.name}")
    if adjustment := OOM_SCORE_ADJ.get(order.role):
        _write("/proc/self/oom_score_adj", adjustment)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # nobody waits for a core of a server
    logs.go_on(_about(order), whole=order.role != "child")
    faulthandler.enable(stacks)  # SIGABRT, the watchdog's signal, and every crash of C code
    faulthandler.register(STACKS_SIGNAL, stacks, all_threads=True)


def call_it(name: str) -> None:
    """Name this process; the kernel keeps the first 15 bytes."""
    _write("/proc/self/comm", name.encode())


def _about(order: Fork) -> dict[str, str | int]:
    server, _, generation = order.name.rpartition("#")
    if order.role != "child" or not generation.isdigit():
        return {}
    return {"server": server, "generation": int(generation)}


def _write(path: str, data: bytes) -> None:
    """Tell the kernel, where it listens: not every system has this file, or lets us write it."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
