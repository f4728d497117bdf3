"""Times in buckets, and the shares of calls that a time covers.

Owns: one histogram, and the span that "lately" means. Never: measuring (the fronts), names of
metrics.

Counts are of each bucket alone, the last one of everything above the highest bound.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
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


LATELY_S = 300.0
"""As far back at least: long enough for servers that are called now and then."""
SLICE_S = 30.0
"""Between two marks, and how much further back it may be."""

Counts = tuple[int, ...]


def quantile(
    counts: Sequence[int], bounds: Sequence[float], share: float, longest: float = 0.0
) -> float | None:
    """The time within which this share of the calls was answered, in the unit of `bounds`; None
    without a call. Calls count as evenly spread over their bucket; above the highest bound nothing
    is known but that bound. No answer is above `longest`, the longest call, unless that is 0."""
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
    """What came since `before`. A server that was forgotten meanwhile begins anew."""
    if len(before) != len(now) or any(old > new for old, new in zip(before, now, strict=True)):
        return tuple(now)
    return tuple(new - old for old, new in zip(before, now, strict=True))


class Lately:
    """Marks of the sums by server, of which the oldest is where "lately" begins."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, Mapping[str, Counts]]] = deque()

    def due(self, now: float) -> bool:
        """Is it time for another mark? `now`: monotonic seconds."""
        return not self._marks or now - self._marks[-1][0] >= SLICE_S

    def mark(self, sums: Mapping[str, Counts], now: float) -> None:
        self._marks.append((now, sums))
        while len(self._marks) > 1 and now - self._marks[1][0] >= LATELY_S:
            self._marks.popleft()

    def of(self, server: str, total: Sequence[int]) -> Counts:
        """What of the sum of a server came lately."""
        return between(self._marks[0][1].get(server, ()) if self._marks else (), total)
