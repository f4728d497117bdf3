"""Heartbeats of a worker: when they are due, and those that are only a pulse.

Owns: the times of heartbeats within a second; the place and the form of the pulse in the file that
a worker shares with the supervisor for its stacks, writing and reading it. Never: the verdict about
a worker whose pulse stands still, heartbeats as messages.

A heartbeat as a message wakes the supervisor and costs both sides some hundred microseconds. A
worker with nothing to tell writes the time into the file instead, which costs one, and the
supervisor reads it when a heartbeat would be due.
"""

import math
import os
import struct

BEAT_S = 1.0
"""Seconds between two heartbeats."""
PULSE_S = 2.0
"""Seconds between two heartbeats of a worker with nothing to tell. The supervisor waits for a
second more before it calls a worker late."""
PHASES = 4
"""Number of groups of workers, each with its own time for heartbeats within a second. Workers that
beat together find code and data in the caches of the processor and take a third of the time; all of
them together would delay calls."""
PULSE_AT = 64 * 1024
"""Offset of the pulse in bytes; the stacks are before it."""
_FORM = struct.Struct("=dd")
PULSE_BYTES = _FORM.size

_file: list[int] = []


def share(fd: int) -> None:
    """Write the pulse of this process to this file from now on."""
    _file[:] = [fd]


def after(now: float, step_s: float) -> float:
    """Return the next time after `now` in a row with `step_s` between two times, which all workers
    of this worker's group have in common. `now`: monotonic seconds."""
    phase_s = os.getpid() % PHASES * BEAT_S / PHASES
    return math.floor((now - phase_s) / step_s + 1) * step_s + phase_s


def beat(now: float, lag_s: float) -> bool:
    """Write the pulse. Returns False if the supervisor gave this process no file. `now`: monotonic
    seconds; `lag_s`: by how many seconds the event loop was late."""
    if not _file:
        return False
    try:
        return os.pwrite(_file[0], _FORM.pack(now, lag_s), PULSE_AT) == PULSE_BYTES
    except OSError:
        return False


def read(fd: int) -> tuple[float, float] | None:
    """Return the time and the lag of the last pulse, None if there is none. The worker may hold
    foreign code, so the numbers may be anything. Raises OSError."""
    found = os.pread(fd, PULSE_BYTES, PULSE_AT)
    return _FORM.unpack(found) if len(found) == PULSE_BYTES else None
