"""Processes of the gateway itself: when each starts and ends, what it gets, its figures.

Never: MCP servers (`servers`), what such a process does (`metamcp_worker`, `console`).
"""
