"""Page of the servers: the words of `ctl status`, what is wrong now, and orders for servers.

Owns: columns, filter and orders of the page.
"""

import htpy as h
from htpy import Node

from metamcp_supervisor.cli import columns
from metamcp_supervisor.console import fragments as ui
from metamcp_supervisor.console.pages import Ask, Page, PageRequest
from metamcp_supervisor.verbs import GatewayStatus
from metamcp_worker.ipc import codec


async def show(ask: Ask, request: PageRequest) -> Node:
    status = codec.typed(GatewayStatus, await ask("status"))
    return [
        ui.heading("Servers", h.p[columns.status_head(status)]),
        ui.table(
            "Servers of this gateway",
            columns.STATUS,
            (
                [
                    ui.link(ui.address("servers", row[0]), ui.shown(row[0])),
                    ui.state(row[1]),
                    *map(ui.shown, row[2:]),
                ]
                for row in columns.status_rows(status)
            ),
            empty="No servers are configured.",
            numbers=columns.RIGHT,
        ),
    ]


PAGE = Page(name="servers", title="Servers", show=show, live=("servers", "calls"))
