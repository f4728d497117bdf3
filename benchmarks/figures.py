"""The vocabulary of every measurement: samples become rows, rows stand in tables, bars judge them.

Owns: these values, which round was the quietest, when a bar is met. Never: measuring, printing.

A figure's name ends with its unit: `calls/s`, `p50 ms`, `front us/call`. The first figure of a row
leads: the round in which it was best is the quietest one, and all `quiet` figures of the row are of
that round. `median` is over the rounds, of each figure by itself.
"""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

HIGHER_IS_BETTER = ("calls/s", "MiB/s", "runs/s", "steps/s")
"""Ends of names. Of everything else, less is better."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one round of one row gave. `wrong`: answers that were not the right one."""

    figures: Mapping[str, float]
    wrong: int = 0


@dataclass(frozen=True, slots=True)
class Figure:
    quiet: float
    median: float


@dataclass(frozen=True, slots=True)
class Row:
    name: str
    figures: dict[str, Figure]
    rounds: int = 1
    wrong: int = 0

    def __getitem__(self, name: str) -> float:
        """The figure of the quietest round."""
        return self.figures[name].quiet


@dataclass(frozen=True, slots=True)
class Bar:
    """A goal, and how far this run is from it. `absolute`: it was set for a machine of a known
    speed, and is not a ratio within one run."""

    what: str
    value: float
    limit: float
    unit: str
    at_least: bool
    absolute: bool
    met: bool


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

    seconds: float = 2.0
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


def least(what: str, value: float, limit: float, unit: str = "x", *, absolute: bool = False) -> Bar:
    return Bar(what, value, limit, unit, True, absolute, value >= limit)


def most(what: str, value: float, limit: float, unit: str = "x", *, absolute: bool = False) -> Bar:
    return Bar(what, value, limit, unit, False, absolute, value <= limit)


def row(name: str, samples: Sequence[Sample]) -> Row:
    """All rounds of a row as one."""
    lead = next(iter(samples[0].figures))
    best = max if lead.endswith(HIGHER_IS_BETTER) else min
    quiet = best(samples, key=lambda sample: sample.figures[lead])
    figures = {
        name: Figure(value, statistics.median(sample.figures[name] for sample in samples))
        for name, value in quiet.figures.items()
    }
    return Row(name, figures, len(samples), sum(sample.wrong for sample in samples))


def percentile(values: Iterable[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * share))]


def ratio(value: float, to: float) -> float:
    """Infinite beside nothing: a row that gave no figure meets no bar."""
    return value / to if to else float("inf")
