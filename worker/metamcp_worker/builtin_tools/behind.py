"""What is behind an endpoint and what of it is in view, as the built-in tools tell it.

Owns: the route record of a tool, which of some tools are there, away or nobody's, the warnings
about those that are not in view, and what all that costs. Never: orders, the words of one tool.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct

from metamcp_worker.builtin_tools import found, wording
from metamcp_worker.builtin_tools.builtin import Context
from metamcp_worker.builtin_tools.portions import Row
from metamcp_worker.catalog.catalog import Entry, sent_bytes
from metamcp_worker.catalog.offers import Item
from metamcp_worker.ipc import token_cost
from metamcp_worker.ipc.disclosure import Pair, ToolSet, written
from metamcp_worker.search.definitions import read

WARNINGS_MAX = 20
"""In one answer, one for each server."""
ROUTES_MAX = 100
"""Tools that one answer names with their routes; counts are always of all."""


class Standing(Struct, frozen=True):
    """Some tools, as they stand here. `here`: their servers are; `away`: they come when these are
    back; `gone`: their servers have no such tools, or they are switched off here; `foreign`: their
    servers are not behind this endpoint; `kept`: in quarantine until an operator approves them."""

    here: tuple[Pair, ...]
    away: tuple[Pair, ...]
    gone: tuple[Pair, ...]
    foreign: tuple[Pair, ...]
    kept: tuple[Pair, ...] = ()

    @property
    def is_possible(self) -> bool:
        """Can any of them ever be in view here?"""
        return bool(self.here or self.away or self.kept)


def standing(tools: Iterable[Pair], context: Context) -> Standing:
    names = context.names()
    here: list[Pair] = []
    away: list[Pair] = []
    gone: list[Pair] = []
    foreign: list[Pair] = []
    kept: list[Pair] = []
    for pair in tools:
        server = pair[0]
        if server not in context.spec.servers:
            foreign.append(pair)
        elif pair in names:
            (here if context.listed(server) else away).append(pair)
        elif pair in context.everything.kept:
            kept.append(pair)
        else:
            (away if server in context.everything.unknown else gone).append(pair)
    return Standing(tuple(here), tuple(away), tuple(gone), tuple(foreign), tuple(kept))


def warnings(found: Standing) -> list[str]:
    """A sentence without its full stop for each server of which something is not in view."""
    said: list[str] = []
    for pairs, why in (
        (found.away, "{} server unavailable, skipping tools: {}"),
        (found.gone, "{} server has no such tools here, skipping tools: {}"),
        (found.foreign, "{} server is not behind this endpoint, skipping tools: {}"),
        (found.kept, "{} server has tools in quarantine, skipping tools: {}"),
    ):
        for server, tools in by_server(pairs).items():
            said.append(why.format(wording.plain(server), wording.told(tools)))
    if len(said) <= WARNINGS_MAX:
        return said
    return [*said[:WARNINGS_MAX], f"tools of {len(said) - WARNINGS_MAX} more servers are skipped"]


def hopeless(tools: Iterable[Pair], context: Context) -> str:
    """Why none of these tools can ever be in view here; empty if one can."""
    found = standing(tools, context)
    if found.is_possible:
        return ""
    return f"nothing of it can be in view here: {'; '.join(warnings(found))}"


def by_server(pairs: Iterable[Pair]) -> dict[str, list[str]]:
    """The namespaced names, in their order."""
    grouped: dict[str, list[str]] = {}
    for pair in pairs:
        grouped.setdefault(pair[0], []).append(written(pair))
    return grouped


def in_view(context: Context) -> list[Entry]:
    """The tools of servers that are in the list now."""
    tools, servers = frozenset(context.shown.tools), frozenset(context.shown.servers)
    return [
        entry
        for entry in context.everything.offered
        if entry.server in servers or (entry.server, entry.item.key) in tools
        if context.listed(entry.server)
    ]


def route(pair: Pair) -> dict[str, object]:
    """Where a call of it goes."""
    server, original = pair
    return {
        "serverName": wording.plain(server),
        "originalName": wording.plain(original),
        "namespacedName": wording.plain(written(pair)),
    }


def routes(pairs: Iterable[Pair], context: Context) -> dict[str, object]:
    """By exposed names; of at most `ROUTES_MAX` of them."""
    names = context.names()
    known = [pair for pair in pairs if pair in names]
    return {names[pair]: route(pair) for pair in known[:ROUTES_MAX]}


def row(entry: Entry, *, shown: bool) -> Row:
    """One tool. `shown`: is it in view?"""
    pair = (entry.server, entry.item.key)
    said = read(entry.item.raw)
    about = found.first_sentence(said.description or said.title)
    tokens = token_cost.tokens(entry.item.raw)
    name = wording.code(written(pair))
    text = f"- {name} as {wording.code(entry.key)} ({tokens} tokens{', in view' if shown else ''})"
    value = {
        "exposedName": entry.key,
        **route(pair),
        "description": about,
        "tokens": tokens,
        "inView": shown,
    }
    return Row(f"{text}: {about}" if about else text, value)


def summary(toolset: ToolSet, context: Context) -> dict[str, object]:
    """A tool set without its tools."""
    return {
        "name": toolset.name,
        "description": toolset.description,
        "toolCount": len(toolset.tools),
        "active": toolset.name == context.shown.toolset,
        "createdAt": context.dated(toolset.created),
        "updatedAt": context.dated(toolset.updated),
    }


def saving(context: Context, builtins: Sequence[Item]) -> dict[str, object]:
    """Estimated tokens of all that is behind the endpoint, of what is in the list, and of what the
    list leaves out."""
    found = token_cost.Saving(
        token_cost.of_bytes(sum(map(sent_bytes, context.everything.offered))),
        token_cost.of_bytes(
            sum(len(item.raw) for item in builtins) + sum(map(sent_bytes, in_view(context)))
        ),
    )
    return {
        "everything": found.everything,
        "inView": found.shown,
        "saved": found.tokens,
        "savedPercent": found.percent,
    }
