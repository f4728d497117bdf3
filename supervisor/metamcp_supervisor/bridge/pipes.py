"""Pipes of the client: lines of its messages in, lines of answers out, and calls that may block.

Owns: reading and writing that never blocks the event loop, cutting the input into lines, the limits
of a line and of the output that waits, the threads for everything that blocks. Never: the meaning
of a line (`session`).

An event loop makes a descriptor that it watches non-blocking, and that would hold for every process
that has the descriptor. So a pipe is opened once more, which makes a descriptor for this process
alone. A socket cannot be opened again: each call asks the kernel not to wait, and the loop watches
an epoll of ours that watches the socket. Files and terminals have neither way, nor have systems
other than Linux: there `InputPipe` and `Output` use threads.
"""

import asyncio
import os
import queue
import select
import socket
import stat
import threading
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TypeVar, cast

from msgspec import Struct

from metamcp_worker.ipc import frames
from metamcp_worker.ipc.envelope import ENDS_BYTES, ScannedId, glimpse

READ_BYTES = 64 * 1024


class PipeEnd(Struct, frozen=True):
    """End of a pipe or socket that never blocks. `read`, `write`: move as many bytes as possible at
    once; `read` returns no byte at the end of the input; both raise OSError, and BlockingIOError
    if no byte can move. `watched`: descriptor that becomes writable if `as_writer`,
    else readable, when bytes can move."""

    watched: int
    as_writer: bool
    read: Callable[[], bytes]
    write: Callable[[memoryview], int]
    close: Callable[[], None]

    def watch(self, loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
        (loop.add_writer if self.as_writer else loop.add_reader)(self.watched, call)

    def unwatch(self, loop: asyncio.AbstractEventLoop) -> None:
        (loop.remove_writer if self.as_writer else loop.remove_reader)(self.watched)


def open_end(fd: int, *, writes: bool) -> PipeEnd | None:
    """Return an end for `fd`, which stays open; None if `fd` needs threads."""
    if not hasattr(select, "epoll"):
        return None
    try:
        mode = os.fstat(fd).st_mode
        if stat.S_ISFIFO(mode):
            return _pipe(fd, writes=writes)
        if stat.S_ISSOCK(mode):
            return _socket(fd, select.EPOLLOUT if writes else select.EPOLLIN)
    except OSError:  # of another user, without /proc, or its other end is closed
        return None
    return None


def _pipe(fd: int, *, writes: bool) -> PipeEnd:
    flags = os.O_WRONLY if writes else os.O_RDONLY
    own = os.open(f"/proc/self/fd/{fd}", flags | os.O_NONBLOCK | os.O_CLOEXEC)
    return PipeEnd(
        own,
        writes,
        lambda: os.read(own, READ_BYTES),
        lambda data: os.write(own, data),
        lambda: os.close(own),
    )


def _socket(fd: int, events: int) -> PipeEnd | None:
    sock = socket.socket(fileno=os.dup(fd))
    if sock.type != socket.SOCK_STREAM:
        sock.close()
        return None
    watch = select.epoll()
    watch.register(sock.fileno(), events)

    def close() -> None:
        watch.close()
        sock.close()

    return PipeEnd(
        watch.fileno(),
        False,
        lambda: sock.recv(READ_BYTES, socket.MSG_DONTWAIT),
        lambda data: sock.send(data, socket.MSG_DONTWAIT),
        close,
    )


T = TypeVar("T")

LINE_BYTES_MAX = frames.BODY_BYTES_MAX
OUT_BYTES_MAX = 32 * 1024 * 1024
"""Maximum bytes that wait for a client that does not read; two of the largest messages."""


class OverlongInput(Struct, frozen=True):
    """Item in the place of a line above the limit. `seen`: the id, as far as it was found."""

    seen: ScannedId


class InputCutter:
    """Cutter of bytes, in any pieces, into lines. Empty lines are left out."""

    def __init__(self, limit_bytes: int = LINE_BYTES_MAX) -> None:
        self._limit = limit_bytes
        self._held = bytearray()
        self._over: bytes | None = None  # the beginning of a line that is passed over
        self._last = b""  # and its end

    def feed(self, data: bytes) -> list[bytes | OverlongInput]:
        lines: list[bytes | OverlongInput] = []
        *ended, last = data.split(b"\n")
        for piece in ended:
            self._hold(piece)
            self._end(lines)
        self._hold(last)
        return lines

    def rest(self) -> list[bytes | OverlongInput]:
        """Return the line without an end, if there is one, at the end of the input."""
        lines: list[bytes | OverlongInput] = []
        self._end(lines)
        return lines

    def _hold(self, piece: bytes) -> None:
        if self._over is not None:
            self._last = (self._last + piece)[-ENDS_BYTES:]
            return
        self._held += piece
        if len(self._held) > self._limit + 1:  # one for the carriage return
            self._over = bytes(self._held[:ENDS_BYTES])
            self._last = bytes(self._held[-ENDS_BYTES:])
            self._held = bytearray()

    def _end(self, lines: list[bytes | OverlongInput]) -> None:
        line = bytes(self._held).strip(b" \t\r") if self._held else b""
        if self._over is not None:
            lines.append(OverlongInput(glimpse(self._over, self._last)))
        elif len(line) > self._limit:
            lines.append(OverlongInput(glimpse(line, line)))
        elif line:
            lines.append(line)
        self._held = bytearray()
        self._over = None


class InputPipe:
    """Reader of `fd`, one piece ahead of the caller that takes the lines. `ended`: the end of the
    input was seen, perhaps before the last lines have been taken."""

    def __init__(self, fd: int, limit_bytes: int = LINE_BYTES_MAX) -> None:
        self._fd = fd
        self._cutter = InputCutter(limit_bytes)
        self._loop = asyncio.get_running_loop()
        self._wanted = threading.Semaphore(1)
        self._pieces: asyncio.Queue[bytes] = asyncio.Queue()  # of one
        self._paused = False
        self.ended = asyncio.Event()
        self._end = open_end(fd, writes=False)
        if self._end is None:
            threading.Thread(target=self._read, name="input", daemon=True).start()
        else:
            self._end.watch(self._loop, self._readable)

    async def lines(self) -> AsyncIterator[bytes | OverlongInput]:
        while data := await self._pieces.get():
            self._go_on()
            for line in self._cutter.feed(data):
                yield line
        for line in self._cutter.rest():
            yield line

    def close(self) -> None:
        """Stop reading; a thread that waits for the client goes on waiting."""
        end, self._end = self._end, None
        if end is not None:
            end.unwatch(self._loop)
            end.close()

    def _go_on(self) -> None:
        """Read the next piece, because the last one is taken."""
        if self._end is None:
            self._wanted.release()
        elif self._paused:
            self._paused = False
            self._end.watch(self._loop, self._readable)

    def _readable(self) -> None:
        end = self._end
        if end is None:
            return
        if not self._pieces.empty():
            self._paused = True
            end.unwatch(self._loop)
            return
        try:
            data = end.read()
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        self._on_data(data)
        if not data:
            self.close()

    def _read(self) -> None:
        """Read in a thread until the input ends."""
        data = b"-"
        while data:
            self._wanted.acquire()
            try:
                data = _patiently(self._fd, select.POLLIN, lambda: os.read(self._fd, READ_BYTES))
            except OSError:
                data = b""
            if not _tell(self._loop, partial(self._on_data, data)):
                return

    def _on_data(self, data: bytes) -> None:
        self._pieces.put_nowait(data)
        if not data:
            self.ended.set()


class Output:
    """Writer of lines to `fd`. `on_lost`: called when the client reads no more."""

    def __init__(
        self, fd: int, on_lost: Callable[[], None], limit_bytes: int = OUT_BYTES_MAX
    ) -> None:
        self._fd = fd
        self._on_lost = on_lost
        self._limit = limit_bytes
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()  # for the thread
        self._lines: list[bytes] = []  # for the loop
        self._current = memoryview(b"")
        self._flushing = False
        self._blocked = False
        self._waiting_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._lost = False
        self._end = open_end(fd, writes=True)
        if self._end is None:
            threading.Thread(target=self._write, name="output", daemon=True).start()

    def put(self, line: bytes) -> None:
        """Queue one line. A caller that can wait awaits `room` before it takes the next message."""
        if self._lost:
            return
        self._waiting_bytes += len(line) + 1
        self._empty.clear()
        if self._waiting_bytes > self._limit:
            self._room.clear()
        if self._end is None:
            self._queue.put(line + b"\n")
            return
        self._lines.append(line)
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)

    async def room(self) -> None:
        await self._room.wait()

    @property
    def full(self) -> bool:
        return not self._room.is_set()

    async def close(self, within_s: float) -> None:
        """Write the queued lines for at most `within_s` seconds, then stop."""
        try:
            async with asyncio.timeout(within_s):
                await self._empty.wait()
        except TimeoutError:
            pass
        self._lost = True
        self._queue.put(None)
        self._shut()

    def _flush(self) -> None:
        """Write until nothing is left, or until the client has to read first. All lines of one turn
        of the loop are written together."""
        end = self._end
        try:
            while end is not None and (self._current or self._lines):
                if not self._current:
                    lines, self._lines = self._lines, []
                    self._current = memoryview(b"\n".join(lines) + b"\n")
                wrote = end.write(self._current)
                self._current = self._current[wrote:]
                self._wrote(wrote)
            self._current = memoryview(b"")  # an empty part of a message would keep all of it
        except (BlockingIOError, InterruptedError):
            if end is not None and not self._blocked:
                self._blocked = True
                end.watch(self._loop, self._flush)
            return
        except OSError:
            self._shut()
            self._on_write_error()
            return
        self._flushing = False
        self._unblock()

    def _unblock(self) -> None:
        if self._blocked and self._end is not None:
            self._end.unwatch(self._loop)
        self._blocked = False

    def _shut(self) -> None:
        self._unblock()
        end, self._end = self._end, None
        if end is not None:
            end.close()
        self._lines.clear()
        self._current = memoryview(b"")

    def _write(self) -> None:
        """Write the queued lines in a thread."""
        while (line := self._queue.get()) is not None:
            size = len(line)
            try:
                remaining = memoryview(line)
                while remaining:
                    wrote = _patiently(
                        self._fd, select.POLLOUT, partial(os.write, self._fd, remaining)
                    )
                    remaining = remaining[wrote:]
            except OSError:
                _tell(self._loop, self._on_write_error)
                return
            if not _tell(self._loop, partial(self._wrote, size)):
                return

    def _wrote(self, size: int) -> None:
        self._waiting_bytes -= size
        if self._waiting_bytes <= self._limit:
            self._room.set()
        if not self._waiting_bytes:
            self._empty.set()

    def _on_write_error(self) -> None:
        self._lost = True
        self._room.set()
        self._empty.set()
        self._on_lost()


async def run_in_thread(function: Callable[[], T]) -> T:
    """Return the result of a call that may block, from a thread that does not hold up the end of
    the process."""
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


def _patiently(fd: int, event: int, call: Callable[[], T]) -> T:
    """Return the result of a call that is to wait for `fd`, also if another process made `fd`
    non-blocking for all that have it, as shells and other programs on a terminal do. Raises
    OSError."""
    while True:
        try:
            return call()
        except BlockingIOError:
            ready = select.poll()
            ready.register(fd, event)
            ready.poll()


def _tell(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> bool:
    """Run `callback` in the loop. Return False if the loop is closed."""
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        return False
    return True
