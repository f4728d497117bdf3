"""Gateways whose clocks are not those of the machine."""

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.live import processes
from tests.live.gateway import Gateway

WALL = Path(__file__).parent.parent / "fakes" / "wall"


class Uptime(Gateway):
    """A gateway on a machine that has been up for so long: its steady clocks start there, in a time
    namespace of its own. Needs root."""

    def __init__(self, servers: Mapping[str, Mapping[str, Any]], *, up_s: float) -> None:
        super().__init__(servers)
        self._shift = int(up_s - time.clock_gettime(time.CLOCK_MONOTONIC))

    def command(self, *arguments: str | Path) -> list[str]:
        command = super().command(*arguments)
        if arguments[0] != "serve":
            return command
        steady = [f"--monotonic={self._shift}", f"--boottime={self._shift}"]
        return ["unshare", "--fork", "--kill-child", "--time", *steady, *command]

    def stop(self) -> int:
        """What `unshare` is told it does not pass on."""
        assert self.process is not None
        for pid, parent in processes.parents().items():
            if parent == self.process.pid:
                os.kill(pid, signal.SIGTERM)
        return super().stop()


class Wall(Gateway):
    """A gateway whose wall clock can be put forward and back while it runs."""

    def __init__(self, servers: Mapping[str, Mapping[str, Any]]) -> None:
        super().__init__(servers)
        self._file = self.folder / "wall"
        self.jump(0)

    def command(self, *arguments: str | Path) -> list[str]:
        path = os.pathsep.join(filter(None, (str(WALL), os.environ.get("PYTHONPATH"))))
        clock = [f"PYTHONPATH={path}", f"METAMCP_TEST_WALL={self._file}"]
        return ["env", *clock, *super().command(*arguments)]

    def jump(self, ahead_s: float) -> None:
        """To so far from the true time, at once and for all of its processes."""
        fresh = self._file.with_suffix(".new")
        fresh.write_text(str(ahead_s))
        fresh.replace(self._file)
