"""Which requests of revision 2026-07-28 come from the same client, as far as a gateway can tell.

Owns: the numbers of these clients, for `frames.Call.peer`. Never: sessions and their numbers, who
may do what.

A legacy server on a pipe does not say in whose call it asks something, so its question goes to the
client that alone can be meant. This revision has no sessions: one principal that says the same of
itself in each request to one endpoint counts as one client.
"""

import itertools

from metamcp_worker import frames
from metamcp_worker.sharing import IDENTITY_BYTES_MAX

FIRST = 2**31
"""Below it are the numbers of sessions."""
PEERS_MAX = 4096
"""Clients whose number is known; beyond that all get a new one."""


class Peers:
    """The clients of one front."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str, bytes], int] = {}
        self._next = itertools.count(FIRST)

    def number(self, principal: str, endpoint: str, identity: bytes) -> int:
        """`identity`: raw JSON of what the client says of itself, the same in each of its requests;
        empty if it does not say who it is. 0 for a request that stands alone."""
        key = (principal, endpoint, identity)
        number = self._numbers.get(key)
        if number is not None:
            return number
        if not identity or len(identity) > IDENTITY_BYTES_MAX:
            return 0
        if len(self._numbers) >= PEERS_MAX:
            self._numbers.clear()
        number = self._numbers[key] = FIRST + next(self._next) % FIRST
        return number


assert 2 * FIRST - 1 <= frames.NUMBER_MAX  # the largest number has its place in a frame
