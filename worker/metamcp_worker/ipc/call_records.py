"""Records of finished calls: their form, and the names of the files that keep them.

Owns: the members of a record and their order, the words for how a call ended, the ids, the names of
the files. Never: which calls are recorded, masks and limits (`front/call_log`), writing
(`front/call_log_io`), reading (the command line does).
"""

from msgspec import UNSET, Raw, Struct, UnsetType

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
    prompt as the client knows it, or the URI of the resource. `protocol`: the revision that the
    client speaks. `front`, `call`: numbers of the front and of its call. `generation`: of the
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
    protocol: str = ""
    generation: int = 0
    arguments_bytes: int = 0
    result_bytes: int = 0
    arguments: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    cut: tuple[str, ...] = ()
    masked: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
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
    found = ""
    for _ in range(length):
        number, digit = divmod(number, len(_DIGITS))
        found = _DIGITS[digit] + found
    return found
