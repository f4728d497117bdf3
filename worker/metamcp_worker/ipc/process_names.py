"""Processes of a server that serve one client each, or those of one era: how they are called, and
whose each one is.

Owns: their names, and the word that stands for a client in them. Never: which servers have such
processes (`messages.ServerState`), starting them.

The word is a hash of what a client is known by, so every front finds the same one for a session
that it took over, and nobody finds the id of a session in it. Words for sessions begin with another
bit than those for clients that say who they are: these choose what they say, and none of them can
find something that stands for the session of somebody else. So a word says also in which era its
client speaks: sessions are of the earlier one. A project has a word too: all clients that work in
the same folders have the same one.
"""

import hashlib
from collections.abc import Iterable
from typing import Literal

By = Literal["", "client", "project"]
"""For whom a server has processes of their own: nobody, each client, or each project."""

MARK = "@"
"""Between the name of a server, which never has it, and the word for a client."""
WHO_BYTES = 6
"""Of the hash: nobody meets another client's word by accident."""
SESSIONS_PROCESSES_MAX = 64
"""Processes of one server for single clients: each costs what the server costs."""
CLIENT_PROCESSES_MAX = 16
"""Of these, for one client that shows other roots each time, and so cannot take all places."""
PROCESSES_MAX = 256
"""Processes of all servers that are not for all clients."""
NO_PLACE = "no_place"
"""The reason of one that is not started: there are as many as there may be."""
LEGACY = "legacy"
"""In place of a client's word: the process that all clients with a session share, of a server that
speaks both eras. The server itself serves the others."""
_SESSION, _CLIENT = 0x80, 0
_SESSIONS_FROM = "8"
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


def has_session(who: str) -> bool:
    """Is it the word of a client that has a session, or of all of these?"""
    return who >= _SESSIONS_FROM


def of_session(session_id: str) -> str:
    """The word for the client that has this session."""
    return _word(_SESSION, session_id.encode())


def of_client(principal: str, endpoint: str, identity: bytes) -> str:
    """The word for a client without a session. `identity`: raw JSON of what it says of itself in
    each of its requests; if it says nothing, the word is empty."""
    if not identity or len(identity) > IDENTITY_BYTES_MAX:
        return ""
    return _word(_CLIENT, principal.encode(), endpoint.encode(), identity)


def of_rooted(who: str, uris: Iterable[str]) -> str:
    """The word for a client without a session, which has the word `who`, and its roots: two agents
    that say the same of themselves may work in different folders."""
    return _word(_CLIENT, b"", who.encode(), *_each(uris))


def of_project(principal: str, uris: Iterable[str]) -> str:
    """The word for all clients of a principal that have these roots, in whatever order; empty if
    there are none."""
    each = _each(uris)
    return _word(_CLIENT, b"", b"", principal.encode(), *each) if each else ""


def _each(uris: Iterable[str]) -> list[bytes]:
    return [uri.encode("utf-8", "surrogatepass") for uri in sorted(set(uris))]


def _word(first_bit: int, *parts: bytes) -> str:
    first, *rest = hashlib.sha256(b"\0".join(parts)).digest()[:WHO_BYTES]
    return bytes((first_bit | first & 0x7F, *rest)).hex()
