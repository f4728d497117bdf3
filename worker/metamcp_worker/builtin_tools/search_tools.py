"""Built-in tools of the exposure `search`: they find tools, load them into view, and call them.

Owns: `search_tools`, `load_tool`, `unload_tool`, `load_tool_set`, `save_tool_set`,
`list_loaded_tools`, `describe_tool`, `call_tool`, their words. Never: searching (`search.index`),
the form of the hits (`tool_text`), carrying an order out (`builtin_calls`), the call itself
(`calls`).
"""

from collections.abc import Mapping, Sequence
from typing import Annotated

from msgspec import Meta, Raw, Struct

from metamcp_worker.builtin_tools import servers_tools, tool_choice, tool_text, typescript_types
from metamcp_worker.builtin_tools.builtin import (
    Decision,
    Forward,
    OrderAndThen,
    Rankings,
    ToolContext,
    ToolFamily,
    ToolReply,
    ToolSearch,
    Work,
    family,
)
from metamcp_worker.builtin_tools.search_index import SCRIPTS
from metamcp_worker.catalog.catalog import ListEntry
from metamcp_worker.ipc import builtin_definitions, codec
from metamcp_worker.ipc.builtin_definitions import HITS, Detail
from metamcp_worker.ipc.disclosure import (
    TOOLS_MAX,
    Load,
    OrderOutcome,
    Pair,
    Save,
    Unload,
    format_pair,
)
from metamcp_worker.search.index import HITS_MAX

GUIDE = (
    "Tools are found with search_tools. load_tool brings one into the list of tools; call_tool"
    " calls one that is not in the list; describe_tool tells its arguments."
)
DEFINITION_BYTES_MAX = 256 * 1024
"""Maximum bytes of a definition that `describe_tool` shows; the list of tools has larger ones."""
_NO_NAME = "no name was given; search_tools tells the names of tools"


class SearchArguments(Struct, frozen=True, forbid_unknown_fields=True):
    query: str
    limit: int = HITS
    detail: Detail = "brief"
    server: str = ""


class LoadArguments(Struct, frozen=True, forbid_unknown_fields=True):
    name: str | Annotated[tuple[str, ...], Meta(max_length=TOOLS_MAX)]

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name,) if isinstance(self.name, str) else self.name


class ToolName(Struct, frozen=True, forbid_unknown_fields=True):
    name: str


class SaveArguments(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    description: str = ""


class LoadedTools(Struct, frozen=True, forbid_unknown_fields=True):
    offset: int = 0


class CallArguments(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: Raw = Raw(b"{}")


def _search(arguments: SearchArguments, context: ToolContext) -> Decision:
    if arguments.server and arguments.server not in context.spec.servers:
        return servers_tools.unknown_server(arguments.server, context)
    limit = min(max(arguments.limit, 1), HITS_MAX)
    allowed = {arguments.server} if arguments.server else None

    def build_reply(others: Rankings, now: ToolContext) -> ToolReply:
        hits = now.search(arguments.query, limit, allowed, others)
        structured = dict[str, object](codec.level(tool_text.as_json(hits, arguments.detail)))
        return ToolReply(tool_text.markdown(hits, arguments.detail), structured)

    return ToolSearch(arguments.query, allowed, build_reply)


def _load(arguments: LoadArguments, context: ToolContext) -> Decision:
    picked = tool_choice.pick(arguments.names, context)
    if picked.missing or not picked.pairs:
        return _make_failure("load", _unknown(picked.missing, context))

    def build_reply(outcome: OrderOutcome, now: ToolContext) -> ToolReply:
        if outcome.error:
            return _make_failure("load", outcome.error)
        return _make_load_reply(picked.pairs, "Loaded", now)

    return OrderAndThen(Load(picked.pairs), build_reply)


def _unload(arguments: LoadArguments, context: ToolContext) -> Decision:
    names = context.names()
    pairs_by_name: dict[str, Pair] = {}
    for pair in context.shown.tools:
        pairs_by_name[format_pair(pair)] = pair
        if pair in names:
            pairs_by_name[names[pair]] = pair
    pairs = tuple(
        dict.fromkeys(pairs_by_name[name] for name in arguments.names if name in pairs_by_name)
    )
    missing = [name for name in arguments.names if name not in pairs_by_name]
    if missing or not pairs:
        listing = tool_text.join_names([repr(tool_text.plain(name)) for name in missing])
        reason = f"not loaded: {listing}; list_loaded_tools tells what is" if listing else _NO_NAME
        return _make_failure("unload", reason)

    def build_reply(outcome: OrderOutcome, now: ToolContext) -> ToolReply:
        if outcome.error:
            return _make_failure("unload", outcome.error)
        unloaded = [format_pair(pair) for pair in pairs]
        structured = {"success": True, "unloaded": [tool_text.plain(name) for name in unloaded]}
        return ToolReply(
            f"Unloaded: {tool_text.join_names(unloaded)}.",
            {**structured, "tokens": tool_text.estimate_tokens(now)},
        )

    return OrderAndThen(Unload(pairs), build_reply)


def _load_set(arguments: ToolName, context: ToolContext) -> Decision:
    toolset = context.toolsets.get(arguments.name)
    if toolset is None:
        names = tool_text.join_names(context.toolsets) or "none yet"
        problem = f"there is no tool set {_quote_name(arguments.name)}; there are: {names}"
        return _make_failure("load tool set", problem)
    if reason := tool_text.hopeless(toolset.tools, context):
        return _make_failure("load tool set", reason)
    standing = tool_text.classify_tools(toolset.tools, context)

    def build_reply(outcome: OrderOutcome, now: ToolContext) -> ToolReply:
        if outcome.error:
            return _make_failure("load tool set", outcome.error)
        return _make_load_reply(
            toolset.tools, f"Tool set {_quote_name(toolset.name)} is loaded", now
        )

    return OrderAndThen(Load((*standing.here, *standing.away, *standing.kept)), build_reply)


def _save_set(arguments: SaveArguments, context: ToolContext) -> Decision:
    def build_reply(outcome: OrderOutcome, now: ToolContext) -> ToolReply:
        if outcome.error:
            return _make_failure("save tool set", outcome.error)
        made = outcome.toolset or now.toolsets.get(arguments.name)
        count = len(outcome.after.tools if made is None else made.tools)
        structured: dict[str, object] = {"success": True}
        if made is not None:
            structured["toolset"] = tool_text.summary(made, now)
        size = tool_text.format_count(count, "tool")
        text = f"Tool set {_quote_name(arguments.name)} is saved with {size}."
        return ToolReply(text, structured)

    return OrderAndThen(Save(arguments.name, arguments.description), build_reply)


def _list(arguments: LoadedTools, context: ToolContext) -> Decision:
    seen = tool_text.in_view(context)
    page = tool_text.portion(
        seen, arguments.offset, lambda entry: tool_text.row(entry, is_in_view=True)
    )
    warnings = tool_text.warnings(tool_text.classify_tools(context.shown.tools, context))
    saved = tool_text.estimate_tokens(context)
    sets = list(context.toolsets)
    structured: dict[str, object] = {
        "tools": page.values,
        "loaded": len(seen),
        "available": len(context.everything.offered),
        "warnings": warnings,
        "toolsets": sets[: tool_text.NAMES_TOLD_MAX],
        "tokens": saved,
    }
    count = tool_text.format_count(len(context.everything.offered), "tool")
    cost = f"the list of tools is about {saved['inView']} tokens, everything {saved['everything']}"
    lines = [f"{len(seen)} of {count} loaded; {cost}.", *page.texts]
    if page.left:
        lines.append(f"{page.left} more: ask with offset {page.end}.")
        structured["nextOffset"] = page.end
    lines += [f"Warning: {warning}" for warning in warnings]
    if sets:
        lines.append(f"Saved tool sets: {tool_text.join_names(sets)}.")
    return ToolReply("\n".join(lines), structured)


def describe(arguments: ToolName, context: ToolContext) -> ToolReply:
    """Return the whole definition of a tool."""
    script = next((entry for entry in context.exposed if entry.key == arguments.name), None)
    picked = tool_choice.pick([arguments.name], context)
    entry = script or _entry(picked.pairs, context)
    if entry is None:
        return _make_failure("describe", _unknown(picked.missing, context))
    pair = (SCRIPTS, entry.item.key) if script else picked.pairs[0]
    raw = definition(entry)
    if len(raw) > DEFINITION_BYTES_MAX:
        reason = f"its definition has {len(raw)} bytes; load_tool brings it into the list"
        return _make_failure("describe", reason)
    structured: dict[str, object] = {
        "exposedName": entry.key,
        **tool_text.route(pair),
        "available": script is not None or context.listed(entry.server),
        "loaded": script is not None or _is_shown(pair, context),
        "tokens": builtin_definitions.tokens(entry.item.raw),
        "definition": Raw(raw),
    }
    text = raw.decode()
    if context.spec.code is not None:
        text = typescript_types.declaration(entry.key, raw)
        structured["typescript"] = text
    away = "" if structured["available"] else f"\nWarning: {entry.server} server unavailable"
    return ToolReply(text + away, structured)


def _call(call: CallArguments, context: ToolContext) -> Decision:
    spec = context.spec
    own = builtin_definitions.of(spec.exposure, code=spec.code is not None, builtins=spec.builtins)
    if any(tool.name == call.name for tool in own):
        reason = f"{call.name} is not a tool of a server; call it by its own name"
        return _make_failure("call", reason)
    name, pair = call.name, context.pair(call.name)
    if pair is None or tool_choice.find_hidden_reason(name, context):
        picked = tool_choice.pick([call.name], context)
        if not picked.pairs:
            return _make_failure("call", _unknown(picked.missing, context))
        (pair,) = picked.pairs
        name = context.names()[pair]
    if not context.spec.call_hidden and not _is_shown(pair, context):
        return _make_failure(
            "call", f"{name} is not loaded, and only loaded tools may be called here"
        )
    try:
        codec.level(call.arguments)
    except codec.Malformed as error:
        return _make_failure("call", f"arguments must be an object, as {name} takes it: {error}")
    return Forward(name, call.arguments)


def _make_load_reply(pairs: Sequence[Pair], summary: str, now: ToolContext) -> ToolReply:
    standing = tool_text.classify_tools(pairs, now)
    names = now.names()
    warnings = tool_text.warnings(standing)
    listing = tool_text.join_names([names[pair] for pair in standing.here]) or "nothing yet"
    lines = [f"{summary}; in the list of tools now: {listing}."]
    lines += [f"Warning: {warning}" for warning in warnings]
    if standing.away:
        lines.append("What is skipped comes into the list when its server is back.")
    structured: dict[str, object] = {
        "success": True,
        "registeredTools": tool_text.routes(standing.here, now),
        "unavailableServers": sorted(tool_text.by_server(standing.away)),
        "warnings": warnings,
        "tokens": tool_text.estimate_tokens(now),
    }
    return ToolReply("\n".join(lines), structured)


def _entry(pairs: Sequence[Pair], context: ToolContext) -> ListEntry | None:
    for entry in context.everything.offered:
        if pairs and pairs[0] == (entry.server, entry.item.key):
            return entry
    return None


def definition(entry: ListEntry) -> bytes:
    """Return the definition as in the list of tools: the server's own, under the exposed name."""
    members = codec.level(entry.item.raw)
    return codec.dump({**members, "name": entry.key}).decode("utf-8", "replace").encode()


def _is_shown(pair: Pair, context: ToolContext) -> bool:
    return pair in context.shown.tools


def _unknown(missing: Sequence[str], context: ToolContext) -> str:
    return tool_choice.unknown(missing, context) or _NO_NAME


def _make_failure(action: str, reason: str) -> ToolReply:
    text = f"Failed to {action}: {reason}"
    return ToolReply(text, {"success": False, "error": text}, failed=True)


def _quote_name(name: str) -> str:
    return f'"{tool_text.plain(name)}"'


WORKS: Mapping[str, Work] = {
    "search_tools": (SearchArguments, _search),
    "load_tool": (LoadArguments, _load),
    "unload_tool": (LoadArguments, _unload),
    "load_tool_set": (ToolName, _load_set),
    "save_tool_set": (SaveArguments, _save_set),
    "list_loaded_tools": (LoadedTools, _list),
    "describe_tool": (ToolName, describe),
    "call_tool": (CallArguments, _call),
}
FAMILY: ToolFamily = family("search", WORKS, GUIDE)
