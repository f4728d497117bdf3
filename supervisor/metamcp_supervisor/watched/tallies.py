"""Figures that only grow, added up over processes that come and go.

Owns: the sums over fronts, and what stays of a process that is gone. Never: names of metrics
(`metrics`), measuring (`usage`, the fronts).

A process reports cumulative figures of its own life. Its last report replaces the one before, and
when the process is gone the report is folded into a base: sums never go down.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from metamcp_supervisor import handing
from metamcp_supervisor.watched.usage import Part, Usage
from metamcp_worker.messages import BUCKETS_S, CallStats, FrontStats

ERROR_TYPES_MAX = 32
"""Per server and method; servers may invent codes, and each would be a time series for ever."""
OUTCOMES_MAX = 8
"""Of calls that were to be sent once more; fronts know three."""
OTHER = "_OTHER"

Key = tuple[str, str]
"""Server and method."""


class Sum:
    """All calls of one server and method."""

    __slots__ = ("buckets", "count", "errors", "retries", "seconds")

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(BUCKETS_S) + 1)
        self.errors: dict[str, int] = {}
        self.retries: dict[str, int] = {}

    def add(self, more: "CallStats | Sum") -> None:
        self.count += more.count
        self.seconds += more.seconds
        for at, n in enumerate(more.buckets[: len(self.buckets)]):
            self.buckets[at] += n
        add_counts(self.errors, more.errors, ERROR_TYPES_MAX)
        add_counts(self.retries, more.retries, OUTCOMES_MAX)

    def stats(self, server: str, method: str) -> CallStats:
        buckets = tuple(self.buckets)
        return CallStats(
            server, method, self.count, self.seconds, buckets, self.errors, self.retries
        )


class _Front(Struct):
    """The last report of one front. It exists as long as the front does."""

    calls: Sequence[CallStats]
    summary: FrontStats


class Fronts:
    """The sums over all fronts, those that live and those that did."""

    def __init__(self, methods: frozenset[str]) -> None:
        self._methods = methods
        self._live: dict[int, _Front] = {}
        self._base: dict[Key, Sum] = {}
        self._refused: dict[str, int] = {}
        self._totals: dict[str, Sum] | None = None
        """Of all methods by server, until the next report."""

    def report(self, front: int, calls: Sequence[CallStats], summary: FrontStats) -> None:
        self._live[front] = _Front(calls, summary)
        self._totals = None

    def gone(self, front: int) -> None:
        last = self._live.pop(front, None)
        self._totals = None
        if last is not None:
            self._fold(self._base, last.calls)
            add_counts(self._refused, last.summary.refused, ERROR_TYPES_MAX)

    def forget(self, server: str) -> None:
        """The server is no longer configured. What live fronts still report of it comes again."""
        self._totals = None
        for key in [key for key in self._base if key[0] == server]:
            del self._base[key]

    def handed(self) -> handing.Tally:
        """Of those that are gone, for the program that goes on with it."""
        return handing.Tally(
            calls=tuple(one.stats(*key) for key, one in self._base.items()), refused=self._refused
        )

    def live(self) -> tuple[tuple[int, tuple[CallStats, ...], FrontStats], ...]:
        """The last reports."""
        return tuple((n, tuple(front.calls), front.summary) for n, front in self._live.items())

    def go_on(self, found: handing.Tally) -> None:
        """After what the program before counted."""
        self._fold(self._base, found.calls)
        self._refused = dict(found.refused)

    def calls(self) -> dict[Key, Sum]:
        total: dict[Key, Sum] = {}
        for key, base in self._base.items():
            total.setdefault(key, Sum()).add(base)
        for front in self._live.values():
            self._fold(total, front.calls)
        return total

    def of_server(self, server: str) -> tuple[int, int, int]:
        """Calls, errors and calls in flight."""
        inflight = sum(front.summary.inflight.get(server, 0) for front in self._live.values())
        total = self._by_server().get(server)
        if total is None:
            return 0, 0, inflight
        return total.count, sum(total.errors.values()), inflight

    def buckets_of(self, server: str) -> Sequence[int]:
        """How many calls of one server took how long; nothing before its first one."""
        total = self._by_server().get(server)
        return total.buckets if total is not None else ()

    def buckets(self) -> dict[str, tuple[int, ...]]:
        """How many calls took how long, by server: counts per bucket of BUCKETS_S."""
        return {name: tuple(total.buckets) for name, total in self._by_server().items()}

    def inflight(self) -> dict[str, int]:
        return _added(front.summary.inflight for front in self._live.values())

    def sessions(self) -> dict[str, int]:
        return _added(front.summary.sessions for front in self._live.values())

    def refused(self) -> dict[str, int]:
        live = (front.summary.refused for front in self._live.values())
        return _added((self._refused, *live))

    def connections(self) -> int:
        return sum(front.summary.connections for front in self._live.values())

    def streams(self) -> int:
        return sum(front.summary.streams for front in self._live.values())

    def _by_server(self) -> Mapping[str, Sum]:
        if self._totals is None:
            self._totals = {}
            for (name, _), one in self.calls().items():
                self._totals.setdefault(name, Sum()).add(one)
        return self._totals

    def _fold(self, total: dict[Key, Sum], calls: Iterable[CallStats]) -> None:
        for one in calls:
            method = one.method if one.method in self._methods else OTHER
            total.setdefault((one.server, method), Sum()).add(one)


class Processes:
    """Memory now and processor time so far, by role and server, over processes that come and go."""

    def __init__(self) -> None:
        self._last: dict[Part, Usage] = {}
        self._cpu_s: dict[tuple[str, str], float] = {}

    def sampled(self, usages: Mapping[Part, Usage]) -> None:
        """The newest measurement of every part; a part that is not in it is gone."""
        for part, now in usages.items():
            before = self._last.get(part)
            same = before is not None and before.pid == now.pid
            # Below a process others come and go, so the time of the tree may fall: not the sum.
            used = max(0.0, now.cpu_s - before.cpu_s) if before and same else now.cpu_s
            key = (part.role, part.server)
            self._cpu_s[key] = self._cpu_s.get(key, 0.0) + used
        self._last = dict(usages)

    def last(self) -> Mapping[Part, Usage]:
        """The newest measurement."""
        return self._last

    def go_on(
        self, cpu_s: Mapping[tuple[str, str], float], last: Iterable[tuple[Part, Usage]]
    ) -> None:
        """After what the program before measured."""
        self._cpu_s, self._last = dict(cpu_s), dict(last)

    def forget(self, server: str) -> None:
        for key in [key for key in self._cpu_s if key[1] == server]:
            del self._cpu_s[key]

    def rss_bytes(self) -> dict[tuple[str, str], int]:
        total: dict[tuple[str, str], int] = {}
        for part, now in self._last.items():
            key = (part.role, part.server)
            total[key] = total.get(key, 0) + now.rss_bytes
        return total

    def cpu_s(self) -> Mapping[tuple[str, str], float]:
        return self._cpu_s


def add_counts(total: dict[str, int], more: Mapping[str, int], keys_max: int) -> None:
    """Add, and gather under OTHER what would be a key too many."""
    for key, n in more.items():
        kept = key if key in total or len(total) < keys_max else OTHER
        total[kept] = total.get(kept, 0) + n


def _added(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for more in counts:
        for key, n in more.items():
            total[key] = total.get(key, 0) + n
    return total
