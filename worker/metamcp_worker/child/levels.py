"""How much a legacy server shall log: its level is one for all who share the connection.

Owns: the most verbose level that anybody wants, and what the server was told. Never: filtering of
messages (fronts do that, for each client), sending.
"""

import math

from msgspec import Struct

from metamcp_worker.ipc import codec

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Of RFC 5424, the most verbose first."""
_CALLERS_MAX = 256
"""Clients whose wish is remembered; beyond that all are forgotten and read anew."""
CALLER_BYTES_MAX = 8192
"""A client that says more of itself is read anew each time; 256 of those would be gigabytes."""


class _Wish(Struct, frozen=True):
    """`place`: of the level in LEVELS. `session`: in which a transport makes the calls."""

    place: float
    session: bytes


class Levels:
    """`sessions`: does the transport have a session for each set of capabilities?"""

    def __init__(self, *, sessions: bool) -> None:
        self._sessions = sessions
        self._told = math.inf
        self._wishes: dict[bytes, _Wish] = {}
        self._set: dict[bytes, float] = {}

    def tell(self, params: bytes) -> None:
        """A client said which level it wants from now on: `{"level": …}`."""
        self._told = min(self._told, _place(params, "level"))

    def before(self, caller: bytes) -> bytes:
        """What the server must be told before a call of this client: parameters of
        `logging/setLevel`, or nothing."""
        wish = self._wishes.get(caller)
        if wish is None:
            wish = self._read(caller)
        place = min(wish.place, self._told)
        if place >= self._set.get(wish.session, math.inf):
            return b""
        if len(self._set) >= _CALLERS_MAX:
            self._set.clear()
        self._set[wish.session] = place
        return codec.dump({"level": LEVELS[int(place)]})

    def _read(self, caller: bytes) -> _Wish:
        session = b""
        small = len(caller) <= CALLER_BYTES_MAX
        if self._sessions and caller and small:
            try:
                session = bytes(codec.level(caller).get("clientCapabilities", b""))
            except codec.Malformed:
                session = b""
        if len(self._wishes) >= _CALLERS_MAX:
            self._wishes.clear()
        wish = _Wish(_place(caller, "logLevel"), session)
        if small:
            self._wishes[caller] = wish
        return wish


def _place(raw: bytes, member: str) -> float:
    """Of the level that `raw` names in `member`; infinite if it names none."""
    try:
        level = codec.text(codec.level(raw or b"{}").get(member, b"null"))
    except codec.Malformed:
        return math.inf
    return LEVELS.index(level) if level in LEVELS else math.inf
