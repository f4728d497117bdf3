"""Pulse of a worker: when its event loop turned last, in a file that it shares with the supervisor.

Owns: the place and the form of the pulse in the file for the worker's stacks, writing and reading
it. Never: when a worker writes its pulse, the verdict about one that stands still.

A heartbeat as a message wakes the supervisor and costs both sides some hundred microseconds. A
worker with nothing to tell writes its pulse instead, which costs one, and the supervisor reads it
when a heartbeat would be due.
"""

import os
import struct

PULSE_S = 2.0
"""Seconds between two heartbeats of a worker with nothing to tell. The supervisor waits for a
second more before it calls a worker late."""
PULSE_AT = 64 * 1024
"""Offset of the pulse in bytes; the stacks are before it."""
_FORM = struct.Struct("=dd")
PULSE_BYTES = _FORM.size

_file: list[int] = []


def share(fd: int) -> None:
    """Write the pulse of this process to this file from now on."""
    _file[:] = [fd]


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
