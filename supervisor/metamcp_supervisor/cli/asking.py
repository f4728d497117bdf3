"""An MCP client of few words: one request at a time to an endpoint of this machine.

Owns: what a request of either era looks like, and finding its answer. Never: which request, what
its answer means, other machines.
"""

import http.client
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from msgspec import Raw, Struct

from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit
from metamcp_worker.http import headers
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code

MODERN = "2026-07-28"
BODY_BYTES_MAX = 64 * 1024 * 1024
"""Of an answer: more than any that passes the gateway."""
PAGES_MAX = 1000
"""Of a list."""
_PREFIX = "io.modelcontextprotocol/"
_ME = {"name": "metamcp replay", "version": "1"}


class Asker:
    """`protocol`: the revision to speak. Raises Failed, as all its methods do."""

    def __init__(self, url: str, protocol: str, timeout_s: float) -> None:
        place = urlsplit(url)
        self._path = place.path
        self._url = url
        self._protocol = protocol
        self._http = http.client.HTTPConnection(place.netloc, timeout=timeout_s)
        self._session: str | None = None
        self._last = 0
        if protocol != MODERN:
            greeting = {"protocolVersion": protocol, "capabilities": {}, "clientInfo": _ME}
            if error := bytes(self.ask("initialize", greeting).error):
                raise Failed(Exit.FAILED, f"{self._url} lets nobody in: {_message(error)}")
            self._post({"jsonrpc": "2.0", "method": "notifications/initialized"}, {})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._session is not None and kind is None:
                self._http.request("DELETE", self._path, headers=self._headers({}))
                self._http.getresponse().read()
        except (OSError, http.client.HTTPException):
            pass  # it ends by itself when nobody comes back
        finally:
            self._http.close()

    def ask(
        self, method: str, params: Mapping[str, object], tool: Mapping[str, Any] | None = None
    ) -> codec.Envelope:
        """The answer, with a result or an error. `tool`: the definition of the one that is called,
        which may want arguments repeated in headers."""
        self._last += 1
        whole = dict(params)
        if self._protocol == MODERN:
            whole["_meta"] = {
                f"{_PREFIX}protocolVersion": MODERN,
                f"{_PREFIX}clientCapabilities": {},
                f"{_PREFIX}clientInfo": _ME,
            }
        message = {"jsonrpc": "2.0", "id": self._last, "method": method, "params": whole}
        kind, body = self._post(message, repeated(method, params, tool or {}))
        why = ""
        for found in _messages(kind, body):
            why = _message(found.error) if bytes(found.error) else why
            if bytes(found.id) == b"%d" % self._last and (
                bytes(found.result) or bytes(found.error)
            ):
                return found
        what = f"refuses {method}: {why}" if why else f"gave no answer to {method}"
        raise Failed(Exit.FAILED, f"{self._url} {what}")

    def tool(self, name: str) -> Mapping[str, Any] | None:
        """Its definition, None if there is no such tool."""
        cursor: dict[str, object] = {}
        for _ in range(PAGES_MAX):
            answer = self.ask("tools/list", cursor)
            page: dict[str, Any] = codec.value(bytes(answer.result) or b"{}")
            for tool in page.get("tools", ()):
                if tool.get("name") == name:
                    found: Mapping[str, Any] = tool
                    return found
            if not page.get("nextCursor"):
                return None
            cursor = {"cursor": page["nextCursor"]}
        return None

    def _headers(self, routing: Mapping[str, str]) -> dict[str, str]:
        found = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        }
        if self._protocol == MODERN:
            found |= {"MCP-Protocol-Version": MODERN, **routing}
        elif self._session is not None:
            found |= {"MCP-Protocol-Version": self._protocol, "Mcp-Session-Id": self._session}
        return found

    def _post(self, message: object, routing: Mapping[str, str]) -> tuple[str, bytes]:
        try:
            self._http.request("POST", self._path, codec.dump(message), self._headers(routing))
            answer = self._http.getresponse()
            body = answer.read(BODY_BYTES_MAX)
        except TimeoutError:
            limit = f"{self._http.timeout:g} s"
            raise Failed(Exit.TIMEOUT, f"{self._url} gave no answer within {limit}") from None
        except (OSError, http.client.HTTPException) as error:
            raise Failed(Exit.FAILED, f"{self._url} cannot be asked: {error}") from None
        self._session = answer.getheader("mcp-session-id") or self._session
        return answer.getheader("content-type") or "", body


def _messages(kind: str, body: bytes) -> Iterator[codec.Envelope]:
    """What came, on a stream or alone."""
    streamed = kind.startswith("text/event-stream")
    for raw in _events(body) if streamed else [body]:
        try:
            yield codec.envelope(raw)
        except codec.Malformed:
            continue


def _events(body: bytes) -> Iterator[bytes]:
    for event in body.replace(b"\r\n", b"\n").split(b"\n\n"):
        data = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
        if data:
            yield b"\n".join(data)


class _ErrorHead(Struct, frozen=True):
    code: int = int(Code.INTERNAL_ERROR)
    message: str = ""


def _message(error: bytes | Raw) -> str:
    try:
        return codec.typed(_ErrorHead, error).message
    except codec.Malformed:
        return "an error that cannot be read"


def repeated(method: str, params: Mapping[str, object], tool: Mapping[str, Any]) -> dict[str, str]:
    """What of a request revision 2026-07-28 wants in its headers too."""
    raw = codec.level(codec.dump(params))
    found = headers.routing(method, raw)
    try:
        wishes = headers.wanted(codec.dump(tool.get("inputSchema", {})))
        return found | headers.repeated(wishes, raw.get("arguments", Raw(b"")))
    except (headers.Unfit, codec.Malformed):  # of such a tool the gateway wants none
        return found


def outcome_of(answer: codec.Envelope) -> tuple[str, Raw]:
    """How a call ended, in the words of `finished`, and what came of it."""
    if bytes(answer.error):
        try:
            code = codec.typed(_ErrorHead, answer.error).code
        except codec.Malformed:
            code = int(Code.INTERNAL_ERROR)
        return str(code), answer.error
    members = codec.level(answer.result)
    failed = bytes(members.get("isError", b"")) == b"true"
    return ("tool_error" if failed else "ok"), answer.result
