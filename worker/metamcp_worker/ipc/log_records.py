"""One line of the gateway's own log: what it says, as JSON for programs and as text for people.

Owns: its members, their order, the names of levels, the limits of its length. Never: what is said,
clocks, masks, writing.
"""

from msgspec import Struct

from metamcp_worker.ipc import codec

MESSAGE_CHARACTERS_MAX = 8 * 1024
ERROR_CHARACTERS_MAX = 16 * 1024
"""Of a traceback its end: that is where the error is."""

LEVELS = ("debug", "info", "warning", "error", "critical")
OWN = "metamcp."
"""Before the name of a room, where Python knows it as a logger."""
#: The rooms of the gateway that speak; by them a level can be set.
ROOMS = frozenset({
    "control", "embeddings", "front", "http", "nursery", "recording", "traces", "worker",
})  # fmt: skip

_CONTROLS = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)]} | {
    code: f"\\u{code:04x}"
    for code in [0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
}
_PRIORITIES = {"debug": 7, "info": 6, "warning": 4, "error": 3, "critical": 2}
"""As syslog numbers them, which is how the journal of systemd reads them."""


class LogRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`time`: RFC 3339, UTC, with milliseconds. `room`: the part of the gateway that speaks, or the
    logger of a library. `server`, `call`, `front`, `generation`: what it is about, where it is
    about one; `call` is the id that the front and the worker have for it. `error`: a traceback."""

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
    """For people: one line, and the traceback below it. `clock`: the time of day as they have it,
    or nothing where it stands before the line already."""
    head = f"{clock} {record.level:<7} " if clock else ""
    first = f"{head}{record.room}: {printable(record.message)}{_about(record)}"
    return _lines([first, *map(printable, record.error.splitlines())])


def as_journal(record: LogRecord) -> bytes:
    """The same for the journal of systemd, which knows the time, and takes the level from before
    each line."""
    mark = f"<{_PRIORITIES.get(record.level, 6)}>".encode()
    return b"".join(mark + line for line in as_text(record, "").splitlines(keepends=True))


def level_of(number: int) -> str:
    """The word for a level that Python has as a number."""
    return LEVELS[max(0, min(number // 10 - 1, len(LEVELS) - 1))]


def room_of(logger: str) -> str:
    return logger.removeprefix(OWN)


def logger_of(room: str) -> str:
    """Its name in Python; of what is no room of ours, the name is that already."""
    return f"{OWN}{room}" if room in ROOMS else room


def printable(text: str) -> str:
    """The text with everything spelled out that a terminal would obey or that turns its order."""
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
