"""Rows taken in turns, so that whatever else the machine does hits them alike."""

from collections.abc import Callable, Mapping

from benchmarks import figures
from benchmarks.figures import Row, Sample


def in_turns(rows: Mapping[str, Callable[[], Sample]], rounds: int) -> tuple[Row, ...]:
    """Every row once, then every row again in the reverse order, and so on, `rounds` times."""
    found: dict[str, list[Sample]] = {name: [] for name in rows}
    for number in range(rounds):
        for name in reversed(list(rows)) if number % 2 else rows:
            found[name].append(rows[name]())
    return tuple(figures.row(name, samples) for name, samples in found.items())
