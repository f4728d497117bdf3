"""Raw clients of both eras: every message as the bytes that crossed the socket."""

import http.client
import json
from collections.abc import Iterator
from typing import Any, Self

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.envelope import Envelope

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
WAIT_S = 30
PREFIX = "io.modelcontextprotocol/"
_NAMED = ("name", "uri", "taskId")


class Stream:
    """The messages of one response, be it JSON or a stream of events."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection
        self._answer = connection.getresponse()
        self.status = self._answer.status
        self.session = self._answer.getheader("mcp-session-id") or ""
        self.streams = (self._answer.getheader("content-type") or "").startswith("text/event")
        self._messages = self._read()

    def next(self) -> Envelope:
        """The next message."""
        return codec.envelope(next(self._messages))

    def news(self, method: str) -> Envelope:
        """The next message with this method. A client that listens as soon as a server is ready may
        hear of its lists first."""
        while (message := self.next()).method != method:
            assert (message.method or "").endswith("/list_changed"), message
        return message

    def until(self, raw_id: bytes) -> tuple[list[Envelope], Envelope]:
        """What comes before the answer to this request, and the answer."""
        before: list[Envelope] = []
        for raw in self._messages:
            message = codec.envelope(raw)
            if message.method is None and bytes(message.id) == raw_id:
                return before, message
            before.append(message)
        raise AssertionError(f"no answer to {raw_id!r}, but {before}")

    def rest(self) -> list[bytes]:
        """All that is still to come, to the end."""
        return list(self._messages)

    def close(self) -> None:
        self._answer.close()
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> Iterator[bytes]:
        if not self.streams:
            body = self._answer.read()
            if body:
                yield body
            return
        while line := self._answer.readline():
            data = line.removeprefix(b"data:").strip() if line.startswith(b"data:") else b""
            if data:  # an event without data only tells where to go on
                yield data


class Started:
    """A request whose answer is still to come."""

    def __init__(self, connection: http.client.HTTPConnection) -> None:
        self._connection = connection

    def stream(self) -> Stream:
        """The response, once it has begun."""
        return Stream(self._connection)

    def close(self) -> None:
        """Go away."""
        self._connection.close()


class Raw:
    """One client on one endpoint. `era`: a protocol revision; one with sessions opens one, and says
    there that it has these capabilities; the other says so with each request. `key`: an API key,
    empty for none."""

    def __init__(
        self,
        port: int,
        era: str,
        path: str = "/mcp",
        capabilities: dict[str, Any] | None = None,
        *,
        log_level: str | None = None,
        key: str = "",
    ) -> None:
        self.port, self.era, self.path, self.key = port, era, path, key
        self.session = ""
        meta: dict[str, Any] = {
            "protocolVersion": MODERN,
            "clientCapabilities": capabilities or {},
            "clientInfo": {"name": "raw", "version": "1"},
        }
        if log_level is not None:
            meta["logLevel"] = log_level
        self.stamp = {PREFIX + name: value for name, value in meta.items()}
        if era != MODERN:
            hello = {
                "protocolVersion": era,
                "capabilities": capabilities or {},
                "clientInfo": meta["clientInfo"],
            }
            with self.ask("initialize", json.dumps(hello).encode()) as opened:
                _, answer = opened.until(b"1")
                self.initialized: Any = codec.value(answer.result)
                self.session = opened.session
            self.tell("notifications/initialized")

    def ask(
        self, method: str, params: bytes = b"{}", raw_id: bytes = b"1", meta: bytes = b""
    ) -> Stream:
        """Send a request; `params`: raw without `_meta`, `meta`: what else stands in that."""
        return self.start(method, params, raw_id, meta).stream()

    def start(
        self, method: str, params: bytes = b"{}", raw_id: bytes = b"1", meta: bytes = b""
    ) -> Started:
        """The same, without waiting for anything."""
        body = b'{"jsonrpc":"2.0","id":%b,"method":%b,"params":%b}' % (
            raw_id, codec.dump(method), self._with_meta(params, meta),
        )  # fmt: skip
        return self._post(body, method, params)

    def answer(self, method: str, params: bytes = b"{}", meta: bytes = b"") -> Envelope:
        """The answer to a request; what comes before it is dropped."""
        with self.ask(method, params, meta=meta) as stream:
            return stream.until(b"1")[1]

    def result(self, method: str, params: bytes = b"{}", meta: bytes = b"") -> Any:
        """The decoded result."""
        found = self.answer(method, params, meta)
        assert found.result, bytes(found.error)
        return codec.value(found.result)

    def text(self, tool: str, **arguments: object) -> str:
        """The first text of a result."""
        result = self.result("tools/call", codec.dump({"name": tool, "arguments": arguments}))
        found: str = result["content"][0]["text"]
        return found

    def names(self, method: str = "tools/list", kind: str = "tools") -> list[str]:
        return [one["name"] for one in self.result(method)[kind]]

    def tell(self, method: str, params: bytes = b"{}") -> None:
        """Send a notification; only sessions have those."""
        body = b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (codec.dump(method), params)
        with self._post(body, method, params).stream() as stream:
            assert stream.status == 202, stream.rest()

    def reply(self, raw_id: bytes, result: bytes) -> None:
        """Answer a question of the gateway."""
        self._reply(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (raw_id, result))

    def fail(self, raw_id: bytes, error: bytes) -> None:
        """Answer it with an error."""
        self._reply(b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (raw_id, error))

    def _reply(self, body: bytes) -> None:
        with self._post(body, "", b"{}").stream() as stream:
            assert stream.status == 202, stream.rest()

    def listen(self, raw_id: bytes = b'"l1"', **wanted: object) -> Stream:
        """The stream for what belongs to no request."""
        if self.era == MODERN:
            params = codec.dump({"notifications": wanted})
            stream = self.ask("subscriptions/listen", params, raw_id)
            first = stream.next()
            assert first.method == "notifications/subscriptions/acknowledged"
            return stream
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        headers = {**self._headers("", b"{}"), "Accept": "text/event-stream"}
        connection.request("GET", self.path, headers=headers)
        return Stream(connection)

    def _post(self, body: bytes, method: str, params: bytes) -> Started:
        """On a connection of its own, so that closing it is going away."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        connection.request("POST", self.path, body, self._headers(method, params))
        return Started(connection)

    def _headers(self, method: str, params: bytes) -> dict[str, str]:
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            **({"Authorization": f"Bearer {self.key}"} if self.key else {}),
        }
        if self.era == MODERN:
            headers |= {"MCP-Protocol-Version": MODERN, "Mcp-Method": method}
            members = codec.level(params)
            for name in _NAMED:
                if name in members:
                    headers["Mcp-Name"] = codec.text(members[name]) or ""
        elif self.session:
            headers |= {"MCP-Protocol-Version": self.era, "Mcp-Session-Id": self.session}
        return headers

    def _with_meta(self, params: bytes, meta: bytes) -> bytes:
        parts = [codec.dump(self.stamp)[1:-1]] if self.era == MODERN else []
        parts += [meta] if meta else []
        if not parts:
            return params
        whole = b'"_meta":{' + b",".join(parts) + b"}"
        return b"{" + whole + (b"}" if params == b"{}" else b"," + params[1:])
