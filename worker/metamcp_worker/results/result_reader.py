"""Reading of kept results by a front: pieces at once, other parts by a process of their own.

Owns: finding the result of a caller, the processes under way, their limits of time and number.
Never: taking a part (`result_parts`), the words for clients (`builtin_tools.result_tools`).
"""

import asyncio
import contextlib
import os
from collections.abc import Callable

from metamcp_worker.ipc import codec
from metamcp_worker.results import result_files
from metamcp_worker.results.result_parts import COMMAND, PART_S_MAX, PartAnswer
from metamcp_worker.results.result_summary import PartRequest, Piece

PARTS_MAX = 4
"""Maximum processes of one front at once; a further part is refused."""
UNKNOWN = "No result has the handle {!r}: the handle is wrong, or its time is over."
_FULL = f"{PARTS_MAX} parts of results are being looked for already; try again in a moment."
_LATE = "The part took more than {:.0f} s; take a simpler expression, or a smaller part."
_FAILED = "The process that looks for the part ended without an answer; take a smaller part."


class ResultReader:
    """Reader of one front. `part_s`: see PART_S_MAX."""

    def __init__(self, part_s: float = PART_S_MAX) -> None:
        self._part_s = part_s
        self._under_way: set[asyncio.Task[None]] = set()

    def read(self, folder: str, request: PartRequest, done: Callable[[Piece | str], None]) -> None:
        """Read a part of a result in the folder of its principal. `done` is called with the piece,
        at once or later, or with a sentence why there is none."""
        if result_files.about(folder, request.handle) is None:
            done(UNKNOWN.format(request.handle[:64]))
            return
        if request.path is None and not request.grep:
            path = os.path.join(folder, request.handle)
            try:
                done(result_files.piece_of(path, request.offset, request.length))
            except OSError as error:
                done(f"The result cannot be read: {error.strerror}.")
        elif len(self._under_way) >= PARTS_MAX:
            done(_FULL)
        else:
            work = _take(folder, request, self._part_s, done)
            task = asyncio.get_running_loop().create_task(work)
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)


async def _take(
    folder: str, request: PartRequest, part_s: float, done: Callable[[Piece | str], None]
) -> None:
    done(await _read_in_process(folder, request, part_s))


async def _read_in_process(folder: str, request: PartRequest, part_s: float) -> Piece | str:
    """Let a process take the part, and end the process if it takes too long."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, folder, codec.dump(request).decode(),
            stdin=asyncio.subprocess.DEVNULL, stdout=pipe,
            env={name: text for name, text in os.environ.items() if name.startswith("PYTHON")},
        )  # fmt: skip
    except (OSError, ValueError) as error:
        return f"The result cannot be searched: {error}."
    try:
        async with asyncio.timeout(part_s):
            output, _ = await process.communicate()
    except TimeoutError:
        return _LATE.format(part_s)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    try:
        answer = codec.decode_as(PartAnswer, output)
    except codec.Malformed:
        return _FAILED
    return answer.error if answer.piece is None else answer.piece
