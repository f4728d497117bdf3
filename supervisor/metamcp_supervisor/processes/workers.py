"""The forked workers: their ends, each reported once, and whether their event loops still turn.

Owns: the set of workers, and the news of workers whose `fork` has not returned yet; the deadlines
of heartbeats and the verdict. Never: processes, sockets, clocks, the event loop (`nursery`),
receiving beats (`heartbeats`), killing (`server_io`).

A worker may die before the coroutine that asked for it runs again: both pieces of news come in one
read of the nursery's socket. So a worker is first *expected*, and news of it waits; when the worker
is *claimed* it belongs to its caller, and the news follows. A worker whose caller has left is
*disowned*: its end is not reported. An end removes the entry, so a second end is ignored.

A worker beats once a second from its event loop, so a missing beat means that the loop is stuck or
that the process is stopped. A long-running call does not delay beats. The beat of a worker that
sleeps without work lies in the future: a second before it wakes up. When this process itself stood
still (a suspended machine, a stopped supervisor), late beats are not the workers' fault: the caller
measures the pause and `forgive` moves the deadline by it.
"""

import math
from collections.abc import Callable
from enum import StrEnum
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from metamcp_worker.ipc.messages import WorkerExit


class WorkerTable:
    """`on_exit`: called at the end of a worker; `on_halt(pid, halted)`: called when a worker was
    stopped or resumed."""

    def __init__(
        self, on_exit: Callable[[WorkerExit], None], on_halt: Callable[[int, bool], None]
    ) -> None:
        self._on_exit = on_exit
        self._on_halt = on_halt
        self._expected: dict[int, list[Callable[[], None]]] = {}
        self._claimed: set[int] = set()

    def pids(self) -> list[int]:
        return [*self._expected, *self._claimed]

    def knows(self, pid: int) -> bool:
        return pid in self._claimed or pid in self._expected

    def adopt(self, pid: int) -> None:
        """Add a worker that the previous program had claimed."""
        self._claimed.add(pid)

    def expect(self, pid: int) -> None:
        self._expected[pid] = []

    def claim(self, pid: int) -> list[Callable[[], None]]:
        """Give a worker to its caller. Return the news that waited, to be called once the caller
        has noted the worker."""
        self._claimed.add(pid)
        return self._expected.pop(pid)

    def disown(self, pid: int) -> None:
        self._expected.pop(pid, None)

    def on_halt(self, pid: int, halted: bool) -> None:
        if pid in self._expected:
            self._expected[pid].append(partial(self.on_halt, pid, halted))
        elif pid in self._claimed:
            self._on_halt(pid, halted)

    def on_exit(self, report: WorkerExit) -> None:
        if report.pid in self._expected:
            self._expected[report.pid].append(partial(self.on_exit, report))
        elif report.pid in self._claimed:
            self._claimed.remove(report.pid)
            self._on_exit(report)


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


class FrontPulse(Struct, frozen=True):
    """`beat_at`: time of the last beat, or of the first sign of life; in the future if the worker
    sleeps. `halted`: stopped by a signal."""

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


def due(pulse: FrontPulse, now: float) -> float:
    """Return when the verdict is different next if no beat comes."""
    steps = (HUNG_S,) if pulse.halted else (LATE_S, HUNG_S, DEAD_S)
    times = (pulse.beat_at + BEAT_S + step for step in steps)
    return min((time for time in times if time > now), default=math.inf)
