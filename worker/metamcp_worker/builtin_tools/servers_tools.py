"""Built-in tools of the exposure `servers`: they bring whole servers into view and out of it.

Owns: `gateway_activate`, `gateway_deactivate`, `gateway_status`, their words. Never: carrying an
order out (`builtin_calls`), starting or stopping servers: a server that is out of view runs on.
"""

from msgspec import Struct

from metamcp_worker.builtin_tools import discover_tool
from metamcp_worker.builtin_tools.builtin import (
    Decision,
    OrderAndThen,
    ToolContext,
    ToolReply,
    family,
)
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


def _activate(given: ServerName, context: ToolContext) -> Decision:
    server = given.name
    if server not in context.spec.servers:
        return discover_tool.unknown_server(server, context)
    state = _state(server, context)
    if state in _AWAY:
        text = f"{server} was not activated: it is {_AWAY[state]}{_told(server, context)}."
        return ToolReply(text, failed=True)

    def then(outcome: OrderOutcome, now: ToolContext) -> ToolReply:
        if outcome.error:
            return ToolReply(f"Failed to activate {server}: {outcome.error}", failed=True)
        tools = now.tools_of(server)
        told = ", ".join(tools[:TOOLS_TOLD_MAX])
        more = len(tools) - TOOLS_TOLD_MAX
        rest = f" and {more} more" if more > 0 else ""
        if server in outcome.before.servers:
            text = f"{server} is active already"
        elif not now.listed(server):
            text = f"{server} is activated; its tools come into view as soon as it is ready"
        else:
            text = f"{server} is active: its {len(tools)} tools are in view"
        named = f": {told}{rest}." if tools else "."
        return ToolReply(text + named, _one(server, now))

    return OrderAndThen(Activate(server), then)


def _deactivate(given: ServerName, context: ToolContext) -> Decision:
    server = given.name
    if server not in context.spec.servers and server not in context.shown.servers:
        return discover_tool.unknown_server(server, context)

    def then(outcome: OrderOutcome, now: ToolContext) -> ToolReply:
        if outcome.error:
            return ToolReply(f"Failed to deactivate {server}: {outcome.error}", failed=True)
        if server not in outcome.before.servers:
            return ToolReply(f"{server} was not active.", _one(server, now))
        text = f"{server} is not active any more: its tools are out of view, and it runs on."
        return ToolReply(text, _one(server, now))

    return OrderAndThen(Deactivate(server), then)


def _status(given: NoArguments, context: ToolContext) -> Decision:
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
        row["error"] = _why(server, context)
    return row


def _state(server: str, context: ToolContext) -> str:
    news = context.states.get(server)
    state = "warming" if news is None else news.state
    if state in ("ready", "idle") and server in context.shown.servers:
        return "active"
    return state


def _why(server: str, context: ToolContext) -> str:
    """Return the error of a server that is away, and when the server is tried again."""
    news = context.states[server]
    return (news.message or news.state) + _again(news)


def _told(server: str, context: ToolContext) -> str:
    """Return the message of a server and when the server is tried again, to follow its state in a
    sentence; and the command that starts it, unless it is draining or a next start is planned."""
    news = context.states[server]
    said = f": {news.message}" if news.message else ""
    waits = news.state == "draining" or news.retry_after_ms >= 0
    start = "" if waits else f"; `metamcp ctl start {server}` starts it"
    return said + _again(news) + start


def _again(news: ServerState) -> str:
    if news.retry_after_ms <= 0:
        return ""
    return f"; it is tried again in {news.retry_after_ms / 1000:.0f} s"


FAMILY = family(
    "servers",
    {
        "gateway_activate": (ServerName, _activate),
        "gateway_deactivate": (ServerName, _deactivate),
        "gateway_status": (NoArguments, _status),
    },
    GUIDE,
)
