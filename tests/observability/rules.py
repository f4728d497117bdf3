"""The rules as values, and copies of them whose times are seconds where they were minutes."""

import re
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "prometheus"
CONFIG = FOLDER / "prometheus.yml"
UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
WINDOW_S = (4, 20)
"""A shortened window: at least some scrapes long, at most what a test can wait for."""
FOR_S_MAX = 5
SHORTER = 60
"""A minute becomes a second."""


class Rule(msgspec.Struct, frozen=True):
    """`for_`: how long an alert waits before it fires."""

    expr: str
    record: str = ""
    alert: str = ""
    for_: str = msgspec.field(name="for", default="0s")
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Group(msgspec.Struct, frozen=True):
    name: str
    rules: list[Rule]


class File(msgspec.Struct, frozen=True):
    groups: list[Group]


def rules(name: str) -> list[Rule]:
    found = msgspec.yaml.decode((FOLDER / name).read_bytes(), type=File)
    return [rule for group in found.groups for rule in group.rules]


def alerts() -> list[Rule]:
    return rules("alerts.yml")


def seconds(text: str) -> int:
    found = re.fullmatch(r"(\d+)([smhd])", text)
    assert found, text
    return int(found[1]) * UNITS_S[found[2]]


def shortened(name: str) -> str:
    """The text of a file of rules, every window and wait in it made short."""

    def window(found: re.Match[str]) -> str:
        least, most = WINDOW_S
        shorter = min(max(seconds(found[2]) // SHORTER, least), most)
        return f"{found[1]}{shorter}s"

    def wait(found: re.Match[str]) -> str:
        return f"for: {min(seconds(found[1]) // SHORTER, FOR_S_MAX)}s"

    text = re.sub(r"(\[|offset )(\d+[smhd])", window, (FOLDER / name).read_text())
    return re.sub(r"for: (\d+\w)$", wait, text, flags=re.MULTILINE)
