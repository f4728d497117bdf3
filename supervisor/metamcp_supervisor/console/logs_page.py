"""Page of the logs: the last lines of one server or of two side by side, as they come.

Owns: filter and layout, the level of a line. Never: following (the script of the console asks again
when there is news), keeping lines (the gateway).
"""

import json
import re
from collections.abc import Sequence

import htpy as h
from htpy import Element, Node

from metamcp_supervisor.console import fragments as ui
from metamcp_supervisor.console.fragments import Tone
from metamcp_supervisor.console.pages import Ask, Page, PageRequest
from metamcp_supervisor.verbs import GatewayStatus, LogLine
from metamcp_worker.ipc import codec

LINES = 500
"""Lines that a page shows unless its request says otherwise."""
LINES_CHOICES = ("100", "500", "2000")
LINE_CHARS_MAX = 4000
"""Maximum characters of a line on the page; the download has all of it."""
_LEVEL = re.compile(
    r"\b(?P<bad>error|fatal|critical|panic|traceback|exception)\b|\b(?P<warn>warn(?:ing)?)\b", re.I
)


async def show(ask: Ask, request: PageRequest) -> Node:
    status = codec.decode_as(GatewayStatus, await ask("status"))
    names = [server.name for server in status.servers]
    selected = [*request.path[:1], request.query.get("beside", "")]
    query = request.query
    count = query.get("lines", "")
    lines = int(count) if count in LINES_CHOICES else LINES
    logs: list[tuple[str, list[LogLine]]] = []
    for name in dict.fromkeys(filter(None, selected or names[:1])):
        items = await ask.items("logs", {"name": name, "n": lines, "grep": query.get("q", "")})
        logs.append((name, [codec.decode_as(LogLine, item) for item in items]))
    return page(names, logs, request)


def page(
    names: Sequence[str], logs: Sequence[tuple[str, Sequence[LogLine]]], request: PageRequest
) -> Node:
    """Return the content of the page. `logs`: lines by server, oldest first."""
    first = logs[0][0] if logs else ""
    query = request.query
    others = [("", "none"), *((name, ui.shorten(name, 80)) for name in names if name != first)]
    return [
        ui.build_heading("Logs", h.p[ui.shorten(", ".join(name for name, _ in logs))]),
        h.nav(class_="tabs", aria_label="Servers")[
            [
                ui.link(
                    ui.address("logs", name, query={**query, "beside": ""}),
                    ui.shorten(name, 80),
                    aria_current="page" if name == first else None,
                )
                for name in names
            ]
        ],
        ui.search(
            ui.address("logs", *([first] if first else [])),
            query,
            "Only lines with",
            h.label[h.span["Beside it"], ui.choice("beside", others, query.get("beside", ""))],
            h.label[
                h.span["Lines"],
                ui.choice(
                    "lines",
                    [(count, count) for count in LINES_CHOICES],
                    query.get("lines", str(LINES)),
                ),
            ],
        )
        if first
        else h.p(class_="empty")["Choose a server." if names else "No servers are configured."],
        h.div(class_="logs")[[_log(name, lines) for name, lines in logs]],
    ]


def _log(name: str, lines: Sequence[LogLine]) -> Element:
    label = ui.shorten(name, 80)
    return h.section(aria_label=f"log of {label}")[
        h.h2[ui.link(ui.address("servers", name), label)],
        # No live region: a busy log would speak without end; the count of new lines is enough.
        h.ol(class_="log", id=f"log-{name}", data_log=True, tabindex="0", aria_label=label)[
            [_line(name, line) for line in lines]
        ],
        h.data(value=json.dumps([line.seq for line in lines]), hidden=True),
        h.button(type="button", data_newest=True, hidden=True)["new"],
        h.p(class_="beside")[
            f"{len(lines)} lines, level by content.",
            h.button(
                type="button",
                data_download=ui.address("download", "logs", name),
                data_name=f"{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.log",
            )["Download all that is kept"],
        ],
    ]


def _line(name: str, line: LogLine) -> Element:
    tone = level(line.text)
    return h.li(id=f"line-{line.seq}", data_seq=str(line.seq))[
        ui.render_time(line.time),
        tone and h.span(class_=f"level {tone}")["error " if tone == "bad" else "warning "],
        line.stream != "stderr" and h.span(class_="off")[f"{line.stream} "],
        ui.shorten(line.text, LINE_CHARS_MAX),
    ]


def level(text: str) -> Tone | None:
    """Return the tone of a line by its first word that names a level; None for the others."""
    match = _LEVEL.search(text, 0, 400)
    if match is None:
        return None
    return "bad" if match["bad"] else "warn"


PAGE = Page(name="logs", title="Logs", show=show, live=("config",))
