"""Configuration files of MCP clients: their places, their formats, and edits that keep the rest.

Never: asking users (`cli`).
"""
