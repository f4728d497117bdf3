"""What is said of a call that is over, and where such lines are kept.

Owns: the members of that value and their order, the words for how a call ended, the ids, the names
of the files. Never: which calls are recorded, masks and limits (`front.call_log`), writing
(`front.call_log_io`), reading (the command line does).

There is one producer of these values, so that whoever else wants to know of finished calls finds
them here.
"""

from msgspec import UNSET, Raw, Struct, UnsetType

FOLDER = "calls"
"""In the state directory."""
FILE_PREFIX, FILE_SUFFIX = "calls-", ".jsonl"
METHODS = frozenset({"tools/call", "prompts/get", "resources/read"})
"""What is recorded: that of which people ask afterwards what it was."""

OK, TOOL_ERROR, CANCELLED = "ok", "tool_error", "cancelled"
"""How a call ended; otherwise it is a JSON-RPC code."""
ARGUMENTS, RESULT = "arguments", "result"
"""The members that may be cut and masked."""

_DIGITS = "0123456789abcdefghjkmnpqrstvwxyz"
_TIME_DIGITS, _FRONT_DIGITS, _CALL_DIGITS = 9, 2, 5
ID_CHARACTERS = _TIME_DIGITS + _FRONT_DIGITS + _CALL_DIGITS


class FinishedCall(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call. `id`: a word that sorts as `time` does, which is when it began. `name`: of the tool
    or prompt as its client knows it, or the URI. `protocol`: the revision that the client speaks.
    `front`, `call`: under which number the gateway knew it; `generation`: of the server, 0 if it
    never reached one. `…_bytes`: of the whole, also where it is not here. `arguments`, `result`:
    only if they are recorded; a text, where they were cut or are no JSON any more; `result` may be
    the error that came instead. `cut`, `masked`: which of them are not as they were."""

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
    """Between two calls in a file: so many more could not be written."""

    lost: int


def word(ms: int, front: int, call: int) -> str:
    """The id of a call that began so many milliseconds after the epoch."""
    return _digits(ms, _TIME_DIGITS) + _digits(front, _FRONT_DIGITS) + _digits(call, _CALL_DIGITS)


def file_name(ms: int, front: int) -> str:
    """Of a file that is begun now: they sort as they were begun."""
    return f"{FILE_PREFIX}{_digits(ms, _TIME_DIGITS)}{_digits(front, _FRONT_DIGITS)}{FILE_SUFFIX}"


def is_file_name(name: str) -> bool:
    return name.startswith(FILE_PREFIX) and name.endswith(FILE_SUFFIX)


def _digits(number: int, length: int) -> str:
    """The lowest digits, in base 32, without letters that look like others."""
    found = ""
    for _ in range(length):
        number, digit = divmod(number, len(_DIGITS))
        found = _DIGITS[digit] + found
    return found
