"""How long to wait before the next start, and how often the journal may write similar entries.

Owns: the delays, when to stop trying for a while, the rations of entries, and their arithmetic.
Never: sleeping, reading a clock, making random numbers (the caller passes `jitter`, from 0 up to
1), deciding what happens (`server`), the words of an entry.

Times are seconds of a monotonic clock. The delay has a floor, so that a server that dies at once is
not restarted without a pause, and full jitter above the floor, so that servers that lost the same
upstream do not all come back at once; the start gate (`start_gate`) spreads the rest.

A client or server that can cause an entry of the journal can cause it without end; these entries
must not push the other entries of a night out of the journal.
"""

from collections.abc import Sequence

from msgspec import Struct

DELAY_S_FLOOR = 0.1
DELAY_S_FIRST = 0.25
"""Seconds of jitter at most for k = 0; the limit doubles with every unstable start."""
DELAY_S_MAX = 30.0
"""Seconds of jitter at most, so that an upstream that is back is found within half a minute."""

STABLE_S = 60.0
"""Seconds of being ready after which earlier failures no longer count, if the server has proven
that it works (it answered a call)."""
STABLE_UNPROVEN_S = 600.0
"""Seconds of being ready for the same effect if no client called the server: ten minutes, as in
Kubernetes."""

HALF_OPEN_S = 60.0
HALF_OPEN_S_MAX = 900.0
HALF_OPEN_JITTER = 0.2

DEMAND_S_MIN = 5.0
"""Seconds between two retries at least: the call of a client retries a server that is down at once,
but not more often."""
EVIDENCE_S_MAX = 0.25
"""Seconds within which servers retry when another server with the same trouble recovers. The start
gate keeps them from starting all at once: of fifty, eight start in a quarter of a second."""
BRIEF_S = 10.0
"""Seconds of being ready that make a server count as evidence. A server that was ready for less
before it went down is not evidence when it is ready again: otherwise two servers that keep going
up and down would wake each other without end."""

LIMITS_MAX = 3
LIMITS_WINDOW_S = 600.0
"""Seconds in which LIMITS_MAX breaches of a limit put the server in quarantine: ten minutes."""

CRASHES_MAX = 5
CRASHES_WINDOW_S = 60.0
"""Seconds in which more than CRASHES_MAX crashes of our own fronts are a fault that does not go
away by itself: a minute."""

_DOUBLINGS_MAX = 16
"""Maximum of doublings, beyond every limit above; keeps 2**k a small number."""


class RestartLimits(Struct, frozen=True):
    """Limits for the restarts of one server. More unstable starts than `restarts_max` within
    `window_s` open its circuit; `delay_s_max`: seconds of jitter at most."""

    restarts_max: int = 8
    window_s: float = 120.0
    delay_s_max: float = DELAY_S_MAX


def delay(k: int, jitter: float, delay_s_max: float = DELAY_S_MAX) -> float:
    """Calculate the seconds before the next start after `k` unstable starts in a row."""
    return DELAY_S_FLOOR + jitter * min(delay_s_max, DELAY_S_FIRST * 2.0 ** min(k, _DOUBLINGS_MAX))


def half_open(trips: int, jitter: float) -> float:
    """Calculate the seconds before the single attempt that an open circuit allows, when it is open
    for the `trips`-th time in a row."""
    doublings = min(max(trips - 1, 0), _DOUBLINGS_MAX)
    base = min(HALF_OPEN_S_MAX, HALF_OPEN_S * 2.0**doublings)
    return base * (1 - HALF_OPEN_JITTER + 2 * HALF_OPEN_JITTER * jitter)


def stable(ready_at: float | None, proven: bool, now: float) -> bool:
    """Whether a server that has been ready since `ready_at` (None: never) was ready long enough for
    its earlier failures to be forgotten. `proven`: it answered a call."""
    if ready_at is None:
        return False
    return now - ready_at >= (STABLE_S if proven else STABLE_UNPROVEN_S)


def tally(times: Sequence[float], now: float, window_s: float, most: int) -> tuple[float, ...]:
    """Return `times` with `now` added and without times before the window; only the newest `most`,
    because more of them cannot change a decision."""
    return (*(time for time in times if now - time < window_s), now)[-most:]


def count_crash(
    crashes: Sequence[float], unready: int, now: float, jitter: float
) -> tuple[tuple[float, ...], float | None]:
    """Count a crash of one of our own processes. Return the times of crashes, and the seconds
    before the next start: 0 after the first crash; None: give up.

    `unready`: how many processes in a row were never ready, this one included. Processes that hang
    until they are killed are too slow to fill the window, and there is as little hope for them.
    """
    tallied = tally(crashes, now, CRASHES_WINDOW_S, CRASHES_MAX + 1)
    count = max(len(tallied), unready)
    if count > CRASHES_MAX:
        return tallied, None
    return tallied, 0.0 if count == 1 else delay(count, jitter)


MINUTE_S = 60.0


class EntryRateLimiter:
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
