"""The verbs about tool sets: list them, show where they are equipped, and change them.

Owns: their parameters, the check that everything an operator names exists, the journal's words.
Never: the rules of an order (`views.ledger`, by `ViewStore`), what a front shows.

An operator's orders are for the view of the principal `local`: of every client that does not have
to say who it is.
"""

import time
from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct

from metamcp_supervisor.config.naming import hint
from metamcp_supervisor.control.services import (
    ChangeParams,
    ControlStream,
    GatewayControl,
    ViewStore,
    read_store,
)
from metamcp_supervisor.verbs import (
    VERSION,
    EquippedView,
    Exit,
    ToolRef,
    ToolSetChanged,
    ToolSets,
    ToolSetShown,
)
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import (
    Amend,
    Build,
    Delete,
    DisclosureState,
    Equip,
    Pair,
    ToolSet,
    Unequip,
    ViewOrder,
    ViewOwner,
    format_pair,
)
from metamcp_worker.ipc.errors import ProtocolError

PRINCIPAL = "local"
TOLD_CHARACTERS_MAX = 64
"""Maximum characters of a caller's name in a message."""
PROBLEMS_MAX = 20
"""Maximum problems that the answer to an order shows, and tools in a warning."""
_THERE = {"active", "ready", "idle"}
"""States of servers whose tools are in lists."""
_SHOWS = {
    "all": "all tools",
    "servers": "the tools of active servers",
    "code": "built-in tools alone",
}
"""Tools that an endpoint shows, by exposures without tool sets."""


class ToolsetsParams(Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of `toolsets`. `names`: tool sets to show; empty means all."""

    names: tuple[str, ...] = ()


class ToolsetsChange(ChangeParams, frozen=True, kw_only=True):
    """Parameters of `toolsets-change`. `endpoint`: endpoint whose view the order is for, if it is
    for a view; empty means the default one. `force`: accept tools that no server offers. `dry_run`:
    only check the order."""

    order: Build | Amend | Delete | Equip | Unequip
    endpoint: str = ""
    force: bool = False
    dry_run: bool = False


async def toolsets(gateway: GatewayControl, line: ControlStream, params: ToolsetsParams) -> object:
    everything = await read_store(gateway.shelf)
    for name in params.names:
        _check_there(name, everything)
    chosen = [
        toolset
        for toolset in everything.toolsets
        if not params.names or toolset.name in set(params.names)
    ]
    names, exposures = {toolset.name for toolset in chosen}, gateway.shelf.endpoints()
    return ToolSets(
        toolsets=tuple(map(describe_toolset, chosen)),
        equipped=tuple(
            EquippedView(
                toolset=view.toolset,
                endpoint=whose.endpoint,
                principal=whose.principal,
                session=whose.session,
            )
            for whose, view in everything.views
            if view.toolset in names and exposures.get(whose.endpoint, "all") not in _SHOWS
        ),
    )


async def toolsets_change(
    gateway: GatewayControl, line: ControlStream, params: ToolsetsChange
) -> object:
    shelf, order = gateway.shelf, params.order
    everything = await read_store(shelf)
    endpoint = ""
    equips = isinstance(order, Equip) or (isinstance(order, Build) and order.equip)
    if equips or isinstance(order, Unequip):
        endpoint = _endpoint(shelf, params.endpoint, equips=equips)
    if isinstance(order, Equip | Delete | Amend):
        _check_there(order.toolset, everything)
    if isinstance(order, Build) and not order.replace:
        _check_new(order.toolset, everything)
    new_tools = order.tools if isinstance(order, Build) else ()
    new_tools = order.add if isinstance(order, Amend) else new_tools
    if not params.force:
        _check_offered(gateway, new_tools)
    if params.dry_run:
        return {"v": VERSION}
    outcome = await shelf.carry_out(ViewOrder(ViewOwner(endpoint, PRINCIPAL), order))
    if outcome.error:
        raise ProtocolError(Exit.FAILED, outcome.error)
    gateway.journal.add(
        "gateway", "tool sets", f"{_describe_order(params, endpoint)} by {line.caller}"
    )
    return ToolSetChanged(
        toolset=None if outcome.toolset is None else describe_toolset(outcome.toolset),
        endpoint=endpoint,
        before=outcome.before.toolset,
        after=outcome.after.toolset,
        warnings=tuple(_explain_skipped(gateway, outcome.after.tools)) if equips else (),
        tools_before=len(outcome.before.tools),
        servers_before=len(outcome.before.servers),
        exposure=shelf.endpoints().get(endpoint, ""),
    )


def describe_toolset(toolset: ToolSet) -> ToolSetShown:
    """Return a tool set as it is written into a file."""
    return ToolSetShown(
        name=toolset.name,
        description=toolset.description,
        tools=tuple(ToolRef(format_pair(pair)) for pair in toolset.tools),
        createdAt=_iso(toolset.created),
        updatedAt=_iso(toolset.updated),
    )


def _iso(seconds: float) -> str:
    date_time = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{date_time}.{int(seconds * 1000) % 1000:03}Z"


def _check_there(name: str, everything: DisclosureState) -> None:
    """Raise ProtocolError if no tool set has this name."""
    names = [toolset.name for toolset in everything.toolsets]
    if name not in names:
        short_name = name[:TOLD_CHARACTERS_MAX]
        raise ProtocolError(
            Exit.UNKNOWN_NAME, f"no tool set is named {short_name!r}; {hint(name, names)}"
        )


def _check_new(name: str, everything: DisclosureState) -> None:
    """Raise ProtocolError if a tool set has this name already."""
    if name in [toolset.name for toolset in everything.toolsets]:
        raise ProtocolError(
            Exit.FAILED,
            f"there is a tool set {name!r} already; choose another name, or replace it with"
            " --replace",
        )


def _endpoint(shelf: ViewStore, name: str, *, equips: bool) -> str:
    """Return the named or the default endpoint. Raises ProtocolError for an unknown endpoint, and
    with `equips` for an endpoint where a tool set does nothing."""
    exposures = shelf.endpoints()
    endpoint = name or next(iter(exposures), "")
    if endpoint not in exposures:
        short_name = endpoint[:TOLD_CHARACTERS_MAX]
        raise ProtocolError(
            Exit.UNKNOWN_NAME, f"no endpoint is named {short_name!r}; {hint(endpoint, exposures)}"
        )
    if equips and (content := _SHOWS.get(exposures[endpoint])) is not None:
        raise ProtocolError(
            Exit.FAILED,
            f"endpoint {endpoint!r} shows {content}, whatever is equipped: set its exposure to"
            ' "toolset", or choose another one with --endpoint',
        )
    return endpoint


def _check_offered(gateway: GatewayControl, tools: Iterable[Pair]) -> None:
    """Raise ProtocolError for all tools that no server offers, each with the name that was probably
    meant."""
    servers = {server.name for server in gateway.status().servers}
    offered: dict[str, frozenset[str]] = {}
    problems: list[str] = []
    for server, tool in tools:
        if server not in servers:
            problems.append(f"no server is named {_quote_name(server)}; {hint(server, servers)}")
            continue
        if server not in offered:
            offered[server] = gateway.shelf.tools(server)
        if not offered[server]:
            problems.append(f"{server} has not said yet what it offers; start it first")
        elif tool not in offered[server]:
            problems.append(
                f"{server} has no tool {_quote_name(tool)}; {hint(tool, offered[server])}"
            )
    distinct = list(dict.fromkeys(problems))
    if distinct:
        more = [f"and {len(distinct) - PROBLEMS_MAX} more"] if len(distinct) > PROBLEMS_MAX else []
        raise ProtocolError(
            Exit.UNKNOWN_NAME,
            "nothing is changed, since not all of these tools are known (--force takes them as they"
            " are)",
            codec.dump({"problems": [*distinct[:PROBLEMS_MAX], *more]}),
        )


def _explain_skipped(gateway: GatewayControl, tools: Iterable[Pair]) -> Iterator[str]:
    """Yield a sentence for each server that is away or has tools in quarantine, with its tools."""
    states = {server.name: server.state for server in gateway.status().servers}
    quarantined = gateway.shelf.list_quarantined()
    skipped: dict[str, list[str]] = {}
    for pair in tools:
        server = pair[0]
        if states.get(server) not in _THERE:
            reason = f"{server} server unavailable ({states.get(server, 'not configured')})"
        elif pair in quarantined:
            reason = f"{server} server has tools in quarantine"
        else:
            continue
        skipped.setdefault(reason, []).append(format_pair(pair))
    for reason, names in list(skipped.items())[:PROBLEMS_MAX]:
        more = f" and {len(names) - PROBLEMS_MAX} more" if len(names) > PROBLEMS_MAX else ""
        yield f"{reason}, skipping tools: {', '.join(names[:PROBLEMS_MAX])}{more}"


def _quote_name(name: str) -> str:
    return repr(name[:TOLD_CHARACTERS_MAX])


def about(params: ToolsetsChange, result: object) -> Sequence[str]:
    """Return the words of the audit for an order."""
    name = "" if isinstance(params.order, Unequip) else params.order.toolset
    return [word for word in (_WORDS[type(params.order)], name, params.endpoint) if word]


def _describe_order(params: ToolsetsChange, endpoint: str) -> str:
    """Return an order in the words of the journal."""
    order = params.order
    on = f" on endpoint '{endpoint}'" if endpoint else ""
    name = "" if isinstance(order, Unequip) else f" {order.toolset!r}"
    return f"{_WORDS[type(order)]}{name}{on}"


_WORDS: dict[type[Struct], str] = {
    Build: "built", Amend: "changed", Delete: "deleted", Equip: "equipped",
    Unequip: "unequipped",
}  # fmt: skip
