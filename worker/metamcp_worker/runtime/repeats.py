"""Which lines of a log are said, when the same one comes over and over.

Owns: the limit, what is counted instead, and when the count is told. Never: clocks, what a line
looks like, writing.
"""

from msgspec import Struct

LINES_MAX = 10
"""Of the same line within one period. What is wrong is clear by then, and the rest is counted."""
PERIOD_S = 10.0
KINDS_MAX = 256
"""Lines that are told apart; the code knows fewer, and others may make up theirs."""

Kind = tuple[str, str]
"""Of which room a line is, and its words before anything is put into them."""
OTHERS: Kind = ("", "")


class Held(Struct, frozen=True):
    """So many lines of this kind were not said."""

    kind: Kind
    count: int
    seconds: float


class _Window(Struct):
    ends: float
    said: int = 0
    held: int = 0


class Repeats:
    """`now`: seconds of any clock that only goes forward."""

    def __init__(self) -> None:
        self._windows: dict[Kind, _Window] = {}
        self._next_end = float("inf")

    def says(self, kind: Kind, now: float) -> bool:
        """Is a line of this kind said now? If not, it is counted."""
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
        """What was counted in the periods that are over."""
        if now < self._next_end:
            return []
        over = [kind for kind, window in self._windows.items() if window.ends <= now]
        found = [Held(kind, self._windows.pop(kind).held, PERIOD_S) for kind in over]
        self._next_end = min((each.ends for each in self._windows.values()), default=float("inf"))
        return [held for held in found if held.count]

    def rest(self) -> list[Held]:
        """What was counted and not told yet: there will be no later."""
        return self.due(float("inf"))
