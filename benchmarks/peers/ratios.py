"""How each gateway compares with ours, resource by resource. Pure.

Owns: which resources there are, which of two figures is better and by how many times. Never: the
goals (`verdict`), the form of a page (`page`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.figures import Result, ratio
from benchmarks.peers.plans import NAMES, OURS
from benchmarks.peers.taken import CPU


@dataclass(frozen=True, slots=True)
class Resource:
    """`what`: for readers. `suffix`: of the names of rows, behind that of the gateway; `more`: more
    of it is better."""

    what: str
    scenario: str
    suffix: str
    figure: str
    more: bool = False

    def better(self, value: float, than: float) -> float:
        """How many times `value` is better; below 1, how many times it is worse."""
        return ratio(value, than) if self.more else ratio(than, value)

    def found(self, result: Result) -> Mapping[str, float]:
        """By gateway, the best first; of those only that were measured."""
        table = result.table(self.scenario)
        rows = {row.name: row for row in table.rows} if table is not None else {}
        values = {
            name: row[self.figure]
            for name in NAMES
            if (row := rows.get(f"{name}{self.suffix}")) is not None and self.figure in row.figures
        }
        return dict(sorted(values.items(), key=lambda pair: pair[1], reverse=self.more))


RESOURCES = (
    Resource("calls/s, 1 caller", "ladder", " 1", "calls/s", more=True),
    Resource("calls/s, 64 callers", "ladder", " 64", "calls/s", more=True),
    Resource("p50 ms, 1 caller", "ladder", " 1", "p50 ms"),
    Resource("p99 ms, 64 callers", "ladder", " 64", "p99 ms"),
    Resource("CPU ms per call, 64 callers", "ladder", " 64", CPU),
    Resource("calls/s, 20 servers", "many", " 64", "calls/s", more=True),
    Resource("CPU ms per call, 20 servers", "many", " 64", CPU),
    Resource("1 MiB results/s", "large", "", "calls/s", more=True),
    Resource("MiB, 1 server", "footprint-one", "", "PSS MiB"),
    Resource("MiB, 20 servers", "footprint-many", "", "PSS MiB"),
    Resource("start of 20 servers, s", "footprint-many", "", "ready s"),
)


@dataclass(frozen=True, slots=True)
class Place:
    """Of our gateway in one resource. `against`: the best of the others; `factor`: how many times
    ours is better than that."""

    resource: Resource
    ours: float
    against: str
    theirs: float
    factor: float


def places(result: Result) -> list[Place]:
    """Where another gateway was measured too."""
    found: list[Place] = []
    for resource in RESOURCES:
        values = dict(resource.found(result))
        ours = values.pop(OURS, None)
        if ours is None or not values:
            continue
        name, theirs = next(iter(values.items()))
        found.append(Place(resource, ours, name, theirs, resource.better(ours, theirs)))
    return found


def factors(result: Result, name: str) -> list[float | None]:
    """How many times ours is better than that gateway, in each of RESOURCES; None where one of
    them was not measured."""
    found: list[float | None] = []
    for resource in RESOURCES:
        values = resource.found(result)
        pair = OURS in values and name in values
        found.append(resource.better(values[OURS], values[name]) if pair else None)
    return found
