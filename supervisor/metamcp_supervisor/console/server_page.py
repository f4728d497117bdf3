"""Page of one server: why it is in its state, what happened to it, its settings and processes.

Owns: the parts of the page, and orders for this server. Never: the sentences
(`wording.descriptions` and the gateway), masking secrets (the gateway).
"""

import contextlib
import time
from collections.abc import Iterator, Sequence

import htpy as h
from htpy import Element, Node

from metamcp_supervisor.console import calls_page, edit_page
from metamcp_supervisor.console import fragments as ui
from metamcp_supervisor.console.pages import Ask, PageRequest
from metamcp_supervisor.control.access import Role
from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import Description, GatewayStatus, JournalEvent
from metamcp_supervisor.wording import descriptions
from metamcp_worker.ipc import codec

EVENTS_MAX = 100
"""Maximum events in the timeline."""
_OWN = {"set", "source"}
"""Labels of facts that the page shows in its own way."""
_RUNS = {"ready", "active", "warming", "error", "draining"}
#: Orders with the states in which they make sense, the lowest role, and whether they disturb.
_ORDERS = (
    ("start", "Start", {"stopped", "idle", "error"}, Role.OPERATOR, False),
    ("restart", "Restart", _RUNS, Role.OPERATOR, True),
    ("stop", "Stop", {"idle", *_RUNS}, Role.OPERATOR, True),
    ("drain", "Drain", {"ready", "active"}, Role.OPERATOR, True),
    ("undrain", "Undrain", {"draining"}, Role.OPERATOR, False),
    ("quarantine", "Quarantine", {"ready", "active", "idle", "error"}, Role.ADMIN, True),
    ("clear", "Let out of quarantine", {"quarantined"}, Role.ADMIN, False),
)  # fmt: skip


async def show(ask: Ask, request: PageRequest) -> Node:
    name = request.path[0]
    description = codec.decode_as(Description, await ask("describe", {"name": name}))
    items = await ask.items("events", {"who": name, "n": EVENTS_MAX})
    events = [codec.decode_as(JournalEvent, item) for item in items]
    status, now = codec.decode_as(GatewayStatus, await ask("status")), time.time()
    minutes: list[int] = []
    with contextlib.suppress(Failed):  # the page is there without recorded calls
        recent = await calls_page.recent_calls(status.state_dir)
        minutes = calls_page.by_minute(recent, description.server.name, now)
    return page(description, events, request.role, now, minutes)


async def change(ask: Ask, request: PageRequest) -> Node:
    name, order = request.path[0], request.form.get("order", "")
    if order not in {verb for verb, *_ in _ORDERS}:
        notice = ui.notice(f"No order is named '{order}'.", "bad")
    else:
        answer = await ask(order, {"names": [name]})
        notice = build_notice(f"{name}: {order} was ordered.", answer)
    return [notice, await show(ask, request)]


def build_notice(text: str, answer: bytes) -> Element:
    """Return the sentence about an order, with what its answer warns of."""
    warning: str = codec.value(answer).get("warning", "")
    return ui.notice(text, "warn", [warning]) if warning else ui.notice(text)


def page(
    description: Description,
    events: Sequence[JournalEvent],
    role: Role,
    now: float,
    minutes: Sequence[int] = (),
) -> Node:
    """Return the content of the page. `now`: seconds since the epoch; `minutes`: recorded calls of
    each of the last minutes, the oldest first."""
    server, processes = description.server, descriptions.processes(description.processes)
    switch = "enable" if description.config.get("enabled") is False else "disable"
    return [
        ui.build_heading(ui.shorten(server.name), ui.state(server.state)),
        ui.tabs(
            ui.address("servers", server.name),
            [
                (ui.address("servers", server.name), "Overview"),
                (ui.address("logs", server.name), "Logs"),
                (ui.address("tools", query={"server": server.name}), "Tools"),
                (ui.address("calls", query={"server": server.name}), "Calls"),
            ],
        ),
        h.p(class_="beside")[_orders(server.name, server.state, role)],
        role < Role.OPERATOR and ui.needs("steer a server", Role.OPERATOR),
        edit_page.links(role, (switch, "rename", "remove"), server=server.name),
        ui.pairs([*_facts(description, now), *_minutes(minutes)]),
        h.h2["What happened"],
        ui.table(
            "Events of this server, the newest first",
            ("When", "Event", "Cause"),
            (
                [ui.render_time(event.time), ui.shorten(event.what), ui.shorten(event.cause, 1000)]
                for event in reversed(events)
            ),
            empty="Nothing is kept about this server.",
        ),
        h.h2["Exits"],
        ui.table(
            "Times it went down by itself, the newest first",
            ("When", "Start", "Ready for", "Reason", "Then", "Message"),
            _exits(description, now),
            empty="It never went down by itself.",
        ),
        h.h2["Processes"],
        ui.table(
            "Processes of this server",
            ("Id", "Memory", "Own share", "Processor", "Files", "Command"),
            ([*row[:-1], _command(row[-1])] for row in processes),
            empty="No process runs.",
            numbers=("Memory", "Own share", "Processor", "Files"),
        ),
        h.h2["Settings in effect"],
        ui.pairs(
            (ui.shorten(key), h.code[ui.shorten(codec.dump(value).decode(), 2000)])
            for key, value in description.config.items()
        ),
        description.source and h.p["Written in ", h.code[ui.shorten(description.source)], "."],
        h.h2["Last lines"],
        ui.code("\n".join(line.text for line in description.log) or "none", label="of its log"),
    ]


def _facts(description: Description, now: float) -> Iterator[tuple[str, Node]]:
    """Yield what `ctl describe` says at the top, with moments in the time of the browser."""
    _, *facts = descriptions.facts(description, now)
    since = [" since ", ui.render_time(description.since), f" ({ui.ago(now - description.since)})"]
    yield "state", [description.server.state, since if description.since else None]
    yield from ((label, ui.shorten(text)) for label, text in facts if label not in _OWN)
    for override in description.overrides:
        suffix = ui.shorten(f" (else {override.written})")
        yield (
            "set",
            [
                ui.shorten(f"{override.key} {override.value} until "),
                ui.render_time(override.until),
                suffix,
            ],
        )


def _minutes(counts: Sequence[int]) -> Iterator[tuple[str, Node]]:
    if any(counts):
        yield "recorded calls", calls_page.sparkline(counts)


def _exits(description: Description, now: float) -> Iterator[Sequence[Node]]:
    for ended, row in zip(
        reversed(description.exits), descriptions.exits(description, now), strict=True
    ):
        yield ui.render_time(ended.time), *map(ui.shorten, row[1:])


def _orders(name: str, state: str, role: Role) -> list[Element]:
    return [
        ui.action(
            ui.address("servers", name),
            label,
            {"order": order},
            confirm=f"{label} {name}?" if disturbs else "",
            danger=disturbs,
        )
        for order, label, states, least, disturbs in _ORDERS
        if state in states and role >= least
    ]


def _command(text: str) -> Element:
    return h.code[ui.shorten(text, 400)]
