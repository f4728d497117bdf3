"""Event loop of the workers, and background tasks of a process.

Owns: the choice of uvloop, the end of a loop with its tasks; awaiting background tasks; a task that
fails ends the process. Never: the work of a task, exit codes.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import uvloop

from metamcp_worker.runtime import memory


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run `main` to its end on a new loop and return its exit code.

    `asyncio.Runner` does the same and also turns an interrupt from the keyboard into an exception;
    a worker does not get one, and that code would cost each worker a quarter of a MiB.
    """
    loop = uvloop.new_event_loop()
    memory.give_back_zero_pages(loop)
    try:
        return loop.run_until_complete(main)
    finally:
        _end(loop)


def _end(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the tasks that are left, wait for their end, and close the loop."""
    try:
        if tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks))
            for task in tasks:
                _tell(loop, task)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def _tell(loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
    """Report a task that failed after it was cancelled. No code awaits the task any more, and a
    worker ends without the last run of the garbage collector, which would have reported it."""
    if not task.cancelled() and (error := task.exception()):
        message = f"{task.get_name()} failed when it was cancelled at the end"
        loop.call_exception_handler({"message": message, "exception": error, "task": task})


class BackgroundTasks:
    """Group of background tasks. `failed(error)`: called for a task that ended with an error; its
    process ends for that."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def begin(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)

    async def close(self, within_s: float) -> None:
        """Cancel all tasks and wait for their end, for at most `within_s` seconds."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)
