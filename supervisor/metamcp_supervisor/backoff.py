"""How long to wait before the next start, and when to stop trying for a while.

Owns: the numbers of restarting and their arithmetic. Never: sleeping, reading a clock, rolling dice
(`jitter` is a number from 0 up to 1 that the caller rolled), deciding what happens (`server`).

Times are seconds of a monotonic clock. The delay has a floor, so that a server that dies at once
does not spin, and full jitter above it, so that servers that lost the same upstream do not come
back in one wave; the start gate (`start_gate`) cuts the wave that is left.
"""

from collections.abc import Sequence
from dataclasses import dataclass

DELAY_S_FLOOR = 0.1
DELAY_S_FIRST = 0.25
"""Upper end of the jitter for k = 0; it doubles with every unstable start."""
DELAY_S_MAX = 30.0
"""Upper end of the jitter: an upstream that is back is found within half a minute."""

STABLE_S = 60.0
"""Ready for so long, with a proof that it works (an answered call): its past is forgiven."""
STABLE_UNPROVEN_S = 600.0
"""The same for a server that nobody called: ten minutes, as Kubernetes has it."""

HALF_OPEN_S = 60.0
HALF_OPEN_S_MAX = 900.0
HALF_OPEN_JITTER = 0.2

DEMAND_S_MIN = 5.0
"""A client's call retries a server that is down at once, but not more often than this."""
EVIDENCE_S_MAX = 0.25
"""When a sibling with the same trouble recovers, the others retry within this. That they do not all
start at once is the gate's work: of fifty, eight in a quarter of a second."""
BRIEF_S = 10.0
"""Who was ready for less before it went down is no evidence when it is ready again: two that flap
would otherwise wake each other without end."""

LIMITS_MAX = 3
LIMITS_WINDOW_S = 600.0
"""So many breaches of a limit within ten minutes, and the server is quarantined."""

CRASHES_MAX = 5
CRASHES_WINDOW_S = 60.0
"""More crashes of our own fronts than this within a minute are a fault that does not heal."""

_DOUBLINGS_MAX = 16
"""Beyond every cap above; keeps 2**k a small number."""


@dataclass(frozen=True, slots=True)
class Patience:
    """With one server. More unstable starts than `restarts_max` within `window_s` open its circuit;
    `delay_s_max`: upper end of the jitter."""

    restarts_max: int = 8
    window_s: float = 120.0
    delay_s_max: float = DELAY_S_MAX


def delay(k: int, jitter: float, delay_s_max: float = DELAY_S_MAX) -> float:
    """Seconds before the next start after `k` unstable starts in a row."""
    return DELAY_S_FLOOR + jitter * min(delay_s_max, DELAY_S_FIRST * 2.0 ** min(k, _DOUBLINGS_MAX))


def half_open(trips: int, jitter: float) -> float:
    """Seconds before the one attempt that an open circuit allows, the `trips`-th time in a row."""
    doublings = min(max(trips - 1, 0), _DOUBLINGS_MAX)
    base = min(HALF_OPEN_S_MAX, HALF_OPEN_S * 2.0**doublings)
    return base * (1 - HALF_OPEN_JITTER + 2 * HALF_OPEN_JITTER * jitter)


def stable(ready_at: float | None, proven: bool, now: float) -> bool:
    """Was a server that is ready since `ready_at` (None: it never was) good for long enough?"""
    if ready_at is None:
        return False
    return now - ready_at >= (STABLE_S if proven else STABLE_UNPROVEN_S)


def tally(times: Sequence[float], now: float, window_s: float, most: int) -> tuple[float, ...]:
    """`times` with `now` added and without those that left the window; the newest `most` of them:
    more cannot change what is decided."""
    return (*(time for time in times if now - time < window_s), now)[-most:]


def crashed(
    crashes: Sequence[float], unready: int, now: float, jitter: float
) -> tuple[tuple[float, ...], float | None]:
    """One of our own processes crashed: the tally of crashes, and the delay before the next one,
    none after the first; None: it is hopeless.

    `unready`: how many in a row were never ready, this one included. Those that hang until they are
    killed are too slow to fill the window, and no less hopeless.
    """
    tallied = tally(crashes, now, CRASHES_WINDOW_S, CRASHES_MAX + 1)
    count = max(len(tallied), unready)
    if count > CRASHES_MAX:
        return tallied, None
    return tallied, 0.0 if count == 1 else delay(count, jitter)
