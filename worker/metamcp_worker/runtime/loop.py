"""Event loop of the workers: uvloop. Owns this choice, and the end of a loop with its tasks."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import uvloop


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run `main` to its end on a new loop and return its exit code.

    `asyncio.Runner` does the same and also turns an interrupt from the keyboard into an exception;
    a worker does not get one, and that code would cost each worker a quarter of a MiB.
    """
    loop = uvloop.new_event_loop()
    try:
        return loop.run_until_complete(main)
    finally:
        _end(loop)


def _end(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the tasks that are left, wait for their end, and close the loop."""
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
    """Report a task that failed after it was cancelled. No code awaits the task any more, and a
    worker ends without the last run of the garbage collector, which would have reported it."""
    if not task.cancelled() and (error := task.exception()):
        what = f"{task.get_name()} failed when it was cancelled at the end"
        loop.call_exception_handler({"message": what, "exception": error, "task": task})
