"""Connection of a front to a process that works for it, such as the sandboxes.

Owns: opening the connection, messages from before it is there, cutting what arrives into frames,
their limit, what waits to be sent. Never: messages, when the connection is opened again.
"""

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import cast

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.code_runs import FRAME, FRAME_BYTES_MAX
from metamcp_worker.ipc.envelope import Message

log = logging.getLogger("metamcp.front")


def _pack_frame(message: Message) -> bytes:
    body = codec.dump(message)
    return FRAME.pack(len(body)) + body


class FrameLink:
    """Connection to a process. `peer`: words for it; `frame(body)`: called with each message; a
    `frame` that raises codec.Malformed ends the connection. `lost()`: called when a connection
    ended or could not be opened, not after `close`; `connect()`: as `packets.connect`."""

    def __init__(
        self,
        peer: str,
        frame: Callable[[bytes], None],
        lost: Callable[[], None],
        connect: Callable[[], socket.socket],
    ) -> None:
        self._peer = peer
        self._frame = frame
        self._lost = lost
        self._connect = connect
        self._stream: FrameStream | None = None
        self._opening: asyncio.Task[None] | None = None
        self._early: list[bytes] = []
        """Frames from before the connection is there."""

    @property
    def is_open(self) -> bool:
        """Whether the connection is there, or is being opened."""
        return self._stream is not None or self._opening is not None

    @property
    def unsent(self) -> int:
        """Bytes that the other side has not taken yet."""
        return 0 if self._stream is None else self._stream.unsent

    def send(self, message: Message) -> None:
        """Send a message, on a new connection if there is none."""
        frame = _pack_frame(message)
        if self._stream is not None:
            self._stream.write(frame)
        else:
            if not self.is_open:
                self.open()
            self._early.append(frame)

    def open(self, hello: Message | None = None) -> None:
        """Open the connection, unless it is there. `hello`: goes before all other messages."""
        if not self.is_open:
            self._early = [] if hello is None else [_pack_frame(hello)]
            self._opening = asyncio.get_running_loop().create_task(self._open())

    def close(self) -> None:
        """Close the connection; what was sent before still leaves."""
        opening, self._opening = self._opening, None
        if opening is not None:
            opening.cancel()
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()

    async def _open(self) -> None:
        loop = asyncio.get_running_loop()
        stream = FrameStream(self._peer, self._frame, self._on_closed)
        try:
            await loop.create_unix_connection(lambda: stream, sock=self._connect())
        except OSError as error:
            log.error("%s cannot be reached: %s", self._peer, error)
            self._opening = None
            self._lost()
            return
        self._opening = None
        self._stream = stream
        early, self._early = self._early, []
        for frame in early:
            stream.write(frame)

    def _on_closed(self, stream: "FrameStream") -> None:
        if stream is self._stream:
            self._stream = None
            self._lost()


class FrameStream(asyncio.Protocol):
    """Frames of one connection, on either side. `peer`: words for the other side; `frame(body)`: as
    in `FrameLink`; `closed(stream)`: called when the connection has ended."""

    def __init__(
        self,
        peer: str,
        frame: Callable[[bytes], None],
        closed: Callable[["FrameStream"], None],
    ) -> None:
        self._peer = peer
        self._frame = frame
        self._on_closed = closed
        self._transport: asyncio.Transport | None = None
        self._data = bytearray()

    @property
    def unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, message: Message) -> None:
        """Send a message, unless the connection has ended."""
        self.write(_pack_frame(message))

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
                self._on_malformed(f"a frame of {size} bytes")
                return
            if len(self._data) < end:
                break
            body = bytes(self._data[start + FRAME.size : end])
            start = end
            try:
                self._frame(body)
            except codec.Malformed as error:
                self._on_malformed(str(error))
                return
        del self._data[:start]

    def _on_malformed(self, reason: str) -> None:
        log.error("%s sent what cannot be read: %s", self._peer, reason)
        self._data.clear()
        if self._transport is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_closed(self)
