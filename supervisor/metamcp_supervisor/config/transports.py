"""Custom transports: which ones the installed packages bring.

Owns: the name of their group of entry points, and the look at what is installed. Never: loading one
(the worker of the server does that), the transports of the gateway itself (`remote`).
"""

GROUP = "metamcp.transports"


def installed() -> frozenset[str]:
    from importlib import metadata  # a MiB and a half, which hardly any gateway needs

    return frozenset(entry.name for entry in metadata.entry_points(group=GROUP))
