"""One HTTP/1.1 connection of a soak's client: bytes out, bytes in, and when it was opened, whence.

Owns: requests, whole answers, streams of events as they come. Never: what an answer means, opening
another connection after one that broke.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

STREAM_BYTES_MAX = 8 * 1024 * 1024
CLOSE_S = 10.0
"""For the gateway to close a connection that we have closed on our side."""


class Broken(Exception):
    """The connection ended before the answer did."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def messages(self) -> list[dict[str, Any]]:
        """The JSON-RPC messages in it, be it JSON or a stream of events."""
        if not self.headers.get("content-type", "").startswith("text/event-stream"):
            return [json.loads(self.body)] if self.body else []
        return [json.loads(data) for _, data in events(self.body.split(b"\n"))]


def events(lines: list[bytes]) -> list[tuple[bytes, bytes]]:
    """(event, data) of each whole event that has data."""
    found: list[tuple[bytes, bytes]] = []
    name, data = b"", b""
    for raw in lines:
        line = raw.rstrip(b"\r")
        if line.startswith(b"event:"):
            name = line[6:].strip()
        elif line.startswith(b"data:"):
            data += line[5:].strip()
        elif not line:
            if data:
                found.append((name, data))
            name, data = b"", b""
    return found


class Wire:
    """`port`: ours, 0 before it is open; `opened`: when; `answers`: how many came."""

    def __init__(self, gateway_port: int) -> None:
        self._gateway_port = gateway_port
        self.port = 0
        self.opened = 0.0
        self.answers = 0
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    @property
    def is_open(self) -> bool:
        """As far as one can know: the other side may just be closing it."""
        return self._reader is not None and not self._reader.at_eof()

    async def open(self) -> None:
        """Raises Broken when it is refused."""
        self.drop()
        self.opened, self.port, self.answers = time.monotonic(), 0, 0
        try:
            self._reader, self._writer = await asyncio.open_connection(
                "127.0.0.1", self._gateway_port, limit=STREAM_BYTES_MAX
            )
        except OSError as error:
            raise Broken(f"refused: {error!r}") from None
        self.port = self._writer.get_extra_info("sockname")[1]

    def drop(self) -> None:
        """Away with it, now."""
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def finish(self) -> bytes:
        """No more requests; what the gateway still says before it closes its side too."""
        reader, writer = self._reader, self._writer
        if reader is None or writer is None:
            return b""
        rest = b""
        with contextlib.suppress(OSError, TimeoutError):
            writer.write_eof()
            async with asyncio.timeout(CLOSE_S):
                rest = await reader.read()
        self.drop()
        return rest

    async def request(
        self, method: str, path: str, headers: dict[str, str], body: bytes = b""
    ) -> Answer:
        """Raises Broken."""
        status, found = await self.begin(method, path, headers, body)
        try:
            whole = b"".join([piece async for piece in self.pieces(found)])
        except (OSError, EOFError) as error:
            raise self._broken(error) from None
        self.answers += 1
        if found.get("connection", "").lower() == "close":
            self.drop()
        return Answer(status, found, whole)

    async def begin(
        self, method: str, path: str, headers: dict[str, str], body: bytes = b""
    ) -> tuple[int, dict[str, str]]:
        """Status and headers of the answer. Raises Broken."""
        if not self.is_open:
            await self.open()
        reader, writer = self._reader, self._writer
        assert reader is not None
        assert writer is not None
        try:
            writer.write(self.bytes_of(method, path, headers, body))
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
        except (OSError, EOFError) as error:
            raise self._broken(error) from None
        first, *lines = head.decode("latin-1").rstrip().split("\r\n")
        pairs = (line.split(":", 1) for line in lines)
        return int(first.split()[1]), {name.lower(): value.strip() for name, value in pairs}

    def bytes_of(self, method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
        host = f"127.0.0.1:{self._gateway_port}"
        whole = {"Host": host, **headers, "Content-Length": str(len(body))}
        lines = "".join(f"{name}: {value}\r\n" for name, value in whole.items())
        return f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body

    async def pieces(self, headers: dict[str, str]) -> AsyncIterator[bytes]:
        """The body, as it comes. Raises OSError and EOFError."""
        reader = self._reader
        assert reader is not None
        if headers.get("transfer-encoding", "").lower() != "chunked":
            yield await reader.readexactly(int(headers.get("content-length", "0")))
            return
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            yield (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)

    def _broken(self, error: Exception) -> Broken:
        self.drop()
        partial = getattr(error, "partial", b"")
        return Broken(
            f"{error!r} after {self.answers} answers, {bytes(partial)[:80]!r} of the next"
        )
