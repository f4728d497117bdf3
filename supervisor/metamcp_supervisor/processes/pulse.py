"""Whether a worker's event loop still turns, judged by its heartbeats.

Owns: the deadlines of heartbeats and the verdict. Never: clocks, receiving beats, killing (`tree`).

A worker beats once a second from its event loop, so a missing beat means that the loop is stuck or
that the process is stopped. A long-running call does not delay beats. When this process itself
stood still (a suspended machine, a stopped supervisor), late beats are not the workers' fault: the
caller measures the pause and `forgive` moves the deadline by it.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

BEAT_S = 1.0
LATE_S = 2.0
"""Seconds after which a beat is late (two missed beats): new calls are not routed there."""
HUNG_S = 5.0
"""Seconds after which a late worker gets SIGABRT and writes the stacks of all its threads."""
DEAD_S = HUNG_S + 1.0
"""Seconds after which a late worker gets SIGKILL: a second is enough to write stacks."""


class PulseVerdict(StrEnum):
    FINE = "fine"
    LATE = "late"
    HUNG = "hung"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class FrontPulse:
    """`beat_at`: time of the last beat, or of the first sign of life. `halted`: stopped by a
    signal."""

    beat_at: float
    halted: bool = False


def beat(pulse: FrontPulse, now: float) -> FrontPulse:
    return replace(pulse, beat_at=now)


def forgive(pulse: FrontPulse, pause_s: float) -> FrontPulse:
    """Move the deadline, after the caller itself stood still for `pause_s`."""
    return replace(pulse, beat_at=pulse.beat_at + pause_s)


def verdict(pulse: FrontPulse, now: float) -> PulseVerdict:
    """Judge a pulse. A stopped worker is late at once, and dead as soon as others are hung, because
    it cannot write stacks while it is stopped."""
    silent_s = now - pulse.beat_at - BEAT_S
    if silent_s >= DEAD_S or (pulse.halted and silent_s >= HUNG_S):
        return PulseVerdict.DEAD
    if silent_s >= HUNG_S:
        return PulseVerdict.HUNG
    if silent_s >= LATE_S or pulse.halted:
        return PulseVerdict.LATE
    return PulseVerdict.FINE
