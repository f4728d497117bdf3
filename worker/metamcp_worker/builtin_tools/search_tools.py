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
    Seek,
    ToolContext,
    ToolFamily,
    ToolReply,
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
    written,
)
from metamcp_worker.search.index import HITS_MAX

GUIDE = (
    "Tools are found with search_tools. load_tool brings one into the list of tools; call_tool"
    " calls one that is not in the list; describe_tool tells its arguments."
)
DEFINITION_BYTES_MAX = 256 * 1024
"""Maximum bytes of a definition that `describe_tool` shows; the list of tools has larger ones."""
_NO_NAME = "no name was given; search_tools tells the names of tools"


class Searching(Struct, frozen=True, forbid_unknown_fields=True):
    query: str
    limit: int = HITS
    detail: Detail = "brief"
    server: str = ""


class Loading(Struct, frozen=True, forbid_unknown_fields=True):
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


class Calling(Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: Raw = Raw(b"{}")


def _search(given: Searching, context: ToolContext) -> Decision:
    if given.server and given.server not in context.spec.servers:
        return servers_tools.unknown_server(given.server, context)
    limit = min(max(given.limit, 1), HITS_MAX)
    allowed = {given.server} if given.server else None

    def then(others: Rankings, now: ToolContext) -> ToolReply:
        hits = now.search(given.query, limit, allowed, others)
        structured = dict[str, object](codec.level(tool_text.as_json(hits, given.detail)))
        return ToolReply(tool_text.markdown(hits, given.detail), structured)

    return Seek(given.query, allowed, then)


def _load(given: Loading, context: ToolContext) -> Decision:
    picked = tool_choice.pick(given.names, context)
    if picked.missing or not picked.pairs:
        return _failed("load", _unknown(picked.missing, context))

    def then(outcome: OrderOutcome, now: ToolContext) -> ToolReply:
        if outcome.error:
            return _failed("load", outcome.error)
        return _loaded(picked.pairs, "Loaded", now)

    return OrderAndThen(Load(picked.pairs), then)


def _unload(given: Loading, context: ToolContext) -> Decision:
    names = context.names()
    shown: dict[str, Pair] = {}
    for pair in context.shown.tools:
        shown[written(pair)] = pair
        if pair in names:
            shown[names[pair]] = pair
    pairs = tuple(dict.fromkeys(shown[name] for name in given.names if name in shown))
    missing = [name for name in given.names if name not in shown]
    if missing or not pairs:
        told = tool_text.told([repr(tool_text.plain(name)) for name in missing])
        why = f"not loaded: {told}; list_loaded_tools tells what is" if told else _NO_NAME
        return _failed("unload", why)

    def then(outcome: OrderOutcome, now: ToolContext) -> ToolReply:
        if outcome.error:
            return _failed("unload", outcome.error)
        gone = [written(pair) for pair in pairs]
        structured = {"success": True, "unloaded": [tool_text.plain(name) for name in gone]}
        return ToolReply(
            f"Unloaded: {tool_text.told(gone)}.", {**structured, "tokens": tool_text.saving(now)}
        )

    return OrderAndThen(Unload(pairs), then)


def _load_set(given: ToolName, context: ToolContext) -> Decision:
    toolset = context.toolsets.get(given.name)
    if toolset is None:
        known = tool_text.told(context.toolsets) or "none yet"
        what = f"there is no tool set {_quoted(given.name)}; there are: {known}"
        return _failed("load tool set", what)
    if why := tool_text.hopeless(toolset.tools, context):
        return _failed("load tool set", why)
    standing = tool_text.standing(toolset.tools, context)

    def then(outcome: OrderOutcome, now: ToolContext) -> ToolReply:
        if outcome.error:
            return _failed("load tool set", outcome.error)
        return _loaded(toolset.tools, f"Tool set {_quoted(toolset.name)} is loaded", now)

    return OrderAndThen(Load((*standing.here, *standing.away, *standing.kept)), then)


def _save_set(given: SaveArguments, context: ToolContext) -> Decision:
    def then(outcome: OrderOutcome, now: ToolContext) -> ToolReply:
        if outcome.error:
            return _failed("save tool set", outcome.error)
        made = outcome.toolset or now.toolsets.get(given.name)
        count = len(outcome.after.tools if made is None else made.tools)
        structured: dict[str, object] = {"success": True}
        if made is not None:
            structured["toolset"] = tool_text.summary(made, now)
        text = f"Tool set {_quoted(given.name)} is saved with {tool_text.counted(count, 'tool')}."
        return ToolReply(text, structured)

    return OrderAndThen(Save(given.name, given.description), then)


def _list(given: LoadedTools, context: ToolContext) -> Decision:
    seen = tool_text.in_view(context)
    part = tool_text.portion(seen, given.offset, lambda entry: tool_text.row(entry, shown=True))
    warnings = tool_text.warnings(tool_text.standing(context.shown.tools, context))
    saved = tool_text.saving(context)
    sets = list(context.toolsets)
    structured: dict[str, object] = {
        "tools": part.values,
        "loaded": len(seen),
        "available": len(context.everything.offered),
        "warnings": warnings,
        "toolsets": sets[: tool_text.NAMES_TOLD_MAX],
        "tokens": saved,
    }
    count = tool_text.counted(len(context.everything.offered), "tool")
    cost = f"the list of tools is about {saved['inView']} tokens, everything {saved['everything']}"
    lines = [f"{len(seen)} of {count} loaded; {cost}.", *part.texts]
    if part.left:
        lines.append(f"{part.left} more: ask with offset {part.end}.")
        structured["nextOffset"] = part.end
    lines += [f"Warning: {warning}" for warning in warnings]
    if sets:
        lines.append(f"Saved tool sets: {tool_text.told(sets)}.")
    return ToolReply("\n".join(lines), structured)


def describe(given: ToolName, context: ToolContext) -> ToolReply:
    """Return the whole definition of a tool."""
    script = next((one for one in context.exposed if one.key == given.name), None)
    picked = tool_choice.pick([given.name], context)
    entry = script or _entry(picked.pairs, context)
    if entry is None:
        return _failed("describe", _unknown(picked.missing, context))
    pair = (SCRIPTS, entry.item.key) if script else picked.pairs[0]
    whole = definition(entry)
    if len(whole) > DEFINITION_BYTES_MAX:
        why = f"its definition has {len(whole)} bytes; load_tool brings it into the list"
        return _failed("describe", why)
    structured: dict[str, object] = {
        "exposedName": entry.key,
        **tool_text.route(pair),
        "available": script is not None or context.listed(entry.server),
        "loaded": script is not None or _is_shown(pair, context),
        "tokens": builtin_definitions.tokens(entry.item.raw),
        "definition": Raw(whole),
    }
    text = whole.decode()
    if context.spec.code is not None:
        text = typescript_types.declaration(entry.key, whole)
        structured["typescript"] = text
    away = "" if structured["available"] else f"\nWarning: {entry.server} server unavailable"
    return ToolReply(text + away, structured)


def _call(given: Calling, context: ToolContext) -> Decision:
    spec = context.spec
    own = builtin_definitions.of(spec.exposure, code=spec.code is not None, builtins=spec.builtins)
    if any(tool.name == given.name for tool in own):
        why = f"{given.name} is not a tool of a server; call it by its own name"
        return _failed("call", why)
    name, pair = given.name, context.pair(given.name)
    if pair is None or tool_choice.kept(name, context):
        picked = tool_choice.pick([given.name], context)
        if not picked.pairs:
            return _failed("call", _unknown(picked.missing, context))
        (pair,) = picked.pairs
        name = context.names()[pair]
    if not context.spec.call_hidden and not _is_shown(pair, context):
        return _failed("call", f"{name} is not loaded, and only loaded tools may be called here")
    try:
        codec.level(given.arguments)
    except codec.Malformed as error:
        return _failed("call", f"arguments must be an object, as {name} takes it: {error}")
    return Forward(name, given.arguments)


def _loaded(pairs: Sequence[Pair], what: str, now: ToolContext) -> ToolReply:
    standing = tool_text.standing(pairs, now)
    names = now.names()
    warnings = tool_text.warnings(standing)
    told = tool_text.told([names[pair] for pair in standing.here]) or "nothing yet"
    lines = [f"{what}; in the list of tools now: {told}."]
    lines += [f"Warning: {warning}" for warning in warnings]
    if standing.away:
        lines.append("What is skipped comes into the list when its server is back.")
    structured: dict[str, object] = {
        "success": True,
        "registeredTools": tool_text.routes(standing.here, now),
        "unavailableServers": sorted(tool_text.by_server(standing.away)),
        "warnings": warnings,
        "tokens": tool_text.saving(now),
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


def _failed(what: str, why: str) -> ToolReply:
    text = f"Failed to {what}: {why}"
    return ToolReply(text, {"success": False, "error": text}, failed=True)


def _quoted(name: str) -> str:
    return f'"{tool_text.plain(name)}"'


WORKS: Mapping[str, Work] = {
    "search_tools": (Searching, _search),
    "load_tool": (Loading, _load),
    "unload_tool": (Loading, _unload),
    "load_tool_set": (ToolName, _load_set),
    "save_tool_set": (SaveArguments, _save_set),
    "list_loaded_tools": (LoadedTools, _list),
    "describe_tool": (ToolName, describe),
    "call_tool": (Calling, _call),
}
FAMILY: ToolFamily = family("search", WORKS, GUIDE)
