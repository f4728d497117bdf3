"""OAuth towards remote servers: tokens for workers, and for `metamcp login`.

Never: the requests of MCP (`child`).
"""

WHOLE_SDK = ("mcp", "mcp.client")
"""Packages whose own code imports all of the SDK, also what only servers need. `flow` does without,
which saves half a second and 16 MiB: see `lazy_import.import_from`."""
