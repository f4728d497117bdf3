"""Names of the processes of a server that serve a single client, project or era.

Owns: these names, and the word that stands for a client in them. Never: which servers have such
processes (`messages.ServerState`), starting them.

The word is a hash of the identity of a client. So every front finds the same word for a session
that it took over, and the word does not show the id of the session. Words for sessions begin with a
different bit than words for clients that say who they are: such a client chooses what it says, and
must not be able to match the session of another client. The bit also shows the era: sessions belong
to the earlier one. A project has a word too: all clients that work in the same folders share it.
"""

import hashlib
from collections.abc import Iterable
from typing import Literal

By = Literal["", "client", "project"]
"""Whether a server has a process for each client or for each project; empty: one for all."""

MARK = "@"
"""Separator between the name of a server, which never has it, and the word for a client."""
WHO_BYTES = 6
"""Bytes of the hash in a word: enough that two clients do not share a word by accident."""
SESSIONS_PROCESSES_MAX = 64
"""Maximum processes of one server for single clients; each costs as much as the server."""
CLIENT_PROCESSES_MAX = 16
"""Maximum of these for one client, so that a client with new roots each time cannot use all."""
PROCESSES_MAX = 256
"""Maximum processes, of all servers together, that are not for all clients."""
NO_PLACE = "no_place"
"""Reason of a process that is not started because a maximum is reached."""
LEGACY = "legacy"
"""Word for all clients with a session: the process that they share, of a server that speaks both
eras. The server itself serves the other clients."""
_SESSION, _CLIENT = 0x80, 0
_SESSIONS_FROM = "8"
IDENTITY_BYTES_MAX = 4096
"""Maximum bytes that identify a client; a client that says more of itself gets no word."""


WORKSPACE_MARK = ":"
"""Separator between a workspace and the name of its server or namespace; in the workspace DEFAULT
the name stands alone."""
DEFAULT = "default"
"""Workspace of everything that no table of another workspace has."""


def within(workspace: str, name: str) -> str:
    """Return the full name of a server, namespace or tool set of a workspace."""
    return name if workspace == DEFAULT else f"{workspace}{WORKSPACE_MARK}{name}"


def workspace_of(name: str) -> str:
    """Return the workspace of a server, namespace or tool set with this full name."""
    workspace, mark, _ = name.partition(WORKSPACE_MARK)
    return workspace if mark else DEFAULT


def label(name: str) -> str:
    """Return the name within its workspace, which names of tools have."""
    return name.rpartition(WORKSPACE_MARK)[2]


def paths(server: str, name: str) -> set[str]:
    """Return the texts that a pattern `SERVER/NAME` may match for a thing of a server: with its
    full name, and with the name within its workspace."""
    return {f"{server}/{name}", f"{label(server)}/{name}"}


def own(server: str, who: str) -> str:
    """Return the name of the process of `server` that serves this client alone. `who`: empty for
    clients that do not say who they are; the server itself serves them."""
    return f"{server}{MARK}{who}" if who else server


def base(name: str) -> str:
    """Return the server of a process for one client; any other name is returned as it is."""
    return name.partition(MARK)[0] if MARK in name else name


def parse_client(name: str) -> str:
    """Return the word for the client of a process; empty for a server itself."""
    return name.partition(MARK)[2]


def has_session(who: str) -> bool:
    """Whether this is the word of a client that has a session, or `LEGACY`."""
    return who >= _SESSIONS_FROM


def of_session(session_id: str) -> str:
    """Return the word for the client that has this session."""
    return _word(_SESSION, session_id.encode())


def of_client(principal: str, endpoint: str, identity: bytes) -> str:
    """Return the word for a client without a session. `identity`: raw JSON that the client sends
    about itself in each request; without it the word is empty."""
    if not identity or len(identity) > IDENTITY_BYTES_MAX:
        return ""
    return _word(_CLIENT, principal.encode(), endpoint.encode(), identity)


def of_rooted(who: str, uris: Iterable[str]) -> str:
    """Return the word for a client without a session together with its roots, because two agents
    that say the same of themselves may work in different folders. `who`: word of the client."""
    return _word(_CLIENT, b"", who.encode(), *_each(uris))


def of_project(principal: str, uris: Iterable[str]) -> str:
    """Return the word for all clients of a principal that have these roots, in any order; empty
    without roots."""
    each = _each(uris)
    return _word(_CLIENT, b"", b"", principal.encode(), *each) if each else ""


def _each(uris: Iterable[str]) -> list[bytes]:
    return [uri.encode("utf-8", "surrogatepass") for uri in sorted(set(uris))]


def _word(first_bit: int, *parts: bytes) -> str:
    first, *others = hashlib.sha256(b"\0".join(parts)).digest()[:WHO_BYTES]
    return bytes((first_bit | first & 0x7F, *others)).hex()
