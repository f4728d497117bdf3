"""`metamcp connect` as a client starts it: a process, its pipes, and raw messages on them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests import programs
from tests.live.client import LEGACY, MODERN

STAMP = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
}


class Bridge:
    """One bridge; leaving the `with` block closes its input and expects a clean end. `forked`: it
    is not the start that counts, nor what /proc says of it."""

    def __init__(
        self,
        *arguments: str,
        folder: Path,
        era: str = LEGACY,
        env: dict[str, str] | None = None,
        capabilities: dict[str, Any] | None = None,
        forked: bool = False,
    ) -> None:
        self.era = era
        self.capabilities = capabilities or {}
        self.seen: list[dict[str, Any]] = []
        self.next_id = 0
        self.log = folder / f"bridge-{os.urandom(4).hex()}.log"
        command = [*programs.PROGRAM, "connect", *arguments]
        environ = {**os.environ, **(env or {})}
        self.process: subprocess.Popen[bytes] | programs.Piped
        if forked:
            self.process = programs.Piped(command, self.log, environ, folder)
            return
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=folder,
                env=environ,
            )  # fmt: skip

    def __enter__(self) -> Self:
        if self.era != MODERN:
            self.initialize()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.process.kill()
            sys.stderr.write(self.log.read_text())
        code = self.close()
        assert kind is not None or code == 0, self.log.read_text()

    def close(self) -> int:
        """The end of its input, and its exit code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        if not self.process.stdin.closed:
            self.process.stdin.close()
        code = self.process.wait(timeout=20)
        self.process.stdout.close()
        return code

    @property
    def told(self) -> str:
        """What it told people."""
        return self.log.read_text()

    def initialize(self) -> None:
        about = {"clientInfo": {"name": "raw", "version": "1"}, "capabilities": self.capabilities}
        answer = self.request("initialize", {"protocolVersion": self.era, **about})
        assert answer["result"]["protocolVersion"] == self.era, answer
        self.say({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def say(self, message: dict[str, Any] | bytes) -> None:
        assert self.process.stdin is not None
        raw = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.process.stdin.write(raw + b"\n")
        self.process.stdin.flush()

    def line(self) -> bytes:
        assert self.process.stdout is not None
        raw = self.process.stdout.readline()
        assert raw, f"it ended: {self.told}"
        return raw

    def hear(self) -> dict[str, Any]:
        """The next message; every line must be one."""
        message: dict[str, Any] = json.loads(self.line())
        assert message["jsonrpc"] == "2.0"
        return message

    def ask(self, method: str, params: dict[str, Any] | None = None) -> int:
        """Send a request; its id."""
        self.next_id += 1
        whole = dict(params or {})
        if self.era == MODERN:
            whole["_meta"] = {**STAMP, **whole.get("_meta", {})}
        self.say({"jsonrpc": "2.0", "id": self.next_id, "method": method, "params": whole})
        return self.next_id

    def request(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request and its answer; what else comes meanwhile is in `seen`."""
        number = self.ask(method, params)
        while (message := self.hear()).get("id") != number or "method" in message:
            self.seen.append(message)
        return message

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return self.request("tools/call", {"name": tool, "arguments": arguments})

    def text(self, tool: str, **arguments: Any) -> str:
        found: str = self.call(tool, **arguments)["result"]["content"][0]["text"]
        return found

    def tools(self) -> list[str]:
        return [tool["name"] for tool in self.request("tools/list")["result"]["tools"]]
