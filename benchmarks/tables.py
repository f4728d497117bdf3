"""A result as text for a terminal. Pure: values in, lines out.

Owns: columns, how many digits a figure has, the words of a bar. Never: measuring, printing.
"""

from collections.abc import Sequence

from benchmarks.figures import Bar, Result, Row, Table, speed

COLUMN_MIN = 9
LOAD_QUIET_MAX = 1.0
"""Processes that wanted a processor, in the minute before a run."""


def digits(value: float) -> str:
    """Three that say something, and thousands apart."""
    size = abs(value)
    if size == 0 or size >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 1 else f"{value:.3f}"


def columns(table: Table) -> list[str]:
    """The names of all figures of all rows, in the order in which they come."""
    return list(dict.fromkeys(name for row in table.rows for name in row.figures))


def cells(table: Table) -> list[list[str]]:
    """Head and rows of a table, and the spread of the first figure of each row."""
    names = columns(table)
    several = any(_spread(row) for row in table.rows)
    head = [table.scenario, *names, *(["spread"] if several else [])]
    body: list[list[str]] = []
    for row in table.rows:
        found = [digits(row[name]) if name in row.figures else "" for name in names]
        body.append([row.name, *found, *([_spread(row)] if several else [])])
    return [head, *body]


def _spread(row: Row) -> str:
    for lead in row.figures.values():
        return from_to(min(lead.rounds), max(lead.rounds)) if len(lead.rounds) > 1 else ""
    return ""


def from_to(low: float, high: float) -> str:
    """`1.20 to 1.45`"""
    return f"{digits(low)} to {digits(high)}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """The first column to the left, all others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    widths[1:] = [max(width, COLUMN_MIN) for width in widths[1:]]
    return [
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def goal(bar: Bar) -> str:
    """`at least 0.75`"""
    unit = "" if bar.unit in {"x", "exit code"} else f" {bar.unit}"
    return f"{'at least' if bar.at_least else 'at most'} {digits(bar.limit)}{unit}"


def bar_cells(bars: Sequence[Bar], machine: float) -> list[list[str]]:
    """Absolute goals with the speed of this machine beside the one that they were set for."""
    rows = [["goal", "here", "bar", "machine", ""]]
    for bar in bars:
        beside = f"{machine:.2f}x" if bar.absolute else "any"
        spread = f" ({from_to(*bar.spread)})" if bar.spread is not None else ""
        here = f"{digits(bar.value)}{spread}"
        rows.append([bar.what, here, goal(bar), beside, "met" if bar.met else "MISSED"])
    return rows


def lines_of(table: Table, machine: float, *, judged: bool) -> list[str]:
    found = ["", f"{table.title}", *aligned(cells(table)), *table.said]
    if table.wrong:
        found.append(f"WRONG ANSWERS: {table.wrong}")
    if table.bars and judged:
        found += ["", *aligned(bar_cells(table.bars, machine))]
    return found


def floor(result: Result) -> str:
    """`22,500 calls/s before and 20,000 calls/s after`"""
    return " and ".join(f"{digits(rate)} calls/s {when}" for when, rate in result.floor.items())


def unrest(result: Result) -> str:
    """A sentence, if the machine had other things to do when the run began."""
    load = float(result.machine.get("load", "0"))
    if load <= LOAD_QUIET_MAX:
        return ""
    return f"The machine was not quiet (load {load:.1f} before it began): measure again."


def summary(result: Result) -> list[str]:
    """What stands at the end."""
    beside = f"{speed(result.floor):.2f} of the machine that absolute bars were set for"
    found = ["", f"floor: {floor(result)} everything else, {beside}"]
    if said := unrest(result):
        found.append(said)
    if result.wrong:
        found.append(f"{result.wrong} answers were wrong")
    if result.quick:
        return [*found, "a smoke run: its figures mean nothing, and no bar was looked at"]
    missed = result.missed
    count = sum(len(table.bars) for table in result.tables)
    found.append(f"{count - len(missed)} of {count} bars are met")
    return [*found, *(f"  missed: {bar.what}" for bar in missed)]
