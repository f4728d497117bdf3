"""A scripted MCP server on HTTP: a small true program whose manners are chosen by options.

    python tests/fakes/http_server.py --era legacy --answer events --journal calls.txt

It speaks both eras, and the transport of 2024, and can misbehave in the ways that real servers do.
A test may run it in its own loop and look into it, or as a process that can be killed.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import sys
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# It is started as a file, in any directory.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.worker.scripted import Request, Wire, serving

Json = dict[str, Any]
MODERN = "2026-07-28"
META = "io.modelcontextprotocol/"
INFO = {"name": "scripted", "version": "1.0"}
CAPABILITIES: Json = {
    "tools": {"listChanged": True},
    "resources": {"subscribe": True},
    "logging": {},
}
REGION = {"type": "string", "x-mcp-header": "Region"}


@dataclass
class Options:
    era: str = "both"
    answer: str = "json"
    """Or `events`: each answer is a stream."""
    sessions: bool = True
    get: bool = True
    """Legacy sessions have a stream of their own."""
    gone: int = 404
    """What it answers to a session that it does not know."""
    journal: str = ""
    """A file in which each call that was executed leaves a line."""
    heads: str = ""
    """A file in which each request leaves its headers."""
    protocol: str = "2025-11-25"
    flood: str = ""
    """What it sends without end on the stream of a session: `lines` without messages, or `news`."""
    status: int = 0
    """If it is set, that is all that it answers."""


@dataclass
class Session:
    id: str
    capabilities: Json
    told: list[Json] = field(default_factory=list[Json])
    """Every message in it, the answers of the client included."""
    stream: Wire | None = None
    heard: asyncio.Event = field(default_factory=asyncio.Event)


class Server:
    """`seen`: every request. `calls`: the `text` of each executed call. `dropped`: ids of calls
    whose connection the client closed. `cancelled`: ids that it said it does not wait for."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.seen: list[Request] = []
        self.calls: list[str] = []
        self.dropped: list[Any] = []
        self.cancelled: list[Any] = []
        self.deleted: list[str] = []
        self.sessions: dict[str, Session] = {}
        self.resumed: dict[str, bytes] = {}
        self.older: list[Wire] = []
        self.tools: list[Json] = [
            {"name": "echo", "inputSchema": {"type": "object", "properties": {"region": REGION}}},
            {"name": "fail", "inputSchema": {"type": "object"}},
        ]
        self.status = options.status
        self.closed = False
        """It opens no sessions."""
        self.amnesia = False
        """It forgets each session as soon as it was told that it has begun."""
        self.indent: int | None = None
        """Of the JSON of answers."""
        self._numbers = itertools.count(1)

    # --- HTTP -------------------------------------------------------------------------------

    async def serve(self, wire: Wire) -> None:
        """One connection."""
        while request := await wire.request():
            self.seen.append(request)
            if self.options.heads:
                note(self.options.heads, json.dumps([request.line, dict(request.headers)]))
            method, path = request.line.split(" ")[:2]
            if self.status:
                await refuse(wire, self.status)
            elif path.startswith(("/sse", "/messages")):
                if not await self._older(wire, method, path, request):
                    return
            elif method == "POST":
                if not await self.post(wire, request):
                    return
            elif method == "GET":
                if not await self.get(wire, request):
                    return
            else:
                self.deleted.append(request.headers.get("mcp-session-id", ""))
                await wire.answer(b"")

    async def post(self, wire: Wire, request: Request) -> bool:
        """May the connection go on?"""
        message: Json = json.loads(request.body)
        if request.headers.get("mcp-protocol-version") == MODERN:
            if self.options.era == "legacy":
                return await refuse(wire, 400, error=-32600, text="Unsupported protocol version")
            return await self._modern(wire, request, message)
        if self.options.era == "modern":
            data = {"supported": [MODERN], "requested": ""}
            return await refuse(wire, 400, message.get("id"), error=-32022, data=data)
        return await self._legacy(wire, request, message)

    async def get(self, wire: Wire, request: Request) -> bool:
        last = request.headers.get("last-event-id", "")
        if last in self.resumed:
            await wire.stream(self.resumed.pop(last))
            return False
        session = self.sessions.get(request.headers.get("mcp-session-id", ""))
        if not self.options.get:
            return await refuse(wire, 405)
        if session is None:
            return await refuse(wire, self.options.gone)
        await wire.stream(b": hello\n\n")
        session.stream = wire
        while self.options.flood and not wire.lost:
            await wire.write(FLOODS[self.options.flood])
        await wire.closed()
        return False

    # --- the two eras -----------------------------------------------------------------------

    async def _modern(self, wire: Wire, request: Request, message: Json) -> bool:
        method, params = message["method"], message.get("params", {})
        wrong = self._headers_wrong(request, method, params)
        if wrong:
            return await refuse(wire, 400, message["id"], error=-32020, text=wrong)
        if method == "server/discover":
            result: Json = {
                "resultType": "complete", "supportedVersions": [MODERN],
                "capabilities": CAPABILITIES, "_meta": {META + "serverInfo": INFO},
            }  # fmt: skip
            return await self._answer(wire, message["id"], result)
        if method == "subscriptions/listen":
            noted = "notifications/subscriptions/acknowledged"
            await wire.stream(event({"jsonrpc": "2.0", "method": noted, "params": {}}))
            await wire.closed()
            self.dropped.append(message["id"])
            return False
        return await self._call(wire, message, None)

    def _headers_wrong(self, request: Request, method: str, params: Json) -> str:
        said = request.headers
        if said.get("mcp-method") != method:
            return "Mcp-Method"
        if method == "tools/call":
            if said.get("mcp-name") != params["name"]:
                return "Mcp-Name"
            if said.get("mcp-param-region") != params.get("arguments", {}).get("region"):
                return "Mcp-Param-Region"
        return ""

    async def _legacy(self, wire: Wire, request: Request, message: Json) -> bool:
        method = message.get("method", "")
        if method == "initialize" and self.closed:
            return await refuse(wire, 200, message["id"], error=-32603, text="closed")
        if method == "initialize":
            number = f"s{next(self._numbers)}-{id(self)}"
            session = Session(number, message["params"]["capabilities"])
            said: tuple[str, ...] = ()
            if self.options.sessions:
                self.sessions[number] = session
                said = (f"Mcp-Session-Id: {number}",)
            result = {
                "protocolVersion": self.options.protocol, "serverInfo": INFO,
                "capabilities": CAPABILITIES,
            }  # fmt: skip
            return await self._answer(wire, message["id"], result, *said)
        found = self.sessions.get(request.headers.get("mcp-session-id", ""))
        if found is None and self.options.sessions:
            error = -32001 if self.options.gone == 200 else -32600
            return await refuse(wire, self.options.gone, error=error, text="Session not found")
        if found is not None:
            found.told.append(message)
            found.heard.set()
        if "id" not in message or not method:
            if method == "notifications/cancelled":
                self.cancelled.append(message["params"]["requestId"])
            if self.amnesia:
                self.sessions.clear()
            await wire.answer(b"", status="202 Accepted")
            return True
        return await self._call(wire, message, found)

    # --- methods ----------------------------------------------------------------------------

    async def _call(self, wire: Wire, message: Json, session: Session | None) -> bool:
        number, params = message["id"], message.get("params", {})
        match message["method"]:
            case "tools/list":
                return await self._answer(wire, number, {"tools": self.tools})
            case "tools/call":
                tool = getattr(self, f"tool_{params['name']}", None)
                if tool is None:
                    return await refuse(wire, 400, number, error=-32602, text="no such tool")
                return bool(await tool(wire, number, params.get("arguments", {}), session))
            case "unknown/method":
                return await refuse(wire, 404, number, error=-32601, text="no such method")
            case _:
                return await self._answer(wire, number, {})

    async def tool_echo(
        self, wire: Wire, number: object, arguments: Json, session: Session | None
    ) -> bool:
        """The text that it was given."""
        text = str(arguments.get("text", ""))
        self.calls.append(text)
        if self.options.journal:
            note(self.options.journal, text)
        return await self._answer(wire, number, text_result(text))

    async def tool_fail(
        self, wire: Wire, number: object, arguments: Json, session: Session | None
    ) -> bool:
        """An error of the server's own."""
        return await refuse(wire, 200, number, error=-31999, text="own")

    async def tool_big(
        self, wire: Wire, number: object, arguments: Json, session: Session | None
    ) -> bool:
        """A text of so many bytes."""
        return await self._answer(wire, number, text_result("x" * arguments["bytes"]))

    async def tool_wait(
        self, wire: Wire, number: object, arguments: Json, session: Session | None
    ) -> bool:
        """No answer, ever; one sign of life if answers are events."""
        self.calls.append("wait")
        if self.options.answer == "events":
            await wire.stream(b": still there\n\n")
        await wire.closed()
        self.dropped.append(number)
        return False

    async def tool_progress(
        self, wire: Wire, number: object, arguments: Json, session: Session | None
    ) -> bool:
        """A notification, and then the answer."""
        note = {"method": "notifications/progress", "params": {"progressToken": 1, "progress": 1}}
        answer = {"jsonrpc": "2.0", "id": number, "result": text_result("done")}
        await wire.stream(event({"jsonrpc": "2.0", **note}), event(answer))
        return False

    async def tool_ask(
        self, wire: Wire, number: object, arguments: Json, session: Session | None
    ) -> bool:
        """Elicits something on the stream of the call, and gives back what it was told."""
        assert session is not None
        question = {"method": "elicitation/create", "params": {"message": "Name?"}}
        await wire.stream(event({"jsonrpc": "2.0", "id": "q1", **question}))
        while not any(one.get("id") == "q1" and "result" in one for one in session.told):
            session.heard.clear()
            await session.heard.wait()
        told = next(one for one in session.told if one.get("id") == "q1")
        answer = {"jsonrpc": "2.0", "id": number, "result": text_result(json.dumps(told))}
        await wire.write(event(answer))
        return False

    async def tool_poll(
        self, wire: Wire, number: object, arguments: Json, session: Session | None
    ) -> bool:
        """Closes the connection of the stream; the answer is there for who takes it up."""
        self.calls.append("poll")
        answer = {"jsonrpc": "2.0", "id": number, "result": text_result("polled")}
        self.resumed["e1"] = event(answer)
        await wire.stream(b"id: e1\nretry: 100\ndata: \n\n")
        return False

    async def tool_break(
        self, wire: Wire, number: object, arguments: Json, session: Session | None
    ) -> bool:
        """Closes the connection in the middle."""
        self.calls.append("break")
        await wire.stream(b": soon\n\n")
        return False

    async def _answer(self, wire: Wire, number: object, result: Json, *said: str) -> bool:
        answer = {"jsonrpc": "2.0", "id": number, "result": result}
        if self.options.answer == "events":
            await wire.write(head("200 OK", *said) + event(answer))
            return False
        body = json.dumps(answer, indent=self.indent).encode()
        await wire.answer(body, "Content-Type: application/json", *said)
        return True

    # --- the transport of 2024 --------------------------------------------------------------

    async def _older(self, wire: Wire, method: str, path: str, request: Request) -> bool:
        if path.startswith("/sse"):
            if method != "GET":
                return await refuse(wire, 405)
            self.older.append(wire)
            place = f"event: endpoint\ndata: /messages?session={len(self.older)}\n\n"
            await wire.stream(place.encode())
            await wire.closed()
            return False
        message: Json = json.loads(request.body)
        await wire.answer(b"Accepted", status="202 Accepted")
        stream = self.older[int(path.partition("=")[2]) - 1]
        result: Json | None = None
        match message.get("method"):
            case "initialize":
                capabilities = {"protocolVersion": "2024-11-05", "capabilities": CAPABILITIES}
                result = {**capabilities, "serverInfo": INFO}
            case "tools/list":
                result = {"tools": self.tools}
            case "tools/call" if message["params"]["name"] == "echo":
                result = text_result(message["params"]["arguments"]["text"])
            case "notifications/cancelled":
                self.cancelled.append(message["params"]["requestId"])
            case _:
                pass
        if result is not None:
            await stream.write(event({"jsonrpc": "2.0", "id": message["id"], "result": result}))
        return True


async def refuse(
    wire: Wire,
    status: int,
    number: object = None,
    *,
    error: int = 0,
    text: str = "",
    data: object = None,
) -> bool:
    """A refusal, with or without a JSON-RPC error."""
    body = b"<html>no</html>"
    if error:
        wrong = {"code": error, "message": text, "data": data, "x-kept": 1.0}
        body = json.dumps({"jsonrpc": "2.0", "id": number, "error": wrong}).encode()
    await wire.answer(body, "Content-Type: application/json", status=f"{status} X")
    return True


def note(journal: str, text: str) -> None:
    with open(journal, "a") as file:
        file.write(text + "\n")


def event(message: Json) -> bytes:
    return b"event: message\ndata: " + json.dumps(message).encode() + b"\n\n"


def head(status: str, *said: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", "Content-Type: text/event-stream", *said, "", ""]
    return "\r\n".join(lines).encode()


def text_result(text: str) -> Json:
    return {"content": [{"type": "text", "text": text}], "x-kept": 1.0}


@contextlib.asynccontextmanager
async def running(
    port: int = 0, kind: type[Server] = Server, **options: Any
) -> AsyncGenerator[tuple[Server, str]]:
    """The server in this loop, and its URL."""
    server = kind(Options(**options))
    async with serving(server.serve, port) as url:
        yield server, url


FLOODS = {
    "lines": b"\n: x\nid: 1\n\nretry: 10\n\n" * 2000,
    "news": event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}) * 500,
}


async def main(options: argparse.Namespace) -> None:
    async with running(**vars(options)) as (_, url):
        sys.stdout.write(url + "\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--era", choices=("legacy", "modern", "both"), default="both")
    parser.add_argument("--answer", choices=("json", "events"), default="json")
    parser.add_argument("--journal", default="")
    parser.add_argument("--heads", default="")
    parser.add_argument("--flood", choices=("lines", "news"), default="")
    parser.add_argument("--status", type=int, default=0)
    asyncio.run(main(parser.parse_args()))
