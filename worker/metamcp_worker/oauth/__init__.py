"""OAuth towards remote servers: tokens for workers, and for `metamcp login`.

Never: the requests of MCP (`child`).
"""
