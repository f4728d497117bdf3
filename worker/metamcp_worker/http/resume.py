"""Streams that a client may go on with after its connection broke: event ids, and what is kept.

Owns: the ids of events, which events of which stream are kept and for how long. Never: connections,
sending, the contents of events, the clock.

An *event log* has the events of one stream, in order; the place of an event on its log is its id.
The *reader* of a log is the connection that gets the events now, if there is one. When the
connection breaks, the log goes on without a reader. A client that comes back names the last event
that it has, gets the events behind it, and is the reader from then on. An event is on one log only,
and a log has at most one reader, so a client that truly names its last event gets nothing twice.

Limits hold per session, per front, and in time. Beyond a limit the oldest events go first. A client
that asks for these gets the rest: the answer is the youngest event.

A log dies with its front. The id of an event names its log, and the request that is still to be
answered there. With these another front can go on, on a log of its own: the *heir* of the lost
one, which holds all that the client does not have. The id of the last event does not name the
request: a client that has this event has the answer.
"""

import base64
import binascii
import itertools
import re
from collections import deque
from typing import Protocol

from msgspec import Struct

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.frames import MESSAGE_BYTES

RESUME_EVENTS_MAX = 1000
"""Maximum number of events kept for one session."""
RESUME_BYTES_MAX = 17 * 1024 * 1024
"""Maximum bytes of events kept for one session; the last event stays, however large it is."""
FRONT_BYTES_MAX = MESSAGE_BYTES + 16 * 1024 * 1024
"""Maximum bytes of the events of all sessions: the largest answer of most servers, and some small
ones."""
EVENT_BYTES = 1024
"""Bytes that an event counts beside its own: as many as a log takes that has only this event."""
RESUME_S = 300.0
"""Seconds that a stream is kept after its end: long enough to wake up a laptop or to change the
network."""
WHOLE_BYTES_MAX = 64 * 1024
"""Maximum bytes kept of a stream that ended while its reader was there. The reader has got
everything, as far as the front can see, but the network may have lost the end; a larger stream is
not kept for this case."""
NEWS_EVENTS_MAX = 100
"""Maximum number of events kept of a stream that never ends: a client may have missed the
youngest."""
REQUEST_BYTES_MAX = 64
"""Maximum bytes of a request's id in the ids of its events; another front cannot go on with a
request that has a longer id."""
RETRY_MS = 1000
"""Milliseconds after which a client should come back; clients wait as long anyway, unless they get
a time."""

_ID = re.compile(
    rb"(?P<nonce>[0-9A-Za-z]{1,64})-(?P<log>[0-9]{1,12})-(?P<place>[0-9]{1,12})"
    rb"(?:-(?P<request>[0-9A-Za-z_-]{1,88}))?"
)


class EventLogRef(Struct, frozen=True):
    """Event log of another front, as the client names it. `request`: raw id of the request
    whose answer the client waits for."""

    name: bytes
    request: bytes


class EventLogReader(Protocol):
    """Connection that gets the events of a log."""

    def put(self, event: bytes) -> None: ...

    def close(self, event: bytes) -> None:
        """Send the last event, and end."""
        ...

    def end(self) -> None: ...


class EventLogStore:
    """Events kept in one front. `nonce`: separates its event ids from those of other fronts."""

    def __init__(self, nonce: str) -> None:
        self.nonce = nonce.encode()
        self.size_bytes = 0
        self.numbers = itertools.count(1)
        self.over: dict[EventLog, float] = {}
        """Event logs that have ended, in order, each with the moment until which it is kept."""

    def expire(self, now: float) -> None:
        while self.over and next(iter(self.over.values())) <= now:
            next(iter(self.over)).forget()

    def full(self) -> bool:
        """Whether more is kept than may be, after ended logs were forgotten to make room."""
        while self.size_bytes > FRONT_BYTES_MAX and self.over:
            next(iter(self.over)).forget()
        return self.size_bytes > FRONT_BYTES_MAX


class EventLogs:
    """Event logs of one session."""

    __slots__ = ("_event_logs", "_filled", "_heirs", "events", "memory", "size_bytes")

    def __init__(self, memory: EventLogStore) -> None:
        self.memory = memory
        self.events = 0
        self.size_bytes = 0
        self._event_logs: dict[int, EventLog] = {}
        self._filled: dict[EventLog, None] = {}
        self._heirs: dict[bytes, EventLog] = {}

    def open(
        self, reader: EventLogReader, events_max: int = RESUME_EVENTS_MAX, request: bytes = b""
    ) -> "EventLog":
        """Begin a log that keeps at most so many events. `request`: raw id of the request whose
        answer ends the log."""
        event_log = EventLog(self, next(self.memory.numbers), reader, events_max, request)
        self._event_logs[event_log.number] = event_log
        return event_log

    def inherit(self, lost: EventLogRef, heir: "EventLog") -> None:
        """Give a client that asks for the lost log this one from now on."""
        self._heirs[lost.name] = heir

    def find_lost_tape(self, event_id: bytes) -> EventLogRef | None:
        """Return the log of another front that this event is on; None if nothing more is to come
        on it."""
        match = _ID.fullmatch(event_id.strip(b" \t"))
        if match is None or match["nonce"] == self.memory.nonce:
            return None
        request = _decode_id(match["request"] or b"")
        return EventLogRef(_name(match), request) if request else None

    def find(self, event_id: bytes) -> "tuple[EventLog, list[bytes]] | None":
        """Return the log with this event, and the events behind it; None if the event is not
        known."""
        match = _ID.fullmatch(event_id.strip(b" \t"))
        if match is None:
            return None
        if match["nonce"] != self.memory.nonce:
            heir = self._heirs.get(_name(match)) if match["request"] else None
            return None if heir is None else (heir, heir.after(0))
        event_log = self._event_logs.get(int(match["log"]))
        if event_log is None or int(match["place"]) > event_log.last:
            return None
        if match["request"] is not None and match["request"] != event_log.request:
            return None
        return event_log, event_log.after(int(match["place"]))

    def clear(self) -> None:
        """Forget all logs, because the session is over."""
        for event_log in list(self._event_logs.values()):
            event_log.forget()

    # --- for logs ----------------------------------------------------------------------------

    def count(self, event_log: "EventLog", events: int, size_bytes: int) -> None:
        self.events += events
        self.size_bytes += size_bytes
        self.memory.size_bytes += size_bytes
        if event_log.events:
            self._filled[event_log] = None
        else:
            self._filled.pop(event_log, None)

    def shrink(self) -> None:
        """Keep to the limits: the events of the oldest log go first. The very last event stays,
        unless the whole front has no room for it."""
        while self.events > 1 and (
            self.events > RESUME_EVENTS_MAX or self.size_bytes > RESUME_BYTES_MAX
        ):
            next(iter(self._filled)).drop()
        while self._filled and self.memory.full():
            next(iter(self._filled)).drop()

    def remove(self, event_log: "EventLog") -> None:
        self._event_logs.pop(event_log.number, None)
        for name in [name for name, heir in self._heirs.items() if heir is event_log]:
            del self._heirs[name]


class EventLog:
    """Events of one stream. `name`, `request`: texts for the log and for its request in the ids of
    its events; `last`: place of the youngest event; `events`: events that are kept, the youngest
    last; `over`: no event follows."""

    __slots__ = (
        "_event_logs", "_events_max", "events", "last", "name", "number", "over", "reader",
        "request", "size_bytes",
    )  # fmt: skip

    def __init__(
        self,
        event_logs: EventLogs,
        number: int,
        reader: EventLogReader,
        events_max: int,
        request: bytes,
    ) -> None:
        self.number = number
        self.name = b"%b-%d" % (event_logs.memory.nonce, number)
        self.last = 0
        self.events: deque[bytes] = deque()
        self.size_bytes = 0
        self.reader: EventLogReader | None = reader
        self.over = False
        self._event_logs = event_logs
        self._events_max = events_max
        self.request = _encode_id(request)

    def prime(self) -> None:
        """Put an event without content: with its id a client can come back before there is news."""
        self.put(b"retry: %d\ndata: \n\n" % RETRY_MS)

    def put(self, event: bytes) -> None:
        numbered = self._keep(event)
        if self.reader is not None:
            self.reader.put(numbered)

    def end(self, event: bytes, now: float) -> None:
        """Put the last event."""
        self.over = True
        numbered = self._keep(event)
        read = self.reader is not None
        if self.reader is not None:
            self.reader.close(numbered)
            self.reader = None
        if not self.events or (read and self.size_bytes > WHOLE_BYTES_MAX):
            self.forget()
        else:
            self._event_logs.memory.over[self] = now + RESUME_S

    def lose(self, reader: EventLogReader) -> None:
        """Go on without this connection, which is gone."""
        if self.reader is reader:
            self.reader = None

    def resume(self, reader: EventLogReader, events: list[bytes]) -> None:
        """Go on at this connection, with these events. The connection before, if it is still there,
        is ended: its client has lost it."""
        if self.over:
            for event in events[:-1]:
                reader.put(event)
            if events:
                reader.close(events[-1])
            else:
                reader.end()
            return
        before, self.reader = self.reader, reader
        if before is not None:
            before.end()
        for event in events:
            reader.put(event)

    def after(self, position: int) -> list[bytes]:
        """Return the events behind this position, as far as they are kept."""
        return list(itertools.islice(self.events, max(0, position - self._first + 1), None))

    def drop(self) -> None:
        """Drop the oldest event."""
        size = len(self.events.popleft()) + EVENT_BYTES
        self.size_bytes -= size
        self._event_logs.count(self, -1, -size)
        if self.over and not self.events:
            self.forget()

    def forget(self) -> None:
        """Drop everything, because no client can come back to this log any more."""
        count, size = len(self.events), self.size_bytes
        self.events.clear()
        self.size_bytes = 0
        self._event_logs.count(self, -count, -size)
        self._event_logs.memory.over.pop(self, None)
        self._event_logs.remove(self)

    @property
    def _first(self) -> int:
        return self.last - len(self.events) + 1

    def _keep(self, event: bytes) -> bytes:
        self.last += 1
        request = b"-" + self.request if self.request and not self.over else b""
        numbered = b"id: %b-%d%b\n%b" % (self.name, self.last, request, event)
        size = len(numbered) + EVENT_BYTES
        self.events.append(numbered)
        self.size_bytes += size
        self._event_logs.count(self, 1, size)
        if len(self.events) > self._events_max:
            self.drop()
        self._event_logs.shrink()
        return numbered


def _name(match: re.Match[bytes]) -> bytes:
    return match["nonce"] + b"-" + match["log"]


def _encode_id(request: bytes) -> bytes:
    """Return the text for this raw id in the ids of events; empty for an id that is too long."""
    if not request or len(request) > REQUEST_BYTES_MAX:
        return b""
    return base64.urlsafe_b64encode(request).rstrip(b"=")


def _decode_id(word: bytes) -> bytes:
    """Return the raw id for this text; empty if it does not stand for one, because any client may
    have written it."""
    try:
        raw = base64.urlsafe_b64decode(word + b"=" * (-len(word) % 4))
        return codec.dump(codec.value(raw)) if codec.id_ok(raw) else b""
    except (binascii.Error, codec.Malformed):
        return b""
