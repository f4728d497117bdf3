"""An MCP server of one revision that refuses `initialize` with any other, in one of five ways.

    python tests/fakes/one_revision.py 2024-11-05 code        # on stdio
    python tests/fakes/one_revision.py                        # on HTTP, all revisions and ways

Over HTTP the URL says which server it is: `/2024-11-05/code/mcp` and, for the transport of 2024,
`/2024-11-05/code/sse`. The version in `serverInfo` is how many times `initialize` came. The tool
`end` ends a program with status 0.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

# It is started as a file, in any directory.
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.worker.scripted import Request, Wire, serving

Json = dict[str, Any]
PLAIN, CODE, DATA, TEXT, BODY = WAYS = ("plain", "code", "data", "text", "body")
"""-32602 without a word about revisions; another code and a message that names them; `supported`
in the data; 400 with text that names them; 400 with -32602."""
NAMING = frozenset({CODE, DATA, TEXT})


class Server:
    """One server. `tries`: how many times `initialize` came."""

    def __init__(self, revision: str, way: str) -> None:
        self.revision = revision
        self.way = way
        self.tries = 0

    def answer(self, message: Json) -> Json | None:
        """The answer to a message, None to a notification."""
        if "id" not in message:
            return None
        number, params = message["id"], message.get("params", {})
        match message.get("method"):
            case "initialize":
                self.tries += 1
                if params["protocolVersion"] != self.revision:
                    error = self._error(params["protocolVersion"])
                    return {"jsonrpc": "2.0", "id": number, "error": error}
                info = {"name": "one", "version": str(self.tries)}
                result: Json = {
                    "protocolVersion": self.revision, "serverInfo": info,
                    "capabilities": {"tools": {}},
                }  # fmt: skip
            case "tools/list":
                schema = {"type": "object"}
                names = ("echo", "end")
                result = {"tools": [{"name": name, "inputSchema": schema} for name in names]}
            case "tools/call" if params["name"] == "end":
                raise SystemExit(0)
            case "tools/call":
                text = f"{self.revision}, asked {self.tries} times"
                result = {"content": [{"type": "text", "text": text}]}
            case _:
                error = {"code": -32601, "message": "Method not found"}
                return {"jsonrpc": "2.0", "id": number, "error": error}
        return {"jsonrpc": "2.0", "id": number, "result": result}

    def _error(self, asked: str) -> Json:
        if self.way == CODE:
            return {"code": -32000, "message": f"not {asked}: this is a server of {self.revision}"}
        if self.way == DATA:
            data = {"supported": [self.revision], "requested": asked}
            return {"code": -32602, "message": "Unsupported protocol version", "data": data}
        return {"code": -32602, "message": "Invalid params"}

    @property
    def words(self) -> str:
        return f"Bad Request: unsupported version (supported: {self.revision})"


def on_stdio(server: Server) -> None:
    for line in sys.stdin:
        if answer := server.answer(json.loads(line)):
            say(json.dumps(answer))


class Site:
    """All servers on one port. A new start of the gateway's worker is a new server."""

    def __init__(self) -> None:
        self._servers: dict[str, Server] = {}
        self._streams: dict[str, Wire] = {}

    async def serve(self, wire: Wire) -> None:
        while request := await wire.request():
            method, target = request.line.split(" ")[:2]
            revision, way, place = target.strip("/").split("/")
            key = f"{revision}/{way}"
            server = self._servers.setdefault(key, Server(revision, way))
            if method == "POST":
                await self._post(wire, server, place, key, json.loads(request.body), request)
            elif method == "GET" and place == "sse":
                self._streams[key] = wire
                await wire.stream(f"event: endpoint\ndata: /{key}/messages\n\n".encode())
                await wire.closed()
                return
            else:
                await wire.answer(b"", status="405 X")

    async def _post(
        self, wire: Wire, server: Server, place: str, key: str, message: Json, request: Request
    ) -> None:
        if request.headers.get("mcp-protocol-version", "") > "2026":
            await wire.answer(b"Bad Request", status="400 X")
        elif place == "sse":
            await self._refuse_post(wire, key, message)
        else:
            answer = server.answer(message)
            refused = answer is not None and "error" in answer
            if answer is not None and "result" in answer and message["method"] == "initialize":
                self._servers.pop(key)
            if refused and server.way in (TEXT, BODY):
                body = server.words.encode() if server.way == TEXT else dumped(answer)
                await wire.answer(body, "Content-Type: text/plain", status="400 X")
            elif answer is None or place == "messages":
                await wire.answer(b"", status="202 Accepted")
                if answer is not None:
                    await self._streams[key].write(b"data: " + dumped(answer) + b"\n\n")
            else:
                await wire.answer(dumped(answer), "Content-Type: application/json")

    async def _refuse_post(self, wire: Wire, key: str, message: Json) -> None:
        """Answer a POST to the event stream as servers of 2024 do, each in another way."""
        kind = sum(key.encode())
        error = {"code": -32000, "message": "Method not allowed"}
        body = dumped({"jsonrpc": "2.0", "id": message.get("id"), "error": error})
        status = ("400 X", "404 X", "405 X")[kind % 3]
        await wire.answer(body if kind % 2 else b"No", status=status)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def dumped(message: object) -> bytes:
    return json.dumps(message).encode()


async def on_http() -> None:
    async with serving(Site().serve) as url:
        say(url)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        on_stdio(Server(sys.argv[1], sys.argv[2]))
    else:
        asyncio.run(on_http())
