"""How each gateway compares with ours, resource by resource. Pure.

Owns: which resources there are, which of two figures is better and by how many times. Never: the
goals (`verdict`), the form of a page (`page`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.figures import Result, ratio
from benchmarks.peers.plans import NAMES, OWN
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
    """Who stands where in one resource. `own`: ours by name, as far as measured; `against`: the
    best of the others; `factor`: how many times `best`, one of them all, is better than the best
    of the other side."""

    resource: Resource
    own: Mapping[str, float]
    against: str
    theirs: float
    best: str
    factor: float


def places(result: Result) -> list[Place]:
    """Where one of ours and another gateway were measured."""
    found: list[Place] = []
    for resource in RESOURCES:
        values = resource.found(result)
        own = {name: value for name, value in values.items() if name in OWN}
        others = [name for name in values if name not in OWN]
        if own and others:
            best = next(iter(values))
            beside = others[0] if best in OWN else next(iter(own))
            factor = resource.better(values[best], values[beside])
            found.append(Place(resource, own, others[0], values[others[0]], best, factor))
    return found


def factors(result: Result, own: str, name: str) -> list[float | None]:
    """How many times `own` is better than the gateway `name`, in each of RESOURCES; None where one
    of them was not measured."""
    found: list[float | None] = []
    for resource in RESOURCES:
        values = resource.found(result)
        pair = own in values and name in values
        found.append(resource.better(values[own], values[name]) if pair else None)
    return found
