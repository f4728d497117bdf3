"""The worker package: bytes. MCP in, MCP out, and the pipes between.

The files at this level are the contract that the supervisor may import; `front` and `child` are
the two kinds of worker and know nothing of each other.
"""
