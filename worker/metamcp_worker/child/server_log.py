"""Log of a server: its lines outside the protocol, in batches that cannot flood the control socket,
and the level of its log messages in the protocol.

Owns: the rate limit, the number of dropped lines, the batches (`ServerLog`); which level a legacy
server gets before a call (`Levels`). Never: reading, sending, clocks, storing lines (the supervisor
does).
"""

import math

from msgspec import Struct

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.messages import LogLines

LINES_PER_S = 1000
BYTES_PER_S = 256 * 1024
"""Maximum bytes of log lines in a second. With this limit one batch in each tick suffices, and the
queue of the control socket lasts for minutes even while the supervisor is stopped."""
BATCH_BYTES_MAX = 32 * 1024
"""Maximum bytes of a batch: half of a packet. A single line can take more as JSON, but never as
much as a packet holds."""


class ServerLog:
    """Lines of one stream of a server."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._batches: list[list[str]] = []
        self._room = 0
        self._dropped = 0
        self._window_ends = 0.0
        self._lines_left = LINES_PER_S
        self._bytes_left = BYTES_PER_S

    def full(self, now: float) -> bool:
        """Whether a line would be dropped now."""
        if now >= self._window_ends:
            self._window_ends = now + 1.0
            self._lines_left, self._bytes_left = LINES_PER_S, BYTES_PER_S
        return self._lines_left <= 0 or self._bytes_left <= 0

    def add(self, line: str, now: float) -> None:
        if self.full(now):
            self._dropped += 1
            return
        size = len(codec.dump(line)) + 1  # As JSON: an escaped character takes up to six bytes.
        self._lines_left -= 1
        self._bytes_left -= size
        if size > self._room:
            self._batches.append([])
            self._room = BATCH_BYTES_MAX
        self._batches[-1].append(line)
        self._room -= size

    def drop(self, lines: int) -> None:
        """Count lines that were passed over unread."""
        self._dropped += lines

    def take(self) -> list[LogLines]:
        """Return the messages to send now; the last one has the number of dropped lines."""
        batches = self._batches or ([[]] if self._dropped else [])
        messages = [
            LogLines(
                stream=self._stream,
                lines=tuple(lines),
                dropped=self._dropped if number == len(batches) else 0,
            )
            for number, lines in enumerate(batches, 1)
        ]
        self._batches = []
        self._room = self._dropped = 0
        return messages


LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Levels of RFC 5424, the most verbose first."""
_CALLERS_MAX = 256
"""Maximum number of clients whose wish is remembered; beyond that all are forgotten and read
again."""
CALLER_BYTES_MAX = 8192
"""Maximum bytes of a client's description that is remembered; a longer one is read again each time,
because it can have megabytes."""


class _WantedLevel(Struct, frozen=True):
    """Level that a client wants. `place`: index of the level in LEVELS, infinite without a wish.
    `session`: key of the session in which the transport makes the calls of this client."""

    place: float
    session: bytes


class Levels:
    """Levels that the clients of a legacy server want. `sessions`: whether the transport has a
    session for each set of capabilities."""

    def __init__(self, *, sessions: bool) -> None:
        self._sessions = sessions
        self._told = math.inf
        self._wishes: dict[bytes, _WantedLevel] = {}
        self._set: dict[bytes, float] = {}

    def tell(self, params: bytes) -> None:
        """Note the level that a client wants from now on: `{"level": …}`."""
        self._told = min(self._told, _place(params, "level"))

    def before(self, caller: bytes) -> bytes:
        """Return the parameters of the `logging/setLevel` that the server must get before a call of
        this client, or nothing."""
        wish = self._wishes.get(caller)
        if wish is None:
            wish = self._read(caller)
        level_index = min(wish.place, self._told)
        if level_index >= self._set.get(wish.session, math.inf):
            return b""
        if len(self._set) >= _CALLERS_MAX:
            self._set.clear()
        self._set[wish.session] = level_index
        return codec.dump({"level": LEVELS[int(level_index)]})

    def _read(self, caller: bytes) -> _WantedLevel:
        session = b""
        small = len(caller) <= CALLER_BYTES_MAX
        if self._sessions and caller and small:
            session = bytes(codec.members(caller).get("clientCapabilities", b""))
        if len(self._wishes) >= _CALLERS_MAX:
            self._wishes.clear()
        wish = _WantedLevel(_place(caller, "logLevel"), session)
        if small:
            self._wishes[caller] = wish
        return wish


def _place(raw: bytes, member: str) -> float:
    """Return the index of the level that `raw` names in `member`; infinite if it names none."""
    level = codec.text(codec.members(raw).get(member, b"null"))
    return LEVELS.index(level) if level in LEVELS else math.inf
