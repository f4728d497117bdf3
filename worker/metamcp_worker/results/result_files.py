"""Files of kept results: written by workers, read by fronts, removed by the supervisor.

Owns: the files and their names, room for a new one, pieces of a text, the processes that take other
parts, with their limits of time and number. Never: which results are kept (`result_summary`), who
may read one (a front looks only into the folder of its caller), taking a part (`result_parts`).

The text of a result lies in a file named by its handle, and its description in another file of that
name with `.json` behind it, which is written last: a result without it does not exist yet. Both are
for this user alone. Processes share the files; no process has a table of them.
"""

import asyncio
import contextlib
import mmap
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from typing import cast

from msgspec import structs

from metamcp_worker.ipc import builtin_definitions, codec
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.results import result_summary
from metamcp_worker.results.result_parts import COMMAND, PART_S_MAX, PartAnswer
from metamcp_worker.results.result_summary import (
    HEAD_BYTES,
    KeptResult,
    LargeResult,
    PartRequest,
    Piece,
    ResultPlace,
)

HANDLE_BYTES = 12
"""Random bytes of a handle, which has two characters for each."""
ABOUT = ".json"
LOST_S = 60.0
"""Seconds after which a text without a description counts as lost: its worker has ended."""
PARTS_MAX = 4
"""Maximum processes of one front at once; a further part is refused."""
UNKNOWN = "No result has the handle {!r}: the handle is wrong, or its time is over."
_FULL = f"{PARTS_MAX} parts of results are being looked for already; try again in a moment."
_LATE = "The part took more than {:.0f} s; take a simpler expression, or a smaller part."
_FAILED = "The process that looks for the part ended without an answer; take a smaller part."

_HANDLE = re.compile(r"[0-9a-f]{24}")
_read_about = codec.reader(KeptResult)
_read_place = codec.reader(ResultPlace)


def keep(
    result: bytes, raw_place: bytes, server: str, tool: str
) -> tuple[bytes, KeptResult] | None:
    """Keep a result. `raw_place`: a raw `ResultPlace`. Return what the client gets in place of the
    result, and the description; None for a result that passes whole. Raises TooLarge and OSError;
    then nothing is kept."""
    destination = _read_place(raw_place)
    limits = destination.limits
    large_result = result_summary.large(result) if len(result) > limits.max_bytes else None
    if large_result is None:
        return None
    size = len(large_result.raw)
    if size > limits.total_bytes:
        raise TooLarge("a result", size, limits.total_bytes)
    os.makedirs(limits.folder, mode=0o700, exist_ok=True)
    _make_room(limits.folder, size, limits.total_bytes)
    handle, now = secrets.token_hex(HANDLE_BYTES), time.time()
    try:
        size, shape, head = _write(os.path.join(limits.folder, handle), large_result)
        about = KeptResult(
            **structs.asdict(destination.owner), handle=handle, key=destination.key,
            server=server, tool=tool, size_bytes=size, result_bytes=len(result), shape=shape,
            kept=now, until=now + limits.keep_s,
        )  # fmt: skip
        short = result_summary.short(about, large_result, head, links=destination.links)
        saved = builtin_definitions.tokens_of_bytes(len(result) - len(short))
        about = structs.replace(about, saved_tokens=saved)
        _put(os.path.join(limits.folder, handle + ABOUT), codec.dump(about))
    except OSError:
        remove(limits.folder, handle)
        raise
    return short, about


def _write(path: str, large_result: LargeResult) -> tuple[int, str, str]:
    """Write what is kept of a result. Return its bytes, its shape and its beginning."""
    pieces = (
        result_summary.text_pieces(large_result.raw)
        if large_result.text
        else (bytes(large_result.raw),)
    )
    lines = 1
    with open(path, "xb", opener=_private) as file:
        for piece in pieces:
            lines += piece.count(b"\n")
            file.write(piece)
        size = file.tell()
    with open(path, "rb") as back, mmap.mmap(back.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        shape = result_summary.shape(cast(bytes, mapped), lines, text=large_result.text)
    head = piece_of(path, 0, HEAD_BYTES)
    return size, shape, head.text


def _put(path: str, data: bytes) -> None:
    with open(path, "xb", opener=_private) as file:
        file.write(data)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _make_room(folder: str, size: int, total_bytes: int) -> None:
    """Remove the oldest results of a folder, so that one of this size fits."""
    with os.scandir(folder) as entries:
        there = [(entry.stat().st_mtime, entry.name, entry.stat().st_size) for entry in entries]
    used = sum(file_bytes for _, _, file_bytes in there)
    for _, name, file_bytes in sorted(there):
        if used + size <= total_bytes:
            return
        if not name.endswith(ABOUT):
            remove(folder, name)
            used -= file_bytes


def about(folder: str, handle: str) -> KeptResult | None:
    """Return the description of a result in this folder; None for an unknown handle, or one whose
    time is over."""
    if _HANDLE.fullmatch(handle) is None:
        return None
    try:
        with open(os.path.join(folder, handle + ABOUT), "rb") as file:
            description: KeptResult = _read_about(file.read())
    except (OSError, codec.Malformed):
        return None
    return description if description.until > time.time() else None


def piece_of(path: str, offset: int, length: int) -> Piece:
    """Return the piece of a text from `offset` on, at most `length` bytes, but whole characters.
    Raises OSError."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return result_summary.cut(
            os.pread(file.fileno(), length + result_summary.CUT_BYTES, offset), offset, length, size
        )


def remove(folder: str, handle: str) -> None:
    """Remove a result, as far as it is there."""
    for name in (handle + ABOUT, handle):  # without a description it is gone at once
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(folder, name))


def iter_results(root: str) -> Iterator[tuple[str, KeptResult]]:
    """Yield all results that are kept, each with its folder."""
    for folder in _folders(root):
        for name in _names(folder):
            description = about(folder, name.removesuffix(ABOUT)) if name.endswith(ABOUT) else None
            if description is not None:
                yield folder, description


def sweep(root: str, alive: Callable[[KeptResult], bool]) -> None:
    """Remove what nobody can read any more. `alive`: whether the principal and endpoint of a result
    are still there."""
    for folder in _folders(root):
        for name in _names(folder):
            if not name.endswith(ABOUT):
                description = about(folder, name)
                if description is None and _age_s(os.path.join(folder, name)) < LOST_S:
                    continue  # it is being written
                if description is None or not alive(description):
                    remove(folder, name)
        with contextlib.suppress(OSError):
            os.rmdir(folder)  # only if it is empty


def clear(root: str) -> None:
    """Remove everything."""
    for folder in _folders(root):
        for name in _names(folder):
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(folder, name))
        with contextlib.suppress(OSError):
            os.rmdir(folder)
    with contextlib.suppress(OSError):
        os.rmdir(root)


def _folders(root: str) -> list[str]:
    return [os.path.join(root, name) for name in _names(root)]


def _names(folder: str) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _age_s(path: str) -> float:
    try:
        return time.time() - os.stat(path).st_mtime
    except OSError:
        return 0.0


class ResultReader:
    """Reader of one front. `part_s`: see PART_S_MAX."""

    def __init__(self, part_s: float = PART_S_MAX) -> None:
        self._part_s = part_s
        self._under_way: set[asyncio.Task[None]] = set()

    def read(self, folder: str, request: PartRequest, done: Callable[[Piece | str], None]) -> None:
        """Read a part of a result in the folder of its principal. `done` is called with the piece,
        at once or later, or with a sentence why there is none."""
        if about(folder, request.handle) is None:
            done(UNKNOWN.format(request.handle[:64]))
            return
        if request.path is None and not request.grep:
            path = os.path.join(folder, request.handle)
            try:
                done(piece_of(path, request.offset, request.length))
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
