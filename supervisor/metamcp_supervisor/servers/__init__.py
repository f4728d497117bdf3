"""The life of each MCP server: states, starts, restarts, spares, catalogues, pipes to fronts.

Never: forking (`processes`), clients (`fronts`).
"""
