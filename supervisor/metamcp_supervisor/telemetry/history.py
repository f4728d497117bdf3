"""Short history of each server: since when and why its state is as now, and its last ends.

Owns: reading the history from events of the journal, and the limits of what is kept. Never: the
journal itself (`journal`), what a phase means, clocks.

The journal is one ring for everything: a server that flaps would push out the cause of another
server's end an hour ago. Histories are kept for each server separately.
"""

from collections import deque
from collections.abc import Mapping

from msgspec import Struct, field

from metamcp_supervisor.verbs import Ended, JournalEvent

ENDS_MAX = 20
"""Maximum number of ends per server: a screen of `describe`, and more than the circuit counts."""
SERVERS_MAX = 4096
"""Maximum number of servers, far above what one gateway runs; another one replaces the oldest."""
MESSAGE_CHARACTERS_MAX = 1000
"""Maximum characters of a cause; ENDS_MAX causes per server are kept while the gateway runs."""

ARROW = "→"
#: States in which a server can go down, each with the states that follow when it does.
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
    """History of one server. Times are seconds since the epoch. `since`: begin of the current
    state; `because`: the last known cause of a change of state; `ready_at`: 0 unless the server is
    ready; `ends`: the last times it went down."""

    since: float = 0.0
    because: str = ""
    ready_at: float = 0.0
    ends: deque[Ended] = field(default_factory=lambda: deque[Ended](maxlen=ENDS_MAX))


class Histories:
    def __init__(self) -> None:
        self._by_name: dict[str, History] = {}

    def of(self, server: str) -> History:
        """Return the history of a server; an empty one for a server without events."""
        return self._by_name.get(server) or History()

    def all(self) -> Mapping[str, History]:
        """Return all histories by server."""
        return self._by_name

    def go_on(self, server: str, history: History) -> None:
        """Continue with a history of the previous program."""
        self._by_name[server] = history

    def forget(self, server: str) -> None:
        """Remove the history of a process that served a single client and has been removed."""
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
