"""A process that works for a front, played by the test: the far end of a real socket."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct, json

from metamcp_worker.ipc.code_runs import FRAME

T = TypeVar("T", bound=Struct)


class PlayedProcess:
    """Takes the connections of a front at `path`, the newest one counts. `decode`: reads what the
    front says."""

    def __init__(self, path: str, decode: Callable[[bytes], Struct]) -> None:
        self.path = path
        self.connections = 0
        self._decode = decode
        self._server: asyncio.Server | None = None
        self._streams: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.Queue()
        )
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def listen(self) -> None:
        self._server = await asyncio.start_unix_server(self._met, self.path)

    def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._streams.put_nowait((reader, writer))

    async def meet(self) -> None:
        """Take a connection of the front."""
        self._open = await self._streams.get()

    async def read(self, kind: type[T]) -> T:
        """The next message of the front, which is of this kind."""
        if self._open is None:
            await self.meet()
        assert self._open is not None
        reader, _ = self._open
        (size,) = FRAME.unpack(await reader.readexactly(FRAME.size))
        found = self._decode(await reader.readexactly(size))
        assert isinstance(found, kind), found
        return found

    def write(self, *messages: Struct) -> None:
        bodies = [json.encode(one) for one in messages]
        self.raw(b"".join(FRAME.pack(len(body)) + body for body in bodies))

    def raw(self, data: bytes) -> None:
        assert self._open is not None
        self._open[1].write(data)

    def die(self) -> None:
        """This process is gone, and the next one takes the next connection."""
        assert self._open is not None
        self._open[1].transport.abort()
        self._open = None

    async def close(self) -> None:
        if self._open is not None:
            self._open[1].transport.abort()
        if self._server is not None:
            self._server.close()
