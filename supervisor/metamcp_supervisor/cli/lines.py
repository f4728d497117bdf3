"""What the gateway logs as a service: events, lines of servers and its own words, on one stream.

Owns: the shape of events and of lines of servers there, and the line that tells how many were lost.
Never: what is logged (`events`, `logs`), the shape of its own words (`metamcp_worker.ipc.records`),
writing (`outlet`), files, rotation.
"""

import time

from metamcp_supervisor.cli.outlet import Outlet
from metamcp_supervisor.verbs import Event, LogLine
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.records import Record
from metamcp_worker.ipc.spec import LogSpec
from metamcp_worker.runtime import logs

EVENTS, SERVER = "events", "server"
"""The rooms of what is no line of a logger."""
_ERRORS = frozenset({"error", "bug"})
_WARNINGS = ("→quarantined", "→error", "left out", "refused", "kill", "unroutable")
"""Parts of what happened."""


class ServiceLines:
    """Writes to descriptor `fd` until `close`, also what loggers of this process say."""

    def __init__(self, fd: int, spec: LogSpec) -> None:
        self._outlet = Outlet(fd)
        self._own = logs.begin(spec, self._put)

    def event(self, event: Event) -> None:
        said = ": ".join(filter(None, [f"{event.who} {event.what}", event.cause]))
        level, generation = level_of(event.what), event.generation
        when = logs.stamp(event.time)
        if self._own.text:
            shown = Record(time=when, level=level, room=EVENTS, message=said, generation=generation)
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
            shown = Record(
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
            note = Record(
                time=logs.stamp(time.time()), level="warning", room="log",
                message=f"{lost} lines lost",
            )  # fmt: skip
            self._outlet.put(self._own.rendered(note))
        self._outlet.put(data)


def level_of(what: str) -> str:
    if what in _ERRORS:
        return "error"
    return "warning" if any(part in what for part in _WARNINGS) else "info"
