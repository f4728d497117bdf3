"""Evaluation of expressions in a process of its own, with a limit of time and of memory.

Owns: that process, its start, its limits and what its end means. Never: the language
(`expressions`).

A path is followed in the caller. For CEL there is one process, started by the first expression that
needs it; it ends by itself when it is idle, and with its parent, whose end closes its input.
"""

import asyncio
import contextlib
import os
import resource
import select
import signal
import struct
import sys
from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any

from msgspec import Raw, Struct, json

from metamcp_worker.cel import expressions
from metamcp_worker.cel.expressions import (
    VALUE_BYTES_MAX,
    Expression,
    ExpressionError,
    Variables,
    is_list,
    is_map,
)

EVALUATION_S_MAX = 2.0
"""Maximum seconds of one evaluation: `map` or `filter` of about 2,000 maps."""
MEMORY_BYTES_MAX = 512 * 1024 * 1024
_DEPTH_MAX = 100
IDLE_S = 60.0
"""Seconds after which the process ends; a new one starts in a tenth of a second."""
_SIZE = struct.Struct("<I")
_COMMAND = (sys.executable, "-P", "-m", "metamcp_worker.cel.expressions_io")


class _Value(Struct):
    value: Raw = Raw(b"null")
    error: str = ""


class Evaluator:
    """Values of expressions for one event loop; evaluations take turns."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()

    @property
    def pid(self) -> int | None:
        """Id of the process; None if there is none."""
        return None if self._process is None else self._process.pid

    async def replace_expressions(self, value: object, variables: Variables) -> object:
        """Return a value of maps, lists and texts with all expressions replaced. Raises
        ExpressionError."""
        values: dict[str, object] = {}
        for expression in expressions.in_value(value):
            if expression.text not in values:
                values[expression.text] = await self._value(expression, variables)
        return expressions.replace_expressions(value, values) if values else value

    async def condition(self, text: str, variables: Variables) -> object:
        """Return the value of a text that is one expression, as in `when`. Raises
        ExpressionError."""
        return await self._value(expressions.condition(text), variables)

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _value(self, expression: Expression, variables: Variables) -> object:
        if expression.path is not None:
            return expressions.resolve_path(expression, variables)
        needed = expressions.select_variables(expression, variables)
        data = json.encode({"text": expression.text, "variables": needed})
        if len(data) > VALUE_BYTES_MAX:
            raise ExpressionError(
                expression.describe_problem(f"it is given more than {VALUE_BYTES_MAX} bytes")
            )
        async with self._turn:
            answer = await self._ask_process(data)
            if isinstance(answer, int) and answer != -signal.SIGALRM:
                answer = await self._ask_process(
                    data
                )  # the first one may have ended because it was idle
        if isinstance(answer, int):
            limits = f"more than {EVALUATION_S_MAX:.0f} s, or too much memory"
            raise ExpressionError(
                expression.describe_problem(f"it takes {limits}; use a step run_code")
            )
        if answer.error:
            raise ExpressionError(answer.error)
        return json.decode(answer.value)

    async def _ask_process(self, data: bytes) -> _Value | int:
        """Ask the process. If it ends without an answer, return its exit code."""
        try:
            if self._process is None:
                pipe = asyncio.subprocess.PIPE
                self._process = await asyncio.create_subprocess_exec(
                    *_COMMAND, stdin=pipe, stdout=pipe, env=_environment()
                )
            to, back = self._process.stdin, self._process.stdout
            assert to is not None
            assert back is not None
            to.write(_SIZE.pack(len(data)) + data)
            await to.drain()
            (size,) = _SIZE.unpack(await back.readexactly(_SIZE.size))
            return json.decode(await back.readexactly(size), type=_Value)
        except OSError as error:
            if self._process is None:
                return _Value(error=f"expressions cannot be evaluated: {error.strerror}")
        except asyncio.IncompleteReadError:
            pass
        except asyncio.CancelledError:
            await self.close()  # its answer would be taken for that of the next question
            raise
        code = await self._process.wait() if self._process is not None else 0
        self._process = None
        return code


def evaluate(text: str, variables: Variables) -> object:
    """Return the value of an expression in CEL, as plain data. Only for a process that can be
    killed. Raises ExpressionError."""
    program = expressions.program(text)
    import cel
    from cel import stdlib

    context = cel.Context(dict(variables))
    stdlib.add_stdlib_to_context(context)
    try:
        return _plain(program.execute(context), 0)
    except KeyError as error:
        raise ExpressionError(expressions.describe_missing_member(text, str(error))) from None
    except (ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = expressions.reason(error)
        raise ExpressionError(f"'{expressions.shorten(text)}' has no value: {reason}") from None


def _plain(value: Any, depth: int) -> object:
    """Return a value of CEL as plain data. Raises ValueError."""
    if depth > _DEPTH_MAX:
        raise ValueError(f"it is nested more than {_DEPTH_MAX} deep")
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not isfinite(value):
            raise ValueError("it is not a finite number")
        return value
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if isinstance(value, timedelta):
        return f"{value.total_seconds():.6f}".rstrip("0").rstrip(".") + "s"
    if is_list(value):
        return [_plain(each, depth + 1) for each in value]
    if is_map(value):
        if set(map(type, value)) - {str}:
            raise ValueError("it is a map with keys that are not text")
        return {key: _plain(each, depth + 1) for key, each in value.items()}
    raise ValueError(f"it is of the type {type(value).__name__}, which JSON does not have")


def _environment() -> dict[str, str]:
    """Return what Python needs to find the same packages, and nothing of the user's."""
    return {name: text for name, text in os.environ.items() if name.startswith("PYTHON")}


def _serve() -> None:
    """Answer questions until the input ends or none comes for IDLE_S."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process also inside of the library
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    read, write = os.fdopen(0, "rb"), os.fdopen(1, "wb")
    while select.select([read], [], [], IDLE_S)[0] and (head := read.read(_SIZE.size)):
        question = json.decode(read.read(_SIZE.unpack(head)[0]))
        signal.setitimer(signal.ITIMER_REAL, EVALUATION_S_MAX)
        answer = _answer(question["text"], question["variables"])
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        write.write(_SIZE.pack(len(answer)) + answer)
        write.flush()


def _answer(text: str, variables: Variables) -> bytes:
    try:
        value = json.encode(evaluate(text, variables))
    except ExpressionError as error:
        return json.encode(_Value(error=str(error)))
    except (MemoryError, RecursionError, OverflowError) as error:
        return json.encode(_Value(error=f"'{text[:100]}' has no value: {type(error).__name__}"))
    if len(value) > VALUE_BYTES_MAX:
        expression = expressions.expression(text)
        return json.encode(
            _Value(error=expression.describe_problem(f"it has more than {VALUE_BYTES_MAX} bytes"))
        )
    return json.encode(_Value(Raw(value)))


if __name__ == "__main__":
    _serve()
