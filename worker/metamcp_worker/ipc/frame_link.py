"""Frames between a front and a process that works for it, such as the sandboxes.

Owns: cutting what arrives into frames, their limit, what waits to be sent. Never: messages,
opening a connection.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.code_runs import FRAME, FRAME_BYTES_MAX
from metamcp_worker.ipc.codec import Message

log = logging.getLogger("metamcp.front")


def packed(message: Message) -> bytes:
    """Return the frame of a message."""
    body = codec.dump(message)
    return FRAME.pack(len(body)) + body


class FrameLink(asyncio.Protocol):
    """Connection to a process. `peer`: words for it; `frame(body)`, `closed(link)`: called with
    each message, and at the end. A `frame` that raises codec.Malformed ends the connection."""

    def __init__(
        self,
        peer: str,
        frame: Callable[[bytes], None],
        closed: Callable[["FrameLink"], None],
    ) -> None:
        self._peer = peer
        self._frame = frame
        self._closed = closed
        self._transport: asyncio.Transport | None = None
        self._data = bytearray()

    @property
    def unsent(self) -> int:
        """Bytes that the other side has not taken yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def write(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.write(frame)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        self._data += data
        start = 0
        while len(self._data) - start >= FRAME.size:
            (size,) = FRAME.unpack_from(self._data, start)
            end = start + FRAME.size + size
            if size > FRAME_BYTES_MAX:
                self._broken(f"a frame of {size} bytes")
                return
            if len(self._data) < end:
                break
            body = bytes(self._data[start + FRAME.size : end])
            start = end
            try:
                self._frame(body)
            except codec.Malformed as error:
                self._broken(str(error))
                return
        del self._data[:start]

    def _broken(self, why: str) -> None:
        log.error("%s sent what cannot be read: %s", self._peer, why)
        self._data.clear()
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._closed(self)
