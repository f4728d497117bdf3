"""Where the processor time of a process goes, by file: `benchmarks.profile` puts this folder into
the path of a gateway that it measures, and Python imports this file by its name at every start.

Each process that a nursery forks looks every few milliseconds of its own processor time where it
is, and keeps the counts in a file of `$METAMCP_BENCH_TAP` under its pid. Nothing of the gateway is
replaced or called. The nursery does not, which the supervisor forks: it resets all signals.
"""

import json
import os
import signal
import sys
from collections import Counter
from types import FrameType

VARIABLE = "METAMCP_BENCH_TAP"
EVERY_S = 0.002
"""The kernel looks less often if its own clock is slower."""
WRITTEN_EVERY = 10
FORKS = 2 if "metamcp_supervisor" in sys.orig_argv else 1
"""Forks from this program to a process that is measured."""

_forks = 0


def on_forked() -> None:
    global _forks
    _forks += 1
    if _forks == FORKS:
        begin()


def begin() -> None:
    path = os.path.join(os.environ[VARIABLE], f"{os.getpid()}.json")
    counts: Counter[str] = Counter()

    def look(_: int, frame: FrameType | None) -> None:
        counts[frame.f_code.co_filename if frame else ""] += 1
        if counts.total() % WRITTEN_EVERY == 0:
            with open(path, "w") as file:
                json.dump(counts, file)

    signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, EVERY_S, EVERY_S)


if VARIABLE in os.environ:
    os.register_at_fork(after_in_child=on_forked)
