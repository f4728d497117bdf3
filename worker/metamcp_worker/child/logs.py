"""What a server says beside the protocol, in batches that cannot flood the control socket.

Owns: the rate limit, the counting of what it costs, the batches. Never: reading, sending, clocks,
keeping lines (the supervisor does).
"""

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.messages import LogLines

LINES_PER_S = 1000
BYTES_PER_S = 256 * 1024
"""With it a batch per tick suffices, and the queue of the control socket lasts for minutes even if
the supervisor is stopped meanwhile."""
BATCH_BYTES_MAX = 32 * 1024
"""Half of a packet. A single line can have more as JSON, but never as much as a packet holds."""


class ServerLog:
    """The lines of one stream."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._batches: list[list[str]] = []
        self._room = 0
        self._dropped = 0
        self._window_ends = 0.0
        self._lines_left = LINES_PER_S
        self._bytes_left = BYTES_PER_S

    def full(self, now: float) -> bool:
        """Would a line be dropped now?"""
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
        """So many lines were passed over unread."""
        self._dropped += lines

    def take(self) -> list[LogLines]:
        """The messages to send now; what was dropped is told with the last."""
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
