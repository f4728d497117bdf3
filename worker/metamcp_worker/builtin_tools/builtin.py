"""What a built-in tool is: its definition, and what it does with its arguments.

Owns: `Builtin`, what it may look at (`ToolContext`), and the four things that it can answer. Never:
any single tool (`servers_tools`, `toolset_tools`, `search_tools`), the words of definitions
(`builtin_definitions`), carrying out what it answers (`builtin_calls`).

A built-in tool decides and does nothing: it answers at once (`ToolReply`), or says which order
changes the view and how to speak of what came of it (`OrderAndThen`), or what is searched for and
how to tell what was found (`Seek`), or which tool is to be called in its place (`Forward`).
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Raw, Struct

from metamcp_worker.catalog.catalog import Merged
from metamcp_worker.catalog.offers import OfferedItem
from metamcp_worker.ipc import builtin_definitions, codec
from metamcp_worker.ipc.builtin_definitions import OwnTool, Schema
from metamcp_worker.ipc.disclosure import AnyOrder, Exposure, OrderOutcome, Pair, Shown, ToolSet
from metamcp_worker.ipc.messages import ServerState
from metamcp_worker.ipc.spec import EndpointSpec
from metamcp_worker.search.index import Allowed, Ranking, SearchResult

Rankings = Sequence[Ranking[Pair]]
"""What other searches say."""


class ToolContext(Struct, frozen=True):
    """What there is to look at. `everything`: all that is behind the endpoint; `shown`: what is in
    view beside the built-in tools; `toolsets`: all of them, by name; `states`: the last word of the
    supervisor about each server; `listed`: are the tools of this server part of lists now?
    `search(query, limit, allowed, others)`: the tools behind the endpoint that a query means, also
    by what other searches say, only at the end of a `Seek`; `dated`: a time in seconds since the
    epoch as ISO 8601."""

    spec: EndpointSpec
    everything: Merged
    shown: Shown
    toolsets: Mapping[str, ToolSet]
    states: Mapping[str, ServerState]
    listed: Callable[[str], bool]
    search: Callable[[str, int, Allowed | None, Rankings], SearchResult]
    dated: Callable[[float], str]

    def tools_of(self, server: str) -> list[str]:
        """The exposed names of the tools of this server, be they in view or not."""
        return [entry.key for entry in self.everything.offered if entry.server == server]

    def pair(self, name: str) -> Pair | None:
        """The tool that has this name here, exposed or not."""
        owner = self.everything.tool_named(name)
        original = None if owner is None else codec.text(owner.original)
        return None if owner is None or original is None else (owner.server, original)

    def names(self) -> dict[Pair, str]:
        """How each tool is called here."""
        return {(entry.server, entry.item.key): entry.key for entry in self.everything.offered}


class ToolReply(Struct, frozen=True):
    """The result of a call. `text`: for a model; `structured`: the same as JSON; `failed`: the tool
    says that it failed."""

    text: str
    structured: Mapping[str, object] | None = None
    failed: bool = False


class OrderAndThen(Struct, frozen=True):
    """`then`: makes the result of what came of the order; the context is that of that moment."""

    order: AnyOrder
    then: Callable[[OrderOutcome, ToolContext], ToolReply]


class Seek(Struct, frozen=True):
    """`query`, `allowed`: as in `search.index`. `then`: makes the result, once everything can be
    searched, of what other searches say; the context is that of that moment."""

    query: str
    allowed: Allowed | None
    then: Callable[[Rankings, ToolContext], ToolReply]


class Forward(Struct, frozen=True):
    """`name`: as exposed here; `arguments`: raw, an object."""

    name: str
    arguments: Raw


Decision = ToolReply | OrderAndThen | Seek | Forward


def _wrong(why: str) -> ToolReply:
    return ToolReply(f"{why[:1].upper()}{why[1:]}.", failed=True)


class Builtin(Struct, frozen=True):
    """One built-in tool. `own`: what clients see of it; `arguments`: a Struct that forbids unknown
    fields; `refuse`: makes the result when they are wrong, of why."""

    own: OwnTool
    arguments: type[Struct]
    run: Callable[[Any, ToolContext], Decision]
    refuse: Callable[[str], ToolReply]

    @property
    def name(self) -> str:
        return self.own.name

    def item(self) -> OfferedItem:
        """Its definition, as one of a server."""
        raw = self.own.definition()
        return OfferedItem(self.name, codec.dump(self.name), raw, hashlib.sha256(raw).digest())

    def decide(self, arguments: bytes, context: ToolContext) -> Decision:
        """`arguments`: raw, or empty for none."""
        try:
            given = codec.typed(self.arguments, arguments or b"{}")
        except codec.Malformed as error:
            known = ", ".join(map(_told, self.own.properties.items())) or "none"
            return self.refuse(
                f"the arguments of {self.name} are wrong: {error}; it takes: {known}"
            )
        return self.run(given, context)


def _told(argument: tuple[str, Schema]) -> str:
    """Its name, and its values if only some are taken."""
    name, schema = argument
    if "enum" not in schema:
        return name
    values = codec.typed(list[str], codec.dump(schema["enum"]))
    return f"{name} ({', '.join(values)})"


class ToolFamily(Struct, frozen=True):
    """The built-in tools of one exposure. `guide`: what a client is told at its first request."""

    tools: Mapping[str, Builtin]
    items: tuple[OfferedItem, ...]
    guide: str


Work = tuple[type[Struct], Callable[[Any, ToolContext], Decision]]
"""What a built-in tool takes and does: `arguments` and `run`."""
Refuse = Callable[[str], ToolReply]


def family(
    exposure: Exposure,
    works: Mapping[str, Work],
    guide: str,
    refusals: Mapping[str, Refuse] | None = None,
) -> ToolFamily:
    """`works`: of each tool of this exposure, by its name; `refusals`: of those that have their own
    words for wrong arguments."""
    own = builtin_definitions.of(exposure)
    assert [tool.name for tool in own] == list(works), "a definition for each tool, and back"
    refuse = refusals or {}
    tools = {
        tool.name: Builtin(tool, *works[tool.name], refuse.get(tool.name, _wrong)) for tool in own
    }
    return ToolFamily(tools, tuple(tool.item() for tool in tools.values()), guide)


def result(reply: ToolReply, *, modern: bool) -> bytes:
    """The raw result of `tools/call`."""
    members: dict[str, object] = {"resultType": "complete"} if modern else {}
    members["content"] = [{"type": "text", "text": reply.text}]
    if reply.structured is not None:
        members["structuredContent"] = reply.structured
    members["isError"] = reply.failed
    return codec.dump(members)
