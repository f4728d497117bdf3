"""Where the processor time of a process goes, by file: `benchmarks.profile` puts this folder into
the path of a gateway that it measures, and Python imports this file by its name at every start.

Each process that is forked from there looks every few milliseconds of its own processor time where
it is, and keeps the counts in a file of `$METAMCP_BENCH_TAP` under its pid. Nothing of the gateway
is replaced or called.
"""

import json
import os
import signal
from collections import Counter
from types import FrameType

VARIABLE = "METAMCP_BENCH_TAP"
EVERY_S = 0.002
"""The kernel looks less often if its own clock is slower."""
WRITTEN_EVERY = 10


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
    os.register_at_fork(after_in_child=begin)
