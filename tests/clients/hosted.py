"""A server object of the SDK for a worker to host; as a program, the same on its own.

python tests/clients/hosted.py
"""

from mcp.server.mcpserver import MCPServer

server = MCPServer("hosted")


@server.tool(structured_output=False)
def blob(kib: int) -> str:
    return "x" * (kib * 1024)


if __name__ == "__main__":
    server.run("stdio")
