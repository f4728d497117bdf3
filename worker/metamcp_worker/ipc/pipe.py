"""Frames over one end of a pipe, from the event loop.

Owns: reading, coalesced writing (all frames of one turn of the loop leave as one write), the
bounded queue, and noticing that the other side is gone. Never: the meaning of a frame.

Both ends are the two halves of `multiprocessing.Pipe()`: an AF_UNIX stream pair whose descriptor
the loop owns; `recv_bytes` would hold the whole loop while a large frame trickles in.
"""

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from metamcp_worker.ipc.errors import PipeFull
from metamcp_worker.ipc.frame_bytes import FrameCutter, parts
from metamcp_worker.ipc.frames import BODY_BYTES_MAX, Frame

QUEUE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Maximum bytes that wait for a peer that does not read. A new frame counts as BODY_BYTES_MAX at
most, so that a larger answer of a server still fits; there is one such answer at a time."""
APART_BYTES: Final = 64 * 1024
"""Bytes from which head and body are written as two pieces; copying a smaller body behind its head
is cheaper."""


class Pipe(asyncio.Protocol):
    """End of a pipe. `on_frame` is called for each frame, `on_read` when all frames of one read
    have been passed to it, `on_gone` exactly once at the end."""

    def __init__(
        self,
        on_frame: Callable[[Frame], None],
        on_gone: Callable[[str], None] | None = None,
        on_read: Callable[[], None] | None = None,
    ) -> None:
        self._on_frame = on_frame
        self._on_gone = on_gone
        self._on_read = on_read
        self._cutter = FrameCutter()
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._unsent_bytes = 0
        """Maximum bytes that the transport still holds of earlier turns of the loop. While frames
        wait here, it gets no more."""
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

    @classmethod
    async def open(
        cls,
        fd: int,
        on_frame: Callable[[Frame], None],
        on_gone: Callable[[str], None] | None = None,
        on_read: Callable[[], None] | None = None,
    ) -> "Pipe":
        """Take over descriptor `fd`, the end of a `multiprocessing.Pipe()`."""
        sock = socket.socket(fileno=fd)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        made = partial(cls, on_frame, on_gone, on_read)
        _, pipe = await loop.create_unix_connection(made, sock=sock)
        return pipe

    @property
    def is_closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def queued_bytes(self) -> int:
        """Bytes that the other side has not taken yet."""
        waiting = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._waiting_bytes + waiting

    def send(self, frame: Frame, reserve_bytes: int = 0) -> int:
        """Queue one frame and return how many bytes wait then. `reserve_bytes`: part of the queue
        that this frame must leave free. Raises PipeFull or TooLarge. On a closed pipe, do nothing:
        `on_gone` notifies the owner."""
        waiting = self._waiting
        if not waiting and not self._begin_turn():
            return 0
        head, body = parts(frame)
        size = len(head) + len(body)
        queued = self._unsent_bytes + self._waiting_bytes
        if queued + size + reserve_bytes > QUEUE_BYTES_MAX:
            self._check_room(queued + reserve_bytes, size)
        if size >= APART_BYTES:
            self._write_apart(head, body)
        else:
            if not waiting:
                self._loop.call_soon(self.flush)
            waiting.append(head + body)
            self._waiting_bytes += size
        return queued + size

    def flush(self) -> None:
        """Write the frames that wait now, not at the end of this turn of the loop."""
        if self._waiting and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._waiting))
        self._waiting.clear()
        self._waiting_bytes = 0

    def pause(self) -> None:
        """Stop reading: back-pressure towards the other side."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Send what waits, then close. No frame is passed on any more. `on_gone` follows."""
        self._on_frame = _ignore
        if self._transport is not None and not self._transport.is_closing():
            self.flush()
            self._transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's, so no isinstance here.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=QUEUE_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        cutter, on_frame = self._cutter, self._on_frame
        for frame in cutter.feed(data):
            on_frame(frame)
        if self._on_read is not None:
            self._on_read()
        if cutter.broken is not None and self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0
        on_gone, self._on_gone = self._on_gone, None
        if on_gone is not None:
            broken = self._cutter.broken or exc
            on_gone(str(broken) if broken else "closed")

    def _begin_turn(self) -> bool:
        """Look how much the transport holds. Return False if it takes no more frames."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        self._unsent_bytes = transport.get_write_buffer_size()
        return True

    def _check_room(self, queued: int, size: int) -> None:
        if queued + min(size, BODY_BYTES_MAX) > QUEUE_BYTES_MAX:
            raise PipeFull("the queue of this pipe is full")

    def _write_apart(self, head: bytes, body: bytes) -> None:
        self.flush()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines((head, body))


def _ignore(frame: Frame) -> None:
    """Take a frame that came after the end."""
