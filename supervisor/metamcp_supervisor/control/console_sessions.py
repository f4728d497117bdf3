"""Sessions of the web console: logins by one-time links and by API keys, how sessions end, and
programs that show an API key with each request.

Owns: how long a link and a session last, how many there are, the count of failed logins; the
messages to the process of the console. Never: the process itself (`console.console_process`), what
a role may do (`orders`), API keys themselves (the gateway's store of keys).

A link is for one login within a minute. A session has the role of its link, or the highest role
that the scopes of its API key give, and ends with that key. The gateway keeps only hashes of links
and sessions. The next program of the gateway knows none of them.
"""

import hashlib
import secrets
from collections.abc import Callable, Sequence

from msgspec import Struct

from metamcp_supervisor.control.access import SESSION_ENDED, Role
from metamcp_supervisor.control.client import KEY_ENDED
from metamcp_supervisor.verbs import Exit
from metamcp_worker.access.door import Failures
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.errors import ProtocolError
from metamcp_worker.ipc.key_table import KeySpec
from metamcp_worker.ipc.spec import TlsSpec

TOKEN_BYTES = 32
LINK_S = 60.0
"""Seconds for which a link can be used."""
SESSION_S_MAX = 8 * 3600.0
IDLE_S_MAX = 30 * 60.0
"""Seconds after which a session ends: since its login, and since its last page or news."""
SESSIONS_MAX = 64
KEY_SESSIONS_MAX = 8
LINKS_MAX = 64
"""Maximum sessions, sessions of one API key, and links at once; the oldest one ends for a new
one."""


NOT_A_KEY = "this API key does not open the console"
"""Refusal of every key that may not log in, whatever is wrong with it."""
TOO_MANY = "too many failed logins came from this address"
"""Beginning of the refusal instead, after many of them."""


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
    """Session of a browser. `began`, `used`: seconds of the clock; `digest`: of its token; `key`:
    id of the API key, empty for the session of a link. For a program that shows its API key with
    each request, it lasts as long as the connection for one of them, and has role and key alone."""

    id: str = ""
    role: Role
    digest: str = ""
    began: float = 0.0
    used: float = 0.0
    key: str = ""

    @property
    def description(self) -> str:
        if not self.digest:
            return f"API key {self.key} ({self.role})"
        by = f", API key {self.key}" if self.key else ""
        return f"console session {self.id} ({self.role}{by})"


class ConsoleSessions:
    """Links and sessions. `clock`: monotonic seconds; `has_key`: whether the API key with an id is
    valid now."""

    def __init__(self, clock: Callable[[], float], has_key: Callable[[str], bool]) -> None:
        self._clock = clock
        self._has_key = has_key
        self._failures = Failures()
        self._links: dict[str, tuple[Role, float]] = {}
        self._sessions: dict[str, ConsoleSession] = {}

    def read_clock(self) -> float:
        return self._clock()

    def link(self, role: Role) -> str:
        """Return the secret of a new link."""
        self._forget()
        while len(self._links) >= LINKS_MAX:
            del self._links[next(iter(self._links))]
        secret = secrets.token_urlsafe(TOKEN_BYTES)
        self._links[_digest(secret)] = role, self._clock() + LINK_S
        return secret

    def login(self, secret: str, address: str = "") -> tuple[str, ConsoleSession]:
        """Return the token of a new session, for the secret of a link that ends here. `address`: of
        the browser. Raises ProtocolError."""
        self._forget()
        role, _ = self._links.pop(_digest(secret), (None, 0.0))
        if role is None:
            reason = (
                f"this link was used, or is older than {LINK_S:g} s; 'metamcp console' makes a new"
                " one"
            )
            raise self._refuse_login(address, reason)
        return self._begin(role, "")

    def login_by_key(self, key: KeySpec | None, address: str) -> tuple[str, ConsoleSession]:
        """Return the token of a new session with the role of a valid API key. `key`: None if the
        text of the key was wrong, which gets the same sentence as a key that may not log in.
        Raises ProtocolError."""
        self._forget()
        admitted = self.admit_key(key, address)
        return self._begin(admitted.role, admitted.key)

    def admit_key(self, key: KeySpec | None, address: str) -> ConsoleSession:
        """Return the session for one request of a program, as `login_by_key` does for a browser; it
        is not among `all`. Raises ProtocolError."""
        role = None if key is None else Role.of_key(key.scopes)
        if key is None or role is None:
            raise self._refuse_login(address, NOT_A_KEY)
        return ConsoleSession(role=role, key=key.id)

    def _refuse_login(self, address: str, reason: str) -> ProtocolError:
        """Count a failed login. A valid link or key is accepted at any time, so nobody can lock out
        anybody."""
        wait_s = self._failures.count_failure(address, self._clock())
        if wait_s:
            reason = f"{TOO_MANY}; try again in {wait_s:.0f} s"
        return ProtocolError(Exit.DENIED, reason)

    def _begin(self, role: Role, key: str) -> tuple[str, ConsoleSession]:
        """Begin a session. A session too many of a key ends another session of this key: its holder
        cannot end the sessions of all others."""
        sessions = list(self._sessions.values())
        own = [session for session in sessions if key and session.key == key]
        if len(own) >= KEY_SESSIONS_MAX or len(sessions) >= SESSIONS_MAX:
            rivals = own if len(own) >= KEY_SESSIONS_MAX else sessions
            del self._sessions[min(rivals, key=lambda session: session.used).digest]
        token, now = secrets.token_urlsafe(TOKEN_BYTES), self._clock()
        digest = _digest(token)
        self._sessions[digest] = ConsoleSession(
            id=secrets.token_hex(4), role=role, digest=digest, began=now, used=now, key=key
        )
        return token, self._sessions[digest]

    def use_session(self, token: str) -> ConsoleSession | None:
        """Return the session of this token, which is used now; None if it has ended."""
        self._forget()
        session = self._sessions.get(_digest(token))
        if session is not None:
            session.used = self._clock()
        return session

    def goes_on(self, session: ConsoleSession | None) -> bool:
        """Whether a session has not ended; an open page uses it. None: who asks needs no
        session."""
        if session is None:
            return True
        if not session.digest:
            return self._has_key(session.key)
        session.used = self._clock()
        self._forget()
        return session.digest in self._sessions

    def check_session(self, session: ConsoleSession | None) -> None:
        """Raise ProtocolError for a session that has ended."""
        if session is not None and not self.goes_on(session):
            reason = SESSION_ENDED if session.digest else KEY_ENDED
            raise ProtocolError(Exit.DENIED, reason)

    def all(self) -> list[ConsoleSession]:
        self._forget()
        return list(self._sessions.values())

    def end(self, names: Sequence[str]) -> list[ConsoleSession]:
        """End the sessions with these ids, all of them without ids, and return them."""
        ended = [session for session in self.all() if not names or session.id in names]
        for session in ended:
            del self._sessions[session.digest]
        return ended

    def _forget(self) -> None:
        now = self._clock()
        self._links = {key: link for key, link in self._links.items() if link[1] > now}
        self._sessions = {
            key: session
            for key, session in self._sessions.items()
            if now - session.began < SESSION_S_MAX
            and now - session.used < IDLE_S_MAX
            and (not session.key or self._has_key(session.key))
        }


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
