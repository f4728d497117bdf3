"""A raw MCP client for both eras: bytes out, bytes in, nothing in between."""

import http.client
import json
from typing import Any

MODERN = "2026-07-28"
LEGACY = "2025-11-25"


class Client:
    """One keep-alive connection. `era` is a protocol revision; legacy ones open a session."""

    def __init__(self, port: int, era: str = LEGACY, path: str = "/mcp") -> None:
        self.era, self.path = era, path
        self.http = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.session: str | None = None
        self.next_id = 0
        if era != MODERN:
            params = {
                "protocolVersion": era,
                "capabilities": {},
                "clientInfo": {"name": "raw", "version": "1"},
            }
            try:
                self.initialized = self.request("initialize", params)["result"]
                self.post(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
            except BaseException:
                self.close()  # nobody else has it
                raise

    @classmethod
    def joining(cls, other: "Client", port: int) -> "Client":
        """A second connection in the session of another client."""
        made = cls.__new__(cls)
        made.era, made.path, made.session, made.next_id = other.era, other.path, other.session, 1000
        made.http = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        return made

    def close(self) -> None:
        self.http.close()

    def end(self) -> None:
        """Close the session, if there is one, as clients that leave for good do."""
        if self.session is not None:
            self.http.request("DELETE", self.path, headers=self.headers())
            self.http.getresponse().read()
        self.close()

    def headers(self, method: str = "", name: str = "") -> dict[str, str]:
        found = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        }
        if self.era == MODERN:
            found |= {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
            if name:
                found["Mcp-Name"] = name
        elif self.session is not None:
            found |= {"MCP-Protocol-Version": self.era, "Mcp-Session-Id": self.session}
        return found

    def post(self, body: bytes, method: str = "", name: str = "") -> bytes:
        """Status below 500 or it fails; the body as it came. Remembers the session and status."""
        self.http.request("POST", self.path, body, self.headers(method, name))
        answer = self.http.getresponse()
        self.status = answer.status
        self.content_type = answer.getheader("content-type") or ""
        self.session = answer.getheader("mcp-session-id") or self.session
        return answer.read()

    def meta(self) -> dict[str, Any]:
        return {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            "io.modelcontextprotocol/clientCapabilities": {},
            "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
        }

    def request(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request with a fresh id; the whole JSON-RPC answer."""
        params = dict(params or {})
        if self.era == MODERN:
            params["_meta"] = {**self.meta(), **params.get("_meta", {})}
        self.next_id += 1
        message = {"jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params}
        name = str(params.get("name", params.get("uri", "")))
        raw = self.post(json.dumps(message).encode(), method, name)
        if self.content_type.startswith("text/event-stream"):
            raw = (b"\n" + raw).rpartition(b"\ndata:")[2]  # the last event
        answer: dict[str, Any] = json.loads(raw)
        assert answer.get("id") == self.next_id, answer
        return answer

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        return self.request("tools/call", {"name": tool, "arguments": arguments})

    def text(self, tool: str, **arguments: Any) -> str:
        """The text of a result's first block."""
        answer = self.call(tool, **arguments)
        assert "result" in answer, answer
        found: str = answer["result"]["content"][0]["text"]
        return found

    def tools(self) -> list[str]:
        return [tool["name"] for tool in self.request("tools/list")["result"]["tools"]]
