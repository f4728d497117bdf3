"""Custom transports: which ones the installed packages bring.

Owns: the name of their group of entry points, and the look at what is installed. Never: loading one
(the worker of the server does that), the transports of the gateway itself (`remote`).
"""

from importlib import metadata

GROUP = "metamcp.transports"


def installed() -> frozenset[str]:
    return frozenset(entry.name for entry in metadata.entry_points(group=GROUP))
