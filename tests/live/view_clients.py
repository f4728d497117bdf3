"""Clients that look at views: what one lists, calls, is told, and hears on its stream.

Owns: requests, each on a connection of its own, so that any front may get it; the stream of one
client and what was heard there. Never: what is to be seen (`tests.viewmodel`).
"""

import json
import socket
from typing import Any

from tests.live.client import MODERN, Client
from tests.viewmodel import Who

CHANGED = b'"method":"notifications/tools/list_changed"'
BEGIN_S = 20.0
"""For the head of a stream, and what it begins with."""


class Ear:
    """A stream for what belongs to no request; what comes there is kept and never waited for."""

    def __init__(self, client: Client) -> None:
        self._socket = socket.create_connection((client.http.host, client.http.port), BEGIN_S)
        modern = client.era == MODERN
        body = b""
        if modern:
            params = {"notifications": {"toolsListChanged": True}, "_meta": client.meta()}
            message = {"jsonrpc": "2.0", "id": "ear", "method": "subscriptions/listen"}
            body = json.dumps({**message, "params": params}).encode()
        headers = client.headers("subscriptions/listen")
        headers |= {"Host": f"{client.http.host}:{client.http.port}"}
        headers["Content-Length"] = str(len(body))
        if not modern:
            headers["Accept"] = "text/event-stream"
        lines = [f"{'POST' if modern else 'GET'} {client.path} HTTP/1.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        self._heard = bytearray()
        began = b"subscriptions/acknowledged" if modern else b"\r\n\r\n"
        while began not in self._heard:
            got = self._socket.recv(65536)
            assert got, bytes(self._heard)
            self._heard += got
        assert self._heard.startswith(b"HTTP/1.1 200"), bytes(self._heard)
        self._socket.setblocking(False)

    def count(self) -> int:
        """How often it was said that the list of tools is another one."""
        while True:
            try:
                got = self._socket.recv(65536)
            except BlockingIOError:
                break
            assert got, "the stream has ended"
            self._heard += got
        return self._heard.count(CHANGED)

    def close(self) -> None:
        self._socket.close()


class Watcher:
    """One client with a stream. `name`: of its session in the model; empty for a client that has
    none. `listed`: the list as it was looked at last."""

    def __init__(self, port: int, era: str, endpoint: str, name: str) -> None:
        self.endpoint, self.era, self.name, self.port = endpoint, era, name, port
        self.begin()

    def __repr__(self) -> str:
        return f"{self.endpoint}/{self.name or 'modern'}"

    def begin(self) -> None:
        """A new session, or none."""
        self.client = Client(self.port, self.era, f"/metamcp/{self.endpoint}/mcp")
        self.listed: list[dict[str, Any]] = []
        self.listen()

    def listen(self) -> None:
        self.ear = Ear(self.client)
        self.heard = self.ear.count()
        self.client.close()

    def again(self) -> None:
        """The gateway is another one."""
        self.ear.close()
        self.client.close()
        self.begin()

    def end(self) -> None:
        self.ear.close()
        self.client.end()

    def who(self, *, per_session: bool) -> Who:
        return self.endpoint, "local", self.name if per_session else ""

    def list(self) -> list[dict[str, Any]]:
        try:
            found: list[dict[str, Any]] = self.client.request("tools/list")["result"]["tools"]
        finally:
            self.client.close()
        return found

    def answer(self, tool: str, /, **arguments: object) -> dict[str, Any]:
        """The whole answer to a call."""
        try:
            return self.client.call(tool, **arguments)
        finally:
            self.client.close()

    def call(self, tool: str, /, **arguments: object) -> dict[str, Any]:
        """The result of a call."""
        answer = self.answer(tool, **arguments)
        assert "result" in answer, answer
        found: dict[str, Any] = answer["result"]
        return found

    def told(self, tool: str, /, **arguments: object) -> dict[str, Any]:
        """What a built-in tool says as JSON."""
        result = self.call(tool, **arguments)
        assert not result.get("isError"), result
        found: dict[str, Any] = result["structuredContent"]
        return found

    def text(self, tool: str, /, **arguments: object) -> str:
        result = self.call(tool, **arguments)
        assert not result.get("isError"), result
        found: str = result["content"][0]["text"]
        return found
