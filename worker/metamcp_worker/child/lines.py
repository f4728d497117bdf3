"""Bytes to lines: what a server writes, cut at its newlines, in any pieces.

Owns: the cutting, and what becomes of a line that is too long (for messages the end, for log lines
a cut). Never: reading a descriptor, the meaning of a line.

Both cutters look at each byte once, however small the pieces are, and hold at most one unfinished
line of limited length.
"""

from metamcp_worker import frames
from metamcp_worker.errors import TooLarge

LINE_BYTES_MAX = frames.BODY_BYTES_MAX
LOG_LINE_BYTES_MAX = 8 * 1024
"""Enough for a stack frame or a JSON log record; a longer line is cut, not refused."""


class LineCutter:
    """Lines of JSON-RPC. Empty lines and a carriage return at the end are tolerated."""

    def __init__(self, limit_bytes: int = LINE_BYTES_MAX) -> None:
        self._limit = limit_bytes
        self._pieces: list[bytes] = []
        self._held = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of the line that has not ended yet."""
        return self._held

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their ends. Raises TooLarge; then stop."""
        # Looking for the first newline is far quicker than splitting, and most pieces of a long
        # line have none.
        if data.find(b"\n") < 0:
            self._hold(data)
            return []
        whole = data.split(b"\n")
        rest = whole.pop()
        if self._pieces:
            self._hold(whole[0])
            whole[0] = b"".join(self._pieces)
            self._pieces.clear()
            self._held = 0
        self._hold(rest)
        # A line between two newlines of one read is shorter than the read; still, the limit holds.
        if len(data) > self._limit:
            self._check(max(map(len, whole)))
        return [line for raw in whole if (line := raw.strip(b" \t\r"))]

    def _hold(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._held += len(piece)
            self._check(self._held)

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise TooLarge("a line of the server", size, self._limit)


class LogCutter:
    """Lines of text for a log: a line above the limit loses its end, bad UTF-8 is replaced."""

    def __init__(self, limit_bytes: int = LOG_LINE_BYTES_MAX) -> None:
        self._limit = limit_bytes
        self._pieces: list[bytes] = []
        self._held = 0

    def feed(self, data: bytes) -> list[str]:
        """The lines that `data` completes; empty ones are left out."""
        *ended, last = data.split(b"\n")
        lines: list[str] = []
        for piece in ended:
            self._hold(piece)
            self._end(lines)
        self._hold(last)
        return lines

    def skip(self, data: bytes) -> int:
        """Pass over `data` without keeping its lines: how many ended in it."""
        ended = data.count(b"\n")
        if ended:
            self._forget()
            self._hold(data[data.rindex(b"\n") + 1 :])
        else:
            self._hold(data)
        return ended

    def rest(self) -> list[str]:
        """At the end of the stream: the line that has no newline, if there is one."""
        lines: list[str] = []
        self._end(lines)
        return lines

    def _hold(self, piece: bytes) -> None:
        kept = piece[: self._limit - self._held]
        if kept:
            self._pieces.append(kept)
            self._held += len(kept)

    def _end(self, lines: list[str]) -> None:
        text = b"".join(self._pieces).decode(errors="replace").rstrip()
        if text:
            lines.append(text)
        self._forget()

    def _forget(self) -> None:
        self._pieces.clear()
        self._held = 0
