"""The committed dashboards as values, and their expressions as Prometheus gets them."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "grafana" / "dashboards"
GATEWAY = "job"
"""A variable that all dashboards have."""
ANYTHING = ".*"
RATE = "$__rate_interval"


@dataclass(frozen=True, slots=True)
class Query:
    expr: str
    legend: str
    instant: bool


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `board`: the name of its file; `row`: the heading it stands below."""

    board: str
    row: str
    title: str
    kind: str
    raw: Mapping[str, Any]
    queries: tuple[Query, ...]

    @property
    def name(self) -> str:
        return f"{self.board} / {self.row} / {self.title}"


def boards() -> dict[str, dict[str, Any]]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def panels() -> list[Panel]:
    """All that ask for something, in the order in which they stand."""
    return [one for one in everything() if one.queries]


def everything() -> list[Panel]:
    found: list[Panel] = []
    for board, whole in boards().items():
        row = ""
        for raw in whole["panels"]:
            if raw["type"] == "row":
                row = raw["title"]
                continue
            queries = tuple(
                Query(one["expr"], one.get("legendFormat", ""), bool(one.get("instant")))
                for one in raw.get("targets", [])
            )
            found.append(Panel(board, row, raw.get("title", ""), raw["type"], raw, queries))
    return found


def filled(expr: str, values: Mapping[str, str], interval: str) -> str:
    """With values for the variables; those that are not named stand for everything."""
    text = expr.replace(RATE, interval)
    return re.sub(r"\$(\w+)", lambda found: values.get(found[1], ANYTHING), text)
