"""The sessions of the handshake era: who opened one, what runs in it, when it is over.

Owns: `ClientSession` and the table of them with its limits. Never: ids' randomness, the clock,
sending.

A session id is no credential: it opens nothing that its bearer could not have without it. It stands
for what the client said at `initialize`, so that later requests need not say it again.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from metamcp_worker.front import answers
from metamcp_worker.front.client_questions import Ids, OpenQuestions, may_be_asked
from metamcp_worker.front.resume import Memory, Tape, Tapes
from metamcp_worker.ipc import codec, process_names, roots
from metamcp_worker.ipc.messages import SessionRecord

HANDSHAKE_VERSIONS: tuple[str, ...] = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Newest first; the first is the answer to a version that is not among them."""
PRIMED_SINCE = "2025-11-25"
"""The first revision whose clients expect an event without data. Revisions compare as text."""
IDLE_S = 30 * 60.0
"""Clients seldom say goodbye, so a session without a request or a stream ends after this."""
ROOM_IDLE_S = 60.0
"""A session that is so long idle may make room for a new one, when there is none."""
ROOM_MANY = 100
"""How many such are looked for at once: looking through all for each newcomer would take long."""
LOOK_S_MIN = 1.0
"""Between two looks that find none."""
SESSIONS_MAX = 10_000
"""A session is a few kilobytes, so this is a bound, not a budget."""
CALLER_BYTES_MAX = 64 * 1024
"""What a client says of itself, icons included; kept as long as the session."""
INFLIGHT_MAX = 1024
"""Requests of one session at once: as many as one server takes."""
MISSED_MAX = 100
MISSED_BYTES_MAX = 4096
"""Updates of resources that wait for a stream, and the size of one; the oldest go first."""
LEFT_S = 150.0
"""So long after a session came here nothing is left of what its front before had begun: workers
keep a call for a minute, and its answer for another. Many sessions that come together end together,
and then it is not worth to tell all workers of each."""
ELICITATIONS_MAX = 32
"""Visits to URLs that were asked for and are not reported to be over; the oldest go first."""

_UPDATED = "notifications/resources/updated"
_TASK = "notifications/tasks/status"


class Cancellable(Protocol):
    def cancel(self, reason: str) -> None: ...


class SessionStream(Protocol):
    """A stream to the client."""

    def put(self, event: bytes) -> None: ...

    def end(self) -> None: ...


class ClientSession:
    """One client's.

    `number`: never used for another one in this front. `caller`: raw JSON of what the client says
    about itself now; `level`: of the log messages that it wants, or empty. `inflight`: its requests
    by id. `asked`: what it is asked. `watched`: URIs. `elicitations`: server and id of visits to
    URLs. `missed`: methods of notifications for which no stream was open. `stream`: for what
    belongs to no request; `tapes`: of its streams, None where nothing can be resumed. `over`: it
    has ended, so nothing may begin to hold it. `adopted_at`: since when it is here, if another
    front had it before. `who`, `rooted`, `project`, `unasked`: its client (`processes.Whose`).
    `answer`: the answer of that to `roots/list`, empty until it was asked; `directory`: the folder
    that it works in, if it says so.
    """

    modern = False
    __slots__ = (
        "_said", "_updates", "adopted_at", "answer", "asked", "caller", "directory", "elicitations",
        "endpoint", "id", "inflight", "level", "missed", "news", "number", "over", "principal",
        "project", "protocol", "rooted", "stream", "tapes", "unasked", "used_at",
        "watched", "who",
    )  # fmt: skip

    def __init__(
        self,
        record: SessionRecord,
        number: int,
        principal: str,
        ids: Ids,
        tapes: Tapes | None,
        now: float,
    ) -> None:
        self.id = record.id
        self.who = process_names.of_session(record.id)
        self.number = number
        self.endpoint = record.endpoint
        self.principal = principal
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
        self.news: Tape | None = None
        self.over = False
        self.adopted_at: float | None = None
        self.tapes = tapes
        self._updates: dict[bytes, None] = {}
        if record.level:
            self.set_level(record.level)

    @property
    def primed(self) -> bool:
        """Does this client understand an event that says nothing but its id?"""
        return self.protocol >= PRIMED_SINCE

    def record(self) -> SessionRecord:
        """What another front needs to go on with this session."""
        return SessionRecord(
            id=self.id, endpoint=self.endpoint, protocol=self.protocol, level=self.level,
            caller=self._said.decode(), subscriptions=tuple(self.watched),
        )  # fmt: skip

    def idle_at(self, now: float, for_s: float = IDLE_S) -> bool:
        held = self.stream is not None or bool(self.inflight)
        return not held and now - self.used_at >= for_s

    def inherits(self, now: float) -> bool:
        """May a worker still have what another front has left of it?"""
        return self.adopted_at is not None and now < self.adopted_at + LEFT_S

    def set_level(self, level: str) -> None:
        self.level = level
        self.caller = codec.splice(self._said, {"logLevel": codec.dump(level)})

    def elicited(self, server: str, elicitation: str) -> None:
        """The client was asked to visit a URL, under this id of the server."""
        self.elicitations[server, elicitation] = None
        if len(self.elicitations) > ELICITATIONS_MAX:
            del self.elicitations[next(iter(self.elicitations))]

    def work_in(self, directory: str) -> None:
        """Its client works in this folder."""
        self.directory = directory
        self._place()

    def has_roots(self, answer: bytes) -> None:
        """Its client gave this answer to `roots/list`; an empty one: it has to be asked again.
        Raises Unfit."""
        roots.uris(answer or roots.NONE)
        self.answer, self.unasked = answer, not answer
        self._place()

    @property
    def roots(self) -> bytes:
        return roots.effective(self.answer, self.directory)

    def _place(self) -> None:
        self.project = process_names.of_project(
            self.principal, roots.uris(self.roots or roots.NONE)
        )

    # --- the stream for what belongs to no request ----------------------------------------------

    def tell(self, message: bytes) -> bool:
        """Put this message on the session's stream. False if there is none."""
        if self.stream is None:
            return False
        (self.news or self.stream).put(answers.event(message))
        return True

    def listed(self, method: str) -> None:
        """A list has changed: tell it now, or on the next stream."""
        if not self.tell(answers.notification(method)):
            self.missed.add(method)

    def updated(self, params: bytes) -> None:
        """A resource has changed: tell it now, or on the next stream."""
        message = answers.notification(_UPDATED, params)
        if not self.tell(message) and len(message) <= MISSED_BYTES_MAX:
            self._updates.pop(message, None)
            self._updates[message] = None
            if len(self._updates) > MISSED_MAX:
                del self._updates[next(iter(self._updates))]

    def task_changed(self, params: bytes) -> None:
        """A task that this client began goes on: tell it if there is a stream. Without one it asks
        by itself, as clients do that have a task."""
        self.tell(answers.notification(_TASK, params))

    def attach(self, stream: SessionStream) -> None:
        """The newest stream replaces the one before: a client that comes back has lost that one."""
        before, self.stream = self.stream, stream
        if before is not None:
            before.end()

    def catch_up(self) -> None:
        """Tell on the stream what was missed before it."""
        missed, self.missed = self.missed, set()
        updates, self._updates = self._updates, {}
        for method in sorted(missed):
            self.tell(answers.notification(method))
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
        if self.tapes is not None:
            self.tapes.clear()


class ClientSessions:
    """All sessions of one front. `nonce`: a word that no other front has, for the ids that are made
    here; `on_over`: told which have ended."""

    def __init__(self, nonce: str, on_over: Callable[[list[ClientSession]], None]) -> None:
        self._on_over = on_over
        self._memory = Memory(nonce)
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
        self, record: SessionRecord, principal: str, now: float, *, resumable: bool = True
    ) -> ClientSession | None:
        """A new session, or None if there are as many as there may be, and all of them in use.
        `resumable`: its streams may go on at another connection."""
        if len(self._sessions) >= SESSIONS_MAX and not self._make_room(now):
            return None
        tapes = Tapes(self._memory) if resumable else None
        session = ClientSession(record, next(self._numbers), principal, self._ids, tapes, now)
        self._sessions[session.id] = session
        return session

    def find(
        self, session_id: str, endpoint: str, principal: str, now: float
    ) -> ClientSession | None:
        """The session, if it is one of this endpoint and principal and not over; it counts as
        used."""
        session = self._sessions.get(session_id)
        if session is None or session.endpoint != endpoint or session.principal != principal:
            return None
        if session.idle_at(now):
            self._close([session])
            return None
        session.used_at = now
        return session

    def close(self, session: ClientSession) -> None:
        self._close([session])

    def expire(self, now: float) -> None:
        self._memory.expire(now)
        self._close([one for one in self._sessions.values() if one.idle_at(now)])

    def keep(self, endpoints: frozenset[str]) -> None:
        """Only these endpoints are left."""
        self._close([one for one in self._sessions.values() if one.endpoint not in endpoints])

    def listed(self, news: Callable[[str, str, str], Iterable[str]]) -> None:
        """Lists have changed. `news`: which notifications there are for a session, by its endpoint,
        its principal and the word for its client."""
        for session in self._sessions.values():
            for method in news(session.endpoint, session.principal, session.who):
                session.listed(method)

    def by_protocol(self) -> Mapping[str, int]:
        counts = dict.fromkeys(HANDSHAKE_VERSIONS, 0)
        for session in self._sessions.values():
            counts[session.protocol] += 1
        return counts

    def _close(self, sessions: list[ClientSession]) -> None:
        over = [one for one in sessions if self._sessions.pop(one.id, None) is not None]
        for session in over:
            session.end()
        if over:
            self._on_over(over)

    def _make_room(self, now: float) -> bool:
        """Close the session that is idle longest, if any is idle long enough."""
        while True:
            while self._dispensable:
                used_at, session = self._dispensable.pop()
                still = self._sessions.get(session.id) is session and session.used_at == used_at
                if still and session.idle_at(now, ROOM_IDLE_S):
                    self._close([session])
                    return True
            if now < self._look_at:
                return False
            idle = [one for one in self._sessions.values() if one.idle_at(now, ROOM_IDLE_S)]
            idle.sort(key=lambda one: one.used_at)
            self._dispensable = [(one.used_at, one) for one in reversed(idle[:ROOM_MANY])]
            if not idle:
                self._look_at = now + LOOK_S_MIN
                return False


def request_key(raw_id: bytes) -> bytes:
    """One spelling for each id, so that ids can be compared. `7` and `"7"` stay two."""
    return codec.dump(codec.text(raw_id)) if b"\\" in raw_id else raw_id


def negotiated(requested: str) -> str:
    """The revision that is spoken with a client that asks for this one."""
    return requested if requested in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[0]
