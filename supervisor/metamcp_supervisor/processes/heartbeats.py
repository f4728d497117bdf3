"""The heartbeats of all workers, the end of workers that hang, and the stacks of workers.

Owns: the one ticker that looks at every pulse, and the signals to a worker that hangs; one file in
memory for each worker, in which it writes its pulse and the calls of its threads, the request for
them, and the wait for the answer. Never: the deadlines (`workers`), restarting the worker's server
(`server_io`) or front (`fronts`), the use of the text.

A worker writes its stacks in a signal handler, without the interpreter, so also while a loop in C
holds the interpreter. Both processes have the same open file and share its position: after clearing
the file, this process sets the position back to the start.
"""

import asyncio
import fcntl
import os
import signal
import sys
from collections.abc import Callable

from metamcp_supervisor.processes import workers
from metamcp_supervisor.processes.workers import FrontPulse, PulseVerdict
from metamcp_worker.ipc import packets
from metamcp_worker.ipc.errors import MetaMCPError
from metamcp_worker.runtime import after_fork

TICK_S = 1.0
"""Maximum seconds between two looks at all pulses; a look comes earlier when a verdict is due."""
PULSE_LOOK_S = 1.5
"""Minimum seconds between two looks at the pulse in the file of a worker that sleeps: every other
tick, so a worker that was woken and hangs is found in time."""
PAUSE_S = 0.5
"""Seconds of delay of a tick above which this process itself stood still, not the workers."""


class _Watched:
    """`looked_at`: time of the last beat, or of the last look at the pulse in the file."""

    def __init__(
        self, on_verdict: Callable[[PulseVerdict], None], on_rest: Callable[[], None]
    ) -> None:
        self.on_verdict = on_verdict
        self.on_rest = on_rest
        self.pulse: FrontPulse | None = None
        self.looked_at = 0.0
        self.halted = False
        self.verdict = PulseVerdict.FINE


class Heartbeats:
    """`signal_worker(pid, number)` reaches a worker through the nursery; `clock`: monotonic
    seconds; `on_lag(role, seconds)` hears how late an event loop was; `pulse_of(pid)` returns the
    time and the lag of the last pulse of a server's worker."""

    def __init__(
        self,
        signal_worker: Callable[[int, int], None],
        clock: Callable[[], float],
        on_lag: Callable[[str, float], None] = lambda role, seconds: None,
        pulse_of: Callable[[int], tuple[float, float] | None] = lambda pid: None,
    ) -> None:
        self._pulse_of = pulse_of
        self._on_lag = on_lag
        self._signal = signal_worker
        self._clock = clock
        self._watched: dict[int, _Watched] = {}
        self._due = clock() + TICK_S
        self._stood_still_until = 0.0
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def watch(
        self,
        pid: int,
        on_verdict: Callable[[PulseVerdict], None],
        *,
        on_rest: Callable[[], None] = lambda: None,
        halted: bool | None = None,
    ) -> None:
        """Judge this worker from its first beat on; `on_verdict` is called on every change,
        `on_rest` each time when the worker sleeps again, because clients have not used it since
        its last beat. `halted`: given for a worker that beats already, and has the full time for
        its next beat."""
        self._watched[pid] = _Watched(on_verdict, on_rest)
        if halted is not None:
            self.on_halt(pid, halted)

    def is_halted(self, pid: int) -> bool:
        return pid in self._watched and self._watched[pid].halted

    def forget(self, pid: int) -> None:
        self._watched.pop(pid, None)

    def beat(self, pid: int, role: str = "worker", lag_ms: float = 0.0) -> None:
        self._on_lag(role, lag_ms / 1000)
        self._forgive()
        if watched := self._watched.get(pid):
            watched.looked_at = self._clock()
            watched.pulse = FrontPulse(watched.looked_at, watched.halted)
            self._judge(pid, watched)

    def on_halt(self, pid: int, yes: bool) -> None:
        """The worker was stopped by a signal, or goes on again."""
        self._forgive()
        if watched := self._watched.get(pid):
            watched.halted = yes
            beat_at = watched.looked_at = self._clock()
            if watched.pulse is not None and yes:
                # A resumed worker gets the full time for its next beat; a stopped one does not
                # wake up by itself.
                beat_at = min(beat_at, watched.pulse.beat_at)
            watched.pulse = FrontPulse(beat_at, yes)
            self._judge(pid, watched)

    def ages_s(self) -> dict[int, float]:
        """Return, by process id, the seconds since the last beat of each worker that has beaten."""
        now = self._clock()
        watched = self._watched.items()
        return {
            pid: max(0.0, now - worker.pulse.beat_at) for pid, worker in watched if worker.pulse
        }

    def lag_s(self) -> float:
        """Return by how many seconds this process's own event loop is late with the next look."""
        return max(0.0, self._clock() - self._due)

    def close(self) -> None:
        self._timer.cancel()
        self._watched.clear()

    def look(self) -> None:
        """Judge all workers, as the ticker does."""
        self._forgive()
        now = self._clock()
        self._due = now + TICK_S - now % TICK_S  # a whole second, at which others wake up too
        for pid, watched in list(self._watched.items()):
            if watched.pulse is None:
                continue
            if now >= min(watched.looked_at + PULSE_LOOK_S, watched.pulse.beat_at + workers.BEAT_S):
                self._take_pulse(pid, watched, now)
            if watched.verdict is not PulseVerdict.FINE or now >= watched.pulse.beat_at:
                self._judge(pid, watched)
                self._due = min(self._due, workers.due(watched.pulse, now))

    def _take_pulse(self, pid: int, watched: _Watched, now: float) -> None:
        """Take the pulse of a worker that did not beat for a while, perhaps without work."""
        assert watched.pulse is not None
        watched.looked_at = now
        pulse, old_beat_at = self._pulse_of(pid), watched.pulse.beat_at
        if pulse is None or watched.halted or pulse[0] == old_beat_at:
            return
        beat_at, lag_s = pulse
        # Only a worker that was woken has an older pulse than before.
        if (beat_at > old_beat_at or old_beat_at > now) and beat_at <= now + after_fork.REST_S_MAX:
            self._on_lag("worker", lag_s if lag_s > 0 else 0.0)
            watched.pulse = FrontPulse(max(beat_at, self._stood_still_until))
            if beat_at > now:
                watched.on_rest()

    def _forgive(self) -> None:
        """Move the deadlines if this process stood still since the last tick: the workers were not
        late then. Beats that wait in the sockets are read before the ticker runs, so workers are
        not judged before their beats are read."""
        late_s = self.lag_s()
        if late_s <= PAUSE_S:
            return
        self._on_lag("supervisor", late_s)
        self._due += late_s
        self._stood_still_until = self._clock()
        for watched in self._watched.values():
            if watched.pulse is not None:
                watched.pulse = workers.forgive(watched.pulse, late_s)

    def _tick(self) -> None:
        late_s = self.lag_s()
        if late_s <= PAUSE_S:  # `_forgive` reports longer ones
            self._on_lag("supervisor", late_s)
        self.look()
        wait_s = self._due - self._clock()
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._tick)

    def _judge(self, pid: int, watched: _Watched) -> None:
        assert watched.pulse is not None
        verdict = workers.verdict(watched.pulse, self._clock())
        if verdict is watched.verdict:
            return
        watched.verdict = verdict
        watched.on_verdict(verdict)
        if verdict is PulseVerdict.HUNG:
            self._signal(pid, signal.SIGABRT)
        elif verdict is PulseVerdict.DEAD:
            self._signal(pid, signal.SIGKILL)


STACKS_BYTES_MAX = after_fork.PULSE_AT
"""Maximum bytes of the stacks of one worker; a dump of a worker with two threads takes about
4 KiB."""
ASK_SIGNAL = signal.SIGUSR2
"""Signal that a worker answers with its stacks; then it goes on
(`metamcp_worker.runtime.nursery`)."""
ANSWER_S_MAX = 2.0
"""Maximum seconds to wait for stacks: the handler runs at once, unless the process is stopped or
sleeps in the kernel."""
LOOK_S = 0.02
"""Seconds between two looks at the file; a dump has no end mark, so it is complete when two looks
show the same text."""


class NoStacks(MetaMCPError):
    """A worker did not write its stacks. The text is a sentence."""


class Stacks:
    """The files, by process. `signal_worker(pid, number)`: signals a worker through the nursery."""

    def __init__(self, signal_worker: Callable[[int, int], None]) -> None:
        self._signal = signal_worker
        self._unborn: dict[int, tuple[int, str]] = {}
        self._files: dict[int, tuple[int, str]] = {}

    def open(self, ticket: int, name: str) -> int:
        """Return a descriptor for the worker that is to be forked. Raises OSError."""
        fd = _file()
        try:
            copy = os.dup(fd)
        except OSError:
            os.close(fd)
            raise
        self._unborn[ticket] = fd, name
        return copy

    def on_fork(self, ticket: int, pid: int) -> None:
        """Note the process of the worker that was forked for this ticket."""
        self._files[pid] = self._unborn.pop(ticket)

    def forget(self, ticket: int) -> None:
        """Close the file of this ticket, unless its worker was forked."""
        if ticket in self._unborn:
            os.close(self._unborn.pop(ticket)[0])

    def take_snapshot(self) -> list[tuple[int, int, str]]:
        """Return process, file and name of each worker, for the program after this one."""
        return [(pid, fd, name) for pid, (fd, name) in self._files.items()]

    def adopt(self, pid: int, fd: int, name: str) -> None:
        """Continue with the file of a worker of the previous program. Takes the descriptor."""
        self._files[pid] = fd, name

    def take(self, pid: int) -> tuple[str, str]:
        """Return the name and the last stacks of a worker that is gone, and close its file. Usually
        the stacks are empty."""
        if pid not in self._files:
            return "", ""
        fd, name = self._files.pop(pid)
        try:
            return name, _text(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        """Close all files, because all workers are gone."""
        for pid in list(self._files):
            self.take(pid)

    def pulse(self, pid: int) -> tuple[float, float] | None:
        """Return the time and the lag of the last pulse of a worker, None if it has none."""
        stacks_file = self._files.get(pid)
        return None if stacks_file is None else after_fork.read_pulse(stacks_file[0])

    async def dump(self, pid: int) -> str:
        """Return the current stacks of a worker. Raises NoStacks."""
        if pid not in self._files:
            raise NoStacks("its worker does not run")
        fd, _ = self._files[pid]
        _clear(fd)
        self._signal(pid, ASK_SIGNAL)
        text, before = "", ""
        try:
            async with asyncio.timeout(ANSWER_S_MAX):
                while not text or text != before:
                    await asyncio.sleep(LOOK_S)
                    if pid not in self._files or self._files[pid][0] != fd:
                        raise NoStacks("its worker ended when it was asked for its stacks")
                    text, before = _text(fd), text
        except TimeoutError:
            reason = "it is stopped, has only begun, or waits for something in the kernel"
            raise NoStacks(
                f"its worker wrote no stacks within {ANSWER_S_MAX:g} s: {reason}"
            ) from None
        _clear(fd)
        return text


def _file() -> int:
    if not hasattr(os, "memfd_create"):
        return packets.blob(b"")
    fd = os.memfd_create("metamcp-stacks", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, STACKS_BYTES_MAX + after_fork.PULSE_BYTES)
        if sys.platform == "linux":  # so a worker that writes without end fills no memory
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
    except OSError:
        os.close(fd)
        raise
    return fd


def _text(fd: int) -> str:
    written = os.pread(fd, STACKS_BYTES_MAX, 0).partition(b"\0")[0]
    return written.decode(errors="replace").strip()


def _clear(fd: int) -> None:
    os.pwrite(fd, bytes(len(os.pread(fd, STACKS_BYTES_MAX, 0).rstrip(b"\0"))), 0)
    os.lseek(fd, 0, os.SEEK_SET)
