"""Bodies of answers as they come, with bounded memory and under back-pressure.

Owns: the gate that a pause closes, how many large bodies are read at once. Never: the contents of a
body, connections.

Many answers may come at once, and each may have the size of the largest message. So every body may
grow until it is large, but only a few may grow beyond that; the others wait in the buffers of the
system.
"""

import asyncio
import contextlib
from types import TracebackType
from typing import Self

from metamcp_worker.http.fetch import Broken, Response
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.frames import MESSAGE_BYTES

LARGE_BYTES = 64 * 1024
"""Maximum bytes held of an unfinished message without a place; a larger message needs a place."""
LARGE_AT_ONCE_MAX = 3
"""Maximum number of messages that grow beyond LARGE_BYTES at the same time."""


class Intake:
    """Limits that all answers of one server share. `message_bytes`: maximum bytes of one of its
    messages."""

    def __init__(self, message_bytes: int = MESSAGE_BYTES) -> None:
        self.message_bytes = message_bytes
        self.places = asyncio.Semaphore(LARGE_AT_ONCE_MAX)
        self._open = asyncio.Event()
        self._open.set()

    def pause(self) -> None:
        """Stop reading for now; the buffers on the server's side fill up."""
        self._open.clear()

    def resume(self) -> None:
        self._open.set()

    async def opened(self) -> None:
        if not self._open.is_set():
            await self._open.wait()


class Body:
    """The body of one answer. Use it in `async with`, which closes the answer."""

    def __init__(self, intake: Intake, response: Response) -> None:
        self._intake = intake
        self._response = response
        self._held = 0
        self._has_place = False

    async def piece(self, *, wait_s: float | None) -> bytes:
        """Return the next piece, empty at the end. Raises Broken."""
        await self._intake.opened()
        if self._held > LARGE_BYTES and not self._has_place:
            await self._intake.places.acquire()
            self._has_place = True
        data = await self._response.piece(wait_s=wait_s)
        self._held += len(data)
        return data

    async def whole(self, *, wait_s: float, limit_bytes: int = 0) -> bytes:
        """Return the whole body, of at most `limit_bytes` or, if that is 0, of the largest message.
        `wait_s`: maximum seconds for each piece. Raises Broken and TooLarge."""
        limit_bytes = limit_bytes or self._intake.message_bytes
        length = self._response.header("content-length")
        if length.isdecimal() and len(length) < 20 and int(length) > limit_bytes:
            raise TooLarge("the answer", int(length), limit_bytes)
        pieces: list[bytes] = []
        while data := await self.piece(wait_s=wait_s):
            if self._held > limit_bytes:
                raise TooLarge("the answer", self._held, limit_bytes)
            pieces.append(data)
        return b"".join(pieces)

    async def ended(self, *, wait_s: float) -> None:
        """Wait at most `wait_s` for the end of the body, so that the connection can be used
        again."""
        with contextlib.suppress(Broken, TimeoutError):
            async with asyncio.timeout(wait_s):
                while await self._response.piece(wait_s=None):
                    pass

    def holds(self, size_bytes: int) -> None:
        """Note how many of the received bytes are still kept, because their message is
        unfinished."""
        self._held = size_bytes
        if self._has_place and size_bytes <= LARGE_BYTES:
            self._has_place = False
            self._intake.places.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.holds(0)
        await self._response.close()
