"""Sessions of the web console: one-time links, what comes of them, and their ends.

Owns: how long a link and a session last, how many there are; the messages to the process of the
console. Never: the process itself (`servers.console_process`), what a role may do (`orders`).

A link is for one login within a minute. The session that comes of it has the role of the link. The
gateway keeps only hashes of both. The next program of the gateway knows none of them.
"""

import hashlib
import secrets
from collections.abc import Callable, Sequence

from msgspec import Struct

from metamcp_supervisor.backoff import Ration
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.verbs import Exit
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.errors import ProtocolError
from metamcp_worker.ipc.spec import TlsSpec

TOKEN_BYTES = 32
LINK_S = 60.0
"""Seconds for which a link can be used."""
SESSION_S_MAX = 8 * 3600.0
IDLE_S_MAX = 30 * 60.0
"""Seconds after which a session ends: since its login, and since its last page or news."""
LOGINS_PER_MINUTE = 20
SESSIONS_MAX = 64
LINKS_MAX = 64
"""Maximum sessions and links at once; the oldest one ends for a new one."""


class ConsoleOn(Message, frozen=True, kw_only=True):
    """Supervisor: first message to the process of the console, with the listening socket.
    `runtime_dir`: of the control socket; `hosts`: names in `Host` that are allowed."""

    runtime_dir: str
    version: str
    hosts: tuple[str, ...]
    tls: TlsSpec | None = None


class ConsoleFigures(Message, frozen=True, kw_only=True):
    """Console: requests since it began, and open streams of news."""

    requests: int = 0
    streams: int = 0


class ConsoleIdle(Message, frozen=True, kw_only=True):
    """Console: no page is open any more, so the process may end."""


class ConsoleSession(Struct, kw_only=True):
    """Session of a browser. `began`, `used`: seconds of the clock; `digest`: of its token."""

    id: str
    role: Role
    digest: str
    began: float
    used: float

    @property
    def who(self) -> str:
        return f"console session {self.id} ({self.role})"


class ConsoleSessions:
    """Links and sessions. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._logins = Ration(LOGINS_PER_MINUTE)
        self._links: dict[str, tuple[Role, float]] = {}
        self._sessions: dict[str, ConsoleSession] = {}

    def now(self) -> float:
        return self._clock()

    def link(self, role: Role) -> str:
        """Return the secret of a new link."""
        self._forget()
        while len(self._links) >= LINKS_MAX:
            del self._links[next(iter(self._links))]
        secret = secrets.token_urlsafe(TOKEN_BYTES)
        self._links[_digest(secret)] = role, self._clock() + LINK_S
        return secret

    def login(self, secret: str) -> tuple[str, ConsoleSession]:
        """Return the token of a new session, for the secret of a link that ends here. Raises
        ProtocolError."""
        if self._logins.take(self._clock()) is None:
            raise ProtocolError(
                Exit.DENIED, f"more than {LOGINS_PER_MINUTE} logins in a minute; wait a minute"
            )
        self._forget()
        role, _ = self._links.pop(_digest(secret), (None, 0.0))
        if role is None:
            raise ProtocolError(
                Exit.DENIED,
                f"this link was used, or is older than {LINK_S:g} s; 'metamcp console' makes a new"
                " one",
            )
        return self._begin(role)

    def _begin(self, role: Role) -> tuple[str, ConsoleSession]:
        while len(self._sessions) >= SESSIONS_MAX:
            del self._sessions[min(self._sessions.values(), key=lambda one: one.used).digest]
        token, now = secrets.token_urlsafe(TOKEN_BYTES), self._clock()
        digest = _digest(token)
        self._sessions[digest] = ConsoleSession(
            id=secrets.token_hex(4), role=role, digest=digest, began=now, used=now
        )
        return token, self._sessions[digest]

    def used(self, token: str) -> ConsoleSession | None:
        """Return the session of this token, which is used now; None if it has ended."""
        self._forget()
        session = self._sessions.get(_digest(token))
        if session is not None:
            session.used = self._clock()
        return session

    def goes_on(self, session: ConsoleSession) -> bool:
        """Whether a session has not ended; an open page uses it."""
        session.used = self._clock()
        self._forget()
        return session.digest in self._sessions

    def all(self) -> list[ConsoleSession]:
        self._forget()
        return list(self._sessions.values())

    def end(self, names: Sequence[str]) -> list[ConsoleSession]:
        """End the sessions with these ids, all of them without ids, and return them."""
        found = [one for one in self.all() if not names or one.id in names]
        for one in found:
            del self._sessions[one.digest]
        return found

    def _forget(self) -> None:
        now = self._clock()
        self._links = {key: one for key, one in self._links.items() if one[1] > now}
        self._sessions = {
            key: one
            for key, one in self._sessions.items()
            if now - one.began < SESSION_S_MAX and now - one.used < IDLE_S_MAX
        }


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
