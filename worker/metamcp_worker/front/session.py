"""The sessions of the handshake era: who opened one, what runs in it, when it is over.

Owns: `Session` and the table of them with its limits. Never: ids' randomness, the clock, sending.

A session id is no credential: it opens nothing that its bearer could not have without it. It stands
for what the client said at `initialize`, so that later requests need not say it again.
"""

from collections.abc import Mapping
from typing import Protocol

from metamcp_worker import codec

HANDSHAKE_VERSIONS: tuple[str, ...] = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
"""Newest first; the first is the answer to a version that is not among them."""
IDLE_S = 30 * 60.0
"""Clients seldom say goodbye, so a session without a request or a stream ends after this."""
SESSIONS_MAX = 10_000
"""A session is a few hundred bytes, so this is a bound, not a budget."""
CALLER_BYTES_MAX = 64 * 1024
"""What a client says of itself, icons included; kept as long as the session."""
INFLIGHT_MAX = 1024
"""Requests of one session at once: as many as one server takes."""


class Cancellable(Protocol):
    def cancel(self, reason: str) -> None: ...


class Endable(Protocol):
    def end(self) -> None: ...


class Session:
    """One client's. `caller`: raw JSON of what it said about itself; `inflight`: its requests by
    id; `missed`: notifications for which no stream was open."""

    __slots__ = ("caller", "endpoint", "id", "inflight", "missed", "protocol", "stream", "used_at")

    def __init__(
        self, session_id: str, endpoint: str, protocol: str, caller: bytes, now: float
    ) -> None:
        self.id = session_id
        self.endpoint = endpoint
        self.protocol = protocol
        self.caller = caller
        self.used_at = now
        self.inflight: dict[bytes, Cancellable] = {}
        self.stream: Endable | None = None
        self.missed: set[str] = set()

    def idle_at(self, now: float) -> bool:
        held = self.stream is not None or bool(self.inflight)
        return not held and now - self.used_at >= IDLE_S

    def attach(self, stream: Endable) -> set[str]:
        """The newest stream replaces the one before: a client that comes back has lost that one.
        Returns what was missed in between."""
        if self.stream is not None:
            self.stream.end()
        self.stream = stream
        missed, self.missed = self.missed, set()
        return missed

    def detach(self, stream: Endable, now: float) -> None:
        if self.stream is stream:
            self.stream = None
            self.used_at = now

    def end(self) -> None:
        if self.stream is not None:
            self.stream.end()
        for call in list(self.inflight.values()):
            call.cancel("the session has ended")


class Sessions:
    """All sessions of one front."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(
        self,
        session_id: str,
        endpoint: str,
        protocol: str,
        caller: bytes,
        now: float,
    ) -> Session | None:
        """A new session, or None if there are as many as there may be."""
        if len(self._sessions) >= SESSIONS_MAX:
            self.expire(now)
        if len(self._sessions) >= SESSIONS_MAX:
            return None
        session = Session(session_id, endpoint, protocol, caller, now)
        self._sessions[session_id] = session
        return session

    def find(self, session_id: str, endpoint: str, now: float) -> Session | None:
        """The session, if it is one of this endpoint and not over; it counts as used."""
        session = self._sessions.get(session_id)
        if session is None or session.endpoint != endpoint:
            return None
        if session.idle_at(now):
            del self._sessions[session_id]
            return None
        session.used_at = now
        return session

    def close(self, session: Session) -> None:
        if self._sessions.pop(session.id, None) is not None:
            session.end()

    def expire(self, now: float) -> None:
        for session in [one for one in self._sessions.values() if one.idle_at(now)]:
            self.close(session)

    def keep(self, endpoints: frozenset[str]) -> None:
        """Only these endpoints are left."""
        for session in [one for one in self._sessions.values() if one.endpoint not in endpoints]:
            self.close(session)

    def missed(self, endpoint: str, methods: frozenset[str]) -> None:
        """Note a notification for the sessions that have no stream to be told on."""
        for session in self._sessions.values():
            if session.endpoint == endpoint and session.stream is None:
                session.missed |= methods

    def by_protocol(self) -> Mapping[str, int]:
        counts = dict.fromkeys(HANDSHAKE_VERSIONS, 0)
        for session in self._sessions.values():
            counts[session.protocol] += 1
        return counts


def request_key(raw_id: bytes) -> bytes:
    """One spelling for each id, so that ids can be compared. `7` and `"7"` stay two."""
    return codec.dump(codec.text(raw_id)) if b"\\" in raw_id else raw_id


def negotiated(requested: str) -> str:
    """The revision that is spoken with a client that asks for this one."""
    return requested if requested in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[0]
