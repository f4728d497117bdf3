"""A remote transport in the test's own loop: the test is the session that uses it."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

from metamcp_worker.child import jsonrpc_lines
from metamcp_worker.child.actions import CancelRequest, Fail, ServerRequest
from metamcp_worker.child.streamable_http import RemoteTransport, remote
from metamcp_worker.child.transport import Transport
from metamcp_worker.ipc.envelope import OverlongLine
from metamcp_worker.ipc.frames import CallFrame
from metamcp_worker.ipc.spec import ServerSpec
from tests.fakes.http_server import Server, running
from tests.worker.rawhttp import until

Json = dict[str, Any]
INFO = {"name": "t", "version": "1"}
HELLO: Json = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": INFO}


class Ear:
    """A `Listener` that remembers."""

    def __init__(self) -> None:
        self.messages: list[tuple[Json, bytes | None, int]] = []
        self.raw: list[bytes] = []
        self.failures: dict[bytes, Json] = {}
        self.losses: list[Fail] = []
        self.passed: list[OverlongLine] = []
        self._news = asyncio.Event()

    def on_messages(self, lines: list[bytes], stream: bytes | None = None, via: int = 0) -> None:
        for line in lines:
            self.raw.append(line)
            self.messages.append((json.loads(line), stream, via))
        self._news.set()

    def on_request_failed(self, key: bytes, error: bytes) -> None:
        assert key not in self.failures
        self.failures[key] = json.loads(error)
        self._news.set()

    def on_skip(self, size_bytes: int, lines: int = 0) -> None:
        pass

    def overlong(self, line: OverlongLine) -> None:
        self.passed.append(line)
        self._news.set()

    def count(self, counter: str, times: int = 1) -> None:
        pass

    def on_log(self) -> None: ...

    def secret(self, text: str) -> None:
        pass

    def on_server_lost(self, failure: Fail) -> None:
        self.losses.append(failure)
        self._news.set()

    async def until(self, fact: Callable[[], object]) -> None:
        """Wait for news that make it so; the timeout around the test bounds the wait."""
        while not fact():
            self._news.clear()
            await self._news.wait()

    def answer(self, key: bytes) -> Json | None:
        """The answer of the server to this request."""
        found = [one for one, _, _ in self.messages if "method" not in one and "id" in one]
        return next((one for one in found if json.dumps(one["id"]).encode() == key), None)


class Far:
    """One transport and its listener."""

    def __init__(self, ear: Ear, transport: Transport) -> None:
        self.ear = ear
        self.transport = transport
        self._keys = itertools.count(1)
        self._stamp = jsonrpc_lines.MetaBuilder(jsonrpc_lines.MODERN, "1.0")

    def send(
        self, method: str, params: Json | None = None, caller: Json | None = None, own: bool = False
    ) -> bytes:
        """Send a request that wants progress; its key."""
        if method == "initialize":
            self._stamp = jsonrpc_lines.MetaBuilder(jsonrpc_lines.LEGACY[0], "1.0")
        key = str(next(self._keys)).encode()
        raw = json.dumps(params or {}).encode()
        who = json.dumps(caller).encode() if caller else b""
        meta = self._stamp.of(CallFrame(1, method, raw, b"", who, wants_progress=not own), key)
        line = jsonrpc_lines.request(key, method, raw, meta)
        assert self.transport.request(ServerRequest(key, line, method, raw, who, own))
        return key

    def call(self, name: str, caller: Json | None = None, /, **arguments: object) -> bytes:
        return self.send("tools/call", {"name": name, "arguments": arguments}, caller)

    async def outcome(self, key: bytes) -> Json:
        """The answer to this request, or `{"failed": error}`."""
        ear = self.ear
        await ear.until(lambda: ear.answer(key) or key in ear.failures or ear.losses)
        answer = ear.answer(key)
        return answer if answer is not None else {"failed": ear.failures.get(key, ear.losses)}

    async def ask(self, method: str, params: Json | None = None, **more: Any) -> Json:
        return await self.outcome(self.send(method, params, **more))

    async def text(self, key: bytes) -> str:
        """Of the result of a tool."""
        found = await self.outcome(key)
        assert "result" in found, found
        text = found["result"]["content"][0]["text"]
        assert isinstance(text, str)
        return text

    async def discover(self) -> Json:
        return await self.ask("server/discover", own=True)

    async def initialize(self) -> Json:
        found = await self.ask("initialize", HELLO, own=True)
        self.transport.write(jsonrpc_lines.notification("notifications/initialized"))
        return found

    async def settled(self, key: bytes) -> None:
        """Wait until nothing is to be done about this request any more."""
        transport = self.transport
        assert isinstance(transport, RemoteTransport)
        await until(lambda: not transport.is_running(key))

    def drop(self, key: bytes) -> bool:
        return self.transport.drop(
            CancelRequest(key, jsonrpc_lines.build_cancel_notification(key, b""))
        )


@contextlib.asynccontextmanager
async def far(url: str, **spec: Any) -> AsyncGenerator[Far]:
    """A transport to this URL, closed in the end."""
    ear = Ear()
    transport = remote(ServerSpec(name="far", url=url, **spec), "1.0", ear)
    try:
        yield Far(ear, transport)
    finally:
        await transport.stop()
        await transport.close()


@contextlib.asynccontextmanager
async def met_server(
    kind: type[Server] = Server, **options: Any
) -> AsyncGenerator[tuple[Server, Far]]:
    """A scripted server, and a transport to it with the handshake done."""
    async with running(kind=kind, **options) as (server, url), far(url) as there:
        await (there.initialize() if options.get("era") == "legacy" else there.discover())
        yield server, there


def can(*kinds: str) -> Json:
    """A caller that can be asked this."""
    return {"clientCapabilities": {kind: {} for kind in kinds}}
