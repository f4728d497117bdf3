"""The journal: the newest events of the gateway and its parts, thousands of them, in order; and a
short history of each server, since when and why its state is as now, and its last ends.

Owns: the numbering of events, the limits of what is kept, how followers get events, and reading
histories from events. Never: what a phase means, sockets, files (`logs.LineFile`), printing.

The journal is one ring for everything: a server that flaps would push out the cause of another
server's end an hour ago. Histories are kept for each server separately. The newest events are in
memory; a store keeps more of them, and those of the programs before this one.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Generic, Protocol, TypeVar

from msgspec import Struct, structs

from metamcp_supervisor.verbs import ExitRecord, JournalEvent

T = TypeVar("T")

WAITING = "waiting"
"""Name of the event about a run or a call that begins to wait for a person."""
EVENTS_MAX = 4096
"""Maximum number of events in memory: some hours of a gateway with trouble, about two megabytes."""
EVENTS_KEPT_MAX = 10_000
"""Maximum number of events that are read from the store, which drops older ones in thousands."""
FOLLOWER_ITEMS_MAX = 4096
"""Maximum number of items that wait for one follower; a follower with more is cut."""
FOLLOWERS_MAX = 72
"""Maximum number of followers, more than the control socket has connections: a leak shows here
first."""
NEWEST = 10
"""Number of events that are read for the number of the newest one; some may be torn."""
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


class TooManyFollowers(RuntimeError):
    """More followers than operators would ever open: some caller does not close them."""


class Follower(Generic[T]):
    """A bounded queue of the items that were added since `follow`. `wake` is called for new items.

    A follower that is `lagged` does not get further items, because it would not see the gap.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._waiting: deque[T] = deque()
        self.lagged = False

    def push(self, item: T) -> None:
        if self.lagged:
            return
        if len(self._waiting) >= FOLLOWER_ITEMS_MAX:
            self.lagged = True
        else:
            self._waiting.append(item)
        self._wake()

    def take(self) -> list[T]:
        """Return all items that wait, oldest first, and empty the queue."""
        items = list(self._waiting)
        self._waiting.clear()
        return items


class Feed(Generic[T]):
    """Source of items for a set of followers, each of which gets every item."""

    def __init__(self) -> None:
        self._followers: list[Follower[T]] = []

    def follow(self, wake: Callable[[], None]) -> Follower[T]:
        """Return a new follower; end it with `unfollow`. Raises TooManyFollowers."""
        if len(self._followers) >= FOLLOWERS_MAX:
            raise TooManyFollowers(f"{FOLLOWERS_MAX} followers are open already")
        follower: Follower[T] = Follower(wake)
        self._followers.append(follower)
        return follower

    def unfollow(self, follower: Follower[T]) -> None:
        if follower in self._followers:
            self._followers.remove(follower)

    def push(self, item: T) -> None:
        for follower in self._followers:
            follower.push(item)


class History(Struct):
    """History of one server. Times are seconds since the epoch. `since`: begin of the current
    state; `because`: the last known cause of a change of state; `ready_at`: 0 unless the server is
    ready; `ends`: the last times it went down."""

    name: str
    since: float = 0.0
    because: str = ""
    ready_at: float = 0.0
    ends: tuple[ExitRecord, ...] = ()


class Histories:
    """Histories of all servers. `past`: events of the programs before this one, read when somebody
    asks. Only the ends in them count, because the states of servers ended with their program."""

    def __init__(self) -> None:
        self._by_name: dict[str, History] = {}
        self.past: Iterable[JournalEvent] = ()

    def of(self, server: str) -> History:
        """Return the history of a server; an empty one for a server without events."""
        return self.all().get(server) or History(server)

    def all(self) -> Mapping[str, History]:
        """Return all histories by server."""
        before = Histories()
        for event in self.past:
            before.take(event)
        self.past = ()
        for name, earlier in before._by_name.items():
            if earlier.ends:
                history = self._by_name.setdefault(name, History(name))
                history.ends = (*earlier.ends, *history.ends)[-ENDS_MAX:]
        return self._by_name

    def go_on(self, histories: Iterable[History]) -> None:
        """Continue with the histories of the previous program, which have all ends."""
        self.past = ()
        self._by_name.update((history.name, history) for history in histories)

    def forget(self, server: str) -> None:
        """Remove the history of a process that served a single client and has been removed."""
        self._by_name.pop(server, None)

    def take(self, event: JournalEvent) -> None:
        before, arrow, after = event.what.partition(ARROW)
        if not arrow:
            return
        if event.who not in self._by_name and len(self._by_name) >= SERVERS_MAX:
            del self._by_name[next(iter(self._by_name))]
        history = self._by_name.setdefault(event.who, History(event.who))
        history.since = event.time
        history.because = event.cause[:MESSAGE_CHARACTERS_MAX] or history.because
        if after in _ENDS.get(before, ()):
            end = _parse_end(event, after, history.ready_at)
            history.ends = (*history.ends, end)[-ENDS_MAX:]
        history.ready_at = event.time if after == "ready" else 0.0


class EventStore(Protocol):
    """Events that outlast the program. `rotate`: drop the older half of them."""

    def read(self, count: int) -> Iterator[JournalEvent]: ...

    def append(self, items: Iterable[JournalEvent], *, rotate: bool = False) -> object: ...


class Journal:
    """A journal, to which events are only added. `now`: returns seconds since the epoch. `sink`:
    gets every event at once, for printing; may be set later and must not raise. `store`: used from
    `begin` on. `inherited`: number of the newest event of the program before this one, 0 if there
    was none. `shown`: removes secrets from a cause; may be set later, too. `ordered`: gets a
    sentence for every order of an operator that was carried out, which the journal itself does not
    have. `histories`: history of each server, which is longer than the journal."""

    def __init__(
        self,
        now: Callable[[], float],
        sink: Callable[[JournalEvent], None] | None = None,
        store: EventStore | None = None,
    ) -> None:
        self._now = now
        self._unread = store
        self._store: EventStore | None = None
        self._events: deque[JournalEvent] = deque(maxlen=EVENTS_MAX)
        self._feed: Feed[JournalEvent] = Feed()
        self._last = self.inherited = 0
        self.sink = sink
        self.shown: Callable[[str], str] = str
        self.ordered: Callable[[str], None] = lambda sentence: None
        self.histories = Histories()

    @property
    def last(self) -> int:
        """The number of the newest event, 0 before the first."""
        return self._last

    def add(self, who: str, what: str, cause: str = "", generation: int = 0) -> JournalEvent:
        self._last += 1
        event = JournalEvent(
            seq=self._last,
            time=self._now(),
            who=who,
            what=what,
            cause=self.shown(cause) if cause else "",
            generation=generation,
        )
        self._events.append(event)
        if self._store is not None:
            self._store.append([event], rotate=event.seq % EVENTS_KEPT_MAX == 0)
        self.histories.take(event)
        self._feed.push(event)
        if self.sink is not None:
            self.sink(event)
        return event

    def since(self, seq: int, seconds: float | None = None) -> list[JournalEvent]:
        """Return the events with a number above `seq`, of the last `seconds`; oldest first."""
        oldest = float("-inf") if seconds is None else self._now() - seconds
        events: Sequence[JournalEvent] = self._events
        first = events[0].seq if events else self._last + 1
        if self._store is not None and seq + 1 < first:
            stored = self._store.read(EVENTS_KEPT_MAX)
            earlier = takewhile(lambda event: event.seq < first, stored)
            events = [*earlier, *events][-EVENTS_KEPT_MAX:]
        return [event for event in events if event.seq > seq and event.time >= oldest]

    def begin(self, events: Sequence[JournalEvent] = (), last: int = 0) -> None:
        """Continue after the events in the store, and after those that the program before this one
        handed over, with the number of its newest one."""
        store = self._unread
        newest = store.read(NEWEST) if store is not None else ()
        stored = max((event.seq for event in newest), default=0)
        self.inherited = max(last, stored)
        self._last += self.inherited
        early = [structs.replace(each, seq=each.seq + self.inherited) for each in self._events]
        self._events = deque([*events, *early], EVENTS_MAX)
        if store is None:
            return
        self._store = store
        if missing := [event for event in (*events, *early) if event.seq > stored]:
            store.append(missing)
        self.histories.past = (
            event for event in store.read(EVENTS_KEPT_MAX) if event.seq <= self.inherited
        )

    def follow(self, wake: Callable[[], None]) -> Follower[JournalEvent]:
        return self._feed.follow(wake)

    def unfollow(self, follower: Follower[JournalEvent]) -> None:
        self._feed.unfollow(follower)


def _parse_end(event: JournalEvent, after: str, ready_at: float) -> ExitRecord:
    text = event.cause.partition(NEXT)[0]
    reason, colon, message = text.partition(": ")
    return ExitRecord(
        time=event.time,
        generation=event.generation,
        reason=reason if colon else "",
        message=(message if colon else text)[:MESSAGE_CHARACTERS_MAX],
        ready_s=max(0.0, event.time - ready_at) if ready_at else 0.0,
        next=after,
    )
