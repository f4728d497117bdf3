"""Tasks that a process runs beside each other, none of which may fail.

Owns: that each is awaited, what is told of a fault, and their end. Never: what they do, exit codes.
"""

import asyncio
from collections.abc import Callable, Coroutine


class Chores:
    """`failed(error)` is told of a task that ended with an error; its process ends for that."""

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
        """Cancel all of them, and let them end; one that does not is left after so long."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed(error)
