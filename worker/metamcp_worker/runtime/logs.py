"""The log of a process of the gateway: what Python's loggers say, as one line each on stderr.

Owns: the handler that all processes have, in which form and at which levels they speak, and that a
line never holds up who says it. Never: what a line looks like (`log_records`), what is hidden in it
(`masking`), how often the same is said (`repeats`), the log of a server.

Logging in Python is one registry for the whole process, and so is this: `begin` in the process and
after a fork, which keeps what the lines are about, `tune` when it is to be otherwise.
"""

import asyncio
import contextlib
import logging
import os
import select
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from msgspec import structs

from metamcp_worker.ipc import log_records
from metamcp_worker.ipc.log_records import (
    ERROR_CHARACTERS_MAX,
    MESSAGE_CHARACTERS_MAX,
    LogRecord,
    level_of,
    room_of,
)
from metamcp_worker.ipc.spec import LogSpec
from metamcp_worker.runtime.masking import Masks
from metamcp_worker.runtime.repeats import Held, Repeats

FORMAT = "METAMCP_NURSERY_LOG"
"""In the environment of a nursery: the form of lines that were asked for at the start."""
FD = 2
COUNT_S = 1.0
"""Between two looks for counts that are to be told."""
WRITE_S_MAX = 0.05
"""For whoever reads stderr to make room. A terminal that was stopped never does: then lines are
lost, and calls are not."""
PIECE_BYTES_MAX = 4096
"""What a pipe takes whole or not at all, and without waiting once it says that it has room."""
_FIELDS = ("server", "call", "front", "generation")


class Lines(logging.Handler):
    """`put`: takes whole lines and must not wait. `text`: for people, and with `journal` for that
    of systemd; else JSON."""

    def __init__(
        self, put: Callable[[bytes], None], *, text: bool = False, journal: bool = False
    ) -> None:
        super().__init__()
        self._put = put
        self.text, self.journal = text, journal
        self.masks = Masks()
        self.fields: dict[str, str | int] = {}
        self._repeats = Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            now = time.monotonic()
            self.count(now)
            if self._repeats.says((record.name, str(record.msg)), now):
                self.say(self._record(record))
        except Exception as error:  # noqa: BLE001 - as every handler does: a log ends nothing
            self._fail(record, error)

    def say(self, record: LogRecord) -> None:
        self._put(self.rendered(record))

    def rendered(self, record: LogRecord) -> bytes:
        if not self.text:
            return log_records.as_json(record)
        if self.journal:
            return log_records.as_journal(record)
        return log_records.as_text(record, clock(datetime.fromisoformat(record.time)))

    def count(self, now: float) -> None:
        """Say how many lines were not said, where it is time to; another thread may speak too."""
        self.acquire()
        try:
            self._tell(self._repeats.due(now))
        finally:
            self.release()

    def forget(self) -> None:
        """What was only counted is left to the process that counted it."""
        self._repeats = Repeats()

    def close(self) -> None:
        self._tell(self._repeats.rest())
        super().close()

    def _tell(self, found: Iterable[Held]) -> None:
        for held in found:
            room, template = held.kind
            what = f"… {held.count:,} more of these in the last {held.seconds:g} s: {template}"
            self.say(self._said(time.time_ns() / 1e9, "warning", room, what))

    def _fail(self, record: logging.LogRecord, error: Exception) -> None:
        """Say so, and nothing of what was to be put into the line: it may be secret."""
        with contextlib.suppress(Exception):
            what = f"a line cannot be made of {str(record.msg)!r}: {type(error).__name__}"
            self.say(self._said(record.created, "error", record.name, what))

    def _record(self, record: logging.LogRecord) -> LogRecord:
        level = level_of(record.levelno)
        said = self._said(record.created, level, record.name, record.getMessage())
        about = {key: value for key in _FIELDS if (value := record.__dict__.get(key)) is not None}
        return structs.replace(said, error=self._error(record), **about)

    def _said(self, created: float, level: str, logger: str, message: str) -> LogRecord:
        shown = self._cut(_text(message))
        fields: Mapping[str, object] = self.fields
        return structs.replace(
            LogRecord(
                time=stamp(created),
                level=level,
                room=room_of(logger),
                message=shown,
                pid=os.getpid(),
            ),
            **fields,
        )

    def _cut(self, message: str) -> str:
        """Masked, and short enough. A secret may begin before the cut and end behind it."""
        if len(message) <= MESSAGE_CHARACTERS_MAX:
            return self.masks.text(message)
        reach = self.masks.reach
        window = message[: MESSAGE_CHARACTERS_MAX + reach]
        shown = self.masks.text(window)
        kept = len(shown) - reach if len(message) > len(window) else len(shown)
        return shown[: min(kept, MESSAGE_CHARACTERS_MAX)]

    def _error(self, record: logging.LogRecord) -> str:
        if not record.exc_info or record.exc_info[1] is None:
            return ""
        text = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
        return self.masks.text(_text(text))[-ERROR_CHARACTERS_MAX:]


class Stderr:
    """`put` writes as much of a line as `fd` takes without making anybody wait. What comes after
    half a line is on a line of its own."""

    def __init__(self, fd: int = FD) -> None:
        self._fd = fd
        self._torn = False

    def put(self, data: bytes) -> None:
        data = b"\n" * self._torn + data
        for start in range(0, len(data), PIECE_BYTES_MAX):
            piece = data[start : start + PIECE_BYTES_MAX]
            try:
                written = os.write(self._fd, piece) if self._has_room() else 0
            except OSError:
                written = 0
            if written:
                self._torn = start + written < len(data)
            if written < len(piece):
                return

    def _has_room(self) -> bool:
        if sys.platform == "win32":
            return True
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return bool(poll.poll(WRITE_S_MAX * 1000))


_lines: list[Lines] = []
"""The handler of this process, once `begin` was called; one at most."""
_spec: list[LogSpec] = [LogSpec()]
"""What is in force."""
_before: dict[str, int] = {}
"""Loggers whose level the configuration has set, and the level that they had."""


def begin(
    spec: LogSpec,
    put: Callable[[bytes], None] | None = None,
    *,
    whole: bool = True,
    about: Mapping[str, str | int] | None = None,
) -> Lines:
    """Speak from now on, instead of whoever did before in this process. `put`: where lines go, else
    to stderr. `whole`: also for libraries; where the code of a server is in the process its loggers
    are its own. `about`: what all lines of this process are about."""
    own, root = logging.getLogger("metamcp"), logging.getLogger()
    known: dict[str, str | int] = {}
    for older in _lines:
        known |= older.fields
        own.removeHandler(older)
        root.removeHandler(older)
    lines = Lines(put or Stderr().put)
    lines.fields = {**known, **(about or {})}
    _lines[:] = [lines]
    own.propagate = False
    own.addHandler(lines)
    if whole:
        root.addHandler(lines)
    tune(spec)
    return lines


def go_on(about: Mapping[str, str | int], *, whole: bool) -> None:
    """In a process that was just forked: speak as before, of something else. `whole`: as in
    `begin`, which does the same with a new handler and costs each worker a third of a MiB."""
    if not _lines:
        begin(_spec[0], whole=whole, about=about)
    for lines in _lines:
        lines.fields = {**lines.fields, **about}
        lines.forget()
        if whole:
            logging.getLogger().addHandler(lines)


def tune(spec: LogSpec, *, about: Mapping[str, str | int] | None = None) -> None:
    """In this form and at these levels from now on."""
    _spec[:] = [spec]
    for lines in _lines:
        lines.text = spec.format == "text" or (spec.format != "json" and os.isatty(FD))
        lines.journal = lines.text and _is_journal()
        lines.masks = Masks(spec.secrets)
        lines.fields |= about or {}
    rooms = {"metamcp": spec.level, **spec.levels}
    numbers = logging.getLevelNamesMapping()
    wanted = {log_records.logger_of(room): numbers[word.upper()] for room, word in rooms.items()}
    for name in _before.keys() - wanted.keys():
        _set_level(logging.getLogger(name), _before.pop(name))
    for name, level in wanted.items():
        logger = logging.getLogger(name)
        _before.setdefault(name, logger.level)
        _set_level(logger, level)


def current() -> LogSpec:
    """How this process speaks, for others that are to speak like it; without its secrets."""
    return structs.replace(_spec[0], secrets=())


def count() -> None:
    """Say what was only counted, where it is time to; for who has a clock that ticks."""
    for lines in _lines:
        lines.count(time.monotonic())


async def counting() -> None:
    """The same, until cancelled."""
    while True:
        await asyncio.sleep(COUNT_S)
        count()


def stamp(created: float) -> str:
    """RFC 3339, in UTC, with milliseconds."""
    found = datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds")
    return found.removesuffix("+00:00") + "Z"


def clock(when: datetime) -> str:
    """The local time of day, as people have it on their watch."""
    return when.astimezone().strftime("%H:%M:%S.%f")[:-3]


def _set_level(logger: logging.Logger, level: int) -> None:
    """Each change makes `logging` write to every logger, so there is none if it is none."""
    if logger.level != level:
        logger.setLevel(level)


def _text(found: str) -> str:
    """Names of files may have bytes in them that are no text; these are spelled out."""
    return found.encode("utf-8", "backslashreplace").decode()


def _is_journal() -> bool:
    """Does stderr go to the journal of systemd?"""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        state = os.fstat(FD)
    except OSError:
        return False
    return (device, inode) == (str(state.st_dev), str(state.st_ino))
