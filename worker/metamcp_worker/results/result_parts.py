"""Program that takes a part out of a kept result: the value at a path, or the places of an
expression.

Owns: JSON Pointers (RFC 6901), the search with a regular expression, the limits of this process.
Never: finding the file, deciding who may read it (`result_files`).

A value of many megabytes and an expression of a stranger can take any time and memory, so each part
is taken in a process of its own, which its front kills after `PART_S_MAX`.
"""

import re
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

from msgspec import Raw, Struct

from metamcp_worker.ipc import codec
from metamcp_worker.results.result_summary import CUT_BYTES, PartRequest, Piece, cut

PART_S_MAX = 5.0
"""Maximum seconds of one part, from the start of the process on."""
MEMORY_BYTES_MAX = 1024 * 1024 * 1024
BESIDE_CHARACTERS = 100
"""Characters of the line that are shown on either side of a hit."""
COMMAND = (sys.executable, "-P", "-m", "metamcp_worker.results.result_parts")


class PartAnswer(Struct, frozen=True):
    """Answer of the program: a piece, or a sentence why there is none."""

    piece: Piece | None = None
    error: str = ""


class PartMissing(Exception):
    """Raised for a part that is not there. The text is a sentence."""


def read_part(folder: str, request: PartRequest) -> Piece:
    """Return the part. Raises PartMissing, OSError, MemoryError and RecursionError."""
    data = Path(folder, request.handle).read_bytes()
    if request.path is not None:
        data = value_at(data, request.path)
    if request.grep:
        return hits(data, request.grep, request.offset, request.length)
    end = request.offset + request.length + CUT_BYTES
    return cut(data[request.offset : end], request.offset, request.length, len(data))


def value_at(data: bytes, pointer: str) -> bytes:
    """Return the value at a JSON Pointer: a text without quotes, else JSON. Raises PartMissing."""
    if pointer and not pointer.startswith("/"):
        raise PartMissing("A path is a JSON Pointer, such as /rows/0/name; it begins with a slash.")
    value = Raw(data.strip())
    at = ""
    for step in pointer.split("/")[1:]:
        value = _resolve_step(value, step.replace("~1", "/").replace("~0", "~"), at or "the top")
        at += f"/{step}"
    text = codec.text(value) if bytes(memoryview(value)[:1]) == b'"' else None
    return bytes(value) if text is None else text.encode()


def _resolve_step(value: Raw, step: str, at: str) -> Raw:
    try:
        first = bytes(memoryview(value)[:1])
        if first == b"{":
            members = codec.level(value)
            if step in members:
                return members[step]
            names = ", ".join(list(members)[:20]) or "nothing"
            raise PartMissing(f"{step[:80]!r} is not at {at}; there are: {names[:500]}.")
        items = codec.items(value) if first == b"[" else None
    except codec.Malformed as error:
        raise PartMissing(f"The text is not JSON, so it has no paths: {error}.") from None
    if items is None:
        message = f"The value at {at} is not an object or array, so {step[:80]!r} is not there."
        raise PartMissing(message)
    if not step.isdecimal() or int(step) >= len(items):
        message = (
            f"The array at {at} has {len(items)} items, counted from 0; {step[:80]!r} is not one."
        )
        raise PartMissing(message)
    return items[int(step)]


def hits(data: bytes, grep: str, offset: int, length: int) -> Piece:
    """Return one line for each hit from `offset` on: its offset in bytes, and the text around it.
    Raises PartMissing for a wrong expression."""
    try:
        pattern = re.compile(grep, re.MULTILINE)
    except re.error as error:
        raise PartMissing(f"The expression is wrong: {error}.") from None
    while offset < len(data) and data[offset] & 0xC0 == 0x80:
        offset += 1  # not within a character
    text = data[offset:].decode("utf-8", "replace")
    lines: list[str] = []
    used, end = 0, len(data)
    for at, excerpt in _find_excerpts(text, pattern):
        line = f"{offset + at}: {excerpt}\n"
        used += len(line.encode())
        if used > length and lines:
            end = offset + at
            break
        lines.append(line)
    return Piece("".join(lines), offset, end, len(data))


def _find_excerpts(text: str, pattern: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """Yield the offset in bytes and the surroundings of each hit; hits that an earlier one shows
    are left out."""
    counted, at_bytes, shown_to = 0, 0, -1
    for hit in pattern.finditer(text):
        if hit.start() < shown_to:
            continue
        start = max(text.rfind("\n", 0, hit.start()) + 1, hit.start() - BESIDE_CHARACTERS)
        line_end = text.find("\n", hit.start())
        line_end = len(text) if line_end < 0 else line_end
        shown_to = min(line_end, max(hit.end(), hit.start()) + BESIDE_CHARACTERS)
        at_bytes += len(text[counted : hit.start()].encode())
        counted = hit.start()
        yield at_bytes, text[start:shown_to]


def main() -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    cpu_s = int(PART_S_MAX) + 1  # for the case that its front has ended
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    try:
        request = codec.decode_as(PartRequest, sys.argv[2].encode())
        answer = PartAnswer(read_part(sys.argv[1], request))
    except PartMissing as error:
        answer = PartAnswer(error=str(error))
    except OSError as error:
        answer = PartAnswer(error=f"The result cannot be read: {error.strerror}.")
    except (MemoryError, RecursionError):
        answer = PartAnswer(error="The part takes too much memory; take a smaller one.")
    sys.stdout.buffer.write(codec.dump(answer))


if __name__ == "__main__":
    main()
