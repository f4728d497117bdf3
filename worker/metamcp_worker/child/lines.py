"""Bytes to lines: what a server writes, cut at its newlines, in any pieces.

Owns: the cutting, and what becomes of a line that is too long (a message is passed over, a log line
cut). Never: reading a descriptor, the meaning of a line.

Both cutters look at each byte once, however small the pieces are, and hold at most one unfinished
line of limited length.
"""

import re
from collections.abc import Iterable, Sequence

from msgspec import Struct

from metamcp_worker.ipc import frames
from metamcp_worker.ipc.codec import ENDS_BYTES, Glimpse, glimpse

LOG_LINE_BYTES_MAX = 8 * 1024
"""Enough for a stack frame or a JSON log record; a longer line is cut, not refused."""
LAST_LINES = 40
"""Of a log, among which the one is looked for that says why a server ended."""
LAST_LINE_CHARACTERS_MAX = 300
"""Of each of them."""
LINES_OTHERWISE = 3
"""So many of the last, where none of them says it."""
_TELLING = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?:^|\s)(?:[\w.]*(?:error|exception)(?: \[\w+\])?|fatal|panic|caused by|cause): \S",
        r"not found|no such|cannot find|can't find|denied|refused|in use|is required|because",
        r"error|fatal|cause|failed|invalid|missing",
    )
)
"""What a line says that tells the reason, the surest first."""
_BESIDE = re.compile(r"complete log of this run|^\s+at |^\s*File \"", re.IGNORECASE)
"""What says where to look, and no reason."""


class Overlong(Struct, frozen=True):
    """A line above the limit, passed over but for what shows whom it is for."""

    size_bytes: int
    seen: Glimpse


class LineCutter:
    """Lines of JSON-RPC. Empty lines and a carriage return at the end are tolerated."""

    def __init__(self, limit_bytes: int = frames.MESSAGE_BYTES) -> None:
        self._limit = limit_bytes
        self._pieces: list[bytes] = []
        self._held = 0
        self._beginning = b""
        """Of a line above the limit that has not ended yet; of it the pieces are the end."""
        self._overlong: list[Overlong] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their ends and without those above the limit."""
        # Looking for the first newline is far quicker than splitting, and most pieces of a long
        # line have none.
        if data.find(b"\n") < 0:
            self._hold(data)
            return []
        whole = data.split(b"\n")
        rest = whole.pop()
        if self._pieces:
            self._hold(whole[0])
            whole[0] = self._ended()
        # A line between two newlines of one read is shorter than the read; still, the limit holds.
        if len(data) > self._limit:
            whole = [raw if len(raw) <= self._limit else self._passed(raw) for raw in whole]
        self._hold(rest)
        return [line for raw in whole if (line := raw.strip(b" \t\r"))]

    @property
    def skipping(self) -> bool:
        """Is the line that comes in above the limit?"""
        return bool(self._beginning)

    def overlong(self) -> list[Overlong]:
        """The lines above the limit that have ended since the last time."""
        if not self._overlong:
            return self._overlong
        found, self._overlong = self._overlong, []
        return found

    def _hold(self, piece: bytes) -> None:
        if not piece:
            return
        self._pieces.append(piece)
        self._held += len(piece)
        if self._held <= self._limit:
            return
        if not self._beginning:
            self._beginning = _first(self._pieces)
        self._pieces = [_last(self._pieces)]

    def _ended(self) -> bytes:
        """The line that was held; nothing if it was above the limit."""
        line = b"".join(self._pieces)
        if self._beginning:
            self._overlong.append(Overlong(self._held, glimpse(self._beginning, line)))
            line = self._beginning = b""
        self._pieces.clear()
        self._held = 0
        return line

    def _passed(self, line: bytes) -> bytes:
        self._overlong.append(Overlong(len(line), glimpse(line, line)))
        return b""


def _first(pieces: Sequence[bytes]) -> bytes:
    """As much of the beginning as a glimpse needs, without joining all."""
    found = b""
    for piece in pieces:
        found += piece[:ENDS_BYTES]
        if len(found) >= ENDS_BYTES:
            break
    return found


def _last(pieces: Sequence[bytes]) -> bytes:
    """The same of the end."""
    found = b""
    for piece in reversed(pieces):
        found = piece[-ENDS_BYTES:] + found
        if len(found) >= ENDS_BYTES:
            break
    return found


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


def reason(lines: Iterable[str]) -> str:
    """Of the last lines of a log what says why a server ended: one line, the last of the surest
    kind that there is, else the last few. Empty for an empty log."""
    told = [line.strip() for line in lines if not _BESIDE.search(line)]
    for kind in _TELLING:
        if found := [line for line in told if kind.search(line)]:
            return found[-1]
    return " | ".join(told[-LINES_OTHERWISE:])
