"""Pipes to the fronts that use this server.

Owns: one pipe per front number, what happens when a front does not read. Never: the calls of a
front, the contents of a frame.
"""

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from metamcp_worker.child import jsonrpc_lines
from metamcp_worker.ipc.errors import Code, PipeFull, TooLarge
from metamcp_worker.ipc.frames import (
    Error,
    Frame,
    Notice,
    Progress,
    QuestionFrame,
    Result,
)
from metamcp_worker.ipc.pipe import Pipe

BEHIND_BYTES: Final = 16 * 1024 * 1024
"""Bytes that may wait for a front before the server is not read for a while."""
RESERVE_BYTES: Final = 1024 * 1024
"""Bytes of room that only errors may use: enough to notify as many callers as there can be that
their answers do not fit."""
NEWS_BYTES_MAX: Final = BEHIND_BYTES // 2
"""Bytes that may wait for a front before notifications are left out for it: a caller needs its
answer more than a notification."""
CLOSE_S_MAX = 1.0
"""Seconds for the fronts to take the last frames when the worker ends."""

Receive = Callable[[int, Frame], None]
Gone = Callable[[int], None]


class FrontPipes:
    """The pipes by front number. `receive(front, frame)` gets what fronts send; `on_gone(front)` is
    called when the pipe to a front is closed or replaced."""

    def __init__(self, receive: Receive, on_gone: Gone) -> None:
        self._receive = receive
        self._on_gone = on_gone
        self._pipes: dict[int, Pipe] = {}
        self._closing: set[Pipe] = set()
        self._closed_all = asyncio.Event()
        self._closed_all.set()
        self._opening: set[asyncio.Task[None]] = set()
        self._given_up: set[int] = set()
        self._crowded = False
        """Whether a front may be behind; otherwise `behind` need not look."""
        self.left_out = 0

    def attach(self, front: int, fd: int) -> None:
        """Take over descriptor `fd`, the end of a pipe to this front, in place of an older one."""
        self.detach(front)

        def on_gone(_: str) -> None:
            self._on_closed(front, pipe)

        pipe = Pipe(partial(self._receive, front), on_gone)
        self._pipes[front] = pipe
        task = asyncio.get_running_loop().create_task(self._open(front, pipe, fd))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def detach(self, front: int) -> None:
        pipe = self._pipes.pop(front, None)
        if pipe is not None:
            pipe.close()
            self._on_gone(front)

    def send(self, front: int, frame: Frame) -> bool:
        """Send a frame to one front. Return False if the front misses the frame, because it is gone
        or does not read fast enough."""
        pipe = self._pipes.get(front)
        if pipe is None:
            return False
        try:
            if isinstance(frame, Result):
                queued = pipe.send(frame, RESERVE_BYTES)
            else:
                queued = self._send_other(pipe, frame)
        except (PipeFull, TooLarge):
            if isinstance(frame, Result):
                # A missing answer would be waited for, so an error goes instead.
                message = "the answer is lost, because too much waits for the front to read it"
                return self.send(
                    front, Error(frame.id, jsonrpc_lines.error_object(Code.OVERLOADED, message))
                )
            self.left_out += not isinstance(frame, QuestionFrame)
            return False
        if queued > BEHIND_BYTES:
            self._crowded = True
        return True

    def announce(self, frame: Frame) -> None:
        """Send a frame to all fronts."""
        for front in list(self._pipes):
            self.send(front, frame)

    def behind(self) -> list[int]:
        """Return the fronts that do not read as fast as the server writes and are worth waiting
        for."""
        if not self._crowded:
            return []
        behind = {n for n, pipe in self._pipes.items() if pipe.queued_bytes > BEHIND_BYTES}
        self._crowded = bool(behind)
        self._given_up &= behind
        return sorted(behind - self._given_up)

    def give_up(self, fronts: Iterable[int]) -> None:
        """Stop waiting for these fronts until they have caught up, because the others would wait
        too."""
        self._given_up.update(fronts)

    async def wait_until_open(self) -> None:
        """Wait until the pipes that were attached just now can take frames."""
        if self._opening:
            await asyncio.wait(self._opening, timeout=CLOSE_S_MAX)

    async def close(self) -> None:
        """Let the fronts take what waits for them, then close all pipes."""
        await self.wait_until_open()
        for front in list(self._pipes):
            pipe = self._pipes.pop(front)
            if not pipe.is_closed:
                self._closing.add(pipe)
                self._closed_all.clear()
                pipe.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S_MAX):
                await self._closed_all.wait()

    async def _open(self, front: int, pipe: Pipe, fd: int) -> None:
        try:
            sock = socket.socket(fileno=fd)
            sock.setblocking(False)
            await asyncio.get_running_loop().create_unix_connection(lambda: pipe, sock=sock)
        except (OSError, ValueError):
            self._on_closed(front, pipe)
        if self._pipes.get(front) is not pipe:  # The pipe has been replaced.
            pipe.close()

    def _send_other(self, pipe: Pipe, frame: Frame) -> int:
        """Send a frame that is not a result. Raises PipeFull, TooLarge."""
        if isinstance(frame, Progress | Notice) and pipe.queued_bytes > NEWS_BYTES_MAX:
            raise PipeFull("this front has enough to read")
        return pipe.send(frame, RESERVE_BYTES if isinstance(frame, QuestionFrame) else 0)

    def _on_closed(self, front: int, pipe: Pipe) -> None:
        self._closing.discard(pipe)
        if not self._closing:
            self._closed_all.set()
        if self._pipes.get(front) is pipe:
            del self._pipes[front]
            self._on_gone(front)
