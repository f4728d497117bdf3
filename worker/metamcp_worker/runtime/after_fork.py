"""First steps of a worker, right after its fork.

Owns: making it a process of its own: session, name, random seed, log, stacks, score for when memory
runs out; the fork hooks of the standard library, which are deferred for the processes that the
nursery forks. Never: the fork, the work of the worker.

The steps are short, because each worker takes them: Python code that runs here, and nowhere else in
a worker, costs each worker the memory pages that the code lies on.

After a fork `threading`, `logging` and `concurrent.futures` renew locks that another thread may
have held, and `random` takes a new seed. The nursery has one thread, which holds none of these
locks when it forks, and a worker takes its seed itself. The hooks would only write to memory pages,
which each worker then has for itself: a fifth of a MiB.
"""

import contextlib
import faulthandler
import importlib
import os
import random
import resource
import signal
from collections.abc import Callable

from metamcp_worker.ipc.messages import Fork
from metamcp_worker.runtime import logs, orphans

OOM_SCORE_ADJ = {"child": b"500"}
"""Value of `oom_score_adj` by role: the kernel should end servers and their workers first when
memory runs out."""

STACKS_SIGNAL = signal.SIGUSR2
"""Signal at which a worker writes the stacks of all its threads; the worker goes on unharmed. The
supervisor knows this number too."""


def settle(order: Fork, stacks: int) -> None:
    """Make this process one of its own. `stacks`: descriptor for the stacks of its threads, which
    are written without the interpreter, so also when the interpreter hangs or has crashed."""
    catch_up()
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


MODULES = ("threading", "logging", "random", "concurrent.futures.thread")
"""Modules with hooks. `put_off` must import them first: a registered hook cannot be taken back."""

_REGISTER = "register_at_fork"
_put_off: list[dict[str, Callable[[], object]]] = []


def put_off() -> None:
    """Import these modules, and keep their fork hooks for `catch_up`."""

    def keep(**hooks: Callable[[], object]) -> None:
        _put_off.append(hooks)

    register = os.register_at_fork
    setattr(os, _REGISTER, keep)
    try:
        for name in MODULES:
            importlib.import_module(name)
    finally:
        setattr(os, _REGISTER, register)


def catch_up() -> int:
    """Register the kept hooks in a worker, which may get threads, and code that forks. Returns the
    number of hooks."""
    for hooks in _put_off:
        os.register_at_fork(**hooks)
    return len(_put_off)
