"""Limit for repeated lines of a log.

Owns: the limit, counting the lines above it, and when the count is logged. Never: clocks, the form
of a line, writing.
"""

from msgspec import Struct

LINES_MAX = 10
"""Maximum equal lines within one period; a reader knows the problem by then, and the rest is
counted."""
PERIOD_S = 10.0
KINDS_MAX = 256
"""Maximum kinds of lines that are counted apart; the gateway's own code has fewer, but libraries
may make up any number."""

Kind = tuple[str, str]
"""Kind of a line: its logger, and its template before values are put in."""
OTHERS: Kind = ("", "")


class Held(Struct, frozen=True):
    """Lines of one kind that were left out. `count`: how many; `seconds`: length of the period."""

    kind: Kind
    count: int
    seconds: float


class _Window(Struct):
    ends: float
    said: int = 0
    held: int = 0


class Repeats:
    """Counter of equal lines. `now`: seconds of any clock that only goes forward."""

    def __init__(self) -> None:
        self._windows: dict[Kind, _Window] = {}
        self._next_end = float("inf")

    def says(self, kind: Kind, now: float) -> bool:
        """Whether to log a line of this kind now; if not, it is counted."""
        window = self._windows.get(kind)
        if window is None:
            kind = kind if len(self._windows) < KINDS_MAX else OTHERS
            window = self._windows.setdefault(kind, _Window(now + PERIOD_S))
            self._next_end = min(self._next_end, window.ends)
        if window.said < LINES_MAX:
            window.said += 1
            return True
        window.held += 1
        return False

    def due(self, now: float) -> list[Held]:
        """Return and forget the counts of the periods that are over."""
        if now < self._next_end:
            return []
        over = [kind for kind, window in self._windows.items() if window.ends <= now]
        found = [Held(kind, self._windows.pop(kind).held, PERIOD_S) for kind in over]
        self._next_end = min((each.ends for each in self._windows.values()), default=float("inf"))
        return [held for held in found if held.count]

    def rest(self) -> list[Held]:
        """Return all counts that are left, at the end of the process."""
        return self.due(float("inf"))
