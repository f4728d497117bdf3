"""How often in a minute the journal may write entries of the same kind.

Owns: which entries are written, and the count of those left out. Never: their words, the journal
itself, clocks.

A client or server that can cause an entry can cause it without end; these entries must not push
the other entries of a night out of the journal.
"""

MINUTE_S = 60.0


class Ration:
    """Let `per_minute` entries pass in a minute, and only count the rest. `now` is in seconds of a
    monotonic clock."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._since = float("-inf")
        self._told = 0
        self._left_out = 0

    def take(self, now: float) -> int | None:
        """Count one more entry. Return how many before it were left out; None: leave this one out
        too."""
        if now - self._since >= MINUTE_S:
            self._since, self._told = now, 0
        if self._told >= self._per_minute:
            self._left_out += 1
            return None
        self._told += 1
        left_out, self._left_out = self._left_out, 0
        return left_out


def left_out(count: int) -> str:
    """Return the end of a sentence that says that `count` entries before it are missing."""
    return f"; {count} more before it are not shown" if count else ""
