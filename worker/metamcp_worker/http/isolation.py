"""Running an application so that a failure affects only its own request.

Owns: the answer to a client when the application fails, the tasks of requests that wait. Never:
HTTP, the work of the application.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from metamcp_worker.http import http1
from metamcp_worker.http.requests import HttpRequest, Pending
from metamcp_worker.ipc.errors import Code

_FAILED = http1.head(500, [http1.JSON])
_FAILURE = http1.error_body(Code.INTERNAL_ERROR, "The gateway failed to handle this request.")

log = logging.getLogger("metamcp.http")


class Contained:
    """Runs the steps of an application, each for one request, and waits for what they return."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, request: HttpRequest, step: Callable[[], Pending]) -> None:
        """Run a step now. A failure becomes an answer and one line in the log."""
        try:
            waiting = step()
        except Exception as error:  # noqa: BLE001 - the root of a request
            _failed(request, error)
            return
        if waiting is not None:
            task = asyncio.get_running_loop().create_task(_finish(request, waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def end(self, wait_s: float) -> None:
        """Cancel the requests that still wait."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=wait_s)


async def _finish(request: HttpRequest, waiting: Awaitable[None]) -> None:
    try:
        await waiting
    except asyncio.CancelledError:
        request.abort()  # the end of a drain; this is the root of the task
    except Exception as error:  # noqa: BLE001 - the root of a task
        _failed(request, error)


def _failed(request: HttpRequest, error: Exception) -> None:
    log.error("request failed", exc_info=error)
    if not request.begun:
        request.keeps_alive = False
        request.answer(_FAILED, _FAILURE)
    elif not request.complete:
        request.abort()
