"""Fifty servers lose what all of them need: `benchmarks.outage`, with the bars of its own."""

import subprocess
import sys

from benchmarks import roles
from benchmarks.figures import Effort, Sample, Table, most
from benchmarks.machine import ROOT
from benchmarks.turns import in_turns

TITLE = "An outage of what fifty servers need"
SECONDS, SECONDS_QUICK = 20, 1
ENDED_S_MAX = 300.0


def measure(effort: Effort) -> Table:
    seconds = effort.of(SECONDS, SECONDS_QUICK)
    command = [sys.executable, "-m", "benchmarks.outage", "--seconds", str(seconds)]
    codes: list[int] = []
    said: list[str] = []

    def once() -> None:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=ENDED_S_MAX, check=False
        )
        codes.append(done.returncode)
        said.extend(line for line in done.stdout.splitlines() if line.strip())
        assert said, done.stderr[-2000:]

    rows = in_turns({f"an outage of {seconds} s": lambda: Sample({"s": roles.timed(once)})}, 1)
    bar = most("of its own bars, missed", codes[0], 0, "exit code")
    return Table("outage", TITLE, rows, (bar,), tuple(said))
