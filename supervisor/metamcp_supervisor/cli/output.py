"""Output of the gateway: the thread that writes it, and the log of a service, with events, lines of
servers and the gateway's own log on one stream.

Owns: the shape of lines, and the thread that writes them. Never: the choice of the lines.

The reader may stop reading (`^S` on a terminal, a pager) or be gone, and a disk may be full: the
gateway then goes on, and lines are lost.
"""

import contextlib
import os
import queue
import threading
import time

from metamcp_supervisor import signals
from metamcp_supervisor.verbs import JournalEvent, LogLine
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.records import LogRecord
from metamcp_worker.ipc.spec import LogSpec
from metamcp_worker.runtime import logs

LINES_MAX = 10_000
"""Maximum lines that wait to be written: seconds of the worst flood, a few megabytes."""
CLOSE_S_MAX = 2.0
"""Seconds to wait at the end for the last lines; after that they are lost."""
FLUSH_S_MAX = 0.5
"""Seconds to wait for lines before another program takes over; the gateway does nothing else
meanwhile."""


class LogOutput:
    """Writer of lines to descriptor `fd`, until `close`. `lost`: number of lines lost since the
    owner set it to 0."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._queue: queue.Queue[bytes | threading.Event | None] = queue.Queue(LINES_MAX)
        self.lost = 0
        self._cut = False
        self._thread = threading.Thread(target=self._write, name="lines", daemon=True)
        self._thread.start()

    def put(self, data: bytes) -> None:
        try:
            self._queue.put_nowait(data)
        except queue.Full:
            self.lost += 1

    def flush(self) -> None:
        """Wait until all lines so far are written, or FLUSH_S_MAX seconds are over."""
        written = threading.Event()
        with contextlib.suppress(queue.Full):
            self._queue.put_nowait(written)
            written.wait(FLUSH_S_MAX)

    def close(self) -> None:
        if self._thread.is_alive():
            try:
                self._queue.put(None, timeout=CLOSE_S_MAX)
            except queue.Full:
                return
            self._thread.join(CLOSE_S_MAX)

    def _write(self) -> None:
        signals.hold()
        while (data := self._queue.get()) is not None:
            if isinstance(data, threading.Event):
                data.set()
                continue
            try:
                self._write_whole(data)
            except OSError:
                self.lost += 1

    def _write_whole(self, data: bytes) -> None:
        """Write everything, on a new line if the line before was cut. Raises OSError."""
        data = b"\n" * self._cut + data
        while data:
            data = data[os.write(self._fd, data) :]
            self._cut = bool(data)


EVENTS, SERVER = "events", "server"
"""Rooms of lines that do not come from a logger."""
_ERRORS = frozenset({"error", "bug"})
_WARNINGS = ("→quarantined", "→error", "left out", "refused", "kill", "unroutable")
"""Parts of the name of an event that make it a warning."""


class ServiceLines:
    """Writer of events, lines of servers and records of loggers of this process to descriptor `fd`,
    until `close`."""

    def __init__(self, fd: int, spec: LogSpec) -> None:
        self._outlet = LogOutput(fd)
        self._own = logs.begin(spec, self._put)

    def event(self, event: JournalEvent) -> None:
        said = ": ".join(filter(None, [f"{event.who} {event.what}", event.cause]))
        level, generation = level_of(event.what), event.generation
        when = logs.stamp(event.time)
        if self._own.text:
            shown = LogRecord(
                time=when, level=level, room=EVENTS, message=said, generation=generation
            )
            self._own.say(shown)
            return
        line: dict[str, object] = {
            "time": when, "level": level, "room": EVENTS, "message": said, "who": event.who,
            "what": event.what,
        }  # fmt: skip
        if event.cause:
            line["cause"] = event.cause
        if generation:
            line["generation"] = generation
        self._put(codec.dump(line) + b"\n")

    def log_line(self, line: LogLine) -> None:
        when = logs.stamp(line.time)
        if self._own.text:
            mark = "" if line.stream == "stderr" else f"[{line.stream}] "
            message = f"{mark}{line.text}"
            shown = LogRecord(
                time=when, level="info", room=SERVER, message=message, server=line.server
            )
            self._own.say(shown)
            return
        members = {
            "time": when, "level": "info", "room": SERVER, "message": line.text,
            "server": line.server, "stream": line.stream,
        }  # fmt: skip
        self._put(codec.dump(members) + b"\n")

    def flush(self) -> None:
        self._outlet.flush()

    def close(self) -> None:
        self._own.close()
        self._outlet.close()

    def _put(self, data: bytes) -> None:
        if lost := self._outlet.lost:
            self._outlet.lost = 0
            note = LogRecord(
                time=logs.stamp(time.time()), level="warning", room="log",
                message=f"{lost} lines lost",
            )  # fmt: skip
            self._outlet.put(self._own.rendered(note))
        self._outlet.put(data)


def level_of(what: str) -> str:
    if what in _ERRORS:
        return "error"
    return "warning" if any(part in what for part in _WARNINGS) else "info"
