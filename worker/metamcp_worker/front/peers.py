"""Which requests of revision 2026-07-28 come from the same client, as far as a gateway can tell.

Owns: the numbers of these clients, for `frames.Call.peer`, and that their words (`process_names`)
are at hand. Never: sessions and their numbers, who may do what.

A legacy server on a pipe does not say in whose call it asks something, so its question goes to the
client that alone can be meant. This revision has no sessions: one principal that says the same of
itself in each request to one endpoint counts as one client.
"""

import itertools

from msgspec import Struct

from metamcp_worker.ipc import frames, process_names
from metamcp_worker.ipc.process_names import IDENTITY_BYTES_MAX

FIRST = 2**31
"""Below it are the numbers of sessions."""
PEERS_MAX = 4096
"""Clients whose number is known; beyond that all get a new one."""


class Peer(Struct, frozen=True, gc=False):
    """One client. `number`: as in `frames.Call.peer`; `who`: the word for it (`sharing`)."""

    number: int = 0
    who: str = ""


NOBODY = Peer()
"""For a request that stands alone."""


class Peers:
    """The clients of one front."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, bytes], Peer] = {}
        self._next = itertools.count(FIRST)

    def find(self, principal: str, endpoint: str, identity: bytes) -> Peer:
        """`identity`: raw JSON of what the client says of itself, the same in each of its requests;
        empty if it does not say who it is."""
        key = (principal, endpoint, identity)
        peer = self._known.get(key)
        if peer is not None:
            return peer
        if not identity or len(identity) > IDENTITY_BYTES_MAX:
            return NOBODY
        if len(self._known) >= PEERS_MAX:
            self._known.clear()
        number = FIRST + next(self._next) % FIRST
        peer = self._known[key] = Peer(number, process_names.of_client(*key))
        return peer


assert 2 * FIRST - 1 <= frames.NUMBER_MAX  # the largest number has its place in a frame
