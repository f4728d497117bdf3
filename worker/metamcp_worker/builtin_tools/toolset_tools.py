"""Built-in tools of the exposure `toolset`: they build, equip and unequip tool sets.

Owns: `discover-all-tools` (with `servers_tools`), `build-toolset`, `equip-toolset`,
`unequip-toolset`, `get-active-toolset`, `list-saved-toolsets`, `delete-toolset`, their words.
Never: carrying an order out (`builtin_calls`), keeping tool sets (the supervisor).

A tool set may name tools that are not available now. The available ones come into view, and a
warning names the rest. A set whose tools can never be in view here is not equipped.
"""

from functools import partial
from typing import Annotated

from msgspec import Meta, Struct

from metamcp_worker.builtin_tools import servers_tools, tool_choice, tool_text
from metamcp_worker.builtin_tools.builtin import (
    Decision,
    OrderAndThen,
    ToolContext,
    ToolFamily,
    ToolReply,
    family,
)
from metamcp_worker.builtin_tools.tool_text import Row
from metamcp_worker.ipc.disclosure import (
    TOOLS_MAX,
    Build,
    Delete,
    Equip,
    OrderOutcome,
    ToolSet,
    Unequip,
)

GUIDE = (
    "Tools are in view once a toolset is equipped: discover-all-tools tells all that there are,"
    " list-saved-toolsets the toolsets, build-toolset makes one, equip-toolset brings its tools"
    " into the list."
)
TOOLS_TOLD_MAX = 20
"""Maximum tools and servers named for each tool set in the list of tool sets."""


class ToolsetName(Struct, frozen=True, forbid_unknown_fields=True):
    name: str


class NoToolsetArguments(Struct, frozen=True, forbid_unknown_fields=True):
    pass


class Reference(Struct, frozen=True, forbid_unknown_fields=True):
    namespacedName: str  # noqa: N815 - as clients spell it


class BuildArguments(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    tools: Annotated[tuple[str | Reference, ...], Meta(max_length=TOOLS_MAX)]
    description: str = ""
    autoEquip: bool = False  # noqa: N815 - as clients spell it


class DeleteArguments(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    confirm: bool = False


class SavedToolsets(Struct, frozen=True, forbid_unknown_fields=True):
    offset: int = 0


def _build(arguments: BuildArguments, context: ToolContext) -> Decision:
    names = [tool if isinstance(tool, str) else tool.namespacedName for tool in arguments.tools]
    picked = tool_choice.pick(names, context)
    if picked.missing:
        return _make_failure("build", tool_choice.unknown(picked.missing, context))

    def build_reply(outcome: OrderOutcome, now: ToolContext) -> ToolReply:
        if outcome.error:
            return _make_failure("build", outcome.error)
        made = outcome.toolset or ToolSet(arguments.name, picked.pairs, arguments.description)
        saved = f"Toolset {_quote_name(made.name)} is saved with {_tools(len(made.tools))}."
        if not arguments.autoEquip:
            structured = {
                "success": True,
                "toolset": tool_text.summary(made, now),
                "equipped": False,
            }
            return ToolReply(f"{saved} equip-toolset brings it into view.", structured)
        reply = _make_equip_reply(made, now)
        return ToolReply(f"{saved} {reply.text}", reply.structured)

    order = Build(arguments.name, picked.pairs, arguments.description, equip=arguments.autoEquip)
    return OrderAndThen(order, build_reply)


def _equip(arguments: ToolsetName, context: ToolContext) -> Decision:
    toolset = context.toolsets.get(arguments.name)
    if toolset is not None and (reason := tool_text.hopeless(toolset.tools, context)):
        return _make_failure("equip", reason)

    def build_reply(outcome: OrderOutcome, now: ToolContext) -> ToolReply:
        if outcome.error:
            return _make_failure("equip", outcome.error)
        equipped = outcome.toolset or now.toolsets.get(arguments.name)
        return _make_equip_reply(equipped or ToolSet(arguments.name, outcome.after.tools), now)

    return OrderAndThen(Equip(arguments.name), build_reply)


def _unequip(arguments: NoToolsetArguments, context: ToolContext) -> Decision:
    def build_reply(outcome: OrderOutcome, now: ToolContext) -> ToolReply:
        if outcome.error:
            return _make_failure("unequip", outcome.error)
        name = outcome.before.toolset
        text = (
            f"Toolset {_quote_name(name)} is not equipped any more"
            if name
            else "No toolset was equipped"
        )
        text += "; only the built-in tools are in view."
        return ToolReply(
            text, {"success": True, "unequipped": name, "tokens": tool_text.estimate_tokens(now)}
        )

    return OrderAndThen(Unequip(), build_reply)


def _active(arguments: NoToolsetArguments, context: ToolContext) -> Decision:
    seen = tool_text.in_view(context)
    everything = len(context.everything.offered)
    structured: dict[str, object] = {
        "equipped": bool(context.shown.toolset),
        "toolSummary": {
            "currentlyExposed": len(seen),
            "totalDiscovered": everything,
            "filteredOut": everything - len(seen),
        },
        "tokens": tool_text.estimate_tokens(context),
    }
    name = context.shown.toolset
    if not name:
        return ToolReply(
            "No toolset is equipped; list-saved-toolsets tells which there are.", structured
        )
    standing = tool_text.classify_tools(context.shown.tools, context)
    page = tool_text.portion(seen, 0, lambda entry: tool_text.row(entry, is_in_view=True))
    toolset = context.toolsets.get(name) or ToolSet(name, context.shown.tools)
    warnings = tool_text.warnings(standing)
    structured |= {
        "toolset": tool_text.summary(toolset, context),
        "exposedTools": page.values,
        "exposedToolsLeftOut": page.left,
        "unavailableServers": sorted(tool_text.by_server(standing.away)),
        "warnings": warnings,
    }
    count = f"{len(standing.here)} of its {_tools(len(context.shown.tools))} in view"
    lines = [f"Toolset {_quote_name(name)} is equipped, {count}.", *page.texts]
    if page.left:
        lines.append(f"And {page.left} more.")
    return ToolReply("\n".join([*lines, *_format_warnings(warnings)]), structured)


def _list(arguments: SavedToolsets, context: ToolContext) -> Decision:
    toolsets = list(context.toolsets.values())
    page = tool_text.portion(toolsets, arguments.offset, lambda toolset: _row(toolset, context))
    structured: dict[str, object] = {"success": True, "toolsets": page.values}
    lines = page.texts or ["No toolset is saved; build-toolset makes one."]
    if page.left:
        lines.append(f"{page.left} more: ask with offset {page.end}.")
        structured["nextOffset"] = page.end
    return ToolReply("\n".join(lines), structured)


def _delete(arguments: DeleteArguments, context: ToolContext) -> Decision:
    if not arguments.confirm:
        return _make_failure(
            "delete", f"set confirm to true to delete {_quote_name(arguments.name)}"
        )

    def build_reply(outcome: OrderOutcome, now: ToolContext) -> ToolReply:
        if outcome.error:
            return _make_failure("delete", outcome.error)
        text = f"Toolset {_quote_name(arguments.name)} is deleted."
        if outcome.before.toolset == arguments.name:
            text += " It was equipped; only the built-in tools are in view."
        return ToolReply(text, {"success": True, "deleted": tool_text.plain(arguments.name)})

    return OrderAndThen(Delete(arguments.name), build_reply)


def _make_equip_reply(toolset: ToolSet, now: ToolContext) -> ToolReply:
    """Return the answer about a tool set that was just equipped."""
    standing = tool_text.classify_tools(toolset.tools, now)
    warnings = tool_text.warnings(standing)
    names = now.names()
    listing = tool_text.join_names([names[pair] for pair in standing.here])
    count = f"{len(standing.here)} of its {_tools(len(toolset.tools))} in view"
    name = _quote_name(toolset.name)
    lines = [f"Toolset {name} is equipped, {count}{': ' if listing else ''}{listing}."]
    if standing.away:
        warned = [
            *_format_warnings(warnings),
            "What is skipped comes into view when its server is back.",
        ]
    else:
        warned = _format_warnings(warnings)
    structured: dict[str, object] = {
        "success": True,
        "equipped": True,
        "toolset": tool_text.summary(toolset, now),
        "registeredTools": tool_text.routes(standing.here, now),
        "unavailableServers": sorted(tool_text.by_server(standing.away)),
        "warnings": warnings,
        "tokens": tool_text.estimate_tokens(now),
    }
    return ToolReply("\n".join([*lines, *warned]), structured)


def _row(toolset: ToolSet, context: ToolContext) -> Row:
    servers = {server: len(tools) for server, tools in tool_text.by_server(toolset.tools).items()}
    first_servers = list(servers.items())[:TOOLS_TOLD_MAX]
    value: dict[str, object] = {
        **tool_text.summary(toolset, context),
        "servers": [
            {"name": tool_text.plain(name), "toolCount": count} for name, count in first_servers
        ],
        "tools": [tool_text.route(pair) for pair in toolset.tools[:TOOLS_TOLD_MAX]],
    }
    equipped = ", equipped" if value["active"] else ""
    of = tool_text.join_names(servers, TOOLS_TOLD_MAX)
    about = tool_text.line(toolset.description, tool_text.NAME_CHARACTERS_MAX)
    text = f"- {_quote_name(toolset.name)}{equipped}: {_tools(len(toolset.tools))} of {of}"
    return Row(f"{text}: {about}" if about else text, value)


def _make_failure(action: str, reason: str) -> ToolReply:
    text = f"Failed to {action} toolset: {reason}"
    return ToolReply(text, {"success": False, "error": text}, failed=True)


def _format_warnings(warnings: list[str]) -> list[str]:
    return [f"Warning: {warning}" for warning in warnings]


def _quote_name(name: str) -> str:
    return f'"{tool_text.plain(name)}"'


def _tools(count: int) -> str:
    return tool_text.format_count(count, "tool")


FAMILY: ToolFamily = family(
    "toolset",
    {
        "discover-all-tools": (servers_tools.DiscoverArguments, servers_tools.discover),
        "build-toolset": (BuildArguments, _build),
        "equip-toolset": (ToolsetName, _equip),
        "unequip-toolset": (NoToolsetArguments, _unequip),
        "get-active-toolset": (NoToolsetArguments, _active),
        "list-saved-toolsets": (SavedToolsets, _list),
        "delete-toolset": (DeleteArguments, _delete),
    },
    GUIDE,
    {
        f"{what}-toolset": partial(_make_failure, what)
        for what in ("build", "equip", "unequip", "delete")
    },
)
