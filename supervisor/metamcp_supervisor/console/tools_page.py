"""Page of the tools: search over an endpoint, and one tool with its form, definition and way.

Owns: the table of tools, and the page of one. Never: the call that somebody tries and the fields of
its form (`try_out`), the search (the fronts).
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import htpy as h
from htpy import Element, Node

from metamcp_supervisor.calls import tool_form
from metamcp_supervisor.console import edit_page, try_out
from metamcp_supervisor.console import fragments as ui
from metamcp_supervisor.console.approvals_page import verdict
from metamcp_supervisor.console.fragments import Tone
from metamcp_supervisor.console.pages import Ask, Page, PageRequest
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Exit, GatewayStatus, PathShown, ToolList
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.figures import KEY_NEEDED, ShownTool

SEARCH_S = 15.0
"""Seconds for an answer; a search may wait for an index."""
ENDPOINTS_MAX = 8
"""Maximum endpoints where the page of a tool says whether the tool is visible there."""
HEADS = ("Tool", "Server", "State", "Tokens", "Calls", "Errors", "Description")
NUMBERS = frozenset({"Tokens", "Calls", "Errors"})
ORDERS: Mapping[str, tuple[str, ui.Sorted]] = {
    "Tool": ("name", "ascending"),
    "Tokens": ("tokens", "descending"),
}
"""Heads that order the table, each with the order of the verb `tools` and its direction."""
EDITS = ("tools disable", "tools rename")
_TONES: dict[str, Tone] = {
    "listed": "ok", "callable": "off", "out of view": "off", "hidden": "off", "withheld": "bad",
}  # fmt: skip


async def show(ask: Ask, request: PageRequest) -> Node:
    status = codec.decode_as(GatewayStatus, await ask("status"))
    if not request.path:
        selection = {name: request.query.get(name, "") for name in ("endpoint", "server", "key")}
        offset = request.query.get("offset", "")
        params = {
            **selection,
            "query": request.query.get("q", ""),
            "order": _order(request.query),
            "offset": int(offset) if offset.isdecimal() and len(offset) < 10 else 0,
        }
        tool_list = codec.decode_as(ToolList, await ask("tools", params, timeout_s=SEARCH_S))
        return render_tools(tool_list, status, request)
    return await _one(ask, request, status)


async def change(ask: Ask, request: PageRequest) -> Node:
    """Call a tool, and show what came back above its form."""
    tool, definition = await _find_tool(ask, request)
    outcome = await try_out.try_tool(ask, request, tool, definition)
    status = codec.decode_as(GatewayStatus, await ask("status"))
    states = await _elsewhere(ask, tool, status)
    tab_content = form(tool, definition, request, outcome.part)
    return page(tool, definition, states, request, tab_content)


async def _elsewhere(ask: Ask, tool: ShownTool, status: GatewayStatus) -> dict[str, str]:
    """Return the state of a tool at the first endpoints; empty where it has another name."""
    states: dict[str, str] = {}
    for name in list(status.endpoints)[:ENDPOINTS_MAX]:
        try:
            raw = await ask("tools", {"endpoint": name, "name": tool.name})
        except Failed as error:
            if error.exit != Exit.UNKNOWN_NAME:
                raise
            continue
        seen = codec.decode_as(ToolList, raw)
        states[name] = seen.tools[0].state if seen.tools else "with a key"
    return states


def _view_params(request: PageRequest) -> dict[str, str]:
    """Return the endpoint and the API key whose holder sees the tools of a page."""
    return {name: request.query.get(name, "") for name in ("endpoint", "key")}


async def _find_tool(ask: Ask, request: PageRequest) -> tuple[ShownTool, dict[str, Any]]:
    """Return the tool of a page and its definition. Raises Failed."""
    if len(request.path) != 1:
        raise Failed(Exit.UNKNOWN_NAME, "this page does not exist; tools are listed at /tools")
    params = {"name": request.path[0], **_view_params(request)}
    tool_list = codec.decode_as(ToolList, await ask("tools", params, timeout_s=SEARCH_S))
    if not tool_list.tools:
        reason = _explain_refusal(tool_list, request.role) or f"{request.path[0]} is not seen here"
        raise Failed(Exit.DENIED, reason)
    return tool_list.tools[0], tool_form.table(codec.value(tool_list.tools[0].definition))


async def _one(ask: Ask, request: PageRequest, status: GatewayStatus) -> Node:
    tool, definition = await _find_tool(ask, request)
    match request.query.get("tab", ""):
        case "definition":
            tab_content: Node = definition_tab(tool, definition)
        case "way":
            params = {"tool": tool.name, **_view_params(request)}
            call_path = codec.decode_as(PathShown, await ask("explain", params))
            tab_content = way(call_path, _approval(tool, request.role))
        case _:
            tab_content = form(tool, definition, request)
    return page(tool, definition, await _elsewhere(ask, tool, status), request, tab_content)


# The list


def render_tools(tool_list: ToolList, status: GatewayStatus, request: PageRequest) -> Node:
    """Return the table of tools with the search above it."""
    query = request.query
    controls = [
        _select("endpoint", "Endpoint", list(status.endpoints), tool_list.endpoint, every=False),
        _select(
            "server", "Server", [server.name for server in status.servers], query.get("server", "")
        ),
        h.input(type="hidden", name="order", value=_order(query)),
    ]
    if request.role >= Role.OPERATOR:
        name = query.get("key", "")
        box = h.input(type="text", name="key", value=name, maxlength=100, autocomplete="off")
        controls.append(ui.field("As API key", box))
    location = f"at the endpoint {ui.shorten(tool_list.endpoint)}"
    if tool_list.refused:
        notice = ui.notice(_explain_refusal(tool_list, request.role), "warn")
        return [
            ui.build_heading("Tools", h.p[location]),
            ui.search("/tools", query, "Search", controls),
            notice,
        ]
    count = len(tool_list.tools) + tool_list.more
    return [
        ui.build_heading("Tools", h.p[f"{ui.amount(count)} {location}"]),
        ui.search("/tools", query, "Search", controls),
        ui.table(
            "Tools of the endpoint",
            HEADS,
            [_row(tool, tool_list.endpoint, query.get("key", "")) for tool in tool_list.tools],
            empty="No tool matches.",
            numbers=NUMBERS,
            orders={head: _order_link(head, query) for head in ORDERS},
        ),
        _more(tool_list, query),
    ]


def _order(query: Mapping[str, str]) -> str:
    """Return the order of the list, as the verb `tools` has it."""
    value = query.get("order", "")
    return value if value in {order for order, _ in ORDERS.values()} else ""


def _order_link(head: str, query: Mapping[str, str]) -> tuple[str, ui.Sorted]:
    """Return the page that a head of the table leads to, ordered by it or as before, and whether it
    is ordered by it now."""
    order, direction = ORDERS[head]
    now = _order(query) == order
    path = ui.address("tools", query={**query, "order": "" if now else order, "offset": ""})
    return path, direction if now else "none"


def _explain_refusal(tool_list: ToolList, role: Role) -> str:
    """Return why an endpoint shows no tool, in the words of this page."""
    if tool_list.refused != KEY_NEEDED:
        return tool_list.refused
    if role < Role.OPERATOR:
        return "This endpoint wants an API key. The role operator may look as the holder of one."
    return (
        "This endpoint wants an API key, and each key may see other tools. The name of a key in"
        " the field “As API key”, which the page Keys lists, shows what its holder sees."
    )


def _more(tool_list: ToolList, query: Mapping[str, str]) -> Node:
    if not tool_list.more or query.get("q"):
        return None
    begun = query.get("offset", "")
    offset = (int(begun) if begun.isdecimal() else 0) + len(tool_list.tools)
    path = ui.address("tools", query={**query, "offset": str(offset)})
    return h.p[ui.link(path, f"{ui.amount(tool_list.more)} more")]


def _row(tool: ShownTool, endpoint: str, key: str) -> Sequence[Node]:
    path = ui.address("tools", tool.name, query={"endpoint": endpoint, "key": key})
    words = tool.why or tool.description
    return (
        ui.link(path, ui.shorten(tool.name, 200)),
        ui.shorten(tool.server, 100) if tool.server else "MetaMCP",
        state(tool),
        ui.amount(tool.tokens),
        ui.amount(tool.calls),
        ui.amount(tool.errors),
        ui.shorten(words, 300),
    )


def state(tool: ShownTool) -> Node:
    """Return the state of a tool: where it is visible, and whether it is as approved."""
    if not tool.available:
        return ui.state("server away", "warn")
    element = ui.state(tool.state, _TONES.get(tool.state, "off"))
    return [element, " ", ui.state(verdict(tool.drift), "warn")] if tool.drift else element


def _select(
    name: str, label: str, names: Sequence[str], chosen: str, *, every: bool = True
) -> Element:
    options = [("", "all")] if every else []
    return ui.field(
        label,
        ui.choice(name, [*options, *((value, ui.shorten(value, 80)) for value in names)], chosen),
    )


# One tool


def page(
    tool: ShownTool,
    definition: Mapping[str, Any],
    states: Mapping[str, str],
    request: PageRequest,
    tab_content: Node,
) -> Node:
    """Return the page of a tool. `states`: its state by endpoint; `tab_content`: what its tab
    shows."""
    endpoint = request.query.get("endpoint", "")
    tab = request.query.get("tab", "")

    def path(name: str) -> str:
        return ui.address("tools", tool.name, query={**_view_params(request), "tab": name})

    approved = _approval(tool, request.role)
    items = [(path(""), "Try"), (path("definition"), "Definition")]
    if request.role >= Role.OPERATOR:
        items.append((path("way"), "What would happen"))
        if approved:
            items.append((approved, "Against the approved one"))
    about = definition.get("description")
    server = ui.link(ui.address("servers", tool.server), ui.shorten(tool.server, 100))
    verbs = ("tools show" if tool.state == "hidden" else "tools hide", *EDITS)
    return [
        ui.build_heading(ui.shorten(tool.name, 200), state(tool)),
        tool.why and ui.notice(tool.why, "bad"),
        approved and h.p[ui.link(approved, "See what differs, and approve it")],
        tool.server and edit_page.links(request.role, verbs, tool=f"{tool.server}.{tool.tool}"),
        isinstance(about, str) and h.p[ui.shorten(about, 2000)],
        ui.pairs(
            [
                ("Server", server if tool.server else "MetaMCP itself"),
                ("Own name", ui.shorten(tool.tool, 200)),
                ("Cost", f"about {ui.amount(tool.tokens)} tokens"),
                ("Calls", f"{ui.amount(tool.calls)}, {ui.amount(tool.errors)} with an error"),
                ("Changes something", "no, it says" if tool.reads else "it may"),
                ("Endpoint", ui.shorten(endpoint, 80) or "the default one"),
                ("Visible", _visible(tool, states)),
            ]
        ),
        ui.tabs(path(tab), items),
        tab_content,
    ]


def _visible(tool: ShownTool, states: Mapping[str, str]) -> Node:
    return h.ul[
        [
            h.li[
                ui.link(
                    ui.address("tools", tool.name, query={"endpoint": name}), ui.shorten(name, 80)
                ),
                ": ",
                state,
            ]
            for name, state in states.items()
        ]
    ]


def form(
    tool: ShownTool, definition: Mapping[str, Any], request: PageRequest, outcome: Node = None
) -> Node:
    """Return the form of a tool. `outcome`: of the call that was tried last."""
    if request.role < Role.DEVELOPER:
        return h.p(class_="empty")["To try a tool needs the role developer."]
    schema = tool_form.table(definition.get("inputSchema"))
    inputs = request.form
    endpoint = request.query.get("endpoint", "")
    location = f"at the endpoint {endpoint}" if endpoint else "at the default endpoint"
    confirm = "" if tool.reads else f"Call {tool.name} {location}? It may change something."
    key = h.input(type="password", name="key", autocomplete="off", maxlength=500)
    raw = h.textarea(name="json", spellcheck="false")[inputs.get("json", "")]
    return [
        outcome,
        h.h2["Call it"],
        ui.form(
            ui.address("tools", tool.name, query=_view_params(request)),
            [
                try_out.control(field, inputs.get(f"a.{field.name}", ""))
                for field in tool_form.fields(schema)
            ],
            h.details[
                h.summary["More"],
                ui.field("Arguments as JSON", raw, "An object in place of the fields above."),
                ui.field("API key", key, "Only if the endpoint wants one. It is used once."),
            ],
            submit="Call",
            confirm=confirm,
        ),
    ]


def _approval(tool: ShownTool, role: Role) -> str:
    """Return the address at which a tool that is not as approved is approved; empty for others,
    and for a role that may not."""
    if not tool.drift or role < Role.OPERATOR:
        return ""
    return ui.address("approvals", tool.server, tool.tool)


def definition_tab(tool: ShownTool, definition: Mapping[str, Any]) -> Node:
    """Return the definition of a tool as clients get it."""
    if not definition:
        return h.p(class_="empty")[f"Clients do not get this tool: it is {ui.shorten(tool.state)}."]
    text = json.dumps(definition, indent=2, ensure_ascii=False)
    return ui.code(text, copy=True, label="As clients get it")


def way(call_path: PathShown, approval: str = "") -> Node:
    """Return the steps of a call, as `metamcp explain` knows them. `approval`: address at which the
    tool is approved, if it is not."""
    rows = [
        (
            step.step,
            ui.state("stops here", "bad") if step.stops else ui.state("goes on", "ok"),
            ui.shorten(step.text),
        )
        for step in call_path.steps
    ]
    end = f"{call_path.server} would get the call" if call_path.runs else "the call would not run"
    return [
        ui.table("Steps of a call", ("Step", "Then", "About"), rows, empty="No step is known."),
        ui.notice(f"Now {end}.", "ok" if call_path.runs else "warn"),
        approval and h.p[ui.link(approval, "See what differs, and approve it")],
    ]


PAGE = Page(name="tools", title="Tools", show=show, change=change)
