"""How long a server may be held back for what it sends unasked before it is put away.

Owns: the bounds, and the time of one copy against them. Never: holding it back (its worker does, by
the budget of `metamcp_worker.child.budget`), stopping anything (`crew`).

Theory. A worker that does not read on makes its server wait, so a server that sends without end
takes little from others. It serves badly, though: answers come late, and what it says is mostly
noise. A restart does not change what a program writes, so such a server is not started again by
itself.
"""

from dataclasses import dataclass

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
