"""A server as people write them, with the official SDK: most of its start is imports.

    python -m benchmarks.ordinary_server

Owns one tool. Never: anything that a real server would not do.
"""

from mcp.server.mcpserver import MCPServer

server = MCPServer("ordinary")


@server.tool()
def echo(text: str) -> str:
    """The text, as it came."""
    return text


if __name__ == "__main__":
    server.run()
