"""A server as people write them, with the official SDK: most of its start is imports.

    python -m benchmarks.ordinary_server

Owns two tools. Never: anything that a real server would not do.
"""

import asyncio

from mcp.server.mcpserver import MCPServer

server = MCPServer("ordinary")


@server.tool()
def echo(text: str) -> str:
    """The text, as it came."""
    return text


@server.tool()
async def sleep(ms: int) -> str:
    """An answer after a while."""
    await asyncio.sleep(ms / 1000)
    return f"slept {ms} ms"


if __name__ == "__main__":
    server.run()
