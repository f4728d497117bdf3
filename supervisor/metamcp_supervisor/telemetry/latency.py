"""How long calls took, out of the histograms that fronts keep.

Owns: the share of calls that a time covers, and how far back "lately" goes. Never: measuring (the
fronts), adding up fronts (`tallies`), clocks, printing.

Counts are of each bucket alone, the last one of everything above the highest bound.
"""

from collections import deque
from collections.abc import Mapping, Sequence

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
