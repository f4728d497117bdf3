"""The process of the sandboxes, played by the test: the far end of a real socket."""

import asyncio
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Raw, Struct, json

from metamcp_worker.ipc.code_runs import (
    FRAME,
    EndRun,
    HoldRun,
    HostCall,
    HostReply,
    RunEnded,
    StartRun,
)

T = TypeVar("T", bound=Struct)
_read = json.Decoder(StartRun | EndRun | HoldRun | HostReply).decode


class Sandboxes:
    """Takes the connections of a front at `path`, the newest one counts."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "code.sock")
        self.connections = 0
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

    async def read(self, kind: type[T]) -> T:
        """The next message of the front, which is of this kind."""
        if self._open is None:
            self._open = await self._streams.get()
        reader, _ = self._open
        (size,) = FRAME.unpack(await reader.readexactly(FRAME.size))
        found = _read(await reader.readexactly(size))
        assert isinstance(found, kind), found
        return found

    async def started(self) -> int:
        return (await self.read(StartRun)).run

    def write(self, *messages: HostCall | RunEnded) -> None:
        bodies = [json.encode(one) for one in messages]
        self.raw(b"".join(FRAME.pack(len(body)) + body for body in bodies))

    def raw(self, data: bytes) -> None:
        assert self._open is not None
        self._open[1].write(data)

    async def asks(self, run: int, number: int, name: str, **members: Any) -> HostReply:
        """The code makes this call; what it gets."""
        self.asked(run, number, name, **members)
        reply = await self.read(HostReply)
        assert (reply.run, reply.call) == (run, number)
        return reply

    def asked(self, run: int, number: int, name: str, **members: Any) -> None:
        kind = members.pop("kind", "call")
        arguments = Raw(json.encode(members.pop("arguments", {})))
        self.write(
            HostCall(run=run, call=number, kind=kind, name=name, arguments=arguments, **members)
        )

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
