"""What happened to each server, in short: since when it is what it is, and how it went down before.

Owns: reading that out of the journal's events, and the bounds of what is kept. Never: the journal
itself (`journal`), what a phase means, clocks.

The journal is one ring for everything: a server that flaps would push out of it why another one
went down an hour ago. This is kept for each server by itself.
"""

from collections import deque
from collections.abc import Mapping

from msgspec import Struct, field

from metamcp_supervisor.verbs import Ended, JournalEvent

ENDS_MAX = 20
"""Kept per server: the screen of a `describe`, and more than the circuit counts."""
SERVERS_MAX = 4096
"""Far above what one gateway runs; a name that comes after has the oldest one forgotten."""
MESSAGE_CHARACTERS_MAX = 1000
"""Of a cause; twenty of them per server are kept for as long as the gateway runs."""

ARROW = "→"
#: States in which there is a server that can go down, and those that follow when it did.
_ENDS: Mapping[str, frozenset[str]] = {
    "warming": frozenset({"error", "quarantined"}),
    "ready": frozenset({"error", "quarantined", "stopped", "idle"}),
}
NEXT = "; next start in "


class HistorySnapshot(Struct, frozen=True, kw_only=True):
    name: str
    since: float
    because: str
    ready_at: float
    ends: tuple[Ended, ...]


class History(Struct):
    """`since`: of the state now; `because`: the last cause that was given for a change of it."""

    since: float = 0.0
    because: str = ""
    ready_at: float = 0.0
    ends: deque[Ended] = field(default_factory=lambda: deque[Ended](maxlen=ENDS_MAX))


class Histories:
    def __init__(self) -> None:
        self._by_name: dict[str, History] = {}

    def of(self, server: str) -> History:
        """An empty one for a server to which nothing happened yet."""
        return self._by_name.get(server) or History()

    def all(self) -> Mapping[str, History]:
        """By server."""
        return self._by_name

    def go_on(self, server: str, history: History) -> None:
        """After what the program before knew."""
        self._by_name[server] = history

    def forget(self, server: str) -> None:
        """It was there for a single client, and is not any more."""
        self._by_name.pop(server, None)

    def take(self, event: JournalEvent) -> None:
        before, arrow, after = event.what.partition(ARROW)
        if not arrow:
            return
        if event.who not in self._by_name and len(self._by_name) >= SERVERS_MAX:
            del self._by_name[next(iter(self._by_name))]
        history = self._by_name.setdefault(event.who, History())
        history.since = event.time
        history.because = event.cause[:MESSAGE_CHARACTERS_MAX] or history.because
        if after in _ENDS.get(before, ()):
            history.ends.append(_ended(event, after, history.ready_at))
        history.ready_at = event.time if after == "ready" else 0.0


def _ended(event: JournalEvent, after: str, ready_at: float) -> Ended:
    said = event.cause.partition(NEXT)[0]
    reason, colon, message = said.partition(": ")
    return Ended(
        time=event.time,
        generation=event.generation,
        reason=reason if colon else "",
        message=(message if colon else said)[:MESSAGE_CHARACTERS_MAX],
        ready_s=max(0.0, event.time - ready_at) if ready_at else 0.0,
        next=after,
    )
