"""Hundreds of servers in one gateway: how long their start takes, and what an operator does then.

    python -m benchmarks.crowd [--servers 300]

Real processes and a real clock. Prints a table for `docs/supervision.md`: the start, `ctl status`,
a reload that restarts one server, a crash of a hundred at once, SIGTERM, and SIGKILL of the
supervisor. Ends with 1 when a process is left or a call of a server that nothing was done to fails.
The servers are small Python programs that boot in 20 ms, so the figures are the gateway's own.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from benchmarks.scenarios.startup import QUICK
from tests.live import processes
from tests.live.client import MODERN, Client
from tests.live.gateway import Gateway
from tests.waiting import until

CRASHES = 100
READY_S_MAX = 300.0
LOOKS = 5
MIB = 1024 * 1024


class Crowd:
    """`rows`: what was done, and what came of it."""

    def __init__(self, servers: int) -> None:
        self.names = [f"s{number:03}" for number in range(servers)]
        self.entries: dict[str, dict[str, Any]] = {name: {"command": QUICK} for name in self.names}
        self.gateway = Gateway(dict(self.entries), wait=False)
        self.rows: list[tuple[str, str]] = []

    def run(self) -> None:
        count = len(self.names)
        with self.gateway as gateway:
            self._row(f"start of the gateway until {count} servers are ready", self._ready())
            self._memory()
            looks = [self._timed(lambda: gateway.ctl("status")) for _ in range(LOOKS)]
            self._row("`metamcp ctl status`, the median of five", sorted(looks)[LOOKS // 2])
            self._reload()
            self._crash(min(CRASHES, count // 3))
            self._row("SIGTERM until nothing is left", self._timed(self._stop))
        self.gateway = Gateway(dict(self.entries), wait=False)
        with self.gateway:
            self._ready()
            self._row("SIGKILL of the supervisor until nothing is left", self._timed(self._kill))

    def _ready(self) -> float:
        begun = time.perf_counter()
        self.gateway.wait_ready()
        self.gateway.ctl("wait", "--timeout", f"{READY_S_MAX:g}s")
        return time.perf_counter() - begun

    def _memory(self) -> None:
        status = self.gateway.status()
        own = [status["pid"], status["nursery_pid"], *(one["pid"] for one in status["fronts"])]
        workers = [one["worker_pid"] for one in status["servers"]]
        for who, pids in (
            ("supervisor, nursery and front", own),
            ("a worker, on average", workers),
        ):
            held = sum(processes.memory(pid) for pid in pids) / (1 if pids is own else len(pids))
            self.rows.append((f"memory (PSS): {who}", f"{held / MIB:.1f} MiB"))

    def _reload(self) -> None:
        """The configuration of one server changes; all others answer as before."""
        first, second = self.names[:2]
        before = self.gateway.server(second)["pid"]
        self.entries[first] = {"command": QUICK, "env": {"CHANGED": "yes"}}
        self.gateway.write(self.entries)

        def reload() -> None:
            self.gateway.ctl("reload")
            self.gateway.ctl("wait", first, "--timeout", "60s")

        self._row(
            "`metamcp ctl reload` that restarts one of them, until it is ready", self._timed(reload)
        )
        assert self.gateway.server(second)["pid"] == before, "another server was restarted"

    def _crash(self, count: int) -> None:
        """So many are killed at once; the last server is called all the time."""
        victims = {one["name"]: one["pid"] for one in self.gateway.status()["servers"][:count]}
        with closing(Client(self.gateway.port, MODERN)) as client:
            begun = time.perf_counter()
            for pid in victims.values():
                os.kill(pid, signal.SIGKILL)
            worst_s = 0.0
            while not self._back(victims):
                asked = time.perf_counter()
                assert "result" in client.request("tools/list")
                worst_s = max(worst_s, time.perf_counter() - asked)
            self._row(
                f"SIGKILL of {count} servers at once, until all are ready",
                time.perf_counter() - begun,
            )
            self._row("`tools/list` meanwhile, at worst", worst_s)

    def _back(self, victims: dict[str, int]) -> bool:
        found = self.gateway.status()["servers"]
        return all(
            one["state"] == "active" and one["pid"] != victims[one["name"]]
            for one in found
            if one["name"] in victims
        )

    def _stop(self) -> None:
        assert self.gateway.stop() == 0
        self._gone()

    def _kill(self) -> None:
        assert self.gateway.process is not None
        self.gateway.process.kill()
        self.gateway.process.wait(30)
        self._gone()

    def _gone(self) -> None:
        until(lambda: not self.gateway.left(), "nothing is left", READY_S_MAX)

    def _timed(self, act: Callable[[], object]) -> float:
        begun = time.perf_counter()
        act()
        return time.perf_counter() - begun

    def _row(self, what: str, seconds: float) -> None:
        shown = f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"
        self.rows.append((what, shown))


def table(rows: list[tuple[str, str]]) -> str:
    lines = ["| what | figure |", "|---|---|", *(f"| {what} | {shown} |" for what, shown in rows)]
    return "\n".join(lines)


def main(servers: int) -> str:
    crowd = Crowd(servers)
    crowd.run()
    return table(crowd.rows)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, default=300)
    sys.stdout.write(main(parser.parse_args().servers) + "\n")
