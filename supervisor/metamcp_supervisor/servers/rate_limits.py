"""Rates of a server that the gateway bounds: changes of lists, and the time that floods may last.

Owns: the bounds and their arithmetic. Never: clocks, holding a server back (its worker does).

Theory. A client that hears of a changed list fetches it anew, and a model whose tools changed pays
for the whole conversation again. A server that crashes every few seconds would do that to all
clients each time. So its tools stay as they are for a while, listed or not: who calls one that is
listed and away is told so, and who knows the name of one that is not listed may call it.

Theory. A worker that does not read on makes its server wait, so a server that sends without end
takes little from others. It serves badly, though: answers come late, and what it says is mostly
noise. A restart does not change what a program writes, so such a server is not started again by
itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

LIST_CHANGES_MAX = 2
"""Away and back again, once."""
LIST_CHANGES_S = 60.0


def wait_s(changes: Sequence[float], now: float) -> float:
    """Seconds until the lists may change once more; `changes`: when they did, oldest first."""
    if len(changes) < LIST_CHANGES_MAX:
        return 0.0
    return max(0.0, changes[-LIST_CHANGES_MAX] + LIST_CHANGES_S - now)


def noted(changes: Sequence[float], now: float) -> tuple[float, ...]:
    """They changed now; no more is kept than what counts."""
    return (*changes, now)[-LIST_CHANGES_MAX:]


GAP_S = 5.0
"""Without being held back for so long, a server has stopped."""
TOLD_S = 10.0
"""A server that is held back for so long is said to be throttled; below, it was a burst."""
FLOOD_S = 60.0

THROTTLED = "throttled"
"""The reason in the status of a server that is held back and serves."""
HELD_BACK = (
    "it sends more notifications, requests or noise than its budget allows, so its worker reads it "
    "more slowly"
)


@dataclass(frozen=True, slots=True)
class Flood:
    """It was held back from the time `since` of the monotonic clock until `until`."""

    since: float = float("-inf")
    until: float = float("-inf")


def held_back(flood: Flood, now: float) -> Flood:
    """It is, at this time."""
    return Flood(now if now - flood.until > GAP_S else flood.since, now)


def throttled(flood: Flood, now: float) -> bool:
    """Is this more than a burst?"""
    return now - flood.until <= GAP_S and flood.until - flood.since >= TOLD_S


def too_long(flood: Flood) -> str:
    """Is it put away for that? A sentence that begins with "it", or nothing."""
    if flood.until - flood.since < FLOOD_S:
        return ""
    return (
        f"it was throttled for {FLOOD_S:.0f} s: it sends notifications, requests or noise without "
        "end; what it logs belongs on stderr"
    )
