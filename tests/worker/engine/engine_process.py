"""The true process of the engine, and a front that is connected to it."""

import asyncio
import itertools
import os
import signal
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from msgspec import Raw, structs

from metamcp_worker.engine.models_io import FrontHost
from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.engine_runs import (
    FRAME,
    AbandonOrder,
    EngineOn,
    EngineOrder,
    EngineSettings,
    FrontHello,
    HostAsk,
    HostDone,
    HostDrop,
    Method,
    OrderDone,
    OrderProgress,
)
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.errors import PeerGone
from tests import programs
from tests.worker.engine.notes_front import OWNER

WAIT_S = 60.0
_read = codec.reader(HostAsk | HostDrop | OrderProgress | OrderDone)


class EngineProcess:
    """The process, and the connector to it."""

    def __init__(self, spec: EngineOn) -> None:
        self._acceptor, self.connector = packets.acceptor()
        self._control, theirs = packets.pair()
        self.process = programs.Worker("engine", theirs)
        self.configure(spec, self._acceptor.fileno())

    def configure(self, spec: EngineOn, *fds: int) -> None:
        blob = packets.blob(codec.dump(spec))
        packets.send(self._control, messages.pack(EngineSettings()), [blob, *fds])
        os.close(blob)

    def stop(self) -> int:
        with suppress(OSError, PeerGone):
            packets.send(self._control, messages.pack(messages.Stop(grace_s=0)))
        self._control.close()
        self._acceptor.close()
        self.connector.close()
        return self.process.wait(WAIT_S)


@contextmanager
def engine(spec: EngineOn) -> Generator[EngineProcess, None, None]:
    running = EngineProcess(spec)
    try:
        yield running
    finally:
        with suppress(ProcessLookupError):
            os.kill(running.process.pid, signal.SIGCONT)
        assert running.stop() in (0, -signal.SIGKILL)


class SocketFront:
    """Connection of a front, whose requests `notes` answers. `told`: progress of all orders;
    `ended`: what ended each order."""

    def __init__(
        self, notes: FrontHost, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._notes = notes
        self._reader = reader
        self._writer = writer
        self._asked: dict[int, asyncio.Task[None]] = {}
        self._numbers = itertools.count(1)
        self._ends: dict[int, asyncio.Future[OrderDone]] = {}
        self.told: list[OrderProgress] = []

    def send(self, message: Message) -> None:
        body = codec.dump(message)
        self._writer.write(FRAME.pack(len(body)) + body)

    def begin(self, method: Method, params: dict[str, Any], **fields: Any) -> int:
        """Give an order and return its id."""
        number = next(self._numbers)
        self._ends[number] = asyncio.get_running_loop().create_future()
        raw = Raw(codec.dump(params))
        self.send(
            EngineOrder(id=number, method=method, owner=OWNER, params=raw, progress=True, **fields)
        )
        return number

    async def end(self, number: int) -> OrderDone:
        async with asyncio.timeout(WAIT_S):
            return await self._ends[number]

    async def order(self, method: Method, params: dict[str, Any], **fields: Any) -> OrderDone:
        return await self.end(self.begin(method, params, **fields))

    def leave(self, number: int) -> None:
        self.send(AbandonOrder(id=number))

    async def serve(self) -> None:
        """Take messages until the connection ends."""
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                (size,) = FRAME.unpack(await self._reader.readexactly(FRAME.size))
                self._take(await self._reader.readexactly(size))

    def _take(self, body: bytes) -> None:
        match _read(body):
            case HostAsk() as ask:
                self._asked[ask.call] = asyncio.create_task(self._answer(ask))
            case HostDrop(call=call):
                self._asked[call].cancel()
            case OrderDone() as done:
                self._ends[done.id].set_result(done)
            case OrderProgress() as progress:
                self.told.append(progress)
            case _:
                raise AssertionError

    async def _answer(self, ask: HostAsk) -> None:
        found: HostDone = await self._notes.ask(
            ask.owner, ask.kind, name=ask.name, arguments=bytes(ask.arguments), order=ask.order
        )
        self.send(structs.replace(found, call=ask.call))


@asynccontextmanager
async def connected(connector: socket.socket, notes: FrontHost) -> AsyncGenerator[SocketFront]:
    reader, writer = await asyncio.open_unix_connection(sock=packets.connect(connector))
    front = SocketFront(notes, reader, writer)
    front.send(FrontHello(front="front-1"))
    serving = asyncio.create_task(front.serve())
    try:
        yield front
    finally:
        writer.close()
        await serving
