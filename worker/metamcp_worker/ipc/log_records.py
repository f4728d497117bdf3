"""Records of the gateway's own log: their members, as JSON for programs and as text for people.

Owns: the members of a record, their order, the names of levels and rooms, the limits of length.
Never: who logs what, clocks, masks, writing.
"""

from msgspec import Struct

from metamcp_worker.ipc import codec

MESSAGE_CHARACTERS_MAX = 8 * 1024
ERROR_CHARACTERS_MAX = 16 * 1024
"""Maximum characters of a traceback; only the end of a longer one is kept, where the error is."""

LEVELS = ("debug", "info", "warning", "error", "critical")
OWN = "metamcp."
"""Prefix of a room in the name of its Python logger."""
#: Rooms: the parts of the gateway that log; each can have a level of its own.
ROOMS = frozenset({
    "control", "embeddings", "front", "http", "nursery", "recording", "traces", "worker",
})  # fmt: skip

_CONTROLS = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)]} | {
    code: f"\\u{code:04x}"
    for code in [0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
}
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
"""Priorities of the levels as syslog numbers them, which the journal of systemd reads."""


class LogRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record of the log. `time`: RFC 3339, UTC, with milliseconds. `room`: the part of the
    gateway that logs, or the logger of a library. `server`, `call`, `front`, `generation`: subject
    of the record, if it has one; `call` is the id that front and worker use. `error`: a traceback.
    """

    time: str
    level: str
    room: str
    message: str
    server: str = ""
    call: int = 0
    front: int | None = None
    generation: int = 0
    pid: int = 0
    error: str = ""


def as_json(record: LogRecord) -> bytes:
    return codec.dump(record) + b"\n"


def as_text(record: LogRecord, clock: str) -> bytes:
    """Format for people: one line, and the traceback below it. `clock`: the local time of day, or
    empty if the line already gets a time from elsewhere."""
    head = f"{clock} {record.level:<7} " if clock else ""
    first = f"{head}{record.room}: {printable(record.message)}{_about(record)}"
    return _lines([first, *map(printable, record.error.splitlines())])


def as_journal(record: LogRecord) -> bytes:
    """Format for the journal of systemd, which knows the time and reads the level from a prefix of
    each line."""
    mark = f"<{_PRIORITIES.get(record.level, 6)}>".encode()
    return b"".join(mark + line for line in as_text(record, "").splitlines(keepends=True))


def level_of(number: int) -> str:
    """Return the name of a level of Python's `logging`."""
    return LEVELS[max(0, min(number // 10 - 1, len(LEVELS) - 1))]


def room_of(logger: str) -> str:
    return logger.removeprefix(OWN)


def logger_of(room: str) -> str:
    """Return the name of a room's Python logger; a name that is not a room is a logger already."""
    return f"{OWN}{room}" if room in ROOMS else room


def printable(text: str) -> str:
    """Return the text with control characters escaped, also those that change the direction of
    writing: a terminal would obey them."""
    return text.expandtabs().translate(_CONTROLS)


def _about(record: LogRecord) -> str:
    front = None if record.front is None else str(record.front)
    known = (
        ("server", record.server), ("call", record.call), ("front", front),
        ("generation", record.generation), ("pid", record.pid),
    )  # fmt: skip
    found = " ".join(f"{key}={value}" for key, value in known if value)
    return f"  ({printable(found)})" if found else ""


def _lines(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
