"""HTTP answer that comes piece by piece, from any kind of connection.

Owns: the methods that every such answer has: the media type, the whole body within a limit, `async
with`. Never: a connection, the meaning of a status.
"""

import abc
from typing import Self

from metamcp_worker.ipc import frames
from metamcp_worker.ipc.errors import TooLarge


class Incoming(abc.ABC):
    """Head of an answer, and its body as it comes. Close it, or use it in `async with`.

    Closing before the end closes the connection, so that the server learns of it.
    """

    @property
    @abc.abstractmethod
    def origin(self) -> str:
        """Name of the answering server, for sentences."""

    @abc.abstractmethod
    def header(self, name: str) -> str:
        """Return a header's value without blanks around it, or an empty string. `name` in lower
        case."""

    @abc.abstractmethod
    async def piece(self, *, wait_s: float | None) -> bytes:
        """Return the next piece of the body; empty at its end. Raises Broken.

        `wait_s` None is for streams that may be silent for days; the caller bounds the wait.
        """

    @abc.abstractmethod
    async def close(self) -> None: ...

    @property
    def media_type(self) -> str:
        """Media type of the content, in lower case, without parameters."""
        return self.header("content-type").partition(";")[0].strip().lower()

    async def read(self, *, wait_s: float, limit_bytes: int = frames.BODY_BYTES_MAX) -> bytes:
        """Read the whole body. `wait_s` is for each piece. Raises Broken and TooLarge."""
        length = self.header("content-length")
        if length.isdecimal() and len(length) < 20 and int(length) > limit_bytes:
            raise TooLarge(f"an answer of {self.origin}", int(length), limit_bytes)
        pieces: list[bytes] = []
        size = 0
        while data := await self.piece(wait_s=wait_s):
            size += len(data)
            if size > limit_bytes:
                raise TooLarge(f"an answer of {self.origin}", size, limit_bytes)
            pieces.append(data)
        return b"".join(pieces)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
