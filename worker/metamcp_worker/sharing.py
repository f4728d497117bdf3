"""Processes of a server that serve one client each: how they are called, and whose each one is.

Owns: their names, and the word that stands for a client in them. Never: which servers have such
processes (`messages.ServerState`), starting them.

The word is a hash of what a client is known by, so every front finds the same one for a session
that it took over, and nobody finds the id of a session in it.
"""

import hashlib
from functools import lru_cache

MARK = "@"
"""Between the name of a server, which never has it, and the word for a client."""
WHO_BYTES = 6
"""Of the hash: nobody meets another client's word by accident."""
SESSIONS_PROCESSES_MAX = 64
"""Processes of one server for single clients: each costs what the server costs."""
NO_PLACE = "no_place"
"""The reason of one that is not started: there are as many as there may be."""
IDENTITY_BYTES_MAX = 4096
"""What a client says of itself in more bytes than that does not tell it from others."""
CLIENTS_KEPT = 1024
"""Clients of revision 2026-07-28 whose word is remembered; they say the same in each request."""


def own(server: str, who: str) -> str:
    """The name of the process of `server` that serves this client alone. `who`: empty for clients
    that do not say who they are: the server itself serves them."""
    return f"{server}{MARK}{who}" if who else server


def base(name: str) -> str:
    """The server of which this is a process for one client; the name itself for any other."""
    return name.partition(MARK)[0]


def whose(name: str) -> str:
    """The word for the client whose process this is; empty for a server itself."""
    return name.partition(MARK)[2]


def of_session(session_id: str) -> str:
    """The word for the client that has this session."""
    return _word(b"session", session_id.encode())


def of_client(principal: str, endpoint: str, identity: bytes) -> str:
    """The word for a client without a session. `identity`: raw JSON of what it says of itself in
    each of its requests; if it says nothing, the word is empty."""
    if not identity or len(identity) > IDENTITY_BYTES_MAX:
        return ""
    return _of_client(principal, endpoint, identity)


@lru_cache(CLIENTS_KEPT)
def _of_client(principal: str, endpoint: str, identity: bytes) -> str:
    return _word(b"client", principal.encode(), endpoint.encode(), identity)


def _word(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[: 2 * WHO_BYTES]
