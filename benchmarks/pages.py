"""What a result says on a page: charts, tables, goals. Pure: a result in, text out.

Owns: the parts of `docs/performance.md` between markers, and which figures its charts show. Never:
files, the words around the parts.

A part begins with `<!-- NAME -->` and ends with `<!-- end NAME -->`; what is between is replaced.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from benchmarks import charts, tables
from benchmarks.charts import Series
from benchmarks.figures import Result, Row, Table, speed

FOLDER = "performance"
"""Of the charts, beside the page."""
BESIDE = ("direct", "ceiling", "bare")
GATEWAY = ("legacy", "modern", "rest", "sse", "connect")
MARKED = re.compile(r"<!-- (?P<name>\w+) -->\n.*?<!-- end (?P=name) -->", re.DOTALL)
GROWN_WITH = ("servers", "sessions")
CURVES: Mapping[str, tuple[str, float]] = {
    "ready s": ("start, ms", 1000),
    "reload ms": ("reload, ms", 1),
    "status ms": ("ctl status, ms", 1),
    "scrape cpu ms": ("scrape, CPU ms", 1),
    "idle ms/s": ("idle, CPU ms/s", 1),
    "MiB": ("memory, MiB", 1),
}
"""What is drawn of growth, by the name of the figure: how it is called there, and times what."""
CPU_AT = 64
"""Callers at which processor time is shown."""


def filled(text: str, result: Result, compiled: Result | None = None) -> str:
    """The page with every part anew; one that this result has nothing for becomes empty.
    `compiled`: result of a compiled gateway."""
    found = parts(result)
    if compiled is not None:
        found["compiled"] = f"{about(compiled)}{goals(compiled)}"

    def part(mark: re.Match[str]) -> str:
        name = mark["name"]
        return f"<!-- {name} -->\n{found.get(name, '')}\n<!-- end {name} -->"

    return MARKED.sub(part, text)


def parts(result: Result) -> dict[str, str]:
    found = {"run": about(result), "goals": goals(result)}
    found |= {table.scenario: section(table) for table in result.tables}
    if "growth" in found:
        drawn = "\n\n".join(
            f"![Growth with {kind}]({FOLDER}/growth-{kind}.svg)" for kind in GROWN_WITH
        )
        found["growth"] = f"\n{drawn}\n{found['growth']}"
    return found


def about(result: Result) -> str:
    machine, versions = result.machine, result.versions
    commit = f", commit {result.commit}" if result.commit else ""
    return (
        f"\nMeasured on {result.date[:10]}{commit}: {machine['cpu']}, {machine['cores']} cores,"
        f" {machine['kernel']}, Python {machine['python']},"
        f" {', '.join(f'{name} {version}' for name, version in versions.items())}."
        f"{built(machine)}"
        f" One caller straight over the pipes of the child made {tables.floor(result)} everything"
        f" else: {speed(result.floor):.2f} times the machine that absolute goals were set for."
        f"{f' **{said}**' if (said := tables.unrest(result)) else ''}\n"
    )


def built(machine: Mapping[str, str]) -> str:
    """How what was measured was made, and what made the load, as far as the result has it."""
    if "gateway" not in machine:
        return ""
    return (
        f" The interpreter: {machine['built']}. The gateway is {machine['gateway']}."
        f" The load comes from {machine['generator']}."
    )


def goals(result: Result) -> str:
    machine = speed(result.floor)
    bars = [bar for table in result.tables for bar in table.bars]
    head, *rows = tables.bar_cells(bars, machine)
    met = f"{sum(bar.met for bar in bars)} of {len(bars)} are met."
    return f"\n{_markdown([[*head[:-1], 'met'], *_answers(rows)])}\n\n{met}\n"


def _answers(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[*row[:-1], "yes" if row[-1] == "met" else "**no**"] for row in rows]


def section(table: Table) -> str:
    said = [f"> {line}" for line in table.said]
    return "\n" + "\n".join([_markdown(tables.cells(table)), *([""] if said else []), *said]) + "\n"


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    rule = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, rule, *body])


# --- charts ---------------------------------------------------------------------------------------


def pictures(result: Result) -> dict[str, str]:
    """The charts that this result has the figures for, by the names of their files."""
    found: dict[str, str] = {}
    if (ladder := result.table("ladder")) is not None:
        x = "callers, each with one call at a time"
        for name, figure, title in (
            ("calls", "calls/s", "Calls per second"),
            ("p50", "p50 ms", "Latency of a call in the middle (p50)"),
            ("p99", "p99 ms", "Latency of the slowest call of a hundred (p99)"),
        ):
            ticks, series = _by_callers(ladder, figure)
            unit = "calls per second" if figure == "calls/s" else "milliseconds"
            found[f"{name}.svg"] = charts.lines(title, x, f"{unit}, scale of tens", ticks, series)
        found["cpu.svg"] = _cpu(ladder)
    if (memory := result.table("memory")) is not None:
        found["memory.svg"] = _memory(memory)
    if (growth := result.table("growth")) is not None:
        found |= {f"growth-{kind}.svg": _growth(growth, kind) for kind in GROWN_WITH}
    return found


def _by_callers(ladder: Table, figure: str) -> tuple[list[str], list[Series]]:
    rows = {row.name: row for row in ladder.rows}
    ticks = list(dict.fromkeys(row.name.split()[1] for row in ladder.rows))
    series = [
        Series(name, tuple(rows[f"{name} {tick}"][figure] for tick in ticks), name in BESIDE)
        for name in (*BESIDE, *GATEWAY)
    ]
    return ticks, series


def _cpu(ladder: Table) -> str:
    callers = max(int(row.name.split()[1]) for row in ladder.rows if _at_most(row))
    rows = [ladder.row(f"{name} {callers}") for name in (*BESIDE[1:], *GATEWAY[:-1])]
    return charts.bars(
        f"Processor time of one call at {callers} callers",
        "what is called",
        "microseconds per call",
        [row.name.split()[0] for row in rows],
        _by_role(rows, ("front", "worker", "others"), lambda role: f"{role} us/call"),
    )


def _at_most(row: Row) -> bool:
    return int(row.name.split()[1]) <= CPU_AT


def _memory(memory: Table) -> str:
    roles = ("supervisor", "nursery", "front", "worker")
    return charts.bars(
        "Memory of the gateway's own processes",
        "number of servers",
        "MiB (PSS)",
        [row.name.split()[0] for row in memory.rows],
        _by_role(memory.rows, roles, lambda role: f"{role} MiB"),
    )


def _growth(growth: Table, kind: str) -> str:
    rows = [row for row in growth.rows if row.name.endswith(f" {kind}")]
    series = [
        Series(name, tuple(row[figure] * times for row in rows))
        for figure, (name, times) in CURVES.items()
        if figure in rows[0].figures
    ]
    ticks = [row.name.split()[0] for row in rows]
    return charts.lines(
        f"Growth with {kind}", f"number of {kind}", "each in its unit, scale of tens", ticks, series
    )


def _by_role(
    rows: Sequence[Row], roles: Sequence[str], named: Callable[[str], str]
) -> list[Series]:  # fmt: skip
    def of(row: Row, role: str) -> float:
        return row[named(role)] if named(role) in row.figures else 0.0

    return [Series(role, tuple(of(row, role) for row in rows)) for role in roles]
