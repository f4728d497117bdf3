"""Fork hooks of the standard library, deferred for the processes that the nursery forks.

Owns: the modules whose hooks are deferred, and registering the hooks in a worker. Never: hooks of
other modules.

After a fork `threading`, `logging` and `concurrent.futures` renew locks that another thread may
have held, and `random` takes a new seed. The nursery has one thread, which holds none of these
locks when it forks, and a worker takes its seed itself. The hooks would only write to memory pages,
which each worker then has for itself: a fifth of a MiB.
"""

import importlib
import os
from collections.abc import Callable

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
