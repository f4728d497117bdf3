"""First steps of a worker, right after its fork, and its heartbeats.

Owns: making it a process of its own: session, name, random seed, log, stacks, score for when memory
runs out; the times of heartbeats; the pulse in the file that a worker shares with the supervisor.
Never: the fork, the work of the worker, the verdict about a pulse that stands still.

The steps are short, because each worker takes them: Python code that runs here, and nowhere else in
a worker, costs each worker the memory pages that the code lies on.

A heartbeat as a message wakes the supervisor and costs both sides some hundred microseconds. A
worker with nothing to do sleeps for some seconds instead. Before that, the worker writes a pulse
into the file for its stacks: the time of a heartbeat in the future, after which the next one is due
when the worker wakes up. A worker that is woken earlier writes the time of now.
"""

import contextlib
import faulthandler
import math
import os
import random
import resource
import signal
import struct

from metamcp_worker.ipc.messages import Fork
from metamcp_worker.runtime import lazy_import, logs, orphans

OOM_SCORE_ADJ = {"child": b"500", "shared": b"500"}
"""Value of `oom_score_adj` by role: the kernel should end servers and their workers first when
memory runs out."""

STDERR = 2
STACKS_SIGNAL = signal.SIGUSR2
"""Signal at which a worker writes the stacks of all its threads; the worker goes on unharmed. The
supervisor knows this number too."""

BEAT_S = 1.0
"""Seconds between two heartbeats."""
REST_S_MAX = 10.0
"""Maximum seconds for which a worker with nothing to do sleeps."""
PHASES = 4
"""Number of groups of workers, each with its own time for heartbeats within a second. Workers that
beat together find code and data in the caches of the processor and take a third of the time; all of
them together would delay calls."""
PULSE_AT = 64 * 1024
"""Offset of the pulse in bytes; the stacks are before it."""
_FORM = struct.Struct("=dd")
PULSE_BYTES = _FORM.size

_file: list[int] = []


def settle(order: Fork, stacks: int) -> None:
    """Make this process one of its own. `stacks`: descriptor for its pulse and for the stacks of
    its threads, which are written without the interpreter, so also when the interpreter hangs or
    has crashed; standard error if the supervisor gave no file."""
    lazy_import.catch_up_hooks()
    os.setsid()
    orphans.become_subreaper()  # what its server turns into a daemon stays below it
    random.seed()
    call_it(f"mmcp:{order.name}")
    if adjustment := OOM_SCORE_ADJ.get(order.role):
        _write("/proc/self/oom_score_adj", adjustment)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core dump may hold secrets
    logs.go_on(_about(order), with_libraries=order.role != "child")
    faulthandler.enable(stacks)  # SIGABRT, the watchdog's signal, and every crash of C code
    faulthandler.register(STACKS_SIGNAL, stacks, all_threads=True)
    if stacks > STDERR:
        _file[:] = [stacks]


def call_it(name: str) -> None:
    """Name this process; the kernel keeps the first 15 bytes."""
    _write("/proc/self/comm", name.encode())


def next_beat(now: float, step_s: float) -> float:
    """Return the next time after `now` in a row with `step_s` between two times, which all workers
    of this worker's group have in common. `now`: monotonic seconds."""
    phase_s = os.getpid() % PHASES * BEAT_S / PHASES
    return math.floor((now - phase_s) / step_s + 1) * step_s + phase_s


def write_pulse(beat_at: float, lag_s: float) -> bool:
    """Write the pulse. Returns False if the supervisor gave this process no file. `beat_at`:
    monotonic seconds, in the future for a process that sleeps; `lag_s`: by how many seconds the
    event loop was late."""
    if not _file:
        return False
    try:
        return os.pwrite(_file[0], _FORM.pack(beat_at, lag_s), PULSE_AT) == PULSE_BYTES
    except OSError:
        return False


def read_pulse(fd: int) -> tuple[float, float] | None:
    """Return the time and the lag of the last pulse, None if there is none. The worker may hold
    foreign code, so the numbers may be anything. Raises OSError."""
    pulse = os.pread(fd, PULSE_BYTES, PULSE_AT)
    return _FORM.unpack(pulse) if len(pulse) == PULSE_BYTES else None


def _about(order: Fork) -> dict[str, str | int]:
    server, _, generation = order.name.rpartition("#")
    if order.role != "child" or not generation.isdigit():
        return {}
    return {"server": server, "generation": int(generation)}


def _write(path: str, data: bytes) -> None:
    """Write a setting of the kernel, if the system has this file and lets the process write it."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
