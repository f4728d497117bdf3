"""Draws docs/images/dashboards.svg anew: `python -m tests.observability.draw`.

A gateway goes wrong in front of a real Prometheus, as in the tests; the picture is what the queries
of the main panels give. It takes about a minute.
"""

import re
import sys
import tempfile
from pathlib import Path

from deploy.grafana.queries import STATES
from tests.observability import faults
from tests.observability.boards import ROOT, Panel, filled, panels
from tests.observability.drawing import Chart, Line, picture
from tests.observability.faults import Run

PICTURE = ROOT / "docs" / "images" / "dashboards.svg"
RATE = "5s"
SHOWN = (
    "overview / Calls / Requests by server",
    "overview / Calls / Failing by server",
    "overview / Calls / Time of a request",
    "overview / Servers / States",
    "overview / What changed / Restarts",
    "overview / Calls / Errors by type",
    "server / Calls / Whose time it is",
    "fronts / The gateway's own time / What the gateway adds",
    "fronts / Clients / Connections in the queue",
    "capacity / Memory / Memory by server",
    "capacity / Memory / Share of the limit",
    "capacity / Processor, files, threads / Processor by role",
)
"""The panels in the picture, in this order."""


def named(legend: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{(\w+)}}", lambda found: labels.get(found[1], ""), legend)


def chart(run: Run, panel: Panel) -> Chart:
    lines: list[Line] = []
    for query in panel.queries:
        found = run.prometheus.over(filled(query.expr, {}, RATE), run.begin, run.end)
        lines += [
            Line(
                named(query.legend, one.labels),
                tuple((at - run.begin, value) for at, value in one.points),
            )
            for one in found
        ]
    board, _, title = panel.name.partition(" / ")
    unit = str(panel.raw["fieldConfig"]["defaults"]["unit"])
    words = STATES if panel.kind == "state-timeline" else ()
    return Chart(f"{title.rpartition(' / ')[2]} ({board})", unit, tuple(lines), words)


def drawn(run: Run) -> str:
    by_name = {panel.name: panel for panel in panels()}
    charts = [chart(run, by_name[name]) for name in SHOWN]
    return picture("The main panels of the dashboards", charts, run.end - run.begin)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder, faults.running(Path(folder)) as run:
        text = drawn(run)
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
