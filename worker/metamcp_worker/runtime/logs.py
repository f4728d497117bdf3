"""Log of a process of the gateway: the records of Python's loggers, as one line each on stderr, or
in the journal of systemd.

Owns: the handler that all processes have, the format and the levels, the socket of the journal, and
that writing a line never blocks the code that logs. Never: the form of a line (`records`), masking
secrets (`masking`), the limit for repeated lines (`masking`), the log of a server.

Logging in Python is global for the whole process, and so is this module: call `begin` when the
process starts, `go_on` after a fork, and `tune` to change format or levels.
"""

import asyncio
import contextlib
import errno
import logging
import os
import select
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime

from msgspec import structs

from metamcp_worker.ipc import records
from metamcp_worker.ipc.records import (
    ERROR_CHARACTERS_MAX,
    MESSAGE_CHARACTERS_MAX,
    LogRecord,
    level_of,
    room_of,
)
from metamcp_worker.ipc.spec import LogSpec
from metamcp_worker.runtime.masking import RepeatCounter, SecretMasker, SuppressedLines

FORMAT = "METAMCP_NURSERY_LOG"
"""Environment variable of a nursery: the format of log lines until the first order to change it."""
FD = 2
COUNT_S = 1.0
"""Seconds between two checks for counts of repeated lines that are to be logged."""
WRITE_S_MAX = 0.05
"""Seconds that the reader of stderr has to make room. A stopped terminal never does: then lines are
lost, and calls are not."""
JOURNAL = "/run/systemd/journal/socket"
"""Socket of the journal of systemd, which takes records with fields."""
SEND_BYTES = 8 * 1024 * 1024
"""Bytes of records that may wait for the journal, as far as the kernel allows."""
PAUSE_S = 1.0
"""Seconds for which a journal that is behind gets no record."""
PIECE_BYTES_MAX = 4096
"""Maximum bytes of one write: a pipe takes as many whole or not at all, and without waiting once it
reports room."""
_NONE: Mapping[str, str] = {}
_FIELDS = ("server", "call", "front", "generation")


class LogHandler(logging.Handler):
    """Handler of the process. `put`: takes whole lines and must not wait. `text`: format for
    people, with `journal` for the journal of systemd; else JSON. `socket`: takes records instead of
    `put`, as long as it can."""

    def __init__(
        self, put: Callable[[bytes], None], *, text: bool = False, journal: bool = False
    ) -> None:
        super().__init__()
        self._put = put
        self.text, self.journal = text, journal
        self.socket: JournalSocket | None = None
        self.to_journal = _is_journal()
        """Whether stderr goes to the journal of systemd; a process that took over the environment
        of its server no longer knows."""
        self._secrets: Sequence[str] = ()
        self._masks: SecretMasker | None = None
        """Masker of these secrets; None: to be made for the next line."""
        self.fields: dict[str, str | int] = {}
        self._repeats = RepeatCounter()

    def hide(self, secrets: Sequence[str]) -> None:
        """Mask these secrets from now on. Preparing that takes a tenth of a millisecond a secret,
        and most workers write no line."""
        self._secrets, self._masks = secrets, None

    @property
    def _masker(self) -> SecretMasker:
        if self._masks is None:
            self._masks = SecretMasker(self._secrets)
        return self._masks

    def emit(self, record: logging.LogRecord) -> None:
        try:
            now = time.monotonic()
            self.count(now)
            if self._repeats.says((record.name, str(record.msg)), now):
                self.say(self._record(record))
        except Exception as error:  # noqa: BLE001 - as every handler does: a log ends nothing
            self._fail(record, error)

    def say(self, record: LogRecord, members: Mapping[str, str] = _NONE) -> None:
        """Log a record. `members`: further ones for the journal of systemd."""
        if self.socket is None or not self.socket.send(records.as_fields(record, members)):
            self._put(self.render_record(record))

    def render_record(self, record: LogRecord) -> bytes:
        if not self.text:
            return records.as_json(record)
        if self.journal:
            return records.as_journal(record)
        return records.as_text(record, clock(datetime.fromisoformat(record.time)))

    def count(self, now: float) -> None:
        """Log how many repeated lines were left out, if it is time to. Safe for all threads."""
        self.acquire()
        try:
            self._tell(self._repeats.due(now))
        finally:
            self.release()

    def forget(self) -> None:
        """Drop the counts of repeated lines after a fork; the parent process will log them."""
        self._repeats = RepeatCounter()

    def close(self) -> None:
        self._tell(self._repeats.rest())
        super().close()

    def _tell(self, counts: Iterable[SuppressedLines]) -> None:
        for left_out in counts:
            room, template = left_out.kind
            message = (
                f"… {left_out.count:,} more of these in the last {left_out.seconds:g} s: {template}"
            )
            self.say(self._make_record(time.time_ns() / 1e9, "warning", room, message))

    def _fail(self, record: logging.LogRecord, error: Exception) -> None:
        """Log the failure, without the values for the line, which may be secret."""
        with contextlib.suppress(Exception):
            message = f"a line cannot be made of {str(record.msg)!r}: {type(error).__name__}"
            self.say(self._make_record(record.created, "error", record.name, message))

    def _record(self, record: logging.LogRecord) -> LogRecord:
        level = level_of(record.levelno)
        log_record = self._make_record(record.created, level, record.name, record.getMessage())
        about = {key: value for key in _FIELDS if (value := record.__dict__.get(key)) is not None}
        return structs.replace(log_record, error=self._error(record), **about)

    def _make_record(self, created: float, level: str, logger: str, message: str) -> LogRecord:
        masked = self._cut(_text(message))
        fields: Mapping[str, object] = self.fields
        return structs.replace(
            LogRecord(
                time=stamp(created),
                level=level,
                room=room_of(logger),
                message=masked,
                pid=os.getpid(),
            ),
            **fields,
        )

    def _cut(self, message: str) -> str:
        """Mask and cut a message. A secret may begin before the cut and end after it."""
        if len(message) <= MESSAGE_CHARACTERS_MAX:
            return self._masker.text(message)
        reach = self._masker.reach
        window = message[: MESSAGE_CHARACTERS_MAX + reach]
        masked = self._masker.text(window)
        length = len(masked) - reach if len(message) > len(window) else len(masked)
        return masked[: min(length, MESSAGE_CHARACTERS_MAX)]

    def _error(self, record: logging.LogRecord) -> str:
        if not record.exc_info or record.exc_info[1] is None:
            return ""
        text = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
        return self._masker.text(_text(text))[-ERROR_CHARACTERS_MAX:]


class Stderr:
    """Writer of lines. `put` writes as much of a line as `fd` takes without blocking the process.
    After half a line, the next one begins on a new line."""

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


class JournalSocket:
    """Connection to the journal of systemd at `path`, which a confined process inherits. A journal
    that is gone is looked for again with the next record. `pause_s`: seconds without a record for a
    journal that is behind, so that none overtakes those that go elsewhere."""

    def __init__(self, path: str = JOURNAL, pause_s: float = PAUSE_S) -> None:
        self._path = path
        self._pause_s = pause_s
        self._paused_until = 0.0
        self._sock = self._connect()

    @property
    def is_connected(self) -> bool:
        return self._sock is not None

    def send(self, data: bytes) -> bool:
        """Send a record without waiting. Returns False if the journal does not take it now."""
        if self._paused_until and time.monotonic() < self._paused_until:
            return False
        for _ in range(2):
            sock = self._sock = self._sock or self._connect()
            if sock is None:
                return False
            try:
                sock.send(data)
            except BlockingIOError:
                self._paused_until = time.monotonic() + self._pause_s
                return False
            except OSError as error:
                if error.errno in _NOT_THIS_ONE:
                    return False
                self.close()
            else:
                return True
        return False

    def close(self) -> None:
        sock, self._sock = self._sock, None
        if sock is not None:
            with contextlib.suppress(OSError):  # somebody closed the descriptor
                sock.close()

    def _connect(self) -> "socket.socket | None":
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        except OSError:
            return None
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
            sock.connect(self._path)
        except OSError:
            sock.close()
            return None
        return sock


_NOT_THIS_ONE = frozenset({errno.EMSGSIZE, errno.ENOBUFS, errno.EPERM, errno.EACCES})
"""Errors after which the journal may take the next record."""
_lines: list[LogHandler] = []
"""Handler of this process after `begin`; at most one."""
_spec: list[LogSpec] = [LogSpec()]
"""Configuration in force; exactly one."""
_before: dict[str, int] = {}
"""Loggers whose level the configuration has set, with the level that they had before."""


def begin(
    spec: LogSpec,
    put: Callable[[bytes], None] | None = None,
    *,
    with_libraries: bool = True,
    about: Mapping[str, str | int] | None = None,
) -> LogHandler:
    """Install the handler, in place of an earlier one of this process. `put`: where lines go; None:
    to stderr. `with_libraries`: also log records of libraries; not in a process that runs the code
    of a server, whose loggers are its own. `about`: fields for all lines of this process."""
    own, root = logging.getLogger("metamcp"), logging.getLogger()
    fields: dict[str, str | int] = {}
    for older in _lines:
        fields |= older.fields
        own.removeHandler(older)
        root.removeHandler(older)
    lines = LogHandler(put or Stderr().put)
    lines.fields = {**fields, **(about or {})}
    lines.to_journal |= any(older.to_journal for older in _lines)
    _lines[:] = [lines]
    own.propagate = False
    own.addHandler(lines)
    if with_libraries:
        root.addHandler(lines)
    tune(spec)
    return lines


def go_on(about: Mapping[str, str | int], *, with_libraries: bool) -> None:
    """Continue in a process that was just forked, with other fields. `with_libraries`: as in
    `begin`, which would do the same with a new handler and cost each worker a third of a MiB."""
    if not _lines:
        begin(_spec[0], with_libraries=with_libraries, about=about)
    for lines in _lines:
        lines.fields = {**lines.fields, **about}
        lines.forget()
        if with_libraries:
            logging.getLogger().addHandler(lines)


def tune(spec: LogSpec, *, about: Mapping[str, str | int] | None = None) -> None:
    """Change format, levels, secrets and fields from now on."""
    _spec[:] = [spec]
    for lines in _lines:
        is_journal = spec.format != "json" and lines.to_journal
        _use_journal(lines, is_journal=is_journal)
        automatic = os.isatty(FD) or lines.socket is not None
        lines.text = spec.format == "text" or (spec.format != "json" and automatic)
        lines.journal = lines.text and is_journal
        lines.hide(spec.secrets)
        lines.fields |= about or {}
    rooms = {"metamcp": spec.level, **spec.levels}
    numbers = logging.getLevelNamesMapping()
    levels = {records.logger_of(room): numbers[word.upper()] for room, word in rooms.items()}
    for name in _before.keys() - levels.keys():
        _set_level(logging.getLogger(name), _before.pop(name))
    for name, level in levels.items():
        logger = logging.getLogger(name)
        _before.setdefault(name, logger.level)
        _set_level(logger, level)


def _use_journal(lines: LogHandler, *, is_journal: bool) -> None:
    """Open the socket of the journal for a handler, or close it."""
    if is_journal and lines.socket is None:
        opened = JournalSocket()
        lines.socket = opened if opened.is_connected else None
    elif not is_journal and lines.socket is not None:
        lines.socket.close()
        lines.socket = None


def current() -> LogSpec:
    """Return the configuration in force, without secrets, for processes that are to log alike."""
    return structs.replace(_spec[0], secrets=())


def count() -> None:
    """Log the counts of repeated lines, if it is time to; for callers with a timer."""
    for lines in _lines:
        lines.count(time.monotonic())


async def count_every_second() -> None:
    """Call `count` at every whole second, until cancelled."""
    now = asyncio.get_running_loop().time
    while True:
        await asyncio.sleep(COUNT_S - now() % COUNT_S)
        count()


def stamp(created: float) -> str:
    """Return a time as RFC 3339, in UTC, with milliseconds."""
    text = datetime.fromtimestamp(created, UTC).isoformat(timespec="milliseconds")
    return text.removesuffix("+00:00") + "Z"


def clock(when: datetime) -> str:
    """Return the local time of day, with milliseconds."""
    return when.astimezone().strftime("%H:%M:%S.%f")[:-3]


def _set_level(logger: logging.Logger, level: int) -> None:
    """Set a level only if it changes, because `logging` writes to every logger then."""
    if logger.level != level:
        logger.setLevel(level)


def _text(message: str) -> str:
    """Escape bytes that are not text, as names of files may have them."""
    return message.encode("utf-8", "backslashreplace").decode()


def _is_journal() -> bool:
    """Whether stderr goes to the journal of systemd."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        state = os.fstat(FD)
    except OSError:
        return False
    return (device, inode) == (str(state.st_dev), str(state.st_ino))
