"""Times in buckets, as the supervisor itself measures them.

Owns: one histogram. Never: clocks, names, bounds.
"""

from bisect import bisect_left
from collections.abc import Sequence
from operator import add

from metamcp_worker.ipc.messages import Durations


class Histogram:
    """`bounds_s`: upper ends of the buckets; the last bucket has none. `longest_s`: the longest
    time in it, as far as those who added theirs told."""

    __slots__ = ("_bounds_s", "_buckets", "_seconds", "longest_s")

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self._bounds_s = bounds_s
        self._seconds = self.longest_s = 0.0
        self._buckets = [0] * (len(bounds_s) + 1)

    def observe(self, seconds: float) -> None:
        seconds = max(0.0, seconds)
        self._seconds += seconds
        self._buckets[bisect_left(self._bounds_s, seconds)] += 1

    def add(self, seconds: float, buckets: Sequence[int], longest_s: float = 0.0) -> None:
        """More of the same bounds."""
        self._seconds += seconds
        self.longest_s = max(self.longest_s, longest_s)
        if len(buckets) == len(self._buckets):
            self._buckets = list(map(add, self._buckets, buckets))
            return
        for at, n in enumerate(buckets[: len(self._buckets)]):
            self._buckets[at] += n

    @property
    def durations(self) -> Durations:
        return Durations(self._seconds, tuple(self._buckets))
