"""Background tasks of a process; a task that fails ends the process.

Owns: awaiting each task, reporting its failure, cancelling all. Never: their work, exit codes.
"""

import asyncio
from collections.abc import Callable, Coroutine


class Chores:
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
        task.add_done_callback(self._done)

    async def close(self, within_s: float) -> None:
        """Cancel all tasks and wait for their end, for at most `within_s` seconds."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)
