"""First steps of a worker, right after its fork.

Owns: making it a process of its own: session, name, random seed, log, stacks, score for when memory
runs out. Never: the fork, the work of the worker.

The steps are short, because each worker takes them: Python code that runs here, and nowhere else in
a worker, costs each worker the memory pages that the code lies on.
"""

import contextlib
import faulthandler
import os
import random
import resource
import signal

from metamcp_worker.ipc.messages import Fork
from metamcp_worker.runtime import fork_hooks, logs, orphans, pulse

OOM_SCORE_ADJ = {"child": b"500"}
"""Value of `oom_score_adj` by role: the kernel should end servers and their workers first when
memory runs out."""

STDERR = 2
STACKS_SIGNAL = signal.SIGUSR2
"""Signal at which a worker writes the stacks of all its threads; the worker goes on unharmed. The
supervisor knows this number too."""


def settle(order: Fork, stacks: int) -> None:
    """Make this process one of its own. `stacks`: descriptor for its pulse and for the stacks of
    its threads, which are written without the interpreter, so also when the interpreter hangs or
    has crashed; standard error if the supervisor gave no file."""
    fork_hooks.catch_up()
    os.setsid()
    orphans.become_subreaper()  # what its server turns into a daemon stays below it
    random.seed()
    call_it(f"mmcp:{order.name}")
    if adjustment := OOM_SCORE_ADJ.get(order.role):
        _write("/proc/self/oom_score_adj", adjustment)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump may hold secrets
    logs.go_on(_about(order), whole=order.role != "child")
    faulthandler.enable(stacks)  # SIGABRT, the watchdog's signal, and every crash of C code
    faulthandler.register(STACKS_SIGNAL, stacks, all_threads=True)
    if stacks > STDERR:
        pulse.share(stacks)


def call_it(name: str) -> None:
    """Name this process; the kernel keeps the first 15 bytes."""
    _write("/proc/self/comm", name.encode())


def _about(order: Fork) -> dict[str, str | int]:
    server, _, generation = order.name.rpartition("#")
    if order.role != "child" or not generation.isdigit():
        return {}
    return {"server": server, "generation": int(generation)}


def _write(path: str, data: bytes) -> None:
    """Write a setting of the kernel, if the system has this file and lets the process write it."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
