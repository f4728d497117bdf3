"""docs/runbook.md as a dashboard, so that a link from an alert leads somewhere inside Grafana."""

import re
from pathlib import Path

from grafana_foundation_sdk.models import dashboard

from deploy.grafana.frame import Row, framed
from deploy.grafana.panels import prose

PAGE = Path(__file__).parents[2] / "docs" / "runbook.md"
LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


def runbook() -> dashboard.Dashboard:
    head, *parts = PAGE.read_text().split("\n## ")
    rows: list[Row] = [Row("How to use it", [prose("", _plain(head.partition("\n")[2]), height=5)])]
    for part in parts:
        title, _, body = part.partition("\n")
        height = 3 + len(body.strip().splitlines()) * 2 // 3
        rows.append(Row(title, [prose("", _plain(body), height=height)]))
    return framed(
        "metamcp-runbook", "Runbook", "What each alert means, what to look at, what to do.", rows
    )


def _plain(markdown: str) -> str:
    """Without links: they lead to pages that are not in Grafana."""
    return LINK.sub(r"\1", markdown).strip()
