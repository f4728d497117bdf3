"""Built-in tools that look at servers: those of the exposure `servers`, and `discover-all-tools`.

Owns: `gateway_activate`, `gateway_deactivate`, `gateway_status`, their words; the facts that
`discover-all-tools` reports about servers and their tools, and their order. Never: carrying an
order out (`builtin_calls`), how long an answer may be (`tool_text`), starting or stopping servers:
a server that is out of view runs on.
"""

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from metamcp_worker.builtin_tools import tool_text
from metamcp_worker.builtin_tools.builtin import (
    Decision,
    OrderAndThen,
    ToolContext,
    ToolFamily,
    ToolReply,
    family,
)
from metamcp_worker.builtin_tools.tool_text import Row
from metamcp_worker.catalog.catalog import ListEntry
from metamcp_worker.ipc import builtin_definitions
from metamcp_worker.ipc.disclosure import Activate, Deactivate, OrderOutcome
from metamcp_worker.ipc.messages import ServerState

GUIDE = (
    "Tools of servers come into view when their server is activated: gateway_status shows the"
    " servers, gateway_activate brings the tools of one, gateway_deactivate takes them out again."
)
TOOLS_TOLD_MAX = 50
"""Maximum names of tools in the text of an answer; the list of tools has all of them."""
_AWAY = {
    "error": "in error",
    "quarantined": "in quarantine",
    "stopped": "stopped",
    "draining": "draining",
}
"""Words of a sentence for the states in which a server cannot be activated."""


class ServerName(Struct, frozen=True, forbid_unknown_fields=True):
    name: str


class NoArguments(Struct, frozen=True, forbid_unknown_fields=True):
    pass


def _activate(arguments: ServerName, context: ToolContext) -> Decision:
    server = arguments.name
    if server not in context.spec.servers:
        return unknown_server(server, context)
    state = _state(server, context)
    if state in _AWAY:
        text = f"{server} was not activated: it is {_AWAY[state]}{_explain_state(server, context)}."
        return ToolReply(text, failed=True)

    def build_reply(outcome: OrderOutcome, now: ToolContext) -> ToolReply:
        if outcome.error:
            return ToolReply(f"Failed to activate {server}: {outcome.error}", failed=True)
        tools = now.tools_of(server)
        listing = ", ".join(tools[:TOOLS_TOLD_MAX])
        more = len(tools) - TOOLS_TOLD_MAX
        suffix = f" and {more} more" if more > 0 else ""
        if server in outcome.before.servers:
            text = f"{server} is active already"
        elif not now.listed(server):
            text = f"{server} is activated; its tools come into view as soon as it is ready"
        else:
            text = f"{server} is active: its {len(tools)} tools are in view"
        named = f": {listing}{suffix}." if tools else "."
        return ToolReply(text + named, _one(server, now))

    return OrderAndThen(Activate(server), build_reply)


def _deactivate(arguments: ServerName, context: ToolContext) -> Decision:
    server = arguments.name
    if server not in context.spec.servers and server not in context.shown.servers:
        return unknown_server(server, context)

    def build_reply(outcome: OrderOutcome, now: ToolContext) -> ToolReply:
        if outcome.error:
            return ToolReply(f"Failed to deactivate {server}: {outcome.error}", failed=True)
        if server not in outcome.before.servers:
            return ToolReply(f"{server} was not active.", _one(server, now))
        text = f"{server} is not active any more: its tools are out of view, and it runs on."
        return ToolReply(text, _one(server, now))

    return OrderAndThen(Deactivate(server), build_reply)


def _status(arguments: NoArguments, context: ToolContext) -> Decision:
    rows = [_one(server, context) for server in context.spec.servers]
    lines = [
        f"- {row['name']}: {row['state']}, {row['tools']} tools"
        + (f" ({row['error']})" if row.get("error", row["state"]) != row["state"] else "")
        for row in rows
    ]
    return ToolReply("\n".join(lines) or "There are no servers.", {"servers": rows})


def _one(server: str, context: ToolContext) -> dict[str, object]:
    """Return the row of a server, as clients see it."""
    state = _state(server, context)
    row: dict[str, object] = {
        "name": server,
        "state": state,
        "ready": context.listed(server),
        "active": state == "active",
        "tools": len(context.tools_of(server)),
    }
    if state in _AWAY:
        row["error"] = _explain_absence(server, context)
    return row


def _state(server: str, context: ToolContext) -> str:
    news = context.states.get(server)
    state = "warming" if news is None else news.state
    if state in ("ready", "idle") and server in context.shown.servers:
        return "active"
    return state


def _explain_absence(server: str, context: ToolContext) -> str:
    """Return the error of a server that is away, and when the server is tried again."""
    news = context.states[server]
    return (news.message or news.state) + _format_retry(news)


def _explain_state(server: str, context: ToolContext) -> str:
    """Return the message of a server and when the server is tried again, to follow its state in a
    sentence; and the command that starts it, unless it is draining or a next start is planned."""
    news = context.states[server]
    message = f": {news.message}" if news.message else ""
    if news.state == "draining" or news.retry_after_ms >= 0:
        return message + _format_retry(news)
    verb = "clear" if news.state == "quarantined" else "start"
    return f"{message}; `metamcp ctl {verb} {server}` starts it"


def _format_retry(news: ServerState) -> str:
    if news.retry_after_ms <= 0:
        return ""
    return f"; it is tried again in {news.retry_after_ms / 1000:.0f} s"


FAMILY: ToolFamily = family(
    "servers",
    {
        "gateway_activate": (ServerName, _activate),
        "gateway_deactivate": (ServerName, _deactivate),
        "gateway_status": (NoArguments, _status),
    },
    GUIDE,
)


MESSAGE_CHARACTERS_MAX = 300
"""Maximum characters of the reason why a server is away."""

_Thing = str | ListEntry
"""Entry of the answer: the name of a server, or one of its tools, which follow the name."""


class DiscoverArguments(Struct, frozen=True, forbid_unknown_fields=True):
    server: str = ""
    offset: int = 0


def discover(arguments: DiscoverArguments, context: ToolContext) -> ToolReply:
    """List servers and tools."""
    servers = context.spec.servers
    if arguments.server:
        if arguments.server not in servers:
            return unknown_server(arguments.server, context)
        servers = (arguments.server,)
    tools: dict[str, list[ListEntry]] = {server: [] for server in servers}
    for entry in context.everything.offered:
        if entry.server in tools:
            tools[entry.server].append(entry)
    things = list(_things(tools))
    seen = frozenset(entry.key for entry in tool_text.in_view(context))

    def row(thing: _Thing) -> Row:
        if isinstance(thing, str):
            return _server(thing, tools[thing], context)
        return tool_text.row(thing, is_in_view=thing.key in seen)

    page = tool_text.portion(things, arguments.offset, row)
    start = page.end - len(page.rows)
    rows = list(zip(things[start : page.end], page.rows, strict=True))
    if rows and isinstance(first := rows[0][0], ListEntry):
        rows.insert(0, (first.server, row(first.server)))
    total = sum(map(len, tools.values()))
    saved = tool_text.estimate_tokens(context)
    count = (
        f"{tool_text.format_count(total, 'tool')} of {tool_text.format_count(len(tools), 'server')}"
    )
    cost = f"everything is about {saved['everything']} tokens, what is in view {saved['inView']}"
    lines = [f"{count}; {cost}.", *(made.text for _, made in rows)]
    structured: dict[str, object] = {
        "summary": {"totalTools": total, "totalServers": len(tools)},
        "toolsByServer": _group_tools(rows),
        "tokens": saved,
    }
    if page.left:
        lines.append(f"There is more: ask with offset {page.end}, or for one server.")
        structured["nextOffset"] = page.end
    return ToolReply("\n".join(lines), structured)


def unknown_server(server: str, context: ToolContext) -> ToolReply:
    listing = tool_text.join_names(context.spec.servers) or "none"
    name = tool_text.plain(server)
    text = f"There is no server {name!r} behind this endpoint; there are: {listing}."
    return ToolReply(text, {"success": False, "error": text}, failed=True)


def _things(tools: Mapping[str, Sequence[ListEntry]]) -> Iterator[_Thing]:
    for server, entries in tools.items():
        yield server
        yield from entries


def _server(server: str, tools: Sequence[ListEntry], context: ToolContext) -> Row:
    news = context.states.get(server)
    available = context.listed(server)
    tokens = builtin_definitions.tokens_of_all(entry.item.raw for entry in tools)
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
    count = tool_text.format_count(len(tools), "tool")
    return Row(f"## {tool_text.plain(server)}: {there}, {count}, {tokens} tokens", value)


def _group_tools(rows: Sequence[tuple[_Thing, Row]]) -> list[dict[str, object]]:
    grouped: list[dict[str, object]] = []
    tools: list[Mapping[str, object]] = []
    for thing, row in rows:
        if isinstance(thing, str):
            tools = []
            grouped.append({**row.value, "tools": tools})
        else:
            tools.append(row.value)
    return grouped
