"""A small true HTTP server for tests: it reads one request and writes exactly what it is told."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    line: str
    headers: dict[str, str]
    body: bytes


class Wire:
    """One connection of a client, from the server's side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def request(self) -> Request | None:
        """The next request; None when the client has closed."""
        try:
            head = await self._reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        line, *fields = head.decode("latin-1").split("\r\n")[:-2]
        pairs = (field.partition(":") for field in fields)
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        body = await self._reader.readexactly(int(headers.get("content-length", "0")))
        return Request(line, headers, body)

    @property
    def lost(self) -> bool:
        """Is the connection over? What is written then goes nowhere, and at once."""
        return self._writer.transport.is_closing()

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        with contextlib.suppress(ConnectionError):
            await self._writer.drain()

    async def answer(self, body: bytes, *headers: str, status: str = "200 OK") -> None:
        lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
        await self.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)

    async def stream(self, *pieces: bytes) -> None:
        """The beginning of an answer whose end is the end of the connection."""
        await self.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n")
        for piece in pieces:
            await self.write(piece)

    async def closed(self) -> None:
        """Wait until the client closes."""
        with contextlib.suppress(ConnectionError):
            while await self._reader.read(65536):
                pass

    async def shut(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


@contextlib.asynccontextmanager
async def serving(
    script: Callable[[Wire], Awaitable[None]], port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncGenerator[str]:
    """A server whose every connection runs `script`; the URL of it."""
    tasks: set[asyncio.Task[None]] = set()

    async def converse(wire: Wire) -> None:
        try:
            await script(wire)
        finally:
            await wire.shut()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(converse(Wire(reader, writer)))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    limit = 32 * 1024 * 1024
    server = await asyncio.start_server(connected, "127.0.0.1", port, limit=limit, ssl=tls)
    try:
        scheme = "https" if tls else "http"
        yield f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
