"""A child worker: MCP towards one server, from the pipe to its stdin."""
