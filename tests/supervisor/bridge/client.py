"""A client of the bridge inside the test: the other ends of its pipes."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any

from metamcp_supervisor.bridge.run import Bridge
from metamcp_worker.ipc.frames import MESSAGE_BYTES


class Client:
    """The other ends of the bridge's pipes. `location`: where the gateway is, when asked for;
    `pair`: makes one of them, first the end to read from."""

    def __init__(self, url: str, pair: Callable[[], tuple[int, int]] = os.pipe) -> None:
        ours, self._stdin = pair()
        self._stdout, theirs = pair()
        errors, stderr = os.pipe()
        self._owned = [ours, theirs, stderr]
        self.location = url
        self.out = asyncio.StreamReader(limit=2 * MESSAGE_BYTES)
        self.err = asyncio.StreamReader()
        self.bridge = Bridge(
            url, lambda: self.location, remedy="Do it.", fd_in=ours, fd_out=theirs, fd_err=stderr
        )
        self._ends = [(self.out, self._stdout), (self.err, errors)]
        self._transports: list[asyncio.ReadTransport] = []
        self.running = asyncio.ensure_future(self.bridge.run())

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        for reader, fd in self._ends:
            protocol = partial(asyncio.StreamReaderProtocol, reader)
            transport, _ = await loop.connect_read_pipe(protocol, os.fdopen(fd, "rb", 0))
            self._transports.append(transport)

    def say(self, *lines: bytes) -> None:
        os.write(self._stdin, b"".join(one + b"\n" for one in lines))

    async def hear(self) -> Any:
        return json.loads(await self.out.readuntil(b"\n"))

    def hang_up(self) -> None:
        os.close(self._stdin)
        self._stdin = -1

    @property
    def unchanged(self) -> bool:
        """Do the bridge's ends still block everybody else who has them?"""
        return all(map(os.get_blocking, self._owned))

    def hold(self, *, on: bool) -> None:
        """Read nothing for now, or go on."""
        (self._transports[0].pause_reading if on else self._transports[0].resume_reading)()

    def stop_reading(self) -> None:
        self._transports[0].close()

    async def close(self) -> None:
        if self._stdin >= 0:
            self.hang_up()
        self.bridge.stop()
        await self.running
        for fd in self._owned:
            os.close(fd)
        for transport in self._transports:
            transport.close()


@contextlib.asynccontextmanager
async def connected(
    url: str, pair: Callable[[], tuple[int, int]] = os.pipe
) -> AsyncGenerator[Client]:
    client = Client(url, pair)
    await client.open()
    try:
        yield client
    finally:
        await client.close()
