"""Tools of an endpoint for people: all of them or those that match a query, each with its state.

Owns: which tools are shown, their state and their order. Never: searching (`search.index`), the
lists of clients (`views`), counting calls.
"""

from collections.abc import Iterator, Sequence

from msgspec import Raw, Struct

from metamcp_worker.builtin_tools import tool_text
from metamcp_worker.builtin_tools.builtin import Rankings, ToolContext, ToolReply, ToolSearch
from metamcp_worker.builtin_tools.search_tools import DEFINITION_BYTES_MAX, definition
from metamcp_worker.catalog.catalog import ListEntry
from metamcp_worker.catalog.exposure import OWN
from metamcp_worker.catalog.views import View
from metamcp_worker.ipc import builtin_definitions, codec
from metamcp_worker.ipc.disclosure import is_named
from metamcp_worker.ipc.figures import TOOLS_SHOWN_MAX, ShownTool, ToolOrder, ToolQuery
from metamcp_worker.search import definitions
from metamcp_worker.search.index import HITS_MAX

NAMES_MAX = 5000
"""Maximum names in an answer about a name that no tool has."""


class _ToolHints(Struct, frozen=True, rename="camel"):
    read_only_hint: bool = False


class _Annotated(Struct, frozen=True):
    annotations: _ToolHints = _ToolHints()


def list_tools(request: ToolQuery, view: View, context: ToolContext) -> ToolReply | ToolSearch:
    """Decide about a list of tools. `view`: of the client in question."""
    if request.name:
        return _find_tool(request.name, view, context)
    if not request.query:
        return _page(request, view, context)
    allowed = {request.server} if request.server else None

    def build_reply(others: Rankings, now: ToolContext) -> ToolReply:
        hits = now.search(request.query, HITS_MAX, allowed, others)
        entries = {entry.key: entry for entry in (*now.everything.offered, *now.exposed)}
        listed = _collect_names(view)
        names = [hit.document.exposed for hit in hits.hits]
        rows = [_row(entries[name], view, listed, now) for name in names if name in entries]
        if request.order:
            rows.sort(key=lambda row: _rank(request.order, row.server, row.name, row.tokens))
        return _make_reply(rows, hits.more)

    return ToolSearch(request.query, allowed, build_reply)


def _make_reply(tools: Sequence[ShownTool], more: int = 0) -> ToolReply:
    page = tools[:TOOLS_SHOWN_MAX]
    return ToolReply("", {"tools": page, "more": more + len(tools) - len(page)})


def _find_tool(name: str, view: View, context: ToolContext) -> ToolReply:
    listed = _collect_names(view)
    entries = list(_entries(view, context))
    exact = [entry for entry in entries if entry.key == name]
    meant = (entry for entry in entries if is_named(name, entry.server, entry.item.key, entry.key))
    for entry in exact or meant:
        raw = definition(entry)
        row = _row(entry, view, listed, context, raw if len(raw) <= DEFINITION_BYTES_MAX else b"")
        return ToolReply("", {"tools": [row]})
    withheld = [
        tool for tool in _withheld(context) if is_named(name, tool.server, tool.tool, tool.name)
    ]
    if withheld:
        return ToolReply("", {"tools": withheld})
    return ToolReply("", {"names": [entry.key for entry in entries[:NAMES_MAX]]})


def _page(request: ToolQuery, view: View, context: ToolContext) -> ToolReply:
    """Return the tools from an offset on, in the order that is asked for. Only those that are shown
    are read: there may be ten thousand."""
    order = request.order
    every: list[tuple[tuple[str | int, ...], ListEntry | ShownTool]] = [
        *(
            (_rank(order, entry.server, entry.key, _tokens(entry)), entry)
            for entry in _entries(view, context)
        ),
        *((_rank(order, tool.server, tool.name, 0), tool) for tool in _withheld(context)),
    ]
    ranked = sorted(
        (candidate for candidate in every if request.server in ("", candidate[1].server)),
        key=lambda candidate: candidate[0],
    )
    page = ranked[request.offset : request.offset + TOOLS_SHOWN_MAX]
    listed = _collect_names(view)
    rows = [
        tool if isinstance(tool, ShownTool) else _row(tool, view, listed, context)
        for _, tool in page
    ]
    return _make_reply(rows, max(0, len(ranked) - request.offset - len(page)))


def _rank(order: ToolOrder, server: str, name: str, tokens: int) -> tuple[str | int, ...]:
    """Return the place of a tool in an order, to be compared."""
    if order == "name":
        return name, server
    return (-tokens, server, name) if order == "tokens" else (server, name)


def _tokens(entry: ListEntry) -> int:
    return builtin_definitions.tokens(entry.item.raw)


def _entries(view: View, context: ToolContext) -> Iterator[ListEntry]:
    """Yield the entries of all tools: those of the gateway, of servers, and scripts."""
    yield from (entry for entry in view.merged.lists["tools"] if entry.server == OWN)
    yield from context.everything.offered


def _collect_names(view: View) -> frozenset[str]:
    return frozenset(entry.key for entry in view.merged.lists["tools"])


def _row(
    entry: ListEntry, view: View, listed: frozenset[str], context: ToolContext, raw: bytes = b""
) -> ShownTool:
    tool_definition = definitions.read(entry.item.raw)
    available = entry.server == OWN or context.listed(entry.server)
    can = view.merged.tool_named(entry.key) is not None
    state = "listed" if entry.key in listed else "callable" if can else "out of view"
    return ShownTool(
        name=entry.key,
        server=entry.server,
        tool=entry.item.key,
        description=tool_text.first_sentence(tool_definition.description or tool_definition.title),
        tokens=_tokens(entry),
        state=state,
        available=available,
        reads=_reads_only(entry.item.raw),
        definition=Raw(raw or b"{}"),
    )


def _reads_only(raw: bytes) -> bool:
    try:
        return codec.decode_as(_Annotated, raw).annotations.read_only_hint
    except codec.Malformed:
        return False


def _withheld(context: ToolContext) -> Iterator[ShownTool]:
    """Yield the tools that no list has: in quarantine, not valid, or hidden."""
    hidden = context.everything.hidden
    for name, owner in context.everything.tools.items():
        tool = codec.text(owner.original) or name
        if reason := owner.kept or owner.invalid:
            yield ShownTool(name=name, server=owner.server, tool=tool, state="withheld", why=reason)
        elif (owner.server, tool) in hidden:
            yield ShownTool(name=name, server=owner.server, tool=tool, state="hidden")
