"""How much memory a process has, had at most, and has again.

What it had before counts for nothing: most of that it shares with the others of its kind.
"""

from pathlib import Path

from metamcp_worker.front.run import TRIM_S
from tests.live import processes
from tests.waiting import until

SLACK_BYTES = 4 * 1024 * 1024
"""What is kept of whatever is done for the first time: caches, a table that has grown once, and
blocks below 1 MiB that the C library does not give back because others between them are in use."""


def resident(pid: int) -> int:
    return processes.memory(pid, "Rss")


class Watched:
    """One process, from now on."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.before = resident(pid)
        Path(f"/proc/{pid}/clear_refs").write_text("5")  # the peak is what it is now

    @property
    def grown(self) -> int:
        """At its peak."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024 - self.before
        raise AssertionError(f"no peak for process {self.pid}")

    @property
    def kept(self) -> int:
        """Now."""
        return resident(self.pid) - self.before

    def returns(self, kept_bytes: int = 0) -> None:
        """Wait until it has given back all but this. A front keeps up to 8 MiB of its heap for the
        next message until it trims."""
        most = kept_bytes + SLACK_BYTES
        until(lambda: self.kept <= most, f"process {self.pid} gives memory back", TRIM_S + 10)
