"""A process that works for a front, played by the test: the far end of a real socket."""

import asyncio
import os
import socket
from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct, json

from metamcp_worker.ipc import packets
from metamcp_worker.ipc.code_runs import FRAME
from metamcp_worker.ipc.packets import Connectors

T = TypeVar("T", bound=Struct)


class PlayedProcess:
    """Takes the connections of a front, the newest one counts. `role`: its name; `decode`: reads
    what the front says."""

    def __init__(self, role: str, decode: Callable[[bytes], Struct]) -> None:
        self.role = role
        self.connections = 0
        self._decode = decode
        self._acceptor, self._connector = packets.acceptor()
        self._connectors = Connectors()
        self._socks: asyncio.Queue[socket.socket] = asyncio.Queue()
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    def attach(self, connectors: Connectors) -> None:
        """Let a front connect."""
        self._connectors = connectors
        connectors.attach(self.role, os.dup(self._connector.fileno()))
        asyncio.get_running_loop().add_reader(self._acceptor, self._met)

    def _met(self) -> None:
        self.connections += 1
        self._socks.put_nowait(packets.accept(self._acceptor))

    async def meet(self) -> None:
        """Take a connection of the front."""
        self._open = await asyncio.open_unix_connection(sock=await self._socks.get())

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

    def leave(self) -> None:
        """Take no more connections."""
        asyncio.get_running_loop().remove_reader(self._acceptor)
        self._acceptor.close()

    async def close(self) -> None:
        if self._open is not None:
            self._open[1].transport.abort()
        self._connectors.detach(self.role)
        if self._acceptor.fileno() >= 0:
            self.leave()
        while not self._socks.empty():
            self._socks.get_nowait().close()
        self._connector.close()
