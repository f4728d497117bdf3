"""A front: MCP towards clients, from the socket to the pipe of a server."""
