"""An MCP App as its SDK documents it: a tool with a user interface for a client that declares to
show one, and a tool with text alone for any other.

    python tests/fakes/app_server.py legacy|modern

In the legacy era the server decides when its session begins, in the modern era at each request.
"""

import json
import sys
from typing import Any

Json = dict[str, Any]
EXTENSION, PAGE_TYPE, PAGE = (
    "io.modelcontextprotocol/ui",
    "text/html;profile=mcp-app",
    "ui://w/page",
)
PREFIX = "io.modelcontextprotocol/"
MODERN, LEGACY = "2026-07-28", "2025-11-25"


def shows_pages(capabilities: Json) -> bool:
    return PAGE_TYPE in capabilities.get("extensions", {}).get(EXTENSION, {}).get("mimeTypes", [])


def tool(*, page: bool) -> Json:
    found: Json = {"name": "weather", "inputSchema": {"type": "object"}}
    if page:
        return {**found, "description": "a page", "_meta": {"ui": {"resourceUri": PAGE}}}
    return {**found, "description": "text"}


class App:
    """The server. `pages`: whether the client of the session shows pages."""

    def __init__(self, *, modern: bool) -> None:
        self.modern = modern
        self.pages = False

    def answer(self, method: str, params: Json) -> Json | None:
        """The result of a request; None for an unknown method."""
        offered: Json = {"tools": {}, "resources": {}, "extensions": {EXTENSION: {}}}
        if self.modern:
            meta = params.get("_meta", {})
            self.pages = shows_pages(meta.get(PREFIX + "clientCapabilities", {}))
        match method:
            case "initialize" if not self.modern:
                self.pages = shows_pages(params["capabilities"])
                info = {"name": "app", "version": "1"}
                return {"protocolVersion": LEGACY, "serverInfo": info, "capabilities": offered}
            case "server/discover" if self.modern:
                return {"supportedVersions": [MODERN], "capabilities": offered}
            case "tools/list":
                return {"tools": [tool(page=self.pages)]}
            case "tools/call":
                text = "with a page" if self.pages else "text alone"
                return {"content": [{"type": "text", "text": text}]}
            case "resources/list":
                return {"resources": [{"uri": PAGE, "name": "page", "mimeType": PAGE_TYPE}]}
            case "resources/read":
                return {"contents": [{"uri": PAGE, "mimeType": PAGE_TYPE, "text": "<p>"}]}
            case "ping":
                return {}
        return None


def main() -> None:
    app = App(modern=sys.argv[1] == "modern")
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        result = app.answer(message["method"], message.get("params", {}))
        answer: Json = {"jsonrpc": "2.0", "id": message["id"]}
        if result is None:
            answer["error"] = {"code": -32601, "message": "Method not found"}
        else:
            answer["result"] = {"resultType": "complete", **result} if app.modern else result
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
