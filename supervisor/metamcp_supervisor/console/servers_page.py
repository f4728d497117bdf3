"""Page of the servers: the words of `ctl status`, what is wrong now, and orders for servers.

Owns: columns, filter and orders of the table, the rate of calls, the page for a gateway without
servers. Never: the page of one server (`server_page`).
"""

import asyncio
import shlex
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import htpy as h
from htpy import Element, Node

from metamcp_supervisor.console import edit_page, server_page
from metamcp_supervisor.console import fragments as ui
from metamcp_supervisor.console.pages import Ask, Page, PageRequest
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.telemetry.health import not_ready
from metamcp_supervisor.verbs import GatewayStatus, ServerStatus
from metamcp_supervisor.wording import columns
from metamcp_worker.ipc import codec

if TYPE_CHECKING:
    from metamcp_supervisor.client_files.disk import ClientFile

RATE_S = 10.0
"""Seconds over which the rate of calls is measured."""
WRONG_MAX = 8
"""Maximum servers that the banner names."""
REASON_CHARACTERS_MAX = 400
"""Maximum characters of a server's reason; the page has more room than a terminal."""
HEADS = (
    "Server", "State", "Up", "Restarts", "Calls", "Calls/s", "p95", "Errors", "Memory", "Tools",
    "Tokens", "Next / reason",
)  # fmt: skip
NUMBERS = HEADS[2:-1]
ORDERS = {"start": "Start", "stop": "Stop", "restart": "Restart", "drain": "Drain"}
EDITS = ("add", "install")
_BULK = "bulk"
_STATES = (
    ("", "all states"), ("wrong", "not as wanted"), ("ready", "ready"), ("active", "active"),
    ("idle", "idle"), ("warming", "warming"), ("stopped", "stopped"), ("error", "error"),
    ("quarantined", "quarantined"),
)  # fmt: skip


class Rates:
    """Calls per second by server, from the counts of the last RATE_S seconds and a little more."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, Mapping[str, int]]] = deque()

    def of(self, now: float, calls: Mapping[str, int]) -> dict[str, float]:
        """Note these counts; return the rates, none for a server that is new."""
        self._seen.append((now, calls))
        while len(self._seen) > 2 and now - self._seen[1][0] >= RATE_S:
            self._seen.popleft()
        since, before = self._seen[0]
        if now - since < 0.5:
            return {}
        return {
            name: max(0, count - before[name]) / (now - since)
            for name, count in calls.items()
            if name in before
        }


_rates = Rates()


async def show(ask: Ask, request: PageRequest) -> Node:
    if request.path:
        return await server_page.show(ask, request)
    status = codec.decode_as(GatewayStatus, await ask("status"))
    now = asyncio.get_running_loop().time()
    rates = _rates.of(now, {server.name: server.calls for server in status.servers})
    client_files = () if status.servers else await asyncio.to_thread(_client_files, status)
    return page(status, rates, request, client_files)


async def change(ask: Ask, request: PageRequest) -> Node:
    if request.path:
        return await server_page.change(ask, request)
    order = request.form.get("order", "")
    names = request.form.get("names", "").split()
    if order not in ORDERS or not names:
        notice = ui.notice("Nothing is changed: tick servers, then choose what to do.", "warn")
    else:
        answer = await ask(order, {"names": names})
        text = f"{ORDERS[order]} was ordered: {', '.join(names)}."
        notice = server_page.build_notice(text, answer)
    return [notice, await show(ask, request)]


def page(
    status: GatewayStatus,
    rates: Mapping[str, float],
    request: PageRequest,
    client_files: Sequence["ClientFile"] = (),
) -> Node:
    """Return the content of the page. `client_files`: files of clients, for a
    gateway without servers."""
    if not status.servers:
        return _welcome(status, client_files, request.role)
    steers = request.role >= Role.OPERATOR
    servers = _filter_servers(status, request.query)
    heads = (*(("Tick",) if steers else ()), *HEADS)
    return [
        ui.build_heading("Servers", h.p[columns.status_head(status)]),
        edit_page.links(request.role, EDITS),
        _wrong(status),
        ui.search(
            "/servers",
            request.query,
            "Filter by name, state or reason",
            h.label[h.span["State"], ui.choice("state", _STATES, request.query.get("state", ""))],
        ),
        (_orders() if steers else ui.needs("start or stop servers", Role.OPERATOR))
        if servers
        else None,
        ui.table(
            f"{len(servers)} of {len(status.servers)} servers: {columns.status_foot(status)}",
            heads,
            (_row(server, rates.get(server.name), steers=steers) for server in servers),
            empty="No server fits this filter.",
            numbers=NUMBERS,
            head=1 if steers else 0,
        ),
        h.h2["Processes of the gateway"],
        ui.table(
            "Processes of the gateway itself",
            ("Process", "State", "Id", "Memory", "Figures"),
            _processes(status),
            empty="No process runs yet.",
        ),
    ]


def _filter_servers(status: GatewayStatus, query: Mapping[str, str]) -> list[ServerStatus]:
    """Return the servers that fit the filter, those that are not ready first."""
    missed = {server.name for server in not_ready(status, ())}
    word, state = query.get("q", "").casefold(), query.get("state", "")
    matches = [
        server
        for server in status.servers
        if word in f"{server.name} {server.state} {server.reason} {server.message}".casefold()
        and (not state or server.state == state or (state == "wrong" and server.name in missed))
    ]
    return sorted(matches, key=lambda server: server.name not in missed)


def _wrong(status: GatewayStatus) -> Node:
    """Return the banner of what is wrong now; nothing if all is as wanted."""
    servers = [
        server for server in not_ready(status, ()) if server.state in ("error", "quarantined")
    ]
    troubles = [role for role in status.roles if role.trouble or role.state == "error"]
    refused = columns.refused_text(status)
    if not servers and not troubles and not refused:
        return None
    more = len(servers) - WRONG_MAX
    return h.div(class_="notice bad", role="alert")[
        h.ul[
            [
                h.li[
                    ui.link(ui.address("servers", server.name), ui.shorten(server.name)),
                    f" ({server.state}): ",
                    ui.shorten(columns.outlook(server, REASON_CHARACTERS_MAX), 600),
                ]
                for server in servers[:WRONG_MAX]
            ],
            more > 0 and h.li[ui.link("/servers?state=wrong", f"and {more} more")],
            [
                h.li[f"{role.role}: {ui.shorten(role.trouble or role.state, 400)}"]
                for role in troubles
            ],
            refused and h.li[ui.shorten(refused, 600)],
        ]
    ]


def _orders() -> Element:
    """Return the form with the orders for all rows that are ticked."""
    confirm = "{order}: {ticked}?"
    return h.form(
        {"hx-post": "/f/servers", "hx-target": "#main", "hx-swap": "innerMorph",
         "hx-confirm": confirm},
        id=_BULK, class_="beside",
    )[
        h.label[h.input(type="checkbox", data_tick_all="names"), " all that are shown"],
        [
            h.button(
                type="submit", name="order", value=order,
                class_="danger" if order == "stop" else None,
            )[label]
            for order, label in ORDERS.items()
        ],
    ]  # fmt: skip


def _row(server: ServerStatus, rate: float | None, *, steers: bool) -> Sequence[Node]:
    name = ui.shorten(server.name)
    tick = h.input(
        type="checkbox", name="names", value=server.name, form=_BULK, aria_label=f"tick {name}"
    )
    return [
        *((tick,) if steers else ()),
        ui.link(ui.address("servers", server.name), name),
        ui.state(server.state),
        columns.span(server.up_s) if server.up_s > 0 else columns.NONE,
        str(server.restarts),
        ui.amount(server.calls),
        columns.NONE if rate is None else f"{rate:.1f}",
        columns.latency(server.p95_s),
        f"{100 * server.errors / server.calls:.1f} %" if server.errors else "0",
        ui.size(server.memory_bytes) if server.memory_bytes else columns.NONE,
        f"{server.tools}{'*' if server.from_cache else ''}" if server.tools else columns.NONE,
        ui.amount(server.token_cost) if server.token_cost else columns.NONE,
        h.span[
            ui.shorten(columns.outlook(server, REASON_CHARACTERS_MAX), 600), " ",
            ui.link(ui.address("logs", server.name), "logs", aria_label=f"logs of {name}"),
        ],
    ]  # fmt: skip


def _processes(status: GatewayStatus) -> Iterator[Sequence[Node]]:
    for front in status.fronts:
        figures = f"connections {front.connections}, sessions {front.sessions}"
        yield f"front-{front.number}", ui.state(front.state), str(front.pid), columns.NONE, figures
    for role in status.roles:
        counts = ", ".join(f"{label} {count}" for label, count in role.counts.items())
        memory = ui.size(role.memory_bytes) if role.memory_bytes else columns.NONE
        pid = str(role.pid) if role.pid else columns.NONE
        yield ui.shorten(role.role), ui.state(role.state), pid, memory, ui.shorten(counts)


def _client_files(status: GatewayStatus) -> Sequence["ClientFile"]:
    """Return the files of clients that the user of the gateway has."""
    from metamcp_supervisor.client_files import clients, disk  # loads a lot, for this page

    url = urlsplit(status.url)
    try:
        return disk.every({clients.DEFAULT_ORIGIN, f"{url.scheme}://{url.netloc}"})
    except (OSError, RuntimeError):  # the user has no home, or the folder is gone
        return ()


def _welcome(status: GatewayStatus, client_files: Sequence["ClientFile"], role: Role) -> Node:
    """Return the page for a gateway that has no server yet."""
    files = ", ".join(status.config_files) or "no file yet"
    return [
        ui.build_heading("Welcome", h.p[columns.status_head(status)]),
        h.p["The gateway runs, and no server is configured. Take those of another client, or add"
            " one. A gateway of 'metamcp up' shows them at once, any other one after"
            " 'metamcp reload'."],
        edit_page.links(role, EDITS),
        _clients(status, client_files),
        ui.code(
            "metamcp add time -- uvx mcp-server-time", copy=True, label="Or add one by its command"
        ),
        ui.code(
            f"claude mcp add --transport http metamcp {status.url}", copy=True,
            label="Then connect a client, for example Claude Code",
        ),
        ui.pairs([
            ("Configuration", ui.shorten(files)), ("State", ui.shorten(status.state_dir)),
            ("Clients", status.url), ("Metrics", status.ops_url),
        ]),
    ]  # fmt: skip


def _clients(status: GatewayStatus, client_files: Sequence["ClientFile"]) -> Node:
    """Return the table of clients' files with servers, each with the command that imports them."""
    rows = [
        (
            client_file.client.title,
            h.code[ui.shorten(str(client_file.path), 300)],
            "" if client_file.why else ui.amount(len(client_file.servers)),
            ui.shorten(f"The file {client_file.why}", 300)
            if client_file.why
            else ui.code(_import(client_file, status), copy=True),
        )
        for client_file in client_files
        if client_file.servers or client_file.why
    ]
    if not rows:
        label = (
            "No client of the gateway's user has servers; this command looks in your folder, too"
        )
        return ui.code("metamcp import", copy=True, label=label)
    heads = ("Client", "File", "Servers", "Take them")
    return ui.table("Servers of other clients", heads, rows, empty="", numbers=("Servers",))


def _import(client_file: "ClientFile", status: GatewayStatus) -> str:
    """Return the command that copies the servers of a file into the configuration in use."""
    words = ["metamcp", "import", client_file.client.name]
    if status.config_files and status.config_files[0].endswith(".toml"):
        words += ["--to", status.config_files[0]]
    command = shlex.join(words)
    return f"cd {shlex.quote(client_file.base)} && {command}" if client_file.base else command


PAGE = Page(
    name="servers", title="Servers", show=show, change=change, live=("servers", "calls", "times")
)
