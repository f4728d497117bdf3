"""How much a server may say unasked: notifications, requests, answers to nobody, noise.

Owns: the budget of one server, in messages and in bytes, and whether it is spent. Never: clocks,
holding a server back (`run`), what follows when that lasts (the supervisor).

Theory. Each message costs its worker and a front some microseconds, whatever it says, so a server
that sends without end would take the processors from all others. Its worker stops reading once the
budget is spent, the pipe fills up, and the server itself waits. Answers that somebody waits for
cost nothing here, but ride on the same pipe: in front of one stands what the pipe holds, 64 KiB,
which the worker reads within a second or two. A burst is free, because it ends by itself.
"""

MESSAGES_PER_S = 4000.0
"""Of a server without calls. One message takes about 15 µs of worker and front together."""
CALL_MESSAGES_PER_S = 100.0
CALLS_MAX = 60
"""Each call in flight adds so much for its progress, up to that many calls."""
MESSAGES_MAX = 20_000.0
BYTES_PER_S = 16.0 * 1024 * 1024
BYTES_MAX = 128.0 * 1024 * 1024
"""Two of the largest messages of most servers."""
LINES_PER_MESSAGE = 16
"""Lines of a stream without a message (comments, blank lines, ids) cost as much as one message."""


class Budget:
    """Full at first. It refills with time, up to its burst."""

    def __init__(self, now: float) -> None:
        self._messages = MESSAGES_MAX
        self._bytes = BYTES_MAX
        self._at = now

    def spend(self, size_bytes: int, messages: float = 1) -> None:
        self._messages -= messages
        self._bytes -= size_bytes

    @property
    def over(self) -> bool:
        """Was more spent than there was at the last look?"""
        return self._messages < 0 or self._bytes < 0

    def spent(self, now: float, calls: int = 0) -> bool:
        """Is nothing left? `calls`: so many are in flight."""
        past_s, self._at = now - self._at, now
        rate = MESSAGES_PER_S + min(calls, CALLS_MAX) * CALL_MESSAGES_PER_S
        self._messages = min(MESSAGES_MAX, self._messages + past_s * rate)
        self._bytes = min(BYTES_MAX, self._bytes + past_s * BYTES_PER_S)
        return self.over
