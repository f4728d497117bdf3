"""The way out for lines: a descriptor that is written from a thread.

Owns: the queue, its limit and the thread. Never: what a line looks like (`lines`, `up`).

Whoever reads may stop reading (`^S` on a terminal, a pager), or be gone, and a disk may be full:
the gateway goes on, and lines are lost.
"""

import contextlib
import os
import queue
import threading

from metamcp_supervisor import signals

LINES_MAX = 10_000
"""That wait to be written: seconds of the worst flood, a few megabytes."""
CLOSE_S_MAX = 2.0
"""For the last lines; then they are lost."""
FLUSH_S_MAX = 0.5
"""For those before another program takes over; everything else waits meanwhile."""


class Outlet:
    """Writes to descriptor `fd` until `close`. `lost`: how many lines were, since somebody set it
    to 0."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._queue: queue.Queue[bytes | threading.Event | None] = queue.Queue(LINES_MAX)
        self.lost = 0
        self._cut = False
        self._thread = threading.Thread(target=self._write, name="lines", daemon=True)
        self._thread.start()

    def put(self, data: bytes) -> None:
        try:
            self._queue.put_nowait(data)
        except queue.Full:
            self.lost += 1

    def flush(self) -> None:
        """Wait until all that was put is written, or FLUSH_S_MAX are over."""
        written = threading.Event()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(written)
            written.wait(FLUSH_S_MAX)

    def close(self) -> None:
        if self._thread.is_alive():
            try:
                self._queue.put(None, timeout=CLOSE_S_MAX)
            except queue.Full:
                return
            self._thread.join(CLOSE_S_MAX)

    def _write(self) -> None:
        signals.hold()
        while (data := self._queue.get()) is not None:
            if isinstance(data, threading.Event):
                data.set()
                continue
            try:
                self._write_whole(data)
            except OSError:
                self.lost += 1

    def _write_whole(self, data: bytes) -> None:
        """What comes after a line that was cut is on a line of its own. Raises OSError."""
        data = b"\n" * self._cut + data
        while data:
            data = data[os.write(self._fd, data) :]
            self._cut = bool(data)
