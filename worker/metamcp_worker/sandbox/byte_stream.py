"""Stream socket on the event loop, of a front or of a guest.

Owns: reading, writing as much as there is room for, the end. Never: frames, and what they mean.

A transport of the event loop would do the same, and opening one takes a turn of the loop; a guest
is to have its code in the turn in which the run comes.
"""

import asyncio
import socket
from collections.abc import Callable

READ_BYTES = 256 * 1024
UNSENT_BYTES_MAX = 256 * 1024 * 1024
"""Maximum bytes that wait for a peer that does not read; with more, the peer counts as gone."""


class ByteStream:
    """`on_data(data)` gets bytes, `on_end()` is called once when the other side has ended."""

    def __init__(
        self, sock: socket.socket, on_data: Callable[[bytes], None], on_end: Callable[[], None]
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._on_data, self._on_end = on_data, on_end
        self._unsent = bytearray()
        self._open = True
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._readable)

    @property
    def unsent(self) -> int:
        """Number of bytes that wait for the other side to read."""
        return len(self._unsent)

    def write(self, data: bytes) -> None:
        """Send these bytes after those that wait. Bytes for a peer that has ended are dropped."""
        if not self._open or not data:
            return
        if self._unsent:
            self._unsent += data
        elif rest := data[self._sent(data) :]:
            self._unsent += rest
            self._loop.add_writer(self._sock, self._writable)
        if len(self._unsent) > UNSENT_BYTES_MAX:
            self._ended()

    def close(self) -> None:
        """Close without a call of `on_end`."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
            self._unsent.clear()
            self._sock.close()

    def _sent(self, data: bytes | bytearray) -> int:
        """Send what fits; return how much. An error is left to reading, which finds it too."""
        try:
            return self._sock.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            return len(data)

    def _writable(self) -> None:
        del self._unsent[: self._sent(self._unsent)]
        if not self._unsent:
            self._loop.remove_writer(self._sock)

    def _readable(self) -> None:
        try:
            data = self._sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._on_data(data)
        else:
            self._ended()

    def _ended(self) -> None:
        if self._open:
            self.close()
            self._on_end()
