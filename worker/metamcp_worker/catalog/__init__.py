"""The lists of an endpoint: which tools, prompts and resources it shows, under which names.

Never: calls, search, the gateway's own tools (`builtin_tools`).
"""
