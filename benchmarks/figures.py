"""The vocabulary of every measurement: samples become rows, rows stand in tables, bars judge them.

Owns: these values, how two rows compare, when a bar is met. Never: measuring, printing.

A figure's name ends with its unit: `calls/s`, `p50 ms`, `front us/call`. A figure is the median
over the rounds, each figure by itself. The first figure of a row leads: its spread is shown.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Sample:
    """What one round of one row gave. `wrong`: answers that were not the right one."""

    figures: Mapping[str, float]
    wrong: int = 0


@dataclass(frozen=True, slots=True)
class Figure:
    """`rounds`: the value of each round, in the order in which they were measured."""

    median: float
    rounds: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    figures: dict[str, Figure]
    rounds: int = 1
    wrong: int = 0

    def __getitem__(self, name: str) -> float:
        """The median of a figure."""
        return self.figures[name].median


@dataclass(frozen=True, slots=True)
class Bar:
    """A goal, and how far this run is from it. `absolute`: it was set for a machine of a known
    speed, and is not a ratio within one run. `spread`: the least and the most of the rounds."""

    what: str
    value: float
    limit: float
    unit: str
    at_least: bool
    absolute: bool
    met: bool
    spread: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """What one scenario found. `said`: sentences that belong below it."""

    scenario: str
    title: str
    rows: tuple[Row, ...]
    bars: tuple[Bar, ...] = ()
    said: tuple[str, ...] = ()

    def row(self, name: str) -> Row:
        return next(row for row in self.rows if row.name == name)

    @property
    def wrong(self) -> int:
        return sum(row.wrong for row in self.rows)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured. `quick`: every line of code once, and no figure that means much."""

    seconds: float = 1.2
    rounds: int = 3
    quick: bool = False

    def of(self, full: int, quick: int) -> int:
        return quick if self.quick else full


@dataclass(frozen=True, slots=True)
class Result:
    """One run of the suite."""

    date: str
    commit: str
    quick: bool
    seconds: float
    floor: dict[str, float]
    """Calls/s of the child over its pipes, one at a time: `before` everything else, and `after`."""
    machine: dict[str, str] = field(default_factory=dict[str, str])
    versions: dict[str, str] = field(default_factory=dict[str, str])
    tables: tuple[Table, ...] = ()
    v: int = 1

    def table(self, scenario: str) -> Table | None:
        return next((table for table in self.tables if table.scenario == scenario), None)

    @property
    def missed(self) -> list[Bar]:
        return [bar for table in self.tables for bar in table.bars if not bar.met]

    @property
    def wrong(self) -> int:
        return sum(table.wrong for table in self.tables)

    @property
    def failed(self) -> bool:
        """Was an answer wrong, or, in a run whose figures mean something, a bar missed?"""
        return self.wrong > 0 or (not self.quick and bool(self.missed))


REFERENCE_CALLS_PER_S = 22_500.0
"""Of the floor, on the quiet two-core machine for which the absolute bars were set."""


def speed(floor: Mapping[str, float]) -> float:
    """How fast this machine is beside that one, by its better floor."""
    return max(floor.values()) / REFERENCE_CALLS_PER_S


@dataclass(frozen=True, slots=True)
class Compared:
    """A figure of a row beside that of another: by the medians of both, and round by round."""

    median: float
    rounds: tuple[float, ...]

    @property
    def spread(self) -> tuple[float, float] | None:
        return (min(self.rounds), max(self.rounds)) if len(self.rounds) > 1 else None


def ratio(value: float, to: float) -> float:
    """Infinite beside nothing: a row that gave no figure meets no bar."""
    return value / to if to else float("inf")


def difference(value: float, to: float) -> float:
    return value - to


def compared(
    this: Row, that: Row, figure: str, how: Callable[[float, float], float] = ratio
) -> Compared:
    """The same figure of two rows that were measured in turns."""
    rounds = zip(this.figures[figure].rounds, that.figures[figure].rounds, strict=False)
    return Compared(how(this[figure], that[figure]), tuple(how(*pair) for pair in rounds))


def least(
    what: str, value: float | Compared, limit: float, unit: str = "x", *, absolute: bool = False
) -> Bar:
    found, spread = _judged(value)
    return Bar(what, found, limit, unit, True, absolute, found >= limit, spread)


def most(
    what: str, value: float | Compared, limit: float, unit: str = "x", *, absolute: bool = False
) -> Bar:
    found, spread = _judged(value)
    return Bar(what, found, limit, unit, False, absolute, found <= limit, spread)


def _judged(value: float | Compared) -> tuple[float, tuple[float, float] | None]:
    return (value.median, value.spread) if isinstance(value, Compared) else (value, None)


def row(name: str, samples: Sequence[Sample]) -> Row:
    """All rounds of a row as one."""
    figures: dict[str, Figure] = {}
    for figure in samples[0].figures:
        rounds = tuple(sample.figures[figure] for sample in samples)
        figures[figure] = Figure(statistics.median(rounds), rounds)
    return Row(name, figures, len(samples), sum(sample.wrong for sample in samples))


def percentile(values: Iterable[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * share))]
