"""The event loop of the workers: uvloop where it exists. Owns this choice and nothing else."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import uvloop


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run `main` to its end on a fresh loop and return its exit code.

    As `asyncio.Runner` does, which also makes an interrupt from the keyboard an exception; a worker
    has none to expect, and all that code costs each of them a quarter of a MiB.
    """
    loop = uvloop.new_event_loop()
    try:
        return loop.run_until_complete(main)
    finally:
        _end(loop)


def _end(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what is left, let it finish, and close."""
    try:
        if left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left))
            for task in left:
                _tell(loop, task)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def _tell(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    """That a task failed while it was to finish. Nobody asks it any more, and a worker ends without
    the last visit of the collector, which would have said so."""
    if not task.cancelled() and (error := task.exception()):
        what = f"{task.get_name()} failed when it was cancelled at the end"
        loop.call_exception_handler({"message": what, "exception": error, "task": task})
