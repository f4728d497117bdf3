"""How often in a minute the journal tells of the same kind of thing.

Owns: what is told, and the count of what is not. Never: the words, the journal itself, clocks.

Whoever can cause an entry can cause it as often as he likes; what the journal remembers of a night
must not be pushed out by it.
"""

MINUTE_S = 60.0


class Ration:
    """So many in a minute are told, and of more only how many they were. `now`s are monotonic
    seconds."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._since = float("-inf")
        self._told = 0
        self._left_out = 0

    def take(self, now: float) -> int | None:
        """One more came. How many before it were left out; None: this one is, too."""
        if now - self._since >= MINUTE_S:
            self._since, self._told = now, 0
        if self._told >= self._per_minute:
            self._left_out += 1
            return None
        self._told += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


def left_out(count: int) -> str:
    """What follows a sentence before which so many are missing."""
    return f"; {count} more before it are not shown" if count else ""
