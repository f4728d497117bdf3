"""Records that programs read: of finished calls, and of the gateway's own log.

Owns: the members of a record and their order; the words for how a call ended, the ids, the names of
the files of calls; the names of levels and rooms of the log, the limits of length. Never: which
calls are recorded, masks (`front_records/call_log`), who logs what, clocks, writing, reading.
"""

from collections.abc import Mapping

from msgspec import UNSET, Raw, Struct, UnsetType, structs

from metamcp_worker.ipc import codec, process_names

FOLDER = "calls"
"""Folder of the record files, in the state directory."""
FILE_PREFIX, FILE_SUFFIX = "calls-", ".jsonl"
METHODS = frozenset({"tools/call", "prompts/get", "resources/read"})
"""Methods of the calls that are recorded: people ask about these afterwards."""

OK, TOOL_ERROR, CANCELLED = "ok", "tool_error", "cancelled"
"""Values of `FinishedCall.outcome`; every other outcome is a JSON-RPC code."""
ARGUMENTS, RESULT = "arguments", "result"
"""Members of a record that may be cut and masked."""

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_TIME_DIGITS, _FRONT_DIGITS, _CALL_DIGITS = 9, 2, 5
ID_CHARACTERS = _TIME_DIGITS + _FRONT_DIGITS + _CALL_DIGITS


class FinishedCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Record of one finished call.

    `id`: a word that sorts as `time` does; `time`: when the call began. `name`: of the tool or
    prompt as the client knows it, or the URI of the resource. `key`: id of the API key of the
    client, empty without one; `client`: name that it gives itself. `protocol`: the revision that
    the client speaks. `front`, `call`: numbers of the front and of its call. `generation`: of the
    server, 0 if the call never reached a server. `…_bytes`: size of the whole, also if the record
    does not have it. `arguments`, `result`: only if they are recorded; a JSON string if they were
    cut or are not JSON any more; `result` may be the error of the call. `cut`, `masked`: which of
    the two were cut or masked.
    """

    id: str
    time: str
    server: str
    method: str
    outcome: str
    duration_ms: float
    front: int
    call: int
    name: str = ""
    endpoint: str = ""
    key: str = ""
    client: str = ""
    protocol: str = ""
    generation: int = 0
    arguments_bytes: int = 0
    result_bytes: int = 0
    arguments: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    cut: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()

    @property
    def has_failed(self) -> bool:
        return self.outcome not in {OK, CANCELLED}


class Gap(Struct, frozen=True, kw_only=True):
    """Line between two calls of a file: `lost` more calls could not be written."""

    lost: int


def word(ms: int, front: int, call: int) -> str:
    """Return the id of a call that began `ms` milliseconds after the epoch."""
    return _digits(ms, _TIME_DIGITS) + _digits(front, _FRONT_DIGITS) + _digits(call, _CALL_DIGITS)


def file_name(ms: int, front: int) -> str:
    """Return the name of a file that is begun at `ms`; names sort by the time of beginning."""
    return f"{FILE_PREFIX}{_digits(ms, _TIME_DIGITS)}{_digits(front, _FRONT_DIGITS)}{FILE_SUFFIX}"


def is_file_name(name: str) -> bool:
    return name.startswith(FILE_PREFIX) and name.endswith(FILE_SUFFIX)


def _digits(number: int, length: int) -> str:
    """Return the lowest digits of a number in base 32; letters that look like others are not
    used."""
    digits = ""
    for _ in range(length):
        number, digit = divmod(number, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits


MESSAGE_CHARACTERS_MAX = 8 * 1024
ERROR_CHARACTERS_MAX = 16 * 1024
"""Maximum characters of a traceback; only the end of a longer one is kept, where the error is."""

IDENTIFIER = "metamcp"
"""Name of the gateway in the journal of systemd."""
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


def as_fields(record: LogRecord, members: Mapping[str, str]) -> bytes:
    """Format for the socket of the journal of systemd: the text for people, and each member as a
    field of its own. `members`: further ones, or others than those of the record."""
    server = process_names.base(members.get("server", record.server))
    text = as_text(structs.replace(record, pid=0), "")[:-1]
    about = {
        "room": record.room, "call": record.call, "generation": record.generation,
        "front": "" if record.front is None else str(record.front), **members,
        "server": server, "workspace": server and process_names.workspace_of(server),
    }  # fmt: skip
    fields = [
        ("PRIORITY", str(_PRIORITIES.get(record.level, 6))), ("SYSLOG_IDENTIFIER", IDENTIFIER),
        *((f"METAMCP_{key.upper()}", str(value)) for key, value in about.items() if value),
    ]  # fmt: skip
    encoded = ((name, value.encode("utf-8", "backslashreplace")) for name, value in fields)
    return b"".join(_field(name, value) for name, value in [("MESSAGE", text), *encoded])


def _field(name: str, value: bytes) -> bytes:
    if b"\n" not in value:
        return b"%b=%b\n" % (name.encode(), value)
    return b"%b\n%b%b\n" % (name.encode(), len(value).to_bytes(8, "little"), value)


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
    fields = (
        ("server", record.server), ("call", record.call), ("front", front),
        ("generation", record.generation), ("pid", record.pid),
    )  # fmt: skip
    text = " ".join(f"{key}={value}" for key, value in fields if value)
    return f"  ({printable(text)})" if text else ""


def _lines(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "backslashreplace")
