"""Large results: what is kept of them, and what a client gets in their place.

Owns: which part of a result is kept, its shape in words, the short result for the client. Never:
files (`result_files`), taking a part out of a kept result (`result_parts`).

A short result has no structured content, because the content would not fit the output schema of the
tool. So endpoints that keep results list their tools without output schemas (`catalog.views`).
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Annotated

from msgspec import Meta, Raw, Struct, structs

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.spec import RESULT_BYTES_MIN, ResultLimits

SCHEME = "metamcp-result://"
"""Scheme of the URIs of kept results; a handle follows."""
META = "io.metamcp/result"
"""Key in the `_meta` of a short result, for the handle and the sizes."""
METHODS = frozenset({"tools/call", "tasks/result"})
"""Methods whose results are kept."""
HEAD_BYTES = 2048
"""Bytes of the text that a short result shows."""
META_BYTES_MAX = 2048
"""Maximum bytes of the `_meta` of a result that its short result repeats."""
LINKS_SINCE = "2025-06-18"
"""First revision of the protocol with links to resources in results."""
MEMBERS_MAX = 12
"""Maximum members of an object that its shape names."""
NAME_CHARACTERS_MAX = 40
"""Maximum characters of the name of a member in a shape."""
COMMAS_MAX = 1_000_000
"""Maximum commas of JSON whose arrays are counted: counting takes some 50 bytes for each item."""
CHARACTER_BYTES_MAX = 4
"""Bytes of the longest character in UTF-8."""
CUT_BYTES = 2 * CHARACTER_BYTES_MAX
"""Bytes beyond a piece that show where its last character ends."""
PLACES_MAX = 4096
"""Maximum places that a front remembers; any other one is computed again."""

_SHOWN = frozenset({"image", "audio"})
_PIECE = re.compile(
    rb"(?:[^\\]{1,1024}|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|\\u[0-9a-fA-F]{4}|\\[^u]){1,64}+",
    re.DOTALL,
)


class ResultOwner(Struct, frozen=True):
    """Owner of results that lie together: one principal at one endpoint."""

    workspace: str
    endpoint: str
    principal: str


class ResultPlace(Struct, frozen=True, omit_defaults=True):
    """Where and for whom a result is kept; a front sends it with a call. `limits`: with the folder
    of this owner; `key`: id of the API key, empty without one; `links`: the client knows links to
    resources."""

    limits: ResultLimits
    owner: ResultOwner
    key: str = ""
    links: bool = False


class KeptResult(Struct, frozen=True, kw_only=True):
    """Description of a kept result, which lies beside its text. `tool`: its server's name of the
    tool, or the method; `json`: the text is JSON of the gateway or the tool, so a path leads into
    it; `size_bytes`: of the text; `result_bytes`: of the result as it came; `saved_tokens`:
    estimate of the tokens that the client did not get; `kept`, `until`: seconds since the epoch."""

    handle: str
    endpoint: str
    principal: str
    workspace: str
    key: str
    server: str
    tool: str
    size_bytes: int
    result_bytes: int
    saved_tokens: int = 0
    shape: str
    kept: float
    until: float


class PartRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Part of a kept result, as the arguments of `read_result`. `length`: 0 for as much as there
    may be; `path`: JSON Pointer of a value, None for the whole text; `grep`: expression whose
    places are shown, empty for none."""

    handle: str
    offset: Annotated[int, Meta(ge=0)] = 0
    length: Annotated[int, Meta(ge=0)] = 0
    path: str | None = None
    grep: str = ""


class Piece(Struct, frozen=True):
    """Piece of a text. `start`, `end`: offsets in bytes; `size`: bytes of the whole text."""

    text: str
    start: int
    end: int
    size: int


class _Block(Struct):
    type: str = ""
    text: Raw = Raw()


class LargeResult(Struct, frozen=True):
    """Result that can be kept. `members`: its members, raw; `raw`: JSON of the part that is kept;
    `text`: the part is a text, which is kept without the quotes and escapes of JSON."""

    members: dict[str, Raw]
    raw: Raw
    text: bool


@lru_cache(PLACES_MAX)
def place(limits: ResultLimits, owner: ResultOwner, key: str, links: bool) -> bytes:
    """Return raw JSON of the place for results of this owner. `key`, `links`: as in
    `ResultPlace`."""
    own_limits = structs.replace(limits, folder=folder(limits, owner))
    return codec.dump(ResultPlace(own_limits, owner, key, links))


def folder(limits: ResultLimits, owner: ResultOwner) -> str:
    """Return the folder of the results of this owner."""
    words = "\0".join((owner.workspace, owner.endpoint, owner.principal)).encode()
    return f"{limits.folder}/{hashlib.sha256(words).hexdigest()[:32]}"


def large(result: bytes) -> LargeResult | None:
    """Return the parts of a result that can be kept. None for a result that passes whole: a
    question to the client, a task, or one with images or sound, which clients show."""
    try:
        members = codec.level(result)
        blocks = [codec.decode_as(_Block, raw) for raw in codec.items(members.get("content", b""))]
    except codec.Malformed:
        return None
    complete = codec.text(members.get("resultType", b'"complete"')) == "complete"
    if not complete or any(block.type in _SHOWN for block in blocks):
        return None
    if len(blocks) == 1 and blocks[0].type == "text":
        text = memoryview(blocks[0].text)
        # Most of the result: the structured content of many tools says the same once more.
        if text[:1].tobytes() == b'"' and 3 * len(text) >= len(result):
            return LargeResult(members, blocks[0].text, text=True)
    return LargeResult(members, Raw(result), text=False)


def text_pieces(raw: Raw) -> Iterator[bytes]:
    """Yield the text of a JSON string as UTF-8, in pieces, so that the text is never in memory as a
    whole. Half a surrogate pair becomes U+FFFD."""
    escaped = memoryview(raw)[1:-1]
    at = 0
    while at < len(escaped):
        match = _PIECE.match(escaped, at)
        end = len(escaped) if match is None else match.end()
        while end < len(escaped) and escaped[end] & 0xC0 == 0x80:
            end -= 1  # the text is not cut within a character
        piece = codec.text(b"".join((b'"', escaped[at:end], b'"')))
        yield (piece or "").encode()
        at = end


def shape(data: bytes, lines: int, *, text: bool) -> str:
    """Return the shape of what is kept, in words: members of JSON on two levels, or the lines of a
    text. `data`: the whole of it; `lines`: number of its lines; `text`: it is the text of a
    result."""
    if not text or data[:1] in (b"{", b"["):
        try:
            return _shape(data, 2)
        except codec.Malformed:
            pass
    return f"text of {lines} lines" if lines > 1 else "text of one line"


def _shape(data: bytes | Raw, depth: int) -> str:
    """Return the shape of one JSON value. Raises codec.Malformed."""
    view = memoryview(data)
    first = view[:1].tobytes()
    if first == b'"':
        return "text"
    if first not in (b"{", b"["):
        return {b"t": "boolean", b"f": "boolean", b"n": "null"}.get(first, "number")
    kind = "object" if first == b"{" else "array"
    if not depth or _commas(view) > COMMAS_MAX:
        return kind
    if first == b"[":
        items = codec.items(data)
        return f"array of {len(items)}" + (f", each {_shape(items[0], depth - 1)}" if items else "")
    members = codec.level(data)
    member_shapes = [
        f"{_cut(name)}: {_shape(raw, depth - 1)}" for name, raw in _first(members.items())
    ]
    more = len(members) - len(member_shapes)
    return f"object {{{', '.join(member_shapes)}{f' and {more} more' if more else ''}}}"


def short(about: KeptResult, large_result: LargeResult, head: str, *, links: bool) -> bytes:
    """Return the short result. `head`: beginning of the text that is kept."""
    link: dict[str, object] = {
        "type": "resource_link", "uri": SCHEME + about.handle, "name": f"result {about.handle}",
        "description": about.shape,
        "mimeType": "text/plain" if large_result.text else "application/json",
        "size": about.size_bytes,
    }  # fmt: skip
    ours = {"handle": about.handle, "bytes": about.size_bytes, "shape": about.shape}
    members: dict[str, object] = {
        name: raw for name, raw in large_result.members.items() if name in ("resultType", "isError")
    }
    meta = _meta(large_result.members.get("_meta", Raw()))
    while True:
        words: dict[str, object] = {"type": "text", "text": _words(about, head)}
        result_meta: dict[str, object] = {**meta, META: ours}
        result: dict[str, object] = {"content": [words, link] if links else [words], **members}
        encoded = codec.dump({**result, "_meta": result_meta})
        if len(encoded) <= RESULT_BYTES_MIN or not head:
            return encoded
        head = head[: len(head) // 2]


def cut(data: bytes, offset: int, length: int, size: int) -> Piece:
    """Return the piece at the beginning of `data` that has whole characters. `data`: the text from
    `offset` on, with CUT_BYTES more than `length` if there are so many."""
    ends = (at for at, byte in enumerate(data[:CHARACTER_BYTES_MAX]) if byte & 0xC0 != 0x80)
    first = next(ends, min(len(data), CHARACTER_BYTES_MAX))
    last = min(first + length, len(data))
    while first < last < len(data) and data[last] & 0xC0 == 0x80:
        last -= 1
    if last == first < len(data):  # one character is longer than the piece
        more = range(first + 1, len(data))
        last = next((at for at in more if data[at] & 0xC0 != 0x80), len(data))
    text = data[first:last].decode("utf-8", "replace")
    return Piece(text, offset + first, offset + last, size)


def _words(about: KeptResult, head: str) -> str:
    size = len(head.encode())
    minutes = max(1, round((about.until - about.kept) / 60))
    return (
        f"The result has {about.size_bytes} bytes ({about.shape}), too many for one answer. The"
        f" gateway keeps it for {minutes} minutes under the handle {about.handle}. Read on with"
        f' read_result: {{"handle": "{about.handle}", "offset": {size}}}, or with "grep" (a regular'
        f' expression) or "path" (a JSON Pointer). The first {size} bytes:\n\n{head}'
    )


def _commas(view: memoryview) -> int:
    """Count commas, at most a few more than COMMAS_MAX."""
    count = 0
    for at in range(0, len(view), 1 << 16):
        count += bytes(view[at : at + (1 << 16)]).count(b",")
        if count > COMMAS_MAX:
            break
    return count


def _first(members: Iterable[tuple[str, Raw]]) -> Iterator[tuple[str, Raw]]:
    return islice(members, MEMBERS_MAX)


def _cut(name: str) -> str:
    return name if len(name) <= NAME_CHARACTERS_MAX else f"{name[:NAME_CHARACTERS_MAX]}…"


def _meta(raw: Raw) -> dict[str, Raw]:
    """Return the `_meta` of a result, unless it is large."""
    return codec.members(raw) if len(raw) <= META_BYTES_MAX else {}
