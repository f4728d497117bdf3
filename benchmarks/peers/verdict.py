"""The bars of the comparison: how far ahead of the others the gateway has to be. Pure.

Owns: the goals and what they are computed from. Never: measuring.
"""

from collections.abc import Iterable, Iterator, Mapping

from benchmarks.figures import Bar, Row, Table, compared, least, most
from benchmarks.peers.plans import OURS, OWN, PEERS

RATES = (("mcp-proxy (npm)", 64, 3.5, 3.5), ("mcp-hub", 64, 1.6, 2.2))
"""Beside whom, at how many callers, how many times its calls/s: pure, and compiled."""
INTERPRETED = tuple(peer.name for peer in PEERS if not peer.program)
"""Beside whom latencies have goals. Beside the others the page has figures."""
LATENCIES = ("p50 ms", "p99 ms")


def bars(ladder: Table) -> tuple[Bar, ...]:
    """Those of the pure gateway, then those of the compiled one, as far as they were measured."""
    rows = {row.name: row for row in ladder.rows}
    return tuple(bar for at, name in enumerate(OWN) for bar in _bars_of(name, at, rows))


def _bars_of(own: str, at: int, rows: Mapping[str, Row]) -> Iterator[Bar]:
    for name, callers, *limits in RATES:
        ours, theirs = rows.get(f"{own} {callers}"), rows.get(f"{name} {callers}")
        if ours is not None and theirs is not None:
            found = compared(ours, theirs, "calls/s")
            yield least(f"{own}, calls/s beside {name}, callers: {callers}", found, limits[at])
    for callers in callers_of(rows):
        ours = rows.get(f"{own} {callers}")
        for figure in LATENCIES:
            others = {
                name: row
                for name in INTERPRETED
                if (row := rows.get(f"{name} {callers}")) is not None
            }
            if ours is not None and others:
                name = min(others, key=lambda name: others[name][figure])
                what = f"{own}, {figure.split()[0]} beside the least, that of {name}"
                found = compared(ours, others[name], figure)
                yield most(f"{what}, callers: {callers}", found, 1.0)


def callers_of(names: Iterable[str]) -> list[int]:
    """Of rows that are called `name callers`."""
    return sorted({int(name.rpartition(" ")[2]) for name in names})


def wrong(tables: Iterable[Table]) -> int:
    """Answers of ours that were not the right one: what others answer is no fault of ours."""
    return sum(
        row.wrong for table in tables for row in table.rows
        if row.name == OURS or row.name.startswith(f"{OURS} ")
    )  # fmt: skip
