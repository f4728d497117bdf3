"""Page of the views: what clients have in their lists, what that costs, and tool sets.

Owns: the tables of views and tool sets, building a tool set by ticking tools. Never: the rules of
tool sets (the gateway), the tools of an endpoint (`tools_page`).
"""

from collections.abc import Iterable, Mapping, Sequence

import htpy as h
from htpy import Element, Node
from msgspec import Struct

from metamcp_supervisor.console import fragments as ui
from metamcp_supervisor.console import keys_page
from metamcp_supervisor.console.pages import Ask, Page, PageRequest
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import (
    Exit,
    GatewayStatus,
    ToolList,
    ToolSetChanged,
    ToolSets,
    ToolSetShown,
    ViewShown,
    ViewsShown,
)
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import (
    AnyOrder,
    Build,
    Delete,
    Equip,
    Unequip,
    read,
)
from metamcp_worker.ipc.figures import ShownTool

SEARCH_S = 15.0
"""Seconds for a list of tools."""
VIEWS_MAX = 500
"""Maximum views on the page, the largest first."""
HEADS = ("Endpoint", "Exposure", "Whose", "Tool set", "Tools", "Tokens now", "Everything", "Saved")
NUMBERS = frozenset({"Tools", "Tokens now", "Everything", "Saved"})
COUNTED = (
    "Tokens are those of a whole list, with the names that clients get. So their number differs a"
    " little from the page Servers, which counts servers' own names, and from the sum of the page"
    " Tools, which rounds up each tool."
)
SETS = ("Tool set", "Tools", "Equipped on", "Description", "Orders")
EQUIPS = frozenset({"toolset", "search"})
"""Exposures under which a tool set changes what is in view."""
SET = "set"
"""Part of the path of a tool set."""


class ToolSetDraft(Struct, frozen=True, kw_only=True):
    """Tool set that somebody is building. `replaces`: a set of this name exists and is changed;
    `ticked`: tools as `SERVER.TOOL`; `filter`: words that tools must match to be shown."""

    name: str = ""
    description: str = ""
    replaces: bool = False
    ticked: tuple[str, ...] = ()
    filter: str = ""


async def show(ask: Ask, request: PageRequest) -> Node:
    match request.path:
        case ():
            views = codec.decode_as(ViewsShown, await ask("views"))
            sets = codec.decode_as(ToolSets, await ask("toolsets"))
            status = codec.decode_as(GatewayStatus, await ask("status"))
            names = await keys_page.names(ask, request.role)
            return overview(views, sets, status, request.role, names)
        case ("new",):
            return _keep_part(choose(await _tools(ask), ToolSetDraft()))
        case ("set", name):
            sets = codec.decode_as(ToolSets, await ask("toolsets", {"names": [name]}))
            return _keep_part(choose(await _tools(ask), _draft_of(sets.toolsets[0])))
        case _:
            raise Failed(Exit.UNKNOWN_NAME, "this page of views does not exist")


async def change(ask: Ask, request: PageRequest) -> Node:
    """Show what a tool set would have and cost, or carry out an order."""
    form = request.form
    order = form.get("order", "").rpartition("\n")[2]  # the button's own comes last
    draft = parse_draft(form)
    if order == "choose":
        return _keep_part(choose(await _tools(ask, draft.filter), draft))
    if order == "review":
        return _keep_part(review((await _tools(ask)).tools, draft))
    # A set that is changed may have tools that no server offers just now.
    params = {
        "order": _order(order, draft),
        "endpoint": form.get("endpoint", ""),
        "force": draft.replaces,
    }
    changed = codec.decode_as(ToolSetChanged, await ask("toolsets-change", params))
    page = await show(ask, PageRequest(role=request.role))
    notice = ui.notice(_describe_outcome(order, draft.name, changed), details=changed.warnings)
    return _keep_part([notice, page])


def _keep_part(node: Node) -> Element:
    """Return a part that news of the gateway do not replace."""
    return h.div(data_keep=True)[node]


async def _tools(ask: Ask, query: str = "") -> ToolList:
    """Return the tools of the default endpoint, as far as they match."""
    return codec.decode_as(ToolList, await ask("tools", {"query": query}, timeout_s=SEARCH_S))


def _draft_of(toolset: ToolSetShown) -> ToolSetDraft:
    ticked = tuple(tool.namespacedName for tool in toolset.tools)
    return ToolSetDraft(
        name=toolset.name, description=toolset.description, replaces=True, ticked=ticked
    )


def _order(order: str, draft: ToolSetDraft) -> AnyOrder:
    """Return an order of the control socket. Raises Failed."""
    match order:
        case "build":
            pairs = tuple(pair for name in draft.ticked if (pair := read(name)) is not None)
            return Build(draft.name, pairs, draft.description, replace=draft.replaces)
        case "delete":
            return Delete(draft.name)
        case "equip":
            return Equip(draft.name)
        case "unequip":
            return Unequip()
        case _:
            raise Failed(Exit.USAGE, "this page does not know that order")


def _describe_outcome(order: str, name: str, changed: ToolSetChanged) -> str:
    location = f" on the endpoint {changed.endpoint}" if changed.endpoint else ""
    word = {"build": "saved", "delete": "deleted", "equip": "equipped"}.get(order)
    return (
        f"The tool set {name} is {word}{location}."
        if word
        else f"Nothing is equipped{location} now."
    )


# Views and tool sets


def overview(
    views: ViewsShown,
    sets: ToolSets,
    status: GatewayStatus,
    role: Role,
    names: Mapping[str, str] = {},
) -> Node:
    """Return the tables of views and tool sets. `names`: of API keys, by their ids."""
    all_views = sorted(views.views, key=lambda view: (view.endpoint, view.principal, view.session))
    more = len(all_views) - VIEWS_MAX
    exposures = {view.endpoint: view.exposure for view in views.views}
    endpoints = [name for name in status.endpoints if exposures.get(name) in EQUIPS]
    operator = role >= Role.OPERATOR
    return [
        ui.build_heading("Views", h.p["what clients have in their lists, in estimated tokens"]),
        ui.table(
            "Views of clients",
            HEADS,
            [_view(view, names) for view in all_views[:VIEWS_MAX]],
            empty="No front has reported a view yet.",
            numbers=NUMBERS,
        ),
        more > 0 and h.p[f"{ui.amount(more)} more; 'metamcp ctl views' has them all."],
        bool(all_views) and h.p[COUNTED],
        operator and _as_key(status),
        h.h2["Tool sets"],
        operator and h.p[ui.link("/views/new", "New tool set")],
        ui.table(
            "Tool sets",
            SETS,
            [_set(toolset, sets, endpoints, operator=operator) for toolset in sets.toolsets],
            empty="No tool set is saved.",
        ),
    ]


def _view(view: ViewShown, names: Mapping[str, str]) -> Sequence[Node]:
    local = view.principal == "local"
    whose = "clients of this machine" if local else keys_page.render_holder(view.principal, names)
    alone = f", session {ui.shorten(view.session, 40)}" if view.session else ""
    key = view.principal.removeprefix("key:")
    seen = {"endpoint": view.endpoint, "key": key if key in names else ""}
    return (
        ui.link(ui.address("tools", query=seen), ui.shorten(view.endpoint, 100)),
        view.exposure,
        [whose, alone],
        view.toolset
        and ui.link(ui.address("views", SET, view.toolset), ui.shorten(view.toolset, 100)),
        ui.amount(view.tools),
        ui.amount(view.tokens),
        f"{ui.amount(view.everything)} ({ui.amount(view.offered)} tools)",
        f"{view.saved_percent} %",
    )


def _as_key(status: GatewayStatus) -> Element:
    """Return the question what the holder of a key sees."""
    key = h.input(type="text", name="key", required=True, maxlength=100, autocomplete="off")
    names = [(name, ui.shorten(name, 80)) for name in status.endpoints]
    return h.form(action="/tools", method="get", class_="search")[
        ui.field("What would this key see? Name or id", key),
        ui.field("Endpoint", ui.choice("endpoint", names)),
        h.button(type="submit")["Show"],
    ]


def _set(
    toolset: ToolSetShown, sets: ToolSets, endpoints: Iterable[str], *, operator: bool
) -> Sequence[Node]:
    on = sorted({each.endpoint for each in sets.equipped if each.toolset == toolset.name})
    name = ui.shorten(toolset.name, 100)
    actions: list[Node] = []
    if operator:
        for endpoint in endpoints:
            equipped = endpoint in on
            order = "unequip" if equipped else "equip"
            label = ui.shorten(endpoint, 60)
            values = {"order": order, "name": toolset.name, "endpoint": endpoint}
            verb = "Put away on" if equipped else "Equip on"
            ask = f"{verb} {endpoint}: the tool set {toolset.name}?"
            actions.append(ui.action("/views", f"{verb} {label}", values, confirm=ask))
        values = {"order": "delete", "name": toolset.name}
        ask = f"Delete the tool set {toolset.name} with {len(toolset.tools)} tools?"
        actions.append(ui.action("/views", "Delete", values, confirm=ask, danger=True))
    return (
        ui.link(ui.address("views", SET, toolset.name), name),
        ui.amount(len(toolset.tools)),
        ", ".join(ui.shorten(each, 60) for each in on) or "nowhere",
        ui.shorten(toolset.description, 300),
        actions,
    )


# Building a tool set


def parse_draft(form: Mapping[str, str]) -> ToolSetDraft:
    """Return the draft that a form holds."""
    return ToolSetDraft(
        name=form.get("name", "").strip(),
        description=form.get("description", ""),
        replaces=form.get("replaces") == "yes",
        ticked=tuple(sorted({line.strip() for line in form.get("tool", "").splitlines()} - {""})),
        filter=form.get("filter", ""),
    )


def choose(tool_list: ToolList, draft: ToolSetDraft) -> Node:
    """Return the form in which tools are ticked."""
    servers: dict[str, list[ShownTool]] = {}
    for tool in tool_list.tools:
        if tool.server:
            servers.setdefault(tool.server, []).append(tool)
    there = {_full_name(tool) for ours in servers.values() for tool in ours}
    name = ui.shorten(draft.name, 100)
    title = f"Tool set {name}" if draft.replaces else "New tool set"
    box = h.input(
        type="text", name="name", value=draft.name, required=True, readonly=draft.replaces
    )
    about = h.input(type="text", name="description", value=draft.description)
    words = h.input(type="search", name="filter", value=draft.filter, maxlength=200)
    narrow = h.button(type="submit", name="order", value="choose", formnovalidate=True)["Filter"]
    return [
        ui.build_heading(title, h.p["tick tools; nothing changes before you have seen the cost"]),
        ui.form(
            "/views/new",
            _hidden_inputs({"order": "review", "replaces": "yes" if draft.replaces else ""}),
            # Ticked, and not among the tools that match.
            [_hidden_inputs({"tool": ticked}) for ticked in draft.ticked if ticked not in there],
            ui.field("Name", box),
            ui.field("Description", about),
            ui.field("Only tools that match", words),
            h.p[narrow],
            [_server(each, ours, draft.ticked) for each, ours in sorted(servers.items())],
            not servers and h.p(class_="empty")["No tool matches."],
            tool_list.more > 0
            and h.p[f"{ui.amount(tool_list.more)} more tools; the filter finds them."],
            submit="Show what it costs",
        ),
    ]


def _hidden_inputs(values: Mapping[str, str]) -> Node:
    return [h.input(type="hidden", name=name, value=value) for name, value in values.items()]


def _server(server: str, tools: Sequence[ShownTool], ticked: Sequence[str]) -> Element:
    tokens = ui.amount(sum(tool.tokens for tool in tools))
    rows = [
        (
            h.label(class_="beside")[
                h.input(
                    type="checkbox",
                    name="tool",
                    value=_full_name(tool),
                    checked=_full_name(tool) in ticked,
                ),
                ui.shorten(tool.tool, 200),
            ],
            ui.amount(tool.tokens),
            ui.shorten(tool.description, 200),
        )
        for tool in sorted(tools, key=lambda each: each.tool)
    ]
    caption = f"{ui.shorten(server, 100)}: {len(tools)} tools, {tokens} tokens"
    heads = ("Tool", "Tokens", "Description")
    return ui.table(caption, heads, rows, empty="", numbers=("Tokens",))


def review(tools: Sequence[ShownTool], draft: ToolSetDraft) -> Node:
    """Return what a tool set would have and cost, and the button that saves it."""
    tools_by_name = {_full_name(tool): tool for tool in tools}
    everything = sum(tool.tokens for tool in tools)
    tokens = sum(tools_by_name[name].tokens for name in draft.ticked if name in tools_by_name)
    percent = 100 - tokens * 100 // everything if everything else 0
    values = {
        "name": draft.name, "description": draft.description, "tool": "\n".join(draft.ticked),
        "replaces": "yes" if draft.replaces else "",
    }  # fmt: skip
    ask = f"Save the tool set {draft.name} with {len(draft.ticked)} tools?"
    rows = [
        (
            ui.shorten(name, 200),
            ui.amount(tools_by_name[name].tokens) if name in tools_by_name else "not offered now",
        )
        for name in draft.ticked
    ]
    cost = (
        f"{ui.amount(len(rows))} tools, about {ui.amount(tokens)} tokens;"
        f" everything costs {ui.amount(everything)}, so {percent} % are saved."
    )
    heads = ("Tool", "Tokens")
    return [
        ui.build_heading(f"Tool set {ui.shorten(draft.name, 100)}"),
        ui.notice(cost),
        ui.table("Tools of the set", heads, rows, empty="No tool is ticked.", numbers=heads[1:]),
        ui.action("/views", "Save", {"order": "build", **values}, confirm=ask),
        ui.action("/views/new", "Back", {"order": "choose", **values}),
    ]


def _full_name(tool: ShownTool) -> str:
    return f"{tool.server}.{tool.tool}"


PAGE = Page(name="views", title="Views", show=show, change=change, live=("views",))
