"""Built-in tool of endpoints that keep large results, and the same by a URI.

Owns: the arguments of `read_result`, URIs of kept results, the words of the answers. Never: files
and searches (`results`), which endpoint has the tool (`front_calls.front_views`).
"""

import re
from collections.abc import Mapping

from msgspec import structs

from metamcp_worker.builtin_tools.builtin import Decision, ReadResult, ToolContext, ToolReply, Work
from metamcp_worker.ipc import jsonrpc_bytes
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.results.result_summary import META, SCHEME, PartRequest, Piece

_URI = re.compile(rf"{SCHEME}(?P<handle>[0-9a-f]{{1,64}})(?:\?offset=(?P<offset>[0-9]{{1,12}}))?")


def read(arguments: PartRequest, context: ToolContext) -> Decision:
    """Decide about `read_result`. A piece is never longer than `max` of the endpoint."""
    limits = context.spec.results
    if limits is None:
        return ToolReply("This endpoint does not keep results.", failed=True)
    length = min(arguments.length or limits.max_bytes, limits.max_bytes)
    return ReadResult(structs.replace(arguments, length=length))


def read_uri(uri: str, context: ToolContext) -> Decision:
    """Decide about `resources/read` of a kept result: the handle, and perhaps an offset. Raises
    ProtocolError."""
    match, limits = _URI.fullmatch(uri), context.spec.results
    if match is None or limits is None:
        message = f"The URI of a kept result is {SCHEME}HANDLE or {SCHEME}HANDLE?offset=BYTES."
        raise ProtocolError(Code.INVALID_PARAMS, message)
    part_request = PartRequest(match["handle"], int(match["offset"] or 0), limits.max_bytes)
    return ReadResult(part_request, uri)


def build_reply(request: ReadResult, piece: Piece | str) -> ToolReply:
    """Return the result of the tool, or of `resources/read`. `piece`: the piece, or a sentence why
    there is none."""
    if isinstance(piece, str):
        return ToolReply(piece, failed=True)
    more = piece.end < piece.size
    if request.uri:
        next_uri = {"next": f"{SCHEME}{request.part.handle}?offset={piece.end}"} if more else {}
        about = {"offset": piece.start, "end": piece.end, "bytes": piece.size, **next_uri}
        contents = [{"uri": request.uri, "mimeType": "text/plain", "text": piece.text}]
        return ToolReply("", {"contents": contents, "_meta": {META: about}})
    if request.part.grep:
        go_on = f"; go on with offset {piece.end}" if more else ""
        lines = piece.text or "No place matches.\n"
        return ToolReply(f"{lines}\n[searched from byte {piece.start} of {piece.size}{go_on}]")
    go_on = f"; go on with offset {piece.end}" if more else ", the end"
    return ToolReply(f"{piece.text}\n\n[bytes {piece.start} to {piece.end} of {piece.size}{go_on}]")


def unknown_code(*, modern: bool) -> int:
    """Return the code of the error for a URI of no kept result."""
    return int(Code.INVALID_PARAMS) if modern else jsonrpc_bytes.NOT_FOUND_LEGACY


OWN_MEMBERS: Mapping[str, object] = {"ttlMs": 0, "cacheScope": "private"}
"""Members of a read result for modern clients: nobody but its owner may keep it."""
WORKS: Mapping[str, Work] = {"read_result": (PartRequest, read)}
