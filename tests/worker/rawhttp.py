"""A raw HTTP client for tests: it sends exactly these bytes and reads what really comes back."""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import uvloop

from metamcp_worker.ipc import codec

WAIT_S = 30.0


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return codec.value(self.body)

    @property
    def message(self) -> str:
        """Of a JSON-RPC error."""
        text = self.json["error"]["message"]
        assert isinstance(text, str)
        return text

    @property
    def outcome(self) -> tuple[int, int]:
        """The HTTP status, and the code of a JSON-RPC error or 0."""
        error: dict[str, Any] = self.json.get("error", {}) if self.body else {}
        return self.status, error.get("code", 0)


class Client:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._events = b""
        self.event_ids: list[str] = []
        """Of the events that were read, those without data included."""

    @classmethod
    async def connect(cls, port: int, address: str = "127.0.0.1") -> "Client":
        """A connection from this address of loopback."""
        return cls(
            *await asyncio.open_connection(
                "127.0.0.1", port, limit=32 * 1024 * 1024, local_addr=(address, 0)
            )
        )

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    async def drain(self) -> None:
        await self._writer.drain()

    async def head(self) -> Reply:
        """The next answer without its body."""
        lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        fields = (line.partition(":") for line in lines[1:-2])
        headers = {name.lower(): value.strip() for name, _, value in fields}
        return Reply(int(lines[0].split(" ")[1]), headers, b"")

    async def reply(self) -> Reply:
        head = await self.head()
        length = int(head.headers.get("content-length", "0"))
        return Reply(head.status, head.headers, await self._reader.readexactly(length))

    async def ask(self, data: bytes) -> Reply:
        self.send(data)
        return await self.reply()

    async def chunk(self) -> bytes:
        """One chunk of a chunked body; empty at its end."""
        size = int(await self._reader.readuntil(b"\r\n"), 16)
        return (await self._reader.readexactly(size + 2))[:-2]

    async def event(self) -> Any:
        """The next message of an event stream; None at its end."""
        while b"\n\n" not in self._events:
            chunk = await self.chunk()
            if not chunk:
                return None
            self._events += chunk
        event, _, self._events = self._events.partition(b"\n\n")
        lines = event.split(b"\n")
        self.event_ids += [line[4:].decode() for line in lines if line.startswith(b"id: ")]
        data = [line for line in lines if line.startswith(b"data: ") and len(line) > 6]
        return codec.value(data[0][6:]) if data else await self.event()

    @property
    def ended(self) -> bool:
        """The other side has closed, and all that it sent was read."""
        return self._reader.at_eof()

    async def closed(self) -> bytes:
        """What still comes, once the other side has closed."""
        try:
            return await self._reader.read()
        except ConnectionResetError:
            return b""

    def half_close(self) -> None:
        self._writer.write_eof()

    async def close(self) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


def post(
    body: bytes, *headers: str, path: str = "/mcp", method: str = "POST", host: str = "localhost"
) -> bytes:
    """A request with everything that the policy asks for. `headers`: whole lines; one with the name
    of a default replaces it."""
    lines = {
        "host": f"Host: {host}",
        "content-type": "Content-Type: application/json",
        "accept": "Accept: application/json, text/event-stream",
        "content-length": f"Content-Length: {len(body)}",
    }
    names = {header.partition(":")[0].lower() for header in headers}
    kept = [line for name, line in lines.items() if name not in names]
    head = "\r\n".join([f"{method} {path} HTTP/1.1", *kept, *filter(_filled, headers)])
    return head.encode("latin-1") + b"\r\n\r\n" + body


def _filled(header: str) -> bool:
    """A header without a value only takes the default away."""
    return bool(header.partition(":")[2])


def listener() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    return sock


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run on the loop that workers have, bounded."""

    async def bounded() -> None:
        async with asyncio.timeout(3 * WAIT_S):
            await main()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(bounded())


async def until(fact: Callable[[], bool]) -> None:
    """Give the loop turns until this is so; the timeout around it bounds the wait."""
    while not fact():
        await asyncio.to_thread(_one_turn)


def _one_turn() -> None:
    """Enough to let the loop and its sockets get on."""
