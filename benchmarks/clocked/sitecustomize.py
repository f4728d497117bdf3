"""When each stage of an order about a view begins and ends: `benchmarks.scenarios.views` puts this
folder into the path of a gateway that it measures, and Python imports this file by its name at
every start.

The supervisor and the fronts go on as they would, and append a line for each stage to a file of
`$METAMCP_BENCH_CLOCK` under their pid: what, and seconds of the clock that all processes of a
machine share. What is to be clocked must be there: with another name for it nothing starts.
"""

import functools
import os
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

VARIABLE = "METAMCP_BENCH_CLOCK"
FLAGS = os.O_APPEND | os.O_CREAT | os.O_WRONLY


def stamp(what: str, begin: float) -> None:
    line = f"{what} {begin:.7f} {time.perf_counter():.7f}\n"
    file = os.open(os.path.join(os.environ[VARIABLE], str(os.getpid())), FLAGS, 0o600)
    os.write(file, line.encode())
    os.close(file)


def clocked(what: str, run: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(run)
    def timed(*arguments: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        try:
            return run(*arguments, **named)
        finally:
            stamp(what, begin)

    return timed


def awaited(
    what: str, run: Callable[..., Coroutine[Any, Any, Any]]
) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(run)
    async def timed(*arguments: Any, **named: Any) -> Any:
        begin = time.perf_counter()
        try:
            return await run(*arguments, **named)
        finally:
            stamp(what, begin)

    return timed


def put_in(how: Callable[[str, Any], Any], what: str, owner: type, name: str) -> None:
    if not hasattr(owner, name):
        sys.exit(f"{owner} has no {name} to clock")  # Python goes on after any other error
    setattr(owner, name, how(what, getattr(owner, name)))


def in_fronts() -> None:
    from metamcp_worker.front_calls.front_views import Viewers
    from metamcp_worker.front_steps.builtin_calls import Builtins

    put_in(clocked, "decide", Builtins, "decide")
    put_in(clocked, "build", Viewers, "refresh")
    put_in(clocked, "answer", Builtins, "on_order_outcome")


def in_supervisor() -> None:
    from metamcp_supervisor.views.store import Store

    put_in(awaited, "write", Store, "write")


# The nursery is a fork of this program.
if VARIABLE in os.environ and {"metamcp_supervisor", "serve"} <= set(sys.orig_argv):
    in_fronts()
    in_supervisor()
