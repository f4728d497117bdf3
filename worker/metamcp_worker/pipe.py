"""Frames over one end of a pipe, from the event loop.

Owns: reading, coalesced writing (what one loop tick sends leaves as one write), the bounded queue
and the news that the other side is gone. Never: the meaning of a frame.

Both ends are the two halves of `multiprocessing.Pipe()`: an AF_UNIX stream pair whose descriptor
the loop owns; `recv_bytes` would hold the whole loop while a large frame trickles in.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from metamcp_worker.errors import FrameBroken, PipeFull, TooLarge
from metamcp_worker.frames import Cutter, Frame, pack, unpack

QUEUE_BYTES_MAX = 64 * 1024 * 1024
"""What may wait for a peer that does not read; four of the largest frames."""


class Pipe(asyncio.Protocol):
    """One end of a pipe. `on_frame` is called for each frame, `on_gone` exactly once at the end."""

    def __init__(
        self, on_frame: Callable[[Frame], None], on_gone: Callable[[str], None] | None = None
    ) -> None:
        self._on_frame = on_frame
        self._on_gone = on_gone
        self._cutter = Cutter()
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._broken = ""

    @classmethod
    async def open(
        cls,
        fd: int,
        on_frame: Callable[[Frame], None],
        on_gone: Callable[[str], None] | None = None,
    ) -> "Pipe":
        """Take over descriptor `fd`, the end of a `multiprocessing.Pipe()`."""
        sock = socket.socket(fileno=fd)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        _, pipe = await loop.create_unix_connection(lambda: cls(on_frame, on_gone), sock=sock)
        return pipe

    @property
    def closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    @property
    def queued_bytes(self) -> int:
        """Bytes that the other side has not taken yet."""
        waiting = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return self._waiting_bytes + waiting

    def send(self, frame: Frame) -> None:
        """Queue one frame. Raises PipeFull or TooLarge; to a closed pipe it does nothing,
        because `on_gone` is what tells the owner."""
        if self.closed:
            return
        data = pack(frame)
        if self.queued_bytes + len(data) > QUEUE_BYTES_MAX:
            raise PipeFull("the queue of this pipe is full")
        if not self._waiting:
            self._loop.call_soon(self._flush)
        self._waiting.append(data)
        self._waiting_bytes += len(data)

    def pause(self) -> None:
        """Stop reading: back-pressure towards the other side."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Send what waits, then close. `on_gone` follows."""
        if self._transport is not None and not self._transport.is_closing():
            self._flush()
            self._transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not derive from asyncio's, so no isinstance here.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=QUEUE_BYTES_MAX)

    def data_received(self, data: bytes) -> None:
        try:
            for payload in self._cutter.feed(data):
                self._on_frame(unpack(payload))
        except (FrameBroken, TooLarge) as error:
            self._broken = str(error)
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.clear()
        self._waiting_bytes = 0
        on_gone, self._on_gone = self._on_gone, None
        if on_gone is not None:
            on_gone(self._broken or (str(exc) if exc else "closed"))

    def _flush(self) -> None:
        if self._waiting and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._waiting))
        self._waiting.clear()
        self._waiting_bytes = 0
