"""Servers of the official SDK on HTTP, one for each of these ways in which they can be served.

    python tests/fakes/sdk_http.py --ways stateful sse

Each line of its output is the URL of one, in their order.
"""

import argparse
import asyncio
import logging
import socket
import sys
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel

WAYS = ("stateful", "json", "stateless", "sse")
FOREVER_S = 3600.0


class Name(BaseModel):
    name: str


def server() -> MCPServer:
    made = MCPServer("sdk")

    @made.tool()
    async def echo(text: str) -> str:
        return text

    @made.tool(structured_output=False)
    async def big(size: int) -> str:
        return "x" * size

    @made.tool()
    async def wait(journal: str) -> str:
        note(journal, "began")
        try:
            await anyio.sleep(FOREVER_S)
        finally:
            note(journal, "ended")
        return "never"

    @made.tool()
    async def progress(ctx: Context[Any, Any]) -> str:
        await ctx.report_progress(1, 2, "half")
        return "done"

    @made.tool()
    async def ask(ctx: Context[Any, Any]) -> str:
        found = await ctx.elicit("Name?", Name)
        return found.model_dump_json()

    return made


def note(journal: str, text: str) -> None:
    with Path(journal).open("a") as file:
        file.write(text + "\n")


async def serve(way: str, listener: socket.socket) -> None:
    made = server()
    app = (
        made.sse_app()
        if way == "sse"
        else made.streamable_http_app(
            stateless_http=way == "stateless", json_response=way == "json"
        )
    )
    config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
    await uvicorn.Server(config).serve(sockets=[listener])


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ways", choices=WAYS, nargs="+", required=True)
    logging.basicConfig(level=logging.ERROR)
    ways: list[str] = parser.parse_args().ways
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in ways]
    for way, listener in zip(ways, listeners, strict=True):
        path = "/sse" if way == "sse" else "/mcp"
        sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}{path}\n")
    sys.stdout.flush()
    await asyncio.gather(*map(serve, ways, listeners))


if __name__ == "__main__":
    asyncio.run(main())
