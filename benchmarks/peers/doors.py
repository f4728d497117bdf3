"""How a gateway is asked, whichever it is: over MCP with a session, or over its own REST.

Owns: sessions, lists, single calls, the words of a call that load repeats. Never: load, processes.
"""

import http.client
import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from benchmarks import load
from benchmarks.load import Speech
from benchmarks.peers.plans import Peer
from tests.faults.soak_wire import Answer
from tests.live.client import LEGACY, Client

LISTS_MAX = 100
"""Pages of one list."""
FIRST_NUMBER = 1_000_000
"""Of a request on a further connection: no two of a session have the same."""
FAILURES = (OSError, http.client.HTTPException, ValueError, KeyError)
"""Of a connection, and of answers that are none."""


class Refused(ValueError):
    """The answer was an error; its words say which."""


@dataclass(frozen=True, slots=True)
class Listed:
    """All tools. `seconds`: without reading the JSON."""

    tools: int
    requests: int
    bytes: int
    seconds: float


class Door(Protocol):
    def speech(self, server: str, tool: str, arguments: Mapping[str, Any] | None = None) -> Speech:
        """One call, to be repeated."""
        ...

    def listed(self) -> Listed: ...

    def text(self, server: str, tool: str, *, fresh: bool = False, **arguments: Any) -> str:
        """Of the result of one call over a connection of its own, and with `fresh` in a session of
        its own. Raises one of FAILURES."""
        ...


def door(peer: Peer, port: int, servers: Sequence[str]) -> Door:
    return RestDoor(peer, port) if peer.rest else McpDoor(peer, port, servers)


class Session(Client):
    """A client that takes JSON and events alike, in the revision that was agreed on."""

    def __init__(self, port: int, path: str) -> None:
        super().__init__(port, LEGACY, path)
        self.era = str(self.initialized["protocolVersion"])

    def request(self, method: str, params: dict[str, Any] | None = None) -> dict[str, Any]:
        self.next_id += 1
        asked = {"jsonrpc": "2.0", "id": self.next_id, "method": method, "params": params or {}}
        begun = time.perf_counter()
        raw = self.post(json.dumps(asked).encode())
        self.took_s, self.bytes = time.perf_counter() - begun, len(raw)
        if self.status >= http.HTTPStatus.BAD_REQUEST:
            raise Refused(f"HTTP {self.status} {told(raw)}")
        for found in Answer(self.status, {"content-type": self.content_type}, raw).messages():
            if found.get("id") == self.next_id:
                return found
        raise Refused(f"no answer, but {told(raw)}")


class McpDoor:
    def __init__(self, peer: Peer, port: int, servers: Sequence[str]) -> None:
        self._peer, self._port, self._servers = peer, port, servers
        self._sessions: dict[str, Session] = {}
        """By path. Kept: some gateways start a server for each."""
        self._numbers = itertools.count(FIRST_NUMBER, 1000)

    def speech(self, server: str, tool: str, arguments: Mapping[str, Any] | None = None) -> Speech:
        session = self._session(server)
        name = self._peer.tool_of(server, tool, len(self._servers))
        return load.speech(
            self._port, session.headers(), name, path=session.path, arguments=arguments
        )

    def listed(self) -> Listed:
        tools = requests = size = 0
        seconds = 0.0
        for path in dict.fromkeys(map(self._path, self._servers)):
            session = self._by_path(path)
            params: dict[str, Any] = {}
            for _ in range(LISTS_MAX):
                result = session.request("tools/list", params)["result"]
                tools += len(result["tools"])
                requests += 1
                size += session.bytes
                seconds += session.took_s
                if not result.get("nextCursor"):
                    break
                params = {"cursor": result["nextCursor"]}
            session.close()
        return Listed(tools, requests, size, seconds)

    def text(self, server: str, tool: str, *, fresh: bool = False, **arguments: Any) -> str:
        path = self._path(server)
        if fresh:
            session: Client = Session(self._port, path)
        else:
            session = Session.joining(self._by_path(path), self._port)
            session.next_id = next(self._numbers)
        try:
            name = self._peer.tool_of(server, tool, len(self._servers))
            answer = session.request("tools/call", {"name": name, "arguments": arguments})
        finally:
            session.close()
        if "error" in answer:
            raise Refused(f"error {told(json.dumps(answer['error']).encode())}")
        return text_of(answer["result"])

    def _path(self, server: str) -> str:
        return self._peer.path.format(server=server)

    def _session(self, server: str) -> Session:
        return self._by_path(self._path(server))

    def _by_path(self, path: str) -> Session:
        """Opened when it is needed first; its connection is closed."""
        if path not in self._sessions:
            self._sessions[path] = Session(self._port, path)
            self._sessions[path].close()
        return self._sessions[path]


class RestDoor:
    """Of mcp-hub: `{"server_name", "tool", "arguments"}`; what comes back is the result."""

    def __init__(self, peer: Peer, port: int) -> None:
        self._path, self._port = peer.path, port

    def speech(self, server: str, tool: str, arguments: Mapping[str, Any] | None = None) -> Speech:
        said = load.speech(self._port, {}, tool, path=self._path, arguments=arguments)
        more = {"padding": load.PADDING} if arguments is None else arguments
        written = json.dumps(
            {"server_name": server, "tool": tool, "arguments": {"text": "@", **more}},
            separators=(",", ":"),
        )
        return replace(said, body=written.replace('"@"', '"%(text)b"').encode())

    def listed(self) -> Listed:
        begun = time.perf_counter()
        raw = self._asked("GET", "/api/servers")
        seconds = time.perf_counter() - begun
        tools = sum(len(one["capabilities"]["tools"]) for one in json.loads(raw)["servers"])
        return Listed(tools, 1, len(raw), seconds)

    def text(self, server: str, tool: str, *, fresh: bool = False, **arguments: Any) -> str:
        del fresh  # there are no sessions
        asked = {"server_name": server, "tool": tool, "arguments": arguments}
        answer = json.loads(self._asked("POST", self._path, json.dumps(asked).encode()))
        return text_of(answer["result"])

    def _asked(self, method: str, path: str, body: bytes | None = None) -> bytes:
        line = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        try:
            line.request(method, path, body, {"Content-Type": "application/json"})
            answer = line.getresponse()
            raw = answer.read()
        finally:
            line.close()
        if answer.status != http.HTTPStatus.OK:
            raise Refused(f"HTTP {answer.status} {told(raw)}")
        return raw


def text_of(result: dict[str, Any]) -> str:
    """The first text of a result. Raises Refused for one that is an error."""
    text = "".join(str(block.get("text", "")) for block in result["content"][:1])
    if result.get("isError"):
        raise Refused(f"isError {text[:120]!r}")
    return text


def told(raw: bytes) -> str:
    return raw[:120].decode(errors="replace")
