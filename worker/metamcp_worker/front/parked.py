"""Calls whose clients are to come back with answers: what each state is good for, and how much may
be kept.

Owns: the states that clients are given, what each is bound to, when it is over, and the limits of
one front. Never: the calls themselves, clocks, randomness.

A state is a number that nobody guesses, and all that it stands for stays here: nothing is to be
sealed, and a state that is gone opens nothing. Who shows a state that is not his own learns no more
than that it is of no use, and the one whose it is keeps it.
"""

import hashlib
from collections.abc import Mapping
from typing import Generic, TypeVar

from msgspec import Raw, Struct

from metamcp_worker.front import mrtr
from metamcp_worker.front.elsewhere import Elsewhere
from metamcp_worker.ipc import codec, messages
from metamcp_worker.ipc.errors import Code, Refused

T = TypeVar("T")

PARK_S_MAX = 300.0
"""For a client to come back: as long as a server waits for an answer to its question."""
PARKED_MAX = 1024
"""Calls of one front."""
CLIENT_PARKED_MAX = PARKED_MAX // 8
"""Calls of one client in one front: the oldest makes room for a newer one, so that a client that
does not come back takes no places from others."""
CLIENT_SERVER_PARKED_MAX = 64
"""Calls of one client at one server."""
KEPT_BYTES_MAX = 64 * 1024 * 1024
"""Of open questions, and of results that wait for their clients, in one front."""

DIGEST_BYTES = 16
"""Nobody finds another request with the same digest, and who did would gain nothing by it: what
the server has is the first one."""

_PREFIX = "metamcp."
OVER = (
    "The requestState is of no use: it was used before, it has expired, newer calls of its client "
    "took its place, or the server that asked is gone. Send the request again without requestState "
    "and inputResponses."
)
_ELSEWHERE = (
    "The requestState has expired: the process of the gateway that gave it has ended. Send the "
    "request again without requestState and inputResponses."
)
_OTHER_REQUEST = (
    "The requestState belongs to another request: method and params must be the same as in the "
    "request that was answered with it."
)


class Bound(Struct, frozen=True, gc=False):
    """What a state is good for: this principal, this endpoint, this request, this server. Of the
    server it is the instance that has the call; with it the state ends."""

    principal: str
    endpoint: str
    method: str
    server: str
    digest: bytes


class Full(Exception):
    """So much is kept already. The text is a sentence."""


class _Entry(Struct, Generic[T], frozen=True):
    bound: Bound
    client: str
    until: float
    kept: T


class Parked(Generic[T]):
    """What one front keeps. `front`: a name that no other process has or had."""

    def __init__(self, front: str) -> None:
        self._front = f"{_PREFIX}{front}."
        self._entries: dict[str, _Entry[T]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def crowded(self, bound: Bound, client: str) -> T | None:
        """The oldest call of this client, if the client has as many as it may have, and the oldest
        must go before one more is parked. `client`: the word for the client; clients that do not
        say who they are count as one."""
        whose = (*_holder(bound), client)
        mine = [one for one in self._entries.values() if (*_holder(one.bound), one.client) == whose]
        here = [one for one in mine if one.bound.server == bound.server]
        if len(here) >= CLIENT_SERVER_PARKED_MAX:
            return here[0].kept
        return mine[0].kept if len(mine) >= CLIENT_PARKED_MAX else None

    def park(self, token: str, bound: Bound, client: str, kept: T, now: float) -> str:
        """The state that brings `kept` back, once. `token`: one that nobody guesses. Raises
        Full."""
        if len(self._entries) >= PARKED_MAX:
            raise Full(f"{PARKED_MAX} calls wait for their clients to answer; try again later.")
        state = self._front + token
        self._entries[state] = _Entry(bound, client, now + PARK_S_MAX, kept)
        return state

    def check_here(self, state: str) -> None:
        """Raises Elsewhere for a state that another front made."""
        maker = None if state.startswith(self._front) else messages.maker(state)
        if maker is not None:
            raise Elsewhere(state, maker, Refused(Code.INVALID_PARAMS, _ELSEWHERE))

    def take(self, state: str, bound: Bound, now: float) -> T:
        """What this state stands for. Raises Refused; then nothing has changed."""
        entry = self._entries.get(state)
        if entry is None and not state.startswith(self._front):
            raise Refused(Code.INVALID_PARAMS, _ELSEWHERE)
        if entry is None or entry.until <= now or _holder(entry.bound) != _holder(bound):
            raise Refused(Code.INVALID_PARAMS, OVER)
        if entry.bound != bound:
            raise Refused(Code.INVALID_PARAMS, _OTHER_REQUEST)
        del self._entries[state]
        return entry.kept

    def forget(self, state: str) -> None:
        self._entries.pop(state, None)

    def everything(self) -> list[T]:
        return [entry.kept for entry in self._entries.values()]

    def reserve(self, size: int) -> bool:
        """Room for so many bytes, until they are released; False if there is none."""
        if self._bytes + size > KEPT_BYTES_MAX:
            return False
        self._bytes += size
        return True

    def release(self, size: int) -> None:
        self._bytes -= size


def is_state(text: str | None) -> bool:
    """Did some front make this state, and no server?"""
    return text is not None and text.startswith(_PREFIX)


def digest(params: Mapping[str, Raw]) -> bytes:
    """Of what a request asks for, whatever the order of its members. Made for every call that may
    be interrupted, hence the fast one of the safe hashes."""
    found = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for key in sorted(params):
        if key not in mrtr.ADDED:
            raw = params[key]
            found.update(b"%b%d:" % (codec.dump(key), len(raw)))
            found.update(raw)
    return found.digest()


def _holder(bound: Bound) -> tuple[str, str]:
    return bound.principal, bound.endpoint
