"""Sessions of the gateway with one legacy server over HTTP.

Owns: which request goes in which session, how many sessions there are, which settings a new session
must repeat. Never: opening, closing, messages, clocks.

Client and server agree at the start of a session on the questions that the server may ask. So
callers that can be asked the same things share a session that declares exactly those, and all
others share the base session, which declares what the configuration says of all. A server that
gives no session id keeps nothing between two requests; then there is only the base session.
"""

from collections.abc import Iterable
from typing import cast

from msgspec import Struct

from metamcp_worker.child.actions import ServerRequest
from metamcp_worker.http import mcp_headers
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.server_catalog import TASKS_EXTENSION
from metamcp_worker.ipc.spec import ServerSpec

SESSIONS_MAX = 16
"""Maximum number of sets of capabilities declared at once. A handful is in use; a hostile client
can invent any number."""
IDLE_S_MAX = 300.0
"""Seconds after its last request until a session is closed. The next request opens a new one."""
CAPABILITIES_BYTES_MAX = 4096
"""Maximum bytes of declared capabilities; clients with more are asked nothing."""
CALLERS_MAX = 256
"""Maximum number of clients whose capabilities are remembered; beyond that all are forgotten and
read again."""
SUBSCRIPTIONS_MAX = 10_000
"""Maximum number of subscriptions remembered for one session; more are not repeated in a new
session."""

ASKABLE = ("elicitation", "extensions", "roots", "sampling")
"""Capabilities of a client that a server may ask it to use, and its extensions; other capabilities
are not passed on."""

SETTINGS = frozenset({"logging/setLevel", "resources/subscribe", "resources/unsubscribe"})
"""Requests that change a setting of their session."""

NOTHING = b"{}"
_VIAS = 2**32
"""Larger than any number of sessions, so that one integer holds the number of a session and how
often the session was opened."""


class Setting(Struct, frozen=True):
    """Request that repeats a setting in a new session."""

    method: str
    params: bytes


class HttpSession:
    """Session with the server. `via`: see `transport`. `id`: empty if the server gives none.
    `opened`: how often the session was opened, which happens again whenever the server forgot
    it."""

    def __init__(self, via: int, capabilities: bytes) -> None:
        self.via = via
        self.capabilities = capabilities
        self.id = ""
        self.headers: dict[str, str] = {}
        self.opened = 0
        self.is_open = False
        self.busy = 0
        self.idle_since = 0.0
        self.level: bytes = b""
        self.subscribed: dict[bytes, bytes] = {}

    def open(self, session_id: str, protocol: str) -> None:
        """Note that the server has begun the session; the server still waits for
        `notifications/initialized`."""
        self.id = session_id
        self.headers = mcp_headers.build_session_headers(session_id, protocol)
        self.opened += 1

    @property
    def talk(self) -> int:
        """Number under which messages of this opening come. An answer must not go to the next
        opening, where the server may use the id of the question for another client."""
        return self.opened * _VIAS + self.via

    def settings(self) -> Iterable[Setting]:
        """Yield the settings to send again after the session was opened again."""
        if self.level:
            yield Setting("logging/setLevel", self.level)
        for params in self.subscribed.values():
            yield Setting("resources/subscribe", params)

    def remember(self, request: ServerRequest) -> None:
        """Remember the setting of a request that was answered with a result."""
        if request.method == "logging/setLevel":
            self.level = request.params
        elif request.method == "resources/subscribe":
            if len(self.subscribed) < SUBSCRIPTIONS_MAX:
                self.subscribed[_uri(request)] = request.params
        elif request.method == "resources/unsubscribe":
            self.subscribed.pop(_uri(request), None)


class HttpSessions:
    """All sessions with one server. `capabilities`: declared in the base session. `alone`: they are
    those of the only client, which has no other session."""

    def __init__(self, capabilities: bytes = NOTHING, *, alone: bool = False) -> None:
        self.base = HttpSession(0, capabilities)
        self._alone = alone
        self._more: dict[bytes, HttpSession] = {}
        self._left: list[HttpSession] = []
        self._vias = 0
        self._levels: dict[bytes, bytes] = {}
        self._callers: dict[bytes, bytes] = {}

    def all(self) -> list[HttpSession]:
        return [self.base, *self._more.values()]

    def of(self, request: ServerRequest) -> HttpSession | None:
        """Return the session for this request, which may have to be opened; None if too many
        sessions are in use."""
        capabilities = self._askable(request.caller) if request.caller and self.base.id else NOTHING
        if self._alone or capabilities in (NOTHING, self.base.capabilities):
            return self.base
        session = self._more.get(capabilities)
        if session is None and (len(self._more) < SESSIONS_MAX or self._make_room()):
            self._vias += 1
            session = self._more[capabilities] = HttpSession(self._vias, capabilities)
            session.level = self._levels.get(capabilities, b"")
        return session

    def by_via(self, via: int) -> HttpSession | None:
        """Return the session of this number; None if there is none. `via`: number of a session
        (`via`) or of one opening of a session (`talk`), which must be the current one."""
        opened, seat = divmod(via, _VIAS)
        session = next((session for session in self.all() if session.via == seat), None)
        return session if session is not None and opened in {0, session.opened} else None

    def forget(self, session: HttpSession) -> None:
        """Remove a session that could not be opened or is to be closed; its log level is kept."""
        if self._more.pop(session.capabilities, None) is not None and session.level:
            if len(self._levels) >= CALLERS_MAX:
                self._levels.clear()
            self._levels[session.capabilities] = session.level

    def take_closable(self, now: float) -> list[HttpSession]:
        """Take out the sessions that are to be closed."""
        for session in list(self._more.values()):
            if not session.busy and now - session.idle_since > IDLE_S_MAX:
                self.forget(session)
                self._left.append(session)
        removed, self._left = self._left, []
        return removed

    def _make_room(self) -> bool:
        """Remove the session that has been idle for longest. Return False if all are in use."""
        free = [session for session in self._more.values() if not session.busy]
        if not free:
            return False
        oldest = min(free, key=lambda session: session.idle_since)
        self.forget(oldest)
        self._left.append(oldest)
        return True

    def _askable(self, caller: bytes) -> bytes:
        capabilities = self._callers.get(caller)
        if capabilities is None:
            capabilities = askable(caller)
            if len(self._callers) >= CALLERS_MAX:
                self._callers.clear()
            if len(caller) <= 2 * CAPABILITIES_BYTES_MAX:
                self._callers[caller] = capabilities
        return capabilities


def askable(caller: bytes) -> bytes:
    """Return the capabilities that a server may use of this client, as the `capabilities` of a
    handshake. Clients that can be asked the same get the same bytes, however they write them."""
    try:
        declared = codec.level(codec.level(caller).get("clientCapabilities", NOTHING))
        capabilities = {
            kind: codec.value(declared[kind])
            for kind in ASKABLE
            if bytes(declared.get(kind, b"")).startswith(b"{")
            and len(bytes(declared[kind])) <= CAPABILITIES_BYTES_MAX
        }
        # A session has tasks of its own.
        capabilities.get("extensions", {}).pop(TASKS_EXTENSION, None)
        if capabilities.get("extensions") == {}:
            del capabilities["extensions"]
        canonical = codec.dump(_sort_members(capabilities))
    except (codec.Malformed, RecursionError):
        return NOTHING
    return canonical if len(canonical) <= CAPABILITIES_BYTES_MAX else NOTHING


def build_shared_capabilities(spec: ServerSpec) -> bytes:
    """Return the capabilities of all clients of a process that is not for one alone."""
    if not spec.extensions:
        return NOTHING
    settings = {name: codec.value(text.encode()) for name, text in spec.extensions.items()}
    return codec.dump({"extensions": _sort_members(settings)})


def _sort_members(value: object) -> object:
    if isinstance(value, dict):
        members = cast(dict[str, object], value)
        return {name: _sort_members(members[name]) for name in sorted(members)}
    return value


def _uri(request: ServerRequest) -> bytes:
    return bytes(codec.members(request.params).get("uri", b"null"))
