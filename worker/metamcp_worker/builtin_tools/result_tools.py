"""Built-in tool of endpoints that keep large results, and the same by a URI.

Owns: the arguments of `read_result`, URIs of kept results, the words of the answers. Never: files
and searches (`results`), which endpoint has the tool (`front.front_views`).
"""

import re
from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct

from metamcp_worker.builtin_tools.builtin import Decision, ReadResult, ToolContext, ToolReply, Work
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.results.result_summary import META, SCHEME, Piece

_URI = re.compile(rf"{SCHEME}(?P<handle>[0-9a-f]{{1,64}})(?:\?offset=(?P<offset>[0-9]{{1,12}}))?")
Offset = Annotated[int, Meta(ge=0)]


class ReadResultArguments(Struct, frozen=True, forbid_unknown_fields=True):
    handle: str
    offset: Offset = 0
    length: Offset = 0
    path: str | None = None
    grep: str = ""


def read(arguments: ReadResultArguments, context: ToolContext) -> Decision:
    """Decide about `read_result`. A piece is never longer than `max` of the endpoint."""
    limits = context.spec.results
    if limits is None:
        return ToolReply("This endpoint does not keep results.", failed=True)
    length = min(arguments.length or limits.max_bytes, limits.max_bytes)
    return ReadResult(arguments.handle, arguments.offset, length, arguments.path, arguments.grep)


def read_uri(uri: str, context: ToolContext) -> Decision:
    """Decide about `resources/read` of a kept result: the handle, and perhaps an offset. Raises
    ProtocolError."""
    match, limits = _URI.fullmatch(uri), context.spec.results
    if match is None or limits is None:
        message = f"The URI of a kept result is {SCHEME}HANDLE or {SCHEME}HANDLE?offset=BYTES."
        raise ProtocolError(Code.INVALID_PARAMS, message)
    return ReadResult(match["handle"], int(match["offset"] or 0), limits.max_bytes, uri=uri)


def build_reply(request: ReadResult, piece: Piece | str) -> ToolReply:
    """Return the result of the tool, or of `resources/read`. `piece`: the piece, or a sentence why
    there is none."""
    if isinstance(piece, str):
        return ToolReply(piece, failed=True)
    more = piece.end < piece.size
    if request.uri:
        next_uri = {"next": f"{SCHEME}{request.handle}?offset={piece.end}"} if more else {}
        about = {"offset": piece.start, "end": piece.end, "bytes": piece.size, **next_uri}
        contents = [{"uri": request.uri, "mimeType": "text/plain", "text": piece.text}]
        return ToolReply("", {"contents": contents, "_meta": {META: about}})
    if request.grep:
        go_on = f"; go on with offset {piece.end}" if more else ""
        lines = piece.text or "No place matches.\n"
        return ToolReply(f"{lines}\n[searched from byte {piece.start} of {piece.size}{go_on}]")
    go_on = f"; go on with offset {piece.end}" if more else ", the end"
    return ToolReply(f"{piece.text}\n\n[bytes {piece.start} to {piece.end} of {piece.size}{go_on}]")


WORKS: Mapping[str, Work] = {"read_result": (ReadResultArguments, read)}
