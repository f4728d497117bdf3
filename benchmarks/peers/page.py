"""The figures of docs/peers.md: blocks between marks, made anew from the JSON of a run. Pure.

Owns: which table has which columns, the marks, the form of the JSON. Never: the words around the
blocks, which are written by hand; measuring.
"""

import re
from collections.abc import Callable, Mapping, Sequence

import msgspec

from benchmarks.figures import Result, Row, Table, speed
from benchmarks.peers import ratios
from benchmarks.peers.plans import NAMES, OWN, PEERS
from benchmarks.peers.taken import (
    CALLERS,
    CALLERS_OF_MANY,
    COMES_BACK_S_MAX,
    CPU,
    DIRECT,
    NEW,
    SAME,
    TOLD,
)
from benchmarks.tables import bar_cells, digits, from_to, lines_of, summary

MARKED = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)
NONE = "-"
NOT_YET = "not measured yet"
WORDS_CHARS_MAX = 90
"""Of what a caller is told."""
QUIET_MIN = 0.7
"""Of the floor of a quiet machine; below it no figure is worth much by itself."""


def parsed(raw: bytes) -> Result:
    return msgspec.json.decode(raw, type=Result)


def written(result: Result) -> bytes:
    return msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n"


def words(result: Result) -> str:
    """For a terminal."""
    beside = speed(result.floor)
    found = [line for table in result.tables for line in lines_of(table, beside, judged=True)]
    return "\n".join([*found, *summary(result)])


def renewed(text: str, result: Result) -> str:
    """The page with the figures of this run. A mark that no block belongs to is a KeyError."""
    return MARKED.sub(lambda mark: mark[1] + BLOCKS[mark[2]](result) + mark[3], text)


def marks(text: str) -> list[str]:
    return [found[2] for found in MARKED.finditer(text)]


def markdown(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n" + "".join("| " + " | ".join(cells) + " |\n" for cells in lines) + "\n"


# --- blocks -----------------------------------------------------------------------------------


def run(result: Result) -> str:
    machine, floor = result.machine, result.floor
    commit = f", commit `{result.commit}`" if result.commit else ""
    rounds = max((row.rounds for table in result.tables for row in table.rows), default=1)
    return (
        f"\nRun of {result.date[:10]}{commit}: {machine['cores']} cores of {machine['cpu']},"
        f" {machine['kernel']}, Python {machine['python']}, Node.js"
        f" {result.versions.get('node', NONE)}; {rounds} rounds of {digits(result.seconds)} s. The"
        f" server straight over its pipes, one call at a time: {digits(floor['before'])} calls/s"
        f" before and {digits(floor['after'])} after everything else.{busy(floor)}\n\n"
    )


def busy(floor: Mapping[str, float]) -> str:
    """What a reader has to know of a run whose floor is far from that of a quiet machine."""
    if (here := speed(floor)) >= QUIET_MIN:
        return ""
    return (
        f" That is {digits(here)} of what a quiet machine of this size makes: this one was slow or"
        " had other work, so take the ratios, and not the figures."
    )


def compared(result: Result) -> str:
    body = [
        [
            peer.name,
            peer.language,
            f"`{peer.package}` from {peer.registry}",
            (result.versions[peer.name] or NONE) if peer.name in result.versions else NOT_YET,
        ]
        for peer in PEERS
    ]
    return markdown(["gateway", "written in", "package", "version"], body)


def places(result: Result) -> str:
    found = ratios.places(result)
    own = [name for name in OWN if any(name in place.own for place in found)]
    body = [
        [
            place.resource.what,
            *(digits(place.own[name]) if name in place.own else NONE for name in own),
            f"{place.against}: {digits(place.theirs)}",
            f"{place.best}, {digits(place.factor)} times",
        ]
        for place in found
    ]
    return markdown(["", *own, "best of the others", "who is better"], body)


def factors(result: Result) -> str:
    found = {
        f"{own} beside {peer.name}": ratios.factors(result, own, peer.name)
        for own in OWN
        for peer in PEERS
    }
    body = [
        [name, *(NONE if one is None else digits(one) for one in ones)]
        for name, ones in found.items()
        if any(ones)
    ]
    return markdown(["", *(one.what for one in ratios.RESOURCES)], body)


def rates(result: Result) -> str:
    return _by_callers(
        result, "ladder", CALLERS, (DIRECT, *NAMES),
        lambda row: _both(row, "calls/s"), "calls/s at",
    )  # fmt: skip


def latencies(result: Result) -> str:
    return _by_callers(
        result, "ladder", CALLERS, (DIRECT, *NAMES),
        lambda row: f"{digits(row['p50 ms'])} / {digits(row['p99 ms'])}", "p50 / p99 ms at",
    )  # fmt: skip


def processor(result: Result) -> str:
    return _by_callers(
        result, "ladder", CALLERS, NAMES,
        lambda row: _both(row, CPU), "CPU ms per call at",
    )  # fmt: skip


def many(result: Result) -> str:
    return _by_callers(
        result, "many", CALLERS_OF_MANY, NAMES,
        lambda row: f"{_both(row, 'calls/s')}; {digits(row['p50 ms'])} / {digits(row['p99 ms'])};"
        f" {_both(row, CPU)}",
        "calls/s; p50 / p99 ms; CPU ms per call at",
    )  # fmt: skip


def large(result: Result) -> str:
    head = ["gateway", "results/s", "p50 / p99 ms", "CPU ms per result"]
    return _rows(result, "large", (DIRECT, *NAMES), head, lambda row: [
        _both(row, "calls/s"),
        f"{digits(row['p50 ms'])} / {digits(row['p99 ms'])}",
        _both(row, CPU),
    ])  # fmt: skip


def lists(result: Result) -> str:
    head = ["gateway", "tools", "requests", "MB", "ms"]
    return _rows(result, "lists", NAMES, head, lambda row: [
        f"{row['tools']:,.0f}", f"{row['requests']:.0f}", digits(row["body MB"]),
        _both(row, "list ms"),
    ])  # fmt: skip


def footprint(result: Result) -> str:
    head = ["gateway", "PSS MiB, 1 server", "20 servers", "ready after s, 1 server", "20 servers"]
    one, more = _table(result, "footprint-one"), _table(result, "footprint-many")
    body: list[list[str]] = []
    for name in NAMES:
        rows = [_row(table, name) for table in (one, more)]
        if rows[0] is None:
            continue
        cells = [
            NONE if row is None else digits(row[figure])
            for figure in ("PSS MiB", "ready s")
            for row in rows
        ]
        body.append([name, *cells])
    return markdown(head, body)


def crash(result: Result) -> str:
    table = _table(result, "crash")
    told = dict(line.split(": ", 1) for line in table.said if ": " in line)
    never = f"not within {digits(COMES_BACK_S_MAX)} s"
    head = ["gateway", "the caller is told", "after ms", "works again, same session, s", "new one"]
    return _rows(result, "crash", NAMES, head, lambda row: [
        _code(told.get(row.name, "")),
        digits(row[TOLD]) if TOLD in row.figures else never,
        *(digits(row[name]) if name in row.figures else never for name in (SAME, NEW)),
    ])  # fmt: skip


def goals(result: Result) -> str:
    bars = [bar for table in result.tables for bar in table.bars]
    head, *body = bar_cells(bars, speed(result.floor))
    return markdown([head[0], head[1], head[2], "met"], [[*cells[:3], cells[4]] for cells in body])


BLOCKS: dict[str, Callable[[Result], str]] = {
    "run": run,
    "compared": compared,
    "places": places,
    "factors": factors,
    "rates": rates,
    "latencies": latencies,
    "processor": processor,
    "large": large,
    "many": many,
    "lists": lists,
    "footprint": footprint,
    "crash": crash,
    "goals": goals,
}


# --- cells ------------------------------------------------------------------------------------


def _table(result: Result, scenario: str) -> Table:
    return result.table(scenario) or Table(scenario, "", ())


def _row(table: Table, name: str) -> Row | None:
    return next((row for row in table.rows if row.name == name), None)


def _both(row: Row, figure: str) -> str:
    """The median, and the spread of the rounds as far as they are kept."""
    if figure not in row.figures:
        return NONE
    rounds = row.figures[figure].rounds
    median = digits(row[figure])
    return f"{median} ({from_to(min(rounds), max(rounds))})" if len(rounds) > 1 else median


def _by_callers(
    result: Result,
    scenario: str,
    callers: Sequence[int],
    names: Sequence[str],
    cell: Callable[[Row], str],
    head: str,
) -> str:
    table = _table(result, scenario)
    body: list[list[str]] = []
    for name in names:
        rows = [_row(table, f"{name} {count}") for count in callers]
        if any(row is not None for row in rows):
            body.append([name, *(NONE if row is None else cell(row) for row in rows)])
    return markdown(["gateway", *(f"{head} {count}" for count in callers)], body)


def _rows(
    result: Result,
    scenario: str,
    names: Sequence[str],
    head: Sequence[str],
    cells: Callable[[Row], Sequence[str]],
) -> str:
    table = _table(result, scenario)
    found = [row for name in names if (row := _row(table, name)) is not None]
    return markdown(head, [[row.name, *cells(row)] for row in found])


def _code(words: str) -> str:
    """As it came, so that a table can hold it."""
    plain = words.replace("|", "/").replace("`", "'")
    short = plain if len(plain) <= WORDS_CHARS_MAX else plain[:WORDS_CHARS_MAX] + "…"
    return f"`{short}`" if short else NONE
