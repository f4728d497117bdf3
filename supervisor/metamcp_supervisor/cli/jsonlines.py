"""What the gateway logs as a service: one JSON object per line.

Owns: the shape of a line, and the line that tells how many were lost. Never: what is logged
(`events`, `logs`), writing (`outlet`), files, rotation.
"""

import logging
import time

from metamcp_supervisor.cli.outlet import Outlet
from metamcp_supervisor.verbs import Event, LogLine
from metamcp_worker import codec


class JsonLines(logging.Handler):
    """Writes to descriptor `fd` until `close`. Also a handler for the log of Python."""

    def __init__(self, fd: int) -> None:
        super().__init__(logging.INFO)
        self._outlet = Outlet(fd)

    def event(self, event: Event) -> None:
        line: dict[str, object] = {"time": event.time, "who": event.who, "what": event.what}
        if event.cause:
            line["cause"] = event.cause
        if event.generation:
            line["generation"] = event.generation
        self._put(line)

    def log_line(self, line: LogLine) -> None:
        self._put(
            {"time": line.time, "server": line.server, "stream": line.stream, "text": line.text}
        )

    def emit(self, record: logging.LogRecord) -> None:
        self._put({
            "time": record.created,
            "level": record.levelname.lower(),
            "logger": record.name,
            "text": self.format(record),
        })  # fmt: skip

    def flush(self) -> None:
        self._outlet.flush()

    def close(self) -> None:
        self._outlet.close()
        super().close()

    def _put(self, line: dict[str, object]) -> None:
        if lost := self._outlet.lost:
            self._outlet.lost = 0
            note = {"time": time.time(), "level": "warning", "text": f"{lost} lines lost"}
            self._outlet.put(codec.dump(note) + b"\n")
        self._outlet.put(codec.dump(line) + b"\n")
