"""Processes of a server that serve one client each: how they are called, and whose each one is.

Owns: their names, and the word that stands for a client in them. Never: which servers have such
processes (`messages.ServerState`), starting them.

The word is a hash of what a client is known by, so every front finds the same one for a session
that it took over, and nobody finds the id of a session in it. Words for sessions begin with another
bit than those for clients that say who they are: these choose what they say, and none of them can
find something that stands for the session of somebody else.
"""

import hashlib

MARK = "@"
"""Between the name of a server, which never has it, and the word for a client."""
WHO_BYTES = 6
"""Of the hash: nobody meets another client's word by accident."""
SESSIONS_PROCESSES_MAX = 64
"""Processes of one server for single clients: each costs what the server costs."""
NO_PLACE = "no_place"
"""The reason of one that is not started: there are as many as there may be."""
_SESSION, _CLIENT = 0x80, 0
IDENTITY_BYTES_MAX = 4096
"""What a client says of itself in more bytes than that does not tell it from others."""


def own(server: str, who: str) -> str:
    """The name of the process of `server` that serves this client alone. `who`: empty for clients
    that do not say who they are: the server itself serves them."""
    return f"{server}{MARK}{who}" if who else server


def base(name: str) -> str:
    """The server of which this is a process for one client; the name itself for any other."""
    return name.partition(MARK)[0] if MARK in name else name


def whose(name: str) -> str:
    """The word for the client whose process this is; empty for a server itself."""
    return name.partition(MARK)[2]


def of_session(session_id: str) -> str:
    """The word for the client that has this session."""
    return _word(_SESSION, session_id.encode())


def of_client(principal: str, endpoint: str, identity: bytes) -> str:
    """The word for a client without a session. `identity`: raw JSON of what it says of itself in
    each of its requests; if it says nothing, the word is empty."""
    if not identity or len(identity) > IDENTITY_BYTES_MAX:
        return ""
    return _word(_CLIENT, principal.encode(), endpoint.encode(), identity)


def _word(first_bit: int, *parts: bytes) -> str:
    first, *rest = hashlib.sha256(b"\0".join(parts)).digest()[:WHO_BYTES]
    return bytes((first_bit | first & 0x7F, *rest)).hex()
