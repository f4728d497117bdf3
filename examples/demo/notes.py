"""An MCP server that runs inside its own worker process: no command, no pipes of its own."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("notes")
_notes: list[str] = []


@server.tool()
def add_note(text: str) -> str:
    """Keep a note until the gateway stops."""
    _notes.append(text)
    return f"{len(_notes)} kept"


@server.tool()
def list_notes() -> list[str]:
    """All notes, oldest first."""
    return list(_notes)
