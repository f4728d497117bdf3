"""The front processes: start, replacement, and sessions and connections that move between them.

Never: MCP, which the fronts speak.
"""
