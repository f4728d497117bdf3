"""Tool `discover-all-tools`: everything that is behind an endpoint, in view or not.

Owns: the facts that the answer tells about servers and their tools, the order of these facts, and
the answer about an unknown server. Never: orders, how long an answer may be (`tool_text`).
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from metamcp_worker.builtin_tools import tool_text
from metamcp_worker.builtin_tools.builtin import ToolContext, ToolReply
from metamcp_worker.builtin_tools.tool_text import Row
from metamcp_worker.catalog.catalog import ListEntry
from metamcp_worker.catalog.offers import OfferedItem
from metamcp_worker.ipc import builtin_definitions

MESSAGE_CHARACTERS_MAX = 300
"""Maximum characters of the reason why a server is away."""

_Thing = str | ListEntry
"""Entry of the answer: the name of a server, or one of its tools, which follow the name."""


class Discover(Struct, frozen=True, forbid_unknown_fields=True):
    server: str = ""
    offset: int = 0


def discover(given: Discover, context: ToolContext, builtins: Sequence[OfferedItem]) -> ToolReply:
    """List servers and tools. `builtins`: the built-in tools, which are always in view."""
    servers = context.spec.servers
    if given.server:
        if given.server not in servers:
            return unknown_server(given.server, context)
        servers = (given.server,)
    tools: dict[str, list[ListEntry]] = {server: [] for server in servers}
    for entry in context.everything.offered:
        if entry.server in tools:
            tools[entry.server].append(entry)
    things = list(_things(tools))
    seen = frozenset(entry.key for entry in tool_text.in_view(context))

    def row(thing: _Thing) -> Row:
        if isinstance(thing, str):
            return _server(thing, tools[thing], context)
        return tool_text.row(thing, shown=thing.key in seen)

    part = tool_text.portion(things, given.offset, row)
    start = part.end - len(part.rows)
    rows = list(zip(things[start : part.end], part.rows, strict=True))
    if rows and isinstance(first := rows[0][0], ListEntry):
        rows.insert(0, (first.server, row(first.server)))
    total = sum(map(len, tools.values()))
    saved = tool_text.saving(context, builtins)
    count = f"{tool_text.counted(total, 'tool')} of {tool_text.counted(len(tools), 'server')}"
    cost = f"everything is about {saved['everything']} tokens, what is in view {saved['inView']}"
    lines = [f"{count}; {cost}.", *(made.text for _, made in rows)]
    structured: dict[str, object] = {
        "summary": {"totalTools": total, "totalServers": len(tools)},
        "toolsByServer": _grouped(rows),
        "tokens": saved,
    }
    if part.left:
        lines.append(f"There is more: ask with offset {part.end}, or for one server.")
        structured["nextOffset"] = part.end
    return ToolReply("\n".join(lines), structured)


def unknown_server(server: str, context: ToolContext) -> ToolReply:
    known = tool_text.told(context.spec.servers) or "none"
    text = (
        f"There is no server {tool_text.plain(server)!r} behind this endpoint; there are: {known}."
    )
    return ToolReply(text, {"success": False, "error": text}, failed=True)


def _things(tools: Mapping[str, Sequence[ListEntry]]) -> Iterator[_Thing]:
    for server, entries in tools.items():
        yield server
        yield from entries


def _server(server: str, tools: Sequence[ListEntry], context: ToolContext) -> Row:
    news = context.states.get(server)
    available = context.listed(server)
    tokens = builtin_definitions.together(entry.item.raw for entry in tools)
    state = "warming" if news is None else news.state
    value: dict[str, object] = {
        "serverName": tool_text.plain(server),
        "available": available,
        "state": state,
        "toolCount": len(tools),
        "tokens": tokens,
    }
    there = "available" if available else f"unavailable ({state})"
    if news is not None and news.message and not available:
        value["error"] = tool_text.line(news.message, MESSAGE_CHARACTERS_MAX)
        there = f"unavailable ({state}: {value['error']})"
    count = tool_text.counted(len(tools), "tool")
    return Row(f"## {tool_text.plain(server)}: {there}, {count}, {tokens} tokens", value)


def _grouped(rows: Sequence[tuple[_Thing, Row]]) -> list[dict[str, object]]:
    grouped: list[dict[str, object]] = []
    tools: list[Mapping[str, object]] = []
    for thing, row in rows:
        if isinstance(thing, str):
            tools = []
            grouped.append({**row.value, "tools": tools})
        else:
            tools.append(row.value)
    return grouped
