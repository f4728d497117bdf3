"""Sessions of the handshake era: their client, the requests in them, their end.

Owns: `ClientSession`, and the table of all sessions with its limits. Never: making random ids, the
clock, sending.

A session id is not a credential: its bearer can do nothing that is impossible without it. The id
stands for the data that the client sent with `initialize`, so later requests need not repeat them.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

from metamcp_worker.front_calls.client_questions import Ids, OpenQuestions, may_be_asked
from metamcp_worker.http.resume import EventLog, EventLogs, EventLogStore
from metamcp_worker.ipc import codec, jsonrpc_bytes, process_names, roots
from metamcp_worker.ipc.messages import SessionRecord

HANDSHAKE_VERSIONS: tuple[str, ...] = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Revisions of this era, newest first; the first answers a version that is not in the list."""
PRIMED_SINCE = "2025-11-25"
"""First revision whose clients expect an event without data. Revisions compare as text."""
IDLE_S: Final = 30 * 60.0
"""Seconds without a request or a stream after which a session ends; clients seldom end it."""
ROOM_IDLE_S = 60.0
"""Seconds after which an idle session may be closed for a new one, if the table is full."""
ROOM_MANY = 100
"""Number of idle sessions that one search collects: a search of all sessions for each new one would
take long."""
LOOK_S_MIN = 1.0
"""Minimum seconds to the next search for idle sessions after a search that found none."""
SESSIONS_MAX = 10_000
"""Maximum number of sessions, far more than usual; a session takes a few kilobytes."""
CALLER_BYTES_MAX = 64 * 1024
"""Maximum bytes that a client sends about itself, icons included; kept as long as the session."""
INFLIGHT_MAX: Final = 1024
"""Maximum requests of one session at the same time: as many as one server takes."""
MISSED_MAX = 100
"""Maximum number of updates of resources that wait for a stream; the oldest go first."""
MISSED_BYTES_MAX = 4096
"""Maximum bytes of an update that may wait for a stream."""
LEFT_S = 150.0
"""Seconds after which nothing is left of the calls of the front that had the session before:
workers keep a call for a minute, and its answer for another. Many sessions that come together end
together, and then a message to all workers for each session is not worth it."""
ELICITATIONS_MAX = 32
"""Maximum visits to URLs that a session was asked for and that have not ended; the oldest go
first."""

_UPDATED = "notifications/resources/updated"
_TASK = "notifications/tasks/status"


class Cancellable(Protocol):
    def cancel(self, reason: str) -> None: ...


class SessionStream(Protocol):
    """Stream to the client."""

    def put(self, event: bytes) -> None: ...

    def end(self) -> None: ...


class ClientSession:
    """Session of one client.

    `number`: unique in this front. `caller`: raw JSON that the client sent about itself, with the
    log level; `level`: of the log messages that the client wants, or empty. `inflight`: requests by
    id. `asked`: open questions to the client. `watched`: URIs. `elicitations`: server and id of
    visits to URLs. `missed`: methods of notifications for which no stream was open. `stream`: for
    messages that belong to no request; `event_logs`: of its streams, None if they cannot be
    resumed. `over`: the session has ended, so nothing may hold it any more. `adopted_at`: when the
    session came from another front, None if it began here. `who`, `rooted`, `project`, `unasked`:
    as in `server_processes.ProcessClient`; `principal`, `key`: as in `SessionRecord`. `answer`: of
    the client to `roots/list`, empty until it was asked; `directory`: folder that the client works
    in, if it says so."""

    modern = False
    __slots__ = (
        "_said",
        "_updates",
        "adopted_at",
        "answer",
        "asked",
        "caller",
        "directory",
        "elicitations",
        "endpoint",
        "event_logs",
        "id",
        "inflight",
        "key",
        "level",
        "missed",
        "news",
        "number",
        "over",
        "principal",
        "project",
        "protocol",
        "rooted",
        "stream",
        "unasked",
        "used_at",
        "watched",
        "who",
    )  # fmt: skip

    def __init__(
        self,
        record: SessionRecord,
        number: int,
        ids: Ids,
        event_logs: EventLogs | None,
        now: float,
    ) -> None:
        self.id = record.id
        self.who = process_names.of_session(record.id)
        self.number = number
        self.endpoint = record.endpoint
        self.principal = record.principal
        self.key = record.key
        self.protocol = record.protocol
        self.caller = self._said = record.caller.encode()
        self.unasked = may_be_asked(self.caller, roots.METHOD, b"")
        self.rooted = self.who if self.unasked else ""
        self.answer = b""
        self.directory = self.project = ""
        self.level = ""
        self.used_at = now
        self.inflight: dict[bytes, Cancellable] = {}
        self.asked = OpenQuestions(ids)
        self.watched = dict.fromkeys(record.subscriptions)
        self.elicitations: dict[tuple[str, str], None] = {}
        self.missed: set[str] = set()
        self.stream: SessionStream | None = None
        self.news: EventLog | None = None
        self.over = False
        self.adopted_at: float | None = None
        self.event_logs = event_logs
        self._updates: dict[bytes, None] = {}
        if record.level:
            self.set_level(record.level)

    @property
    def can_be_primed(self) -> bool:
        """Whether this client understands an event with nothing but an id."""
        return self.protocol >= PRIMED_SINCE

    def record(self) -> SessionRecord:
        """Return the data that another front needs to continue this session."""
        return SessionRecord(
            id=self.id, endpoint=self.endpoint, protocol=self.protocol, level=self.level,
            caller=self._said.decode(), subscriptions=tuple(self.watched),
            principal=self.principal, key=self.key,
        )  # fmt: skip

    def idle_at(self, now: float, for_s: float = IDLE_S) -> bool:
        in_use = self.stream is not None or bool(self.inflight)
        return not in_use and now - self.used_at >= for_s

    def inherits(self, now: float) -> bool:
        """Whether a worker may still have calls that another front began in this session."""
        return self.adopted_at is not None and now < self.adopted_at + LEFT_S

    def set_level(self, level: str) -> None:
        self.level = level
        self.caller = codec.splice(self._said, {"logLevel": codec.dump(level)})

    def note_elicitation(self, server: str, elicitation: str) -> None:
        """Note that the client was asked to visit a URL, under this id of the server."""
        self.elicitations[server, elicitation] = None
        if len(self.elicitations) > ELICITATIONS_MAX:
            del self.elicitations[next(iter(self.elicitations))]

    def work_in(self, directory: str) -> None:
        """Set the folder that the client works in."""
        self.directory = directory
        self._place()

    def has_roots(self, answer: bytes) -> None:
        """Set the answer of the client to `roots/list`; empty if the client has to be asked again.
        Raises RootsUnfit."""
        roots.uris(answer or roots.NONE)
        self.answer, self.unasked = answer, not answer
        self._place()

    @property
    def roots(self) -> bytes:
        return roots.effective(self.answer, self.directory) if self.directory else self.answer

    def _place(self) -> None:
        self.project = process_names.of_project(
            self.principal, roots.uris(self.roots or roots.NONE)
        )

    # --- the stream for what belongs to no request ----------------------------------------------

    def tell(self, message: bytes) -> bool:
        """Put this message on the session's stream. Returns False without a stream."""
        if self.stream is None:
            return False
        (self.news or self.stream).put(jsonrpc_bytes.event(message))
        return True

    def send_list_changed(self, method: str) -> None:
        """Send a notification that a list has changed, now or on the next stream."""
        if not self.tell(jsonrpc_bytes.notification(method)):
            self.missed.add(method)

    def send_resource_updated(self, params: bytes) -> None:
        """Send a notification that a resource has changed, now or on the next stream."""
        message = jsonrpc_bytes.notification(_UPDATED, params)
        if not self.tell(message) and len(message) <= MISSED_BYTES_MAX:
            self._updates.pop(message, None)
            self._updates[message] = None
            if len(self._updates) > MISSED_MAX:
                del self._updates[next(iter(self._updates))]

    def task_changed(self, params: bytes) -> None:
        """Send the new state of a task of this client, if there is a stream. Without a stream the
        client finds out by itself: clients with a task ask for its state."""
        self.tell(jsonrpc_bytes.notification(_TASK, params))

    def attach(self, stream: SessionStream) -> None:
        """Set the stream of the session and end the one before: a client that comes back has lost
        the old stream."""
        before, self.stream = self.stream, stream
        if before is not None:
            before.end()

    def catch_up(self) -> None:
        """Send the notifications that were missed before the stream was there."""
        missed, self.missed = self.missed, set()
        updates, self._updates = self._updates, {}
        for method in sorted(missed):
            self.tell(jsonrpc_bytes.notification(method))
        for message in updates:
            self.tell(message)

    def detach(self, stream: SessionStream, now: float) -> None:
        if self.stream is stream:
            self.stream = None
            self.used_at = now

    def end(self) -> None:
        self.over = True
        for call in list(self.inflight.values()):
            call.cancel("the session has ended")
        if self.stream is not None:
            self.stream.end()
        if self.event_logs is not None:
            self.event_logs.clear()


class ClientSessions:
    """Sessions of one front. `nonce`: word that no other front has, for the ids that are created
    here; `on_over`: called with the sessions that have ended."""

    def __init__(self, nonce: str, on_over: Callable[[list[ClientSession]], None]) -> None:
        self._on_over = on_over
        self._memory = EventLogStore(nonce)
        self._ids = Ids(nonce)
        self._sessions: dict[str, ClientSession] = {}
        self._numbers = itertools.count(1)
        self._dispensable: list[tuple[float, ClientSession]] = []
        self._look_at = 0.0

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._sessions

    def __iter__(self) -> Iterator[ClientSession]:
        return iter(list(self._sessions.values()))

    def open(
        self, record: SessionRecord, now: float, *, resumable: bool = True
    ) -> ClientSession | None:
        """Open a session; None if the table is full and all sessions are in use. `resumable`: its
        streams may go on at another connection."""
        if len(self._sessions) >= SESSIONS_MAX and not self._make_room(now):
            return None
        event_logs = EventLogs(self._memory) if resumable else None
        session = ClientSession(record, next(self._numbers), self._ids, event_logs, now)
        self._sessions[session.id] = session
        return session

    def find(
        self, session_id: str, endpoint: str, principal: str, now: float
    ) -> ClientSession | None:
        """Return the session and count it as used; None if it is over or belongs to another
        endpoint or principal."""
        session = self._sessions.get(session_id)
        if session is None or session.endpoint != endpoint or session.principal != principal:
            return None
        if now - session.used_at >= IDLE_S and session.idle_at(now):
            self._close([session])
            return None
        session.used_at = now
        return session

    def close(self, session: ClientSession) -> None:
        self._close([session])

    def expire(self, now: float) -> None:
        self._memory.expire(now)
        self._close([session for session in self._sessions.values() if session.idle_at(now)])

    def keep(self, endpoints: frozenset[str]) -> None:
        """Close the sessions of all endpoints but these."""
        self._close(
            [session for session in self._sessions.values() if session.endpoint not in endpoints]
        )

    def revoke(self, keys: frozenset[str]) -> None:
        """Close the sessions that were opened with one of these API keys."""
        self._close([session for session in self._sessions.values() if session.key in keys])

    def count_for_key(self, key: str) -> int:
        """Return the number of sessions that were opened with an API key."""
        return sum(session.key == key for session in self._sessions.values())

    def notify_list_changes(self, news: Callable[[str, str, str], Iterable[str]]) -> None:
        """Notify the sessions whose lists have changed. `news(endpoint, principal, who)`: returns
        the notifications for a session."""
        for session in self._sessions.values():
            for method in news(session.endpoint, session.principal, session.who):
                session.send_list_changed(method)

    def by_protocol(self) -> Mapping[str, int]:
        counts = dict.fromkeys(HANDSHAKE_VERSIONS, 0)
        for session in self._sessions.values():
            counts[session.protocol] += 1
        return counts

    def _close(self, sessions: list[ClientSession]) -> None:
        over = [session for session in sessions if self._sessions.pop(session.id, None) is not None]
        for session in over:
            session.end()
        if over:
            self._on_over(over)

    def _make_room(self, now: float) -> bool:
        """Close the longest idle session. Returns False if no session is idle long enough."""
        while True:
            while self._dispensable:
                used_at, session = self._dispensable.pop()
                still = self._sessions.get(session.id) is session and session.used_at == used_at
                if still and session.idle_at(now, ROOM_IDLE_S):
                    self._close([session])
                    return True
            if now < self._look_at:
                return False
            idle = [
                session for session in self._sessions.values() if session.idle_at(now, ROOM_IDLE_S)
            ]
            idle.sort(key=lambda session: session.used_at)
            self._dispensable = [
                (session.used_at, session) for session in reversed(idle[:ROOM_MANY])
            ]
            if not idle:
                self._look_at = now + LOOK_S_MIN
                return False


def request_key(raw_id: bytes) -> bytes:
    """Return the id in its only spelling, so that ids can be compared; `7` and `"7"` differ."""
    return codec.dump(codec.text(raw_id)) if codec.BACKSLASH in raw_id else raw_id


def negotiate_version(requested: str) -> str:
    """Return the revision to use with a client that requests this one."""
    return requested if requested in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[0]
