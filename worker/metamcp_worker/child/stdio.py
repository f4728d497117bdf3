"""Bytes in and out of a server's pipes, from the event loop.

Owns: reading without starving others, coalesced writing that never blocks, the bound on what waits
for a server that does not read. Never: lines, messages, processes.

The descriptors are used directly instead of through transports: then one wake-up is one read of
limited size whatever the server floods, and a pause takes effect at once.
"""

import asyncio
import os
from collections.abc import Callable

READ_BYTES = 64 * 1024
"""What a pipe holds; a longer read would let one noisy server keep the loop."""
WRITES_PER_TURN = 16
QUEUE_BYTES_MAX = 32 * 1024 * 1024
"""What may wait for a server that does not read; two of the largest messages."""
WRITE_S_MAX = 5.0
"""A server that takes nothing for so long is told no more calls until it reads again."""
DRAIN_BYTES_MAX = 1024 * 1024
"""What is still read of a pipe after the end of the process: pipes hold no more than this."""


class Reader:
    """Our end of a server's stdout or stderr."""

    def __init__(
        self, fd: int, on_data: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> None:
        self._fd = fd
        self._on_data = on_data
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._paused = False
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._readable)

    @property
    def closed(self) -> bool:
        return self._fd < 0

    def pause(self) -> None:
        """Back-pressure: the server blocks once its pipe is full."""
        if not self.closed and not self._paused:
            self._paused = True
            self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        if not self.closed and self._paused:
            self._paused = False
            self._loop.add_reader(self._fd, self._readable)

    def drain(self) -> None:
        """Read what is there now."""
        read = 0
        while not self.closed and read < DRAIN_BYTES_MAX:
            got = self._readable()
            if not got:
                return
            read += got

    def close(self) -> None:
        if not self.closed:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _readable(self) -> int:
        """One read; how many bytes it gave."""
        try:
            data = os.read(self._fd, READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            data = b""
        if data:
            self._on_data(data)
        else:
            self.close()
            self._on_end()
        return len(data)


class Writer:
    """Our end of a server's stdin. What one turn of the loop writes leaves as one write."""

    def __init__(self, fd: int, on_end: Callable[[], None]) -> None:
        self._fd = fd
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._current = memoryview(b"")
        self._scheduled = False
        self._blocked = False
        self._moved_at = 0.0
        os.set_blocking(fd, False)

    @property
    def closed(self) -> bool:
        return self._fd < 0

    @property
    def queued_bytes(self) -> int:
        return self._waiting_bytes + len(self._current)

    def stuck(self, now: float) -> bool:
        """Is the server not reading?"""
        late = self._blocked and now - self._moved_at > WRITE_S_MAX
        return late or self._waiting_bytes + len(self._current) > QUEUE_BYTES_MAX

    def write(self, line: bytes) -> bool:
        """Queue one line. False if it is lost: closed, or the queue is full."""
        if self._fd < 0 or self._waiting_bytes + len(self._current) > QUEUE_BYTES_MAX:
            return False
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)
        return True

    def close(self) -> None:
        """End of input for the server. What it does not take at once is dropped."""
        if not self.closed:
            self._flush()
        self._shut()

    def _flush(self) -> None:
        """Write until the pipe is full, or others should have their turn."""
        if self.closed:
            return
        self._scheduled = False
        moved = not self._blocked
        for _ in range(WRITES_PER_TURN):
            if not self._current:
                self._next()
            if not self._current:
                self._unblock()
                return
            try:
                wrote = os.write(self._fd, self._current)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                self._shut()
                self._on_end()
                return
            moved = True
            self._current = self._current[wrote:]
        if moved:
            self._moved_at = self._loop.time()
        if not self._blocked:
            self._blocked = True
            self._loop.add_writer(self._fd, self._flush)
        self._scheduled = True

    def _next(self) -> None:
        """All that waits is written as one."""
        self._current = memoryview(b"".join(self._waiting))
        self._waiting.clear()
        self._waiting_bytes = 0

    def _unblock(self) -> None:
        if self._blocked:
            self._blocked = False
            self._loop.remove_writer(self._fd)

    def _shut(self) -> None:
        if not self.closed:
            self._unblock()
            os.close(self._fd)
            self._fd = -1
        self._waiting.clear()
        self._waiting_bytes = 0
        self._current = memoryview(b"")
