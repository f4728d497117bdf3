"""The process of a middleware as a supervisor runs it, for tests of both its sides."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Raw

from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.middleware_calls import MiddlewareOn, MiddlewareSpec, StartHook, role_of
from metamcp_worker.ipc.packets import Connectors
from metamcp_worker.middleware.chain import HookAnswer
from metamcp_worker.middleware.front_side import (
    READY_S_MAX,
    HookedRequest,
    MiddlewareClients,
)
from tests.hooks import install

MAIN = """
import socket, sys
from metamcp_worker.middleware import run
sys.exit(run.main(socket.socket(fileno=int(sys.argv[1]))))
"""
WAIT_S = 20.0


class Host:
    """One middleware with its process. `options`: of its class; `start` again after its end."""

    def __init__(self, folder: Path, entry: str, **options: Any) -> None:
        self.folder = folder
        self.on = MiddlewareOn(
            name=entry, entry=entry, options=Raw(codec.dump(options)), hang_s=1.0,
            memory_bytes=96 * 1024 * 1024,
        )  # fmt: skip
        self.package = install(folder / "package")
        self._acceptor, self._connector = packets.acceptor()
        self.start()

    def start(self) -> None:
        self.control, theirs = packets.pair()
        path = os.pathsep.join([str(self.package), *sys.path])
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAIN, str(theirs.fileno())], pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": path}, cwd=self.folder, stderr=subprocess.PIPE,
        )  # fmt: skip
        theirs.close()
        packets.send(self.control, messages.pack(self.on), [self._acceptor.fileno()])

    def spec(self, connectors: Connectors, **members: Any) -> MiddlewareSpec:
        """What a front is told that has these connectors, and one to this process."""
        known: dict[str, Any] = {
            "name": self.on.name,
            "match": ("*/*",),
            "timeout_ms": 300,
        }
        found = MiddlewareSpec(**(known | members))
        connectors.attach(role_of(found.name), os.dup(self._connector.fileno()))
        return found

    def ended(self) -> int:
        """The exit code, when the process has ended."""
        try:
            return self.process.wait(WAIT_S)
        finally:
            self.control.close()
            self.read = self.process.communicate()[1].decode()

    def stop(self) -> None:
        self.control.close()
        self._acceptor.close()
        self._connector.close()
        if self.process.poll() is None:
            self.process.terminate()
        self.process.communicate(timeout=WAIT_S)


class Tool:
    """Server behind the middleware. `calls`: arguments of each call; `left`: why it was cancelled;
    `answer`: given at once, unless it is None."""

    def __init__(self, lines: MiddlewareClients, connectors: Connectors) -> None:
        self.lines = lines
        self.connectors = connectors
        self.calls: list[Any] = []
        self.left: list[str] = []
        self.answer: HookAnswer | None = HookAnswer(b'{"content":[{"type":"text","text":"a"}]}')

    def begin(
        self, arguments: Any, *names: str, **members: Any
    ) -> tuple[HookedRequest, asyncio.Future[HookAnswer]]:
        """Begin a call, which goes through the middleware of these names."""
        done: asyncio.Future[HookAnswer] = asyncio.get_running_loop().create_future()
        known: dict[str, Any] = {"hook": "on_call_tool", "server": "s", "name": "t"}
        facts = StartHook(**{**known, **members})
        request: HookedRequest

        def call(raw: bytes) -> None:
            self.calls.append(codec.value(raw))
            if self.answer is not None:
                request.chain.on_answer(self.answer, final=True)

        lines = self.lines.select_lines(names, facts.hook)
        request = HookedRequest(lines, facts, call, self.left.append, done.set_result)
        request.chain.begin(codec.dump(arguments))
        return request, done

    async def call(self, arguments: Any, *names: str, **members: Any) -> Any:
        """The decoded answer of a call, or its error."""
        async with asyncio.timeout(WAIT_S):
            return codec.value((await self.begin(arguments, *names, **members)[1]).body)

    async def text(self, arguments: Any, *names: str) -> str:
        found = await self.call(arguments, *names)
        return str(found["content"][0]["text"])


@asynccontextmanager
async def opened_tool(*, ready_s: float = READY_S_MAX) -> AsyncGenerator[Tool]:
    """The front's side of middleware."""
    connectors = Connectors()
    lines = MiddlewareClients(connectors, ready_s)
    try:
        yield Tool(lines, connectors)
    finally:
        lines.close()
        connectors.keep(())
