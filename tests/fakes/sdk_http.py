"""A server of the official SDK on HTTP, in each of the ways in which it can be served.

    python tests/fakes/sdk_http.py --way stateful

The first line of its output is its URL.
"""

import argparse
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


def server(journal: str) -> MCPServer:
    made = MCPServer("sdk")

    @made.tool()
    async def echo(text: str) -> str:
        return text

    @made.tool(structured_output=False)
    async def big(size: int) -> str:
        return "x" * size

    @made.tool()
    async def wait() -> str:
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
    if journal:
        with Path(journal).open("a") as file:
            file.write(text + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--way", choices=WAYS, default="stateful")
    parser.add_argument("--journal", default="", help="a file in which `wait` leaves lines")
    options = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    made = server(options.journal)
    if options.way == "sse":
        app, path = made.sse_app(), "/sse"
    else:
        app, path = (
            made.streamable_http_app(
                stateless_http=options.way == "stateless", json_response=options.way == "json"
            ),
            "/mcp",
        )
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}{path}\n")
        sys.stdout.flush()
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
