"""The bars of the comparison: how far ahead of the others the gateway has to be. Pure.

Owns: the goals and what they are computed from. Never: measuring.
"""

from collections.abc import Iterable

from benchmarks.figures import Bar, Table, least, most, ratio
from benchmarks.peers.plans import OURS, PEERS

RATES = (("mcp-proxy (npm)", 64, 3.5, 3.5), ("mcp-hub", 64, 1.6, 2.2))
"""Beside whom, at how many callers, how many times its calls/s: pure, and compiled."""
INTERPRETED = tuple(peer.name for peer in PEERS if not peer.compiled)
"""Beside whom latencies have goals. Beside the others the page has figures."""
LATENCIES = ("p50 ms", "p99 ms")


def bars(ladder: Table, *, compiled: bool = False) -> tuple[Bar, ...]:
    """`compiled`: our gateway was."""
    rows = {row.name: row for row in ladder.rows}
    judged: list[Bar] = []
    for name, callers, *limits in RATES:
        ours, theirs = rows.get(f"{OURS} {callers}"), rows.get(f"{name} {callers}")
        if ours is not None and theirs is not None:
            value = ratio(ours["calls/s"], theirs["calls/s"])
            limit = limits[compiled]
            judged.append(least(f"calls/s beside {name}, callers: {callers}", value, limit))
    for callers in callers_of(rows):
        ours = rows.get(f"{OURS} {callers}")
        for figure in LATENCIES:
            others = [
                (rows[key][figure], name)
                for name in INTERPRETED
                if (key := f"{name} {callers}") in rows
            ]
            if ours is not None and others:
                best, name = min(others)
                what = f"{figure.split()[0]} beside the least, that of {name}, callers: {callers}"
                judged.append(most(what, ratio(ours[figure], best), 1.0))
    return tuple(judged)


def callers_of(names: Iterable[str]) -> list[int]:
    """Of rows that are called `name callers`."""
    return sorted({int(name.rpartition(" ")[2]) for name in names})


def wrong(tables: Iterable[Table]) -> int:
    """Answers of ours that were not the right one: what others answer is no fault of ours."""
    return sum(
        row.wrong for table in tables for row in table.rows
        if row.name == OURS or row.name.startswith(f"{OURS} ")
    )  # fmt: skip
