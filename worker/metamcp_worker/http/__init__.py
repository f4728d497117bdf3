"""HTTP/1.1 on both sides: the listener of fronts and supervisor, the client of remote servers.

Never: MCP.
"""
