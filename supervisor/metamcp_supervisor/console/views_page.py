"""Page of the views: what clients have in their lists, what that costs, and tool sets.

Owns: the tables of views and tool sets, building a tool set by ticking tools. Never: the rules of
tool sets (the gateway), the tools of an endpoint (`tools_page`).
"""

from collections.abc import Iterable, Mapping, Sequence

import htpy as h
from htpy import Element, Node

from metamcp_supervisor.console import fragments as ui
from metamcp_supervisor.console.pages import Ask, Page, PageRequest
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.control.tool_orders import ToolList, ToolListed
from metamcp_supervisor.verbs import (
    Exit,
    GatewayStatus,
    ToolSetChanged,
    ToolSets,
    ToolSetShown,
    ViewShown,
    ViewsShown,
)
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import AnyOrder, Build, Delete, Equip, Unequip, read

SEARCH_S = 15.0
"""Seconds for a list of tools."""
VIEWS_MAX = 500
"""Maximum views on the page, the largest first."""
HEADS = ("Endpoint", "Exposure", "Whose", "Tool set", "Tools", "Tokens now", "Everything", "Saved")
NUMBERS = frozenset({"Tools", "Tokens now", "Everything", "Saved"})
SETS = ("Tool set", "Tools", "Equipped on", "Description", "Orders")
EQUIPS = frozenset({"toolset", "search"})
"""Exposures under which a tool set changes what is in view."""
NEW, SET = "new", "set"
"""Parts of paths: of the page for a new tool set, and of the page of one."""


async def show(ask: Ask, request: PageRequest) -> Node:
    match request.path:
        case ():
            views = codec.typed(ViewsShown, await ask("views"))
            sets = codec.typed(ToolSets, await ask("toolsets"))
            status = codec.typed(GatewayStatus, await ask("status"))
            return overview(views, sets, status, request.role)
        case ("new",):
            return choose(await _tools(ask, request), request.query, None)
        case ("set", name):
            sets = codec.typed(ToolSets, await ask("toolsets", {"names": [name]}))
            return choose(await _tools(ask, request), request.query, sets.toolsets[0])
        case _:
            raise Failed(Exit.UNKNOWN_NAME, "there is no such page of views")


async def change(ask: Ask, request: PageRequest) -> Node:
    """Show what a tool set would have and cost, or carry out an order."""
    form = request.form
    order = form.get("order", "")
    name = form.get("name", "").strip()
    if order == "review":
        return review(await _tools(ask, request, everything=True), form)
    wanted = _order(order, name, form)
    kept = form.get("replace") == "yes"  # the set may have tools that no server offers just now
    asked = {"order": wanted, "endpoint": form.get("endpoint", ""), "force": kept}
    changed = codec.typed(ToolSetChanged, await ask("toolsets-change", asked))
    overview_ = await show(ask, PageRequest(role=request.role))
    return [ui.notice(_done(order, name, changed), details=changed.warnings), overview_]


def _order(order: str, name: str, form: Mapping[str, str]) -> AnyOrder:
    """Return an order of the control socket. Raises Failed."""
    match order:
        case "build":
            pairs = tuple(pair for one in _ticked(form) if (pair := read(one)) is not None)
            replace = form.get("replace") == "yes"
            return Build(name, pairs, form.get("description", ""), replace=replace)
        case "delete":
            return Delete(name)
        case "equip":
            return Equip(name)
        case "unequip":
            return Unequip()
        case _:
            raise Failed(Exit.USAGE, "this page does not know that order")


def _done(order: str, name: str, changed: ToolSetChanged) -> str:
    where = f" on the endpoint {changed.endpoint}" if changed.endpoint else ""
    word = {"build": "saved", "delete": "deleted", "equip": "equipped"}.get(order)
    return f"The tool set {name} is {word}{where}." if word else f"Nothing is equipped{where} now."


async def _tools(
    ask: Ask, request: PageRequest, *, everything: bool = False
) -> tuple[ToolListed, ...]:
    """Return the tools to choose from: of servers, as far as they match the filter."""
    query = request.query
    asked = {
        "endpoint": query.get("endpoint", ""),
        "query": "" if everything else query.get("q", ""),
        "server": "" if everything else query.get("server", ""),
    }
    found = codec.typed(ToolList, await ask("tools", asked, timeout_s=SEARCH_S))
    return tuple(one for one in found.tools if one.server)


# Views and tool sets


def overview(views: ViewsShown, sets: ToolSets, status: GatewayStatus, role: Role) -> Node:
    """Return the tables of views and tool sets."""
    shown = sorted(views.views, key=lambda one: (one.endpoint, one.principal, one.session))
    more = len(shown) - VIEWS_MAX
    exposures = {one.endpoint: one.exposure for one in views.views}
    endpoints = [name for name in status.endpoints if exposures.get(name) in EQUIPS]
    operator = role >= Role.OPERATOR
    return [
        ui.heading("Views", h.p["what clients have in their lists, in estimated tokens"]),
        ui.table(
            "Views of clients",
            HEADS,
            [_view(one) for one in shown[:VIEWS_MAX]],
            empty="No front has reported a view yet.",
            numbers=NUMBERS,
        ),
        more > 0 and h.p[f"{ui.amount(more)} more; 'metamcp ctl views' has them all."],
        operator and _as_key(status),
        h.h2["Tool sets"],
        operator and h.p[ui.link("/views/new", "New tool set")],
        ui.table(
            "Tool sets",
            SETS,
            [_set(one, sets, endpoints, operator=operator) for one in sets.toolsets],
            empty="No tool set is saved.",
        ),
    ]


def _view(one: ViewShown) -> Sequence[Node]:
    whose = "clients of this machine" if one.principal == "local" else ui.shown(one.principal, 100)
    alone = f", session {ui.shown(one.session, 40)}" if one.session else ""
    return (
        ui.link(ui.address("tools", query={"endpoint": one.endpoint}), ui.shown(one.endpoint, 100)),
        one.exposure,
        whose + alone,
        one.toolset and ui.link(ui.address("views", SET, one.toolset), ui.shown(one.toolset, 100)),
        ui.amount(one.tools),
        ui.amount(one.tokens),
        f"{ui.amount(one.everything)} ({ui.amount(one.offered)} tools)",
        f"{one.saved_percent} %",
    )


def _as_key(status: GatewayStatus) -> Element:
    """Return the question what the holder of a key sees."""
    key = h.input(type="text", name="key", required=True, maxlength=100, autocomplete="off")
    names = [(name, ui.shown(name, 80)) for name in status.endpoints]
    return h.form(action="/tools", method="get", class_="search")[
        ui.field("What would this key see? Name or id", key),
        ui.field("Endpoint", ui.choice("endpoint", names)),
        h.button(type="submit")["Show"],
    ]


def _set(
    one: ToolSetShown, sets: ToolSets, endpoints: Iterable[str], *, operator: bool
) -> Sequence[Node]:
    on = sorted({each.endpoint for each in sets.equipped if each.toolset == one.name})
    name = ui.shown(one.name, 100)
    actions: list[Node] = []
    if operator:
        for endpoint in endpoints:
            equipped = endpoint in on
            order = "unequip" if equipped else "equip"
            where = ui.shown(endpoint, 60)
            values = {"order": order, "name": one.name, "endpoint": endpoint}
            verb = "Put away on" if equipped else "Equip on"
            ask = f"{verb} {endpoint}: the tool set {one.name}?"
            actions.append(ui.action("/views", f"{verb} {where}", values, confirm=ask))
        values = {"order": "delete", "name": one.name}
        ask = f"Delete the tool set {one.name} with {len(one.tools)} tools?"
        actions.append(ui.action("/views", "Delete", values, confirm=ask, danger=True))
    return (
        ui.link(ui.address("views", SET, one.name), name),
        ui.amount(len(one.tools)),
        ", ".join(ui.shown(each, 60) for each in on) or "nowhere",
        ui.shown(one.description, 300),
        actions,
    )


# Building a tool set


def choose(
    tools: Sequence[ToolListed], query: Mapping[str, str], before: ToolSetShown | None
) -> Node:
    """Return the form in which tools are ticked. `before`: the tool set that is changed."""
    chosen = {one.namespacedName for one in before.tools} if before is not None else set[str]()
    servers: dict[str, list[ToolListed]] = {}
    for one in tools:
        servers.setdefault(one.server, []).append(one)
    there = {_written(one) for one in tools}
    name = before.name if before is not None else ""
    title = f"Tool set {ui.shown(name, 100)}" if before is not None else "New tool set"
    path = ui.address("views", SET, name) if before is not None else "/views/new"
    about = before.description if before is not None else ""
    box = h.input(type="text", name="name", value=name, required=True, readonly=bool(name))
    return [
        ui.heading(title, h.p["tick tools; nothing changes before you have seen the cost"]),
        ui.search(path, query, "Only tools that match"),
        ui.form(
            path,
            h.input(type="hidden", name="order", value="review"),
            h.input(type="hidden", name="replace", value="yes" if name else ""),
            [
                h.input(type="hidden", name="tool", value=one)
                for one in sorted(chosen - there)  # ticked, and not among what matches
            ],
            ui.field("Name", box),
            ui.field("Description", h.input(type="text", name="description", value=about)),
            [_server(server, ours, chosen) for server, ours in sorted(servers.items())],
            not servers and h.p(class_="empty")["No tool matches."],
            submit="Show what it costs",
        ),
    ]


def _server(server: str, tools: Sequence[ToolListed], chosen: set[str]) -> Element:
    tokens = ui.amount(sum(one.tokens for one in tools))
    return h.fieldset[
        h.legend[f"{ui.shown(server, 100)}: {len(tools)} tools, {tokens} tokens"],
        [
            h.label[
                h.input(
                    type="checkbox",
                    name="tool",
                    value=_written(one),
                    checked=_written(one) in chosen,
                ),
                " ",
                ui.shown(one.tool, 200),
                h.small[f"{ui.amount(one.tokens)} tokens. {ui.shown(one.description, 200)}"],
            ]
            for one in sorted(tools, key=lambda each: each.tool)
        ],
    ]


def review(tools: Sequence[ToolListed], form: Mapping[str, str]) -> Node:
    """Return what a tool set would have and cost, and the button that saves it."""
    ticked = _ticked(form)
    name = form.get("name", "").strip()
    known = {_written(one): one for one in tools}
    everything = sum(one.tokens for one in tools)
    tokens = sum(known[one].tokens for one in ticked if one in known)
    percent = 100 - tokens * 100 // everything if everything else 0
    values = {
        "order": "build", "name": name, "description": form.get("description", ""),
        "tool": "\n".join(ticked), "replace": form.get("replace", ""),
    }  # fmt: skip
    ask = f"Save the tool set {name} with {len(ticked)} tools?"
    rows = [
        (
            ui.shown(one, 200),
            ui.amount(known[one].tokens) if one in known else "not offered now",
        )
        for one in ticked
    ]
    cost = (
        f"{ui.amount(len(ticked))} tools, about {ui.amount(tokens)} tokens;"
        f" everything costs {ui.amount(everything)}, so {percent} % are saved."
    )
    heads = ("Tool", "Tokens")
    return [
        ui.heading(f"Tool set {ui.shown(name, 100)}"),
        ui.notice(cost),
        ui.table("Tools of the set", heads, rows, empty="No tool is ticked.", numbers=heads[1:]),
        ui.action("/views", "Save", values, confirm=ask),
        ui.link(ui.address("views", SET, name) if values["replace"] else "/views/new", "Back"),
    ]


def _written(one: ToolListed) -> str:
    return f"{one.server}.{one.tool}"


def _ticked(form: Mapping[str, str]) -> list[str]:
    return sorted({one.strip() for one in form.get("tool", "").splitlines()} - {""})


PAGE = Page(name="views", title="Views", show=show, change=change, live=("views",))
