"""Histograms of times, and their quantiles.

Owns: one histogram, and the period that "lately" means. Never: measuring (the fronts), names of
metrics.

The count of a bucket does not include lower buckets; the last bucket has everything above the
highest bound.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from operator import add

from metamcp_worker.ipc.messages import Durations


class Histogram:
    """A histogram. `bounds_s`: upper bounds of the buckets in seconds; the last bucket is not
    bounded. `longest_s`: the longest time, as far as callers of `add` passed theirs."""

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
        """Add a histogram with the same bounds."""
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


LATELY_S = 300.0
"""Minimum seconds that "lately" reaches back: long enough for servers with few calls."""
SLICE_S = 30.0
"""Seconds between two marks; "lately" may reach back by so much more."""

Counts = tuple[int, ...]


def quantile(
    counts: Sequence[int], bounds: Sequence[float], share: float, longest: float = 0.0
) -> float | None:
    """Return the time within which this share of the calls was answered, in the unit of `bounds`;
    None without a call. The calls of a bucket count as evenly spread over it; the result for the
    last bucket is the highest bound. `longest`: the longest call, which limits the result, or 0."""
    found = _within(counts, bounds, share)
    return min(found, longest) if found is not None and longest else found


def _within(counts: Sequence[int], bounds: Sequence[float], share: float) -> float | None:
    total = sum(counts)
    if not total:
        return None
    rank, below, low = share * total, 0, 0.0
    for count, bound in zip(counts, bounds, strict=False):
        if count and below + count >= rank:
            return low + (bound - low) * max(0.0, rank - below) / count
        below, low = below + count, bound
    return bounds[-1]


def between(before: Sequence[int], now: Sequence[int]) -> Counts:
    """Return the counts since `before`, or all of `now` if a server was removed meanwhile and its
    counts began again."""
    if len(before) != len(now) or any(old > new for old, new in zip(before, now, strict=True)):
        return tuple(now)
    return tuple(new - old for old, new in zip(before, now, strict=True))


class Lately:
    """Marks of the sums by server; "lately" begins at the oldest mark."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, Mapping[str, Counts]]] = deque()

    def due(self, now: float) -> bool:
        """Whether it is time for another mark. `now`: monotonic seconds."""
        return not self._marks or now - self._marks[-1][0] >= SLICE_S

    def mark(self, sums: Mapping[str, Counts], now: float) -> None:
        self._marks.append((now, sums))
        while len(self._marks) > 1 and now - self._marks[1][0] >= LATELY_S:
            self._marks.popleft()

    def of(self, server: str, total: Sequence[int]) -> Counts:
        """Return the part of a server's counts `total` that came lately."""
        return between(self._marks[0][1].get(server, ()) if self._marks else (), total)
