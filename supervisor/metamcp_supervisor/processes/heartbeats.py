"""Listen for the heartbeats of all workers and end workers that hang.

Owns: the one ticker that looks at every pulse, and the signals to a worker that hangs. Never: the
deadlines (`workers`), restarting the worker's server (`server_io`) or front (`fronts`).
"""

import asyncio
import signal
from collections.abc import Callable

from metamcp_supervisor.processes import workers
from metamcp_supervisor.processes.workers import FrontPulse, PulseVerdict

TICK_S = 0.25
PAUSE_S = 0.5
"""Seconds of delay of a tick above which this process itself stood still, not the workers."""


class _Watched:
    def __init__(self, on_verdict: Callable[[PulseVerdict], None]) -> None:
        self.on_verdict = on_verdict
        self.pulse: FrontPulse | None = None
        self.halted = False
        self.verdict = PulseVerdict.FINE


class Heartbeats:
    """`signal_worker(pid, number)` reaches a worker through the nursery; `clock`: monotonic
    seconds; `on_lag(role, seconds)` hears how late an event loop was."""

    def __init__(
        self,
        signal_worker: Callable[[int, int], None],
        clock: Callable[[], float],
        on_lag: Callable[[str, float], None] = lambda role, seconds: None,
    ) -> None:
        self._on_lag = on_lag
        self._signal = signal_worker
        self._clock = clock
        self._watched: dict[int, _Watched] = {}
        self._looked = clock()
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def watch(
        self, pid: int, on_verdict: Callable[[PulseVerdict], None], *, halted: bool | None = None
    ) -> None:
        """Judge this worker from its first beat on; `on_verdict` is called on every change.
        `halted`: given for a worker that beats already, and has the full time for its next beat."""
        self._watched[pid] = _Watched(on_verdict)
        if halted is not None:
            self.halted(pid, halted)

    def is_halted(self, pid: int) -> bool:
        return pid in self._watched and self._watched[pid].halted

    def forget(self, pid: int) -> None:
        self._watched.pop(pid, None)

    def beat(self, pid: int, role: str = "worker", lag_ms: float = 0.0) -> None:
        self._on_lag(role, lag_ms / 1000)
        self._forgive()
        if watched := self._watched.get(pid):
            watched.pulse = FrontPulse(self._clock(), watched.halted)
            self._judge(pid, watched)

    def halted(self, pid: int, yes: bool) -> None:
        """The worker was stopped by a signal, or goes on again."""
        self._forgive()
        if watched := self._watched.get(pid):
            watched.halted = yes
            if watched.pulse is None or not yes:
                # A resumed worker gets the full time for its next beat.
                watched.pulse = FrontPulse(self._clock(), yes)
            else:
                watched.pulse = FrontPulse(watched.pulse.beat_at, yes)
            self._judge(pid, watched)

    def ages_s(self) -> dict[int, float]:
        """Return, by process id, the seconds since the last beat of each worker that has beaten."""
        now = self._clock()
        watched = self._watched.items()
        return {pid: max(0.0, now - one.pulse.beat_at) for pid, one in watched if one.pulse}

    def lag_s(self) -> float:
        """Return by how many seconds this process's own event loop is late with the next look."""
        return max(0.0, self._clock() - self._looked - TICK_S)

    def close(self) -> None:
        self._timer.cancel()
        self._watched.clear()

    def look(self) -> None:
        """Judge all workers, as the ticker does."""
        self._forgive()
        self._looked = self._clock()
        for pid, watched in list(self._watched.items()):
            if watched.pulse is not None:
                self._judge(pid, watched)

    def _forgive(self) -> None:
        """Move the deadlines if this process stood still since the last tick: the workers were not
        late then. Beats that wait in the sockets are read before the ticker runs, so workers are
        not judged before their beats are read."""
        now = self._clock()
        late_s = now - self._looked - TICK_S
        if late_s <= PAUSE_S:
            return
        self._on_lag("supervisor", late_s)
        self._looked = now
        for watched in self._watched.values():
            if watched.pulse is not None:
                watched.pulse = workers.forgive(watched.pulse, late_s)

    def _tick(self) -> None:
        late_s = self.lag_s()
        if late_s <= PAUSE_S:  # `_forgive` reports longer ones
            self._on_lag("supervisor", late_s)
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)
        self.look()

    def _judge(self, pid: int, watched: _Watched) -> None:
        assert watched.pulse is not None
        found = workers.verdict(watched.pulse, self._clock())
        if found is watched.verdict:
            return
        watched.verdict = found
        watched.on_verdict(found)
        if found is PulseVerdict.HUNG:
            self._signal(pid, signal.SIGABRT)
        elif found is PulseVerdict.DEAD:
            self._signal(pid, signal.SIGKILL)
