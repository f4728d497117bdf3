"""The workers: MCP towards clients and servers, and the pipes between.

`front` and `child` are the two kinds of worker and never import each other. The supervisor imports
`ipc`, `http`, `runtime`, `oauth` and `bridge`, and nothing else from here.
"""
