"""Which fronts watch which resources, and the calls that wait to become watchers.

Owns: the count per front and URI, the bounds of both. Never: what a server is told of it.
"""

from collections.abc import Callable, Iterable

from msgspec import Raw, Struct

from metamcp_worker.child.actions import Actions, Reply
from metamcp_worker.child.faults import Faults
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.frames import Call, Error, Result

SUBSCRIBE = "resources/subscribe"
UNSUBSCRIBE = "resources/unsubscribe"
METHODS = frozenset({SUBSCRIBE, UNSUBSCRIBE})
"""Calls that are about who watches what, whatever the era of the server."""

URIS_MAX = 10_000
"""Watched at one server."""
URI_BYTES_MAX = 2048


class Waiter(Struct, gc=False):
    """A call that is answered when the server has said something."""

    front: int
    call: int
    method: str
    uri: str
    deadline: float
    timeout_s: float


class Holders:
    """A front may watch a URI several times, for several clients."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[int, int]] = {}

    @property
    def uris(self) -> Iterable[str]:
        return self._counts.keys()

    def held(self, uri: str) -> bool:
        return uri in self._counts

    def add(self, front: int, uri: str) -> None:
        fronts = self._counts.setdefault(uri, {})
        fronts[front] = fronts.get(front, 0) + 1

    def remove(self, front: int, uri: str) -> bool:
        """One time less. Was it there at all?"""
        fronts = self._counts.get(uri, {})
        if front not in fronts:
            return False
        fronts[front] -= 1
        if not fronts[front]:
            self._drop(uri, front)
        return True

    def front_gone(self, front: int) -> list[str]:
        """It watches nothing any more. The URIs that nobody watches now."""
        mine = [uri for uri, fronts in self._counts.items() if front in fronts]
        for uri in mine:
            self._drop(uri, front)
        return [uri for uri in mine if uri not in self._counts]

    def _drop(self, uri: str, front: int) -> None:
        fronts = self._counts[uri]
        del fronts[front]
        if not fronts:
            del self._counts[uri]


class Waiters:
    """At most `calls_max`. Each is taken out exactly once, with its answer or without one."""

    def __init__(self, faults: Faults, *, calls_max: int) -> None:
        self._faults = faults
        self._calls_max = calls_max
        self._all: list[Waiter] = []

    def __len__(self) -> int:
        return len(self._all)

    @property
    def full(self) -> bool:
        return len(self._all) >= self._calls_max

    def on(self, uri: str) -> bool:
        """Does somebody wait to watch it?"""
        return any(one.uri == uri and one.method == SUBSCRIBE for one in self._all)

    def add(self, front: int, call: Call, uri: str, deadline: float, timeout_s: float) -> None:
        self._all.append(Waiter(front, call.id, call.method, uri, deadline, timeout_s))

    def uris(self) -> set[str]:
        """Of all who wait."""
        return {one.uri for one in self._all}

    def take(self, wanted: Callable[[Waiter], bool]) -> list[Waiter]:
        found = [one for one in self._all if wanted(one)]
        if found:
            self._all = [one for one in self._all if not wanted(one)]
        return found

    def expired(self, now: float) -> Actions:
        """Those whose time is up are told so."""
        return [
            self._faults.timed_out(one.front, one.call, one.method, one.timeout_s)
            for one in self.take(lambda one: one.deadline <= now)
        ]


def answered(waiters: Iterable[Waiter], result: bytes, error: bytes = b"") -> Actions:
    """The same answer for each of them: a raw result or, if there is one, a raw error."""
    return [
        Reply(one.front, Error(one.call, error) if error else Result(one.call, result))
        for one in waiters
    ]


def uri_of(call: Call) -> str:
    """The URI that a subscription is about; empty if it names none, or one that is too long."""
    try:
        uri = codec.text(codec.level(call.params).get("uri", Raw(b"null")))
    except codec.Malformed:
        return ""
    return uri if uri and len(uri.encode()) <= URI_BYTES_MAX else ""
