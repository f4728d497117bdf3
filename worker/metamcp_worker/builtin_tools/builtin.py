"""Built-in tool: its definition, and how it decides about its arguments.

Owns: `Builtin`, the state that a tool may read (`ToolContext`), the seven kinds of decisions, and
`read_result` with the URIs of kept results. Never: any other tool (`servers_tools`,
`toolset_tools`, `search_tools`, `code_tools`), the words of definitions (`builtin_definitions`),
carrying out a decision (`builtin_calls`).

A built-in tool only decides. The decision is a result (`ToolReply`), an order that changes the view
and a function that makes the result from the outcome (`OrderAndThen`), a query and a function that
makes the result from the hits (`ToolSearch`), another tool to call instead (`Forward`), code to run
(`Run`), an order for the engine (`EngineWork`), or a part of a kept result (`ReadResult`).
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pkgutil import resolve_name
from typing import Annotated, Any

from msgspec import Meta, Raw, Struct, structs

from metamcp_worker.catalog.catalog import ListEntry, MergedCatalog
from metamcp_worker.catalog.offers import OfferedItem
from metamcp_worker.ipc import builtin_definitions, codec, jsonrpc_bytes
from metamcp_worker.ipc.builtin_definitions import BuiltinTool, Schema
from metamcp_worker.ipc.code_runs import Language
from metamcp_worker.ipc.disclosure import (
    AnyOrder,
    Exposure,
    OrderOutcome,
    Pair,
    ToolSet,
    ViewContent,
)
from metamcp_worker.ipc.engine_runs import Method
from metamcp_worker.ipc.errors import Code, ProtocolError
from metamcp_worker.ipc.messages import ServerState
from metamcp_worker.ipc.saved_scripts import Script
from metamcp_worker.ipc.spec import EndpointSpec
from metamcp_worker.results.result_summary import META, SCHEME, PartRequest, Piece
from metamcp_worker.search.index import Allowed, Ranking, SearchResult

Rankings = Sequence[Ranking[Pair]]
"""Rankings of the same tools by searches other than the one by words; may be empty."""


class ToolContext(Struct, frozen=True):
    """State that a built-in tool may read. `everything`: all that is behind the endpoint; `shown`:
    the view, without the built-in tools; `toolsets`, `scripts`: all tool sets and scripts of the
    workspace, by name; `exposed`: scripts that are tools of their own here; `states`: the latest
    state of each server that the supervisor reported; `listed`: whether the tools of a server are
    part of lists now; `search(query, limit, allowed, others)`: the tools behind the endpoint that
    match a query, with the rankings of other searches, only at the end of a `ToolSearch`; `dated`:
    a time in seconds since the epoch as ISO 8601."""

    spec: EndpointSpec
    everything: MergedCatalog
    shown: ViewContent
    toolsets: Mapping[str, ToolSet]
    states: Mapping[str, ServerState]
    listed: Callable[[str], bool]
    search: Callable[[str, int, Allowed | None, Rankings], SearchResult]
    dated: Callable[[float], str]
    scripts: Mapping[str, Script] = {}
    exposed: Sequence[ListEntry] = ()

    def tools_of(self, server: str) -> list[str]:
        """Return the exposed names of the tools of this server, in view or not."""
        return [entry.key for entry in self.everything.offered if entry.server == server]

    def pair(self, name: str) -> Pair | None:
        """Return the tool that has this name here, exposed or not; None for an unknown name."""
        owner = self.everything.tool_named(name)
        original = None if owner is None else codec.text(owner.original)
        return None if owner is None or original is None else (owner.server, original)

    def names(self) -> dict[Pair, str]:
        """Return the exposed name of each tool."""
        return {(entry.server, entry.item.key): entry.key for entry in self.everything.offered}


class ToolReply(Struct, frozen=True):
    """Result of a call. `text`: for a model; `structured`: the same as JSON; `failed`: whether the
    tool reports a failure."""

    text: str
    structured: Mapping[str, object] | None = None
    failed: bool = False


class OrderAndThen(Struct, frozen=True):
    """Order that changes the view. `then`: makes the result from the outcome and the context after
    the order."""

    order: AnyOrder
    then: Callable[[OrderOutcome, ToolContext], ToolReply]


class ToolSearch(Struct, frozen=True):
    """Query over the tools. `query`, `allowed`: as in `search.index`. `then`: makes the result
    from the rankings of other searches and the context at that time, once the index is whole."""

    query: str
    allowed: Allowed | None
    then: Callable[[Rankings, ToolContext], ToolReply]


class Forward(Struct, frozen=True):
    """Call of another tool. `name`: as exposed here; `arguments`: raw, an object."""

    name: str
    arguments: Raw


class RunArguments(Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of `run_code`. `args`: raw, an object; `timeout_ms`: 0 for the limit of the
    endpoint."""

    code: str
    language: Language = "typescript"
    args: Raw = Raw(b"{}")
    timeout_ms: Annotated[int, Meta(ge=1)] = 0


class Run(RunArguments, frozen=True):
    """Run of code. `script`: name of the script and `version`, if one is run, else empty and 0."""

    script: str = ""
    version: int = 0


class EngineWork(Struct, frozen=True):
    """Order for the engine. `params`: raw, as in `engine_runs.Order`; `task`: the client takes the
    run as a task."""

    method: Method
    params: Raw
    task: bool = False


class ReadResult(Struct, frozen=True):
    """Reading of a kept result. `uri`: of the resource that the client reads, empty for a call of
    the tool."""

    part: PartRequest
    uri: str = ""


Decision = ToolReply | OrderAndThen | ToolSearch | Forward | Run | EngineWork | ReadResult


def refuse_plainly(reason: str) -> ToolReply:
    """Return the result for wrong arguments of a tool that has no words of its own for them."""
    return ToolReply(f"{reason[:1].upper()}{reason[1:]}.", failed=True)


class Builtin(Struct, frozen=True):
    """Built-in tool. `own`: the definition that clients see; `arguments`: a Struct that forbids
    unknown fields; `run`: decides about valid arguments; `refuse`: makes the result for wrong
    arguments from the reason."""

    own: BuiltinTool
    arguments: type[Struct]
    run: Callable[[Any, ToolContext], Decision]
    refuse: Callable[[str], ToolReply]

    @property
    def name(self) -> str:
        return self.own.name

    def item(self) -> OfferedItem:
        """Return the definition in the form that tools of servers have."""
        raw = self.own.definition()
        return OfferedItem(self.name, codec.dump(self.name), raw, hashlib.sha256(raw).digest())

    def decide(self, arguments: bytes, context: ToolContext) -> Decision:
        """Decide about a call. `arguments`: raw, or empty for none."""
        try:
            parsed = codec.decode_as(self.arguments, arguments or b"{}")
        except codec.Malformed as error:
            parameters = ", ".join(map(_format_argument, self.own.properties.items())) or "none"
            return self.refuse(
                f"the arguments of {self.name} are wrong: {error}; it takes: {parameters}"
            )
        return self.run(parsed, context)


def _format_argument(argument: tuple[str, Schema]) -> str:
    """Return the name of an argument, with its values if only some are allowed."""
    name, schema = argument
    if "enum" not in schema:
        return name
    values = codec.decode_as(list[str], codec.dump(schema["enum"]))
    return f"{name} ({', '.join(values)})"


class ToolFamily(Struct, frozen=True):
    """Built-in tools of one exposure. `guide`: text that a client gets at its first request."""

    tools: Mapping[str, Builtin]
    items: tuple[OfferedItem, ...]
    guide: str


Work = tuple[type[Struct], Callable[[Any, ToolContext], Decision]]
"""Type of the arguments of a built-in tool, and its function: `arguments` and `run`."""
Refuse = Callable[[str], ToolReply]


def family(
    exposure: Exposure,
    works: Mapping[str, Work],
    guide: str,
    refusals: Mapping[str, Refuse] | None = None,
    *,
    code: bool = False,
) -> ToolFamily:
    """Make the family of an exposure. `works`: arguments and function of each tool, by name;
    `refusals`: for the tools that have their own words for wrong arguments; `code`: as in
    `builtin_definitions.of`."""
    own = builtin_definitions.of(exposure, code=code)
    assert [tool.name for tool in own] == list(works), "a definition for each tool, and back"
    refuse = refusals or {}
    tools = {
        tool.name: Builtin(tool, *works[tool.name], refuse.get(tool.name, refuse_plainly))
        for tool in own
    }
    return ToolFamily(tools, tuple(tool.item() for tool in tools.values()), guide)


def tools_of_features(builtins: Iterable[str]) -> list[Builtin]:
    """Return the tools of these families of `builtins`."""
    tools: list[Builtin] = []
    for name in builtins:
        works: Mapping[str, Work] = resolve_name(builtin_definitions.BUILTINS[name][1])
        definitions = builtin_definitions.families()[name]
        tools += [Builtin(own, *works[own.name], refuse_plainly) for own in definitions]
    return tools


def result(reply: ToolReply, *, modern: bool) -> bytes:
    """Return the raw result of `tools/call`."""
    members: dict[str, object] = {"resultType": "complete"} if modern else {}
    members["content"] = [{"type": "text", "text": reply.text}]
    if reply.structured is not None:
        members["structuredContent"] = reply.structured
    members["isError"] = reply.failed
    return codec.dump(members)


# The tool that reads kept results

_RESULT_URI = re.compile(
    rf"{SCHEME}(?P<handle>[0-9a-f]{{1,64}})(?:\?offset=(?P<offset>[0-9]{{1,12}}))?"
)


def read_result(arguments: PartRequest, context: ToolContext) -> Decision:
    """Decide about `read_result`. A piece is never longer than `max` of the endpoint."""
    limits = context.spec.results
    if limits is None:
        return ToolReply("This endpoint does not keep results.", failed=True)
    length = min(arguments.length or limits.max_bytes, limits.max_bytes)
    return ReadResult(structs.replace(arguments, length=length))


def read_result_uri(uri: str, context: ToolContext) -> Decision:
    """Decide about `resources/read` of a kept result: the handle, and perhaps an offset. Raises
    ProtocolError."""
    match, limits = _RESULT_URI.fullmatch(uri), context.spec.results
    if match is None or limits is None:
        message = f"The URI of a kept result is {SCHEME}HANDLE or {SCHEME}HANDLE?offset=BYTES."
        raise ProtocolError(Code.INVALID_PARAMS, message)
    part_request = PartRequest(match["handle"], int(match["offset"] or 0), limits.max_bytes)
    return ReadResult(part_request, uri)


def build_result_reply(request: ReadResult, piece: Piece | str) -> ToolReply:
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


def unknown_result_code(*, modern: bool) -> int:
    """Return the code of the error for a URI of no kept result."""
    return int(Code.INVALID_PARAMS) if modern else jsonrpc_bytes.NOT_FOUND_LEGACY


RESULT_MEMBERS: Mapping[str, object] = {"ttlMs": 0, "cacheScope": "private"}
"""Members of a read result for modern clients: nobody but its owner may keep it."""
RESULT_WORKS: Mapping[str, Work] = {"read_result": (PartRequest, read_result)}
