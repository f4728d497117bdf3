"""What the gateway logs as a service: one JSON object per line, written by a thread of its own.

Owns: the shape of a line, the queue between the event loop and a log that may be slow or full.
Never: what is logged (`events`, `logs`), files, rotation.

Whoever reads the log may stop reading, and a disk may be full: the gateway goes on, and the number
of lines that were lost is the next line.
"""

import logging
import os
import queue
import threading
import time

from metamcp_supervisor.verbs import Event, LogLine
from metamcp_worker import codec

LINES_MAX = 10_000
"""That wait to be written: seconds of the worst flood, a few megabytes."""
CLOSE_S_MAX = 2.0
"""For the last lines; then they are lost."""


class JsonLines(logging.Handler):
    """Writes to descriptor `fd` until `close`. Also a handler for the log of Python."""

    def __init__(self, fd: int) -> None:
        super().__init__(logging.INFO)
        self._fd = fd
        self._queue: queue.Queue[bytes | None] = queue.Queue(LINES_MAX)
        self._lost = 0
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

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

    def close(self) -> None:
        if self._thread.is_alive():
            try:
                self._queue.put(None, timeout=CLOSE_S_MAX)
            except queue.Full:
                return
            self._thread.join(CLOSE_S_MAX)
        super().close()

    def _put(self, line: dict[str, object]) -> None:
        try:
            if self._lost:
                note = {"time": time.time(), "level": "warning", "text": f"{self._lost} lines lost"}
                self._queue.put_nowait(codec.dump(note) + b"\n")
                self._lost = 0
            self._queue.put_nowait(codec.dump(line) + b"\n")
        except queue.Full:
            self._lost += 1

    def _write(self) -> None:
        while (line := self._queue.get()) is not None:
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
            except OSError:
                self._lost += 1
