"""A client's pipes: lines in from one descriptor, lines out to another, from threads.

Owns: the threads, the limits of what waits, lines that are too long. Never: what a line says.

The descriptors are the client's as much as ours: to make them non-blocking would make them so for
everybody who holds them, a terminal's shell included. And they may be files, which no event loop
watches. So threads block on them.
"""

import asyncio
import os
import queue
import re
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TypeVar, cast

from msgspec import Struct

from metamcp_worker import frames

T = TypeVar("T")

LINE_BYTES_MAX = frames.BODY_BYTES_MAX
READ_BYTES = 64 * 1024
HEAD_BYTES = 1024
"""Of a line that is too long, for finding its id."""
OUT_BYTES_MAX = 32 * 1024 * 1024
"""What may wait for a client that does not read; two of the largest messages."""

_ID = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*|"method"\s*:\s*"[^"\\]*"\s*,\s*)*'
    rb'"id"\s*:\s*(?P<id>-?\d+|"(?:[^"\\\x00-\x1f]|\\.)*")\s*,'
)


class Overlong(Struct, frozen=True):
    """In the place of a line above the limit. `raw_id`: if it stood at the beginning."""

    raw_id: bytes


class Cutter:
    """Bytes to lines, in any pieces. Empty ones are left out."""

    def __init__(self, limit_bytes: int = LINE_BYTES_MAX) -> None:
        self._limit = limit_bytes
        self._held = bytearray()
        self._over: bytes | None = None  # the head of a line that is passed over

    def feed(self, data: bytes) -> list[bytes | Overlong]:
        found: list[bytes | Overlong] = []
        *ended, last = data.split(b"\n")
        for piece in ended:
            self._hold(piece)
            self._end(found)
        self._hold(last)
        return found

    def rest(self) -> list[bytes | Overlong]:
        """At the end of the input: the line that has no end, if there is one."""
        found: list[bytes | Overlong] = []
        self._end(found)
        return found

    def _hold(self, piece: bytes) -> None:
        if self._over is not None:
            return
        self._held += piece
        if len(self._held) > self._limit + 1:  # one for the carriage return
            self._over = bytes(self._held[:HEAD_BYTES])
            self._held = bytearray()

    def _end(self, found: list[bytes | Overlong]) -> None:
        line = bytes(self._held).strip(b" \t\r") if self._held else b""
        if self._over is not None or len(line) > self._limit:
            match = _ID.match(line[:HEAD_BYTES] if self._over is None else self._over)
            found.append(Overlong(match["id"] if match else b""))
        elif line:
            found.append(line)
        self._held = bytearray()
        self._over = None


class Input:
    """Reads `fd`, one piece ahead of who takes the lines. `ended`: the end of the input was seen,
    perhaps before the last lines have been taken."""

    def __init__(self, fd: int, limit_bytes: int = LINE_BYTES_MAX) -> None:
        self._fd = fd
        self._cutter = Cutter(limit_bytes)
        self._loop = asyncio.get_running_loop()
        self._wanted = threading.Semaphore(1)
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue()  # the semaphore bounds it
        self.ended = asyncio.Event()
        threading.Thread(target=self._read, name="input", daemon=True).start()

    async def lines(self) -> AsyncIterator[bytes | Overlong]:
        while data := await self._pieces.get():
            self._wanted.release()
            for line in self._cutter.feed(data):
                yield line
        for line in self._cutter.rest():
            yield line

    def _read(self) -> None:
        data = b"-"
        while data:
            self._wanted.acquire()
            try:
                data = os.read(self._fd, READ_BYTES)
            except OSError:
                data = b""
            if not _tell(self._loop, partial(self._arrived, data)):
                return

    def _arrived(self, data: bytes) -> None:
        self._pieces.put_nowait(data)
        if not data:
            self.ended.set()


class Output:
    """Writes lines to `fd`. `on_lost`: nobody reads any more."""

    def __init__(
        self, fd: int, on_lost: Callable[[], None], limit_bytes: int = OUT_BYTES_MAX
    ) -> None:
        self._fd = fd
        self._on_lost = on_lost
        self._limit = limit_bytes
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._waiting_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._lost = False
        threading.Thread(target=self._write, name="output", daemon=True).start()

    def put(self, line: bytes) -> None:
        """Queue one line. Who may wait awaits `room` before it gets the next message."""
        if self._lost:
            return
        self._waiting_bytes += len(line) + 1
        self._empty.clear()
        if self._waiting_bytes > self._limit:
            self._room.clear()
        self._queue.put(line + b"\n")

    async def room(self) -> None:
        await self._room.wait()

    @property
    def full(self) -> bool:
        return not self._room.is_set()

    async def close(self, within_s: float) -> None:
        """Let what waits go out, for so long."""
        try:
            async with asyncio.timeout(within_s):
                await self._empty.wait()
        except TimeoutError:
            pass
        self._lost = True
        self._queue.put(None)

    def _write(self) -> None:
        while (line := self._queue.get()) is not None:
            size = len(line)
            try:
                left = memoryview(line)
                while left:
                    left = left[os.write(self._fd, left) :]
            except OSError:
                _tell(self._loop, self._gone)
                return
            if not _tell(self._loop, partial(self._wrote, size)):
                return

    def _wrote(self, size: int) -> None:
        self._waiting_bytes -= size
        if self._waiting_bytes <= self._limit:
            self._room.set()
        if not self._waiting_bytes:
            self._empty.set()

    def _gone(self) -> None:
        self._lost = True
        self._room.set()
        self._empty.set()
        self._on_lost()


async def apart(function: Callable[[], T]) -> T:
    """The result of a call that may block, from a thread that nobody waits for at the end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: Exception | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(cast(T, result))

    def work() -> None:
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 - the root of a thread; it is raised in the loop
            _tell(loop, partial(settle, None, error))
        else:
            _tell(loop, partial(settle, result, None))

    threading.Thread(target=work, name="apart", daemon=True).start()
    return await future


def _tell(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> bool:
    """Run this in the loop; False if there is none any more."""
    try:
        loop.call_soon_threadsafe(what)
    except RuntimeError:
        return False
    return True
