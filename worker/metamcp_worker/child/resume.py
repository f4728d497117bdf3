"""When and how a stream of a legacy server is taken up again after its connection ended.

Owns: the id of the last event, the wait before the next attempt, when there is none. Never:
waiting, connecting, the events themselves.

A legacy server may end the connection of a stream at any time, also in the middle of a request, and
says with event ids from where it can go on, and with `retry` when to ask. A stream that brings
events may be taken up for ever; one that does not is given up after a while. After each end of a
stream that brought no message, the next attempt waits longer.
"""

from metamcp_worker.http.sse import Event

ATTEMPTS_MAX = 5
"""In a row, none of which brought an event: 15 seconds and more."""
DELAY_S = 1.0
"""Before the first attempt, if the server does not say; doubled with each in a row."""
DELAY_S_MAX = 30.0
RETRY_S_MIN = 0.1
"""A server that says less would make us ask it in a circle."""
RETRY_S_MAX = 300.0
EMPTY_S_MAX = 5.0
"""Maximum seconds to the next attempt if the stream brings events without messages: the answer of a
server that is polled may be there a moment later."""


class Resume:
    """One stream. `endless`: it belongs to no request, and is begun anew if it cannot go on."""

    def __init__(self, *, endless: bool = False) -> None:
        self.last_id = b""
        self._endless = endless
        self._retry_s: float | None = None
        self._attempts = 0
        self._empty = 0

    def saw(self, event: Event) -> None:
        """The stream brought this event."""
        self._attempts = 0
        if event.data:
            self._empty = 0
        if event.id is not None:
            self.last_id = event.id
        if event.retry_ms is not None:
            self._retry_s = min(max(event.retry_ms / 1000, RETRY_S_MIN), RETRY_S_MAX)

    def anew(self) -> None:
        """Where it was cannot be gone on from."""
        self.last_id = b""

    def ended(self) -> float | None:
        """The connection ended. How long to wait before the next; None to give up."""
        self._attempts += 1
        self._empty += 1
        if not self._endless and (not self.last_id or self._attempts > ATTEMPTS_MAX):
            return None
        if self._retry_s is not None and self._attempts == 1:
            doubled_s = min(self._retry_s * 2.0 ** min(self._empty - 1, 10), EMPTY_S_MAX)
            return max(self._retry_s, doubled_s)
        backoff_s = DELAY_S * 2.0 ** min(self._attempts - 1, 10)
        return max(self._retry_s or 0.0, min(backoff_s, DELAY_S_MAX))
