"""Server-sent events: parser from the bytes of a `text/event-stream`, in any pieces, to events.

Owns: the format (WHATWG HTML, "Server-sent events", 9.2.5 and 9.2.6), and the limit of one event.
Never: reading a connection, reconnecting, the meaning of `data`.

Unlike a browser's parser this parser reports an event without data if it has an id or a time to
reconnect: streams of MCP begin with such events, which are needed to resume the stream. `data`
stays the bytes that came. However small the pieces are, each byte is looked at once.
"""

import re

from msgspec import Struct

from metamcp_worker.ipc import frames
from metamcp_worker.ipc.errors import TooLarge

FIELDS_BYTES_MAX = 64 * 1024
"""Bytes that an event may have beside its message."""
EVENT_BYTES_MAX = frames.MESSAGE_BYTES_MAX + FIELDS_BYTES_MAX
ID_BYTES_MAX = 1024
"""Maximum bytes of an id; a longer id is ignored, because it would be sent back in a header, and
servers limit headers."""
RETRY_DIGITS_MAX = 9
"""Maximum digits of `retry` (milliseconds): up to eleven days; a longer number is ignored."""

_SENDABLE = re.compile(rb"[\x21-\x7e\x80-\xff](?:[\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?")
"""Regular expression of an id that can be sent back in a header. Any other id counts as empty: a
client that resumed from the id before it would get later events twice."""
_BOM = b"\xef\xbb\xbf"


class SseEvent(Struct, frozen=True, gc=False):
    """Event of a stream. `data`: empty if the event has only an `id` or `retry_ms`.

    `id`: None if the event has none; an empty id cancels earlier ids. `event`: its type.
    `retry_ms`: how long to wait before reconnecting.
    """

    data: bytes
    id: bytes | None = None
    event: str = "message"
    retry_ms: int | None = None


class EventReader:
    """Parser of one stream, from its first byte. An event ends with an empty line; without it, it
    is not reported."""

    def __init__(self, limit_bytes: int = EVENT_BYTES_MAX) -> None:
        self._limit = limit_bytes
        self._held = bytearray()  # of a line that has not ended yet
        self._kept = 0  # bytes of the event's fields so far
        self._began = False
        self._after_return = False
        self._data: bytes | bytearray | None = None
        self._id: bytes | None = None
        self._event = ""
        self._retry_ms: int | None = None
        self._fields = self._noise_lines = self._noise_bytes = 0

    def noise(self) -> tuple[int, int]:
        """Return the number of lines since the last call that belong to no message (comments, blank
        lines, events without data), and their bytes."""
        counts = self._noise_lines, self._noise_bytes
        self._noise_lines = self._noise_bytes = 0
        return counts

    @property
    def held_bytes(self) -> int:
        """Bytes kept of an event that is not whole."""
        return self._kept + len(self._held)

    def feed(self, piece: bytes) -> list[SseEvent]:
        """Return the events that `piece` completes. Raises TooLarge; then stop."""
        events: list[SseEvent] = []
        if not piece:
            return events
        if self._after_return and piece.startswith(b"\n"):
            piece = piece[1:]  # the second half of a line end that the last piece already showed
        self._after_return = piece.endswith(b"\r")
        for raw_line in piece.splitlines(keepends=True):
            line = raw_line.rstrip(b"\r\n")
            self._check(self._kept + len(self._held) + len(line))
            if len(line) == len(raw_line):
                self._held += line
            elif self._held:
                full_line, self._held = self._held, bytearray()
                full_line += line
                self._line(full_line, events)
            else:
                self._line(line, events)
        return events

    def _check(self, size: int) -> None:
        if size > self._limit:
            raise TooLarge("an event of the server", size, self._limit)

    def _line(self, line: bytes | bytearray, events: list[SseEvent]) -> None:
        if not self._began:
            self._began = True
            line = line.removeprefix(_BOM)
        if not line:
            self._end(events)
            return
        colon = line.find(b":")
        if colon == 0:
            self._noise_lines += 1
            self._noise_bytes += len(line) + 1
            return  # a comment: keep-alive
        name = bytes(line) if colon < 0 else bytes(line[:colon])
        start = len(line) if colon < 0 else colon + 1
        if line[start : start + 1] == b" ":
            start += 1
        self._kept += len(line) + 1
        self._fields += 1
        self._field(name, bytes(memoryview(line)[start:]))

    def _field(self, name: bytes, value: bytes) -> None:
        if name == b"data":
            if self._data is None:
                self._data = value
                return
            if isinstance(self._data, bytes):
                self._data = bytearray(self._data)
            self._data += b"\n"
            self._data += value
        elif name == b"event":
            self._event = value.decode(errors="replace")
        elif name == b"id":
            if len(value) <= ID_BYTES_MAX and b"\0" not in value:
                self._id = value if _SENDABLE.fullmatch(value) else b""
        elif name == b"retry" and value.isdigit() and len(value) <= RETRY_DIGITS_MAX:
            self._retry_ms = int(value)

    def _end(self, events: list[SseEvent]) -> None:
        """End an event at an empty line: report it if it has anything, and begin the next one."""
        if self._data is None:
            self._noise_lines += self._fields + 1
            self._noise_bytes += self._kept + 1
        if self._data is not None or self._id is not None or self._retry_ms is not None:
            data = bytes(self._data or b"")
            events.append(SseEvent(data, self._id, self._event or "message", self._retry_ms))
        self._kept = self._fields = 0
        self._data = self._id = self._retry_ms = None
        self._event = ""
