"""What the standard library does in every process that is forked, put off for those of the nursery.

Owns: of which modules, and that a worker has it again. Never: what others have registered.

After a fork `threading`, `logging` and `concurrent.futures` renew locks that another thread may
have held, and `random` takes a new seed. The nursery has one thread, which holds none of them when
it forks, and a worker takes its seed itself. All that would be left are pages that each worker
writes to and so has for itself: a fifth of a MiB.
"""

import importlib
import os
from collections.abc import Callable

MODULES = ("threading", "logging", "random", "concurrent.futures.thread")
"""Before anything else imports them: a hook cannot be taken back."""

_REGISTER = "register_at_fork"
_put_off: list[dict[str, Callable[[], object]]] = []


def put_off() -> None:
    """Import these modules; what they want done at forks is kept for `catch_up`."""

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
    """In a worker, which may come to have threads, and code that forks. How many hooks it has."""
    for hooks in _put_off:
        os.register_at_fork(**hooks)
    return len(_put_off)
