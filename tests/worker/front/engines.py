"""The process of the engine, played by the test: the far end of a real socket."""

import asyncio
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Raw, Struct, json

from metamcp_worker.ipc.engine_runs import (
    FRAME,
    Done,
    EngineOrder,
    FrontHello,
    HostAsk,
    HostDone,
    HostDrop,
    Kind,
    Leave,
    OrderProgress,
    RunOwner,
)

T = TypeVar("T", bound=Struct)
_read = json.Decoder(FrontHello | EngineOrder | Leave | HostDone).decode
OWNER = RunOwner("default", "local", "default")


class Engine:
    """Takes the connections of a front at `path`, the newest one counts."""

    def __init__(self, folder: Path) -> None:
        self.path = str(folder / "engine.sock")
        self.connections = 0
        self._calls = 0
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
        """Take a connection of the front, which begins with its name."""
        self._open = await self._streams.get()
        assert isinstance(await self._next(), FrontHello)

    async def read(self, kind: type[T]) -> T:
        """The next message of the front, which is of this kind."""
        if self._open is None:
            await self.meet()
        found = await self._next()
        assert isinstance(found, kind), found
        return found

    async def _next(self) -> Struct:
        assert self._open is not None
        reader, _ = self._open
        (size,) = FRAME.unpack(await reader.readexactly(FRAME.size))
        found: Struct = _read(await reader.readexactly(size))
        return found

    def write(self, *messages: HostAsk | HostDrop | OrderProgress | Done) -> None:
        assert self._open is not None
        bodies = [json.encode(one) for one in messages]
        self._open[1].write(b"".join(FRAME.pack(len(body)) + body for body in bodies))

    def asked(self, kind: Kind, name: str = "", **members: Any) -> int:
        """A run asks for this; the number of the request."""
        self._calls += 1
        for raw in ("arguments", "meta"):
            members[raw] = Raw(json.encode(members.get(raw, {})))
        owner = members.pop("owner", OWNER)
        self.write(HostAsk(call=self._calls, owner=owner, kind=kind, name=name, **members))
        return self._calls

    async def asks(self, kind: Kind, name: str = "", **members: Any) -> HostDone:
        """A run asks for this; what it gets."""
        number = self.asked(kind, name, **members)
        reply = await self.read(HostDone)
        assert reply.call == number
        return reply

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
