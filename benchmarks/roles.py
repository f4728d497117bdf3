"""Whose processor time and memory it was: the processes of a gateway or of a relay, by their role.

Owns: reading /proc before and after. Never: the server behind it, which is measured apart.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Sample
from benchmarks.load import Figures
from tests.live import processes
from tests.live.gateway import Gateway

MIB = 1024 * 1024
OTHERS = ("supervisor", "nursery")
"""No call goes through them."""
Pids = Mapping[str, Sequence[int]]


def of_gateway(gateway: Gateway) -> dict[str, list[int]]:
    status = gateway.status()
    return {
        "front": [front["pid"] for front in status["fronts"]],
        "worker": [one["worker_pid"] for one in status["servers"] if one["worker_pid"]],
        "supervisor": [status["pid"]],
        "nursery": [status["nursery_pid"]],
    }


def of_relay(front: int) -> dict[str, list[int]]:
    """A relay is a front whose one child is the worker."""
    table = processes.parents()
    return {"front": [front], "worker": [pid for pid, parent in table.items() if parent == front]}


def cpu_s(pids: Pids) -> dict[str, float]:
    """User and system time of each role so far, in steps of 10 ms, with threads that have ended:
    for programs of others, whose threads come and go."""
    return {role: sum(map(processes.cpu_s, some)) for role, some in pids.items()}


def exact_cpu_s(pids: Pids) -> dict[str, float]:
    """The same by the scheduler, which counts nanoseconds, without threads that have ended."""
    return {role: sum(map(_scheduled_ns, some)) / 1e9 for role, some in pids.items()}


def _scheduled_ns(pid: int) -> int:
    tasks = Path(f"/proc/{pid}/task")
    found = 0
    for name in os.listdir(tasks):
        with suppress(FileNotFoundError):  # the thread has ended meanwhile
            found += int((tasks / name / "schedstat").read_text().split()[0])
    return found


def pss_mib(pids: Pids) -> dict[str, float]:
    return {role: sum(map(processes.memory, some)) / MIB for role, some in pids.items()}


@dataclass(frozen=True, slots=True)
class Spent:
    """One run of load, and the processor time of each role in it."""

    figures: Figures
    cpu_s: Mapping[str, float]

    @property
    def all_cpu_s(self) -> float:
        return sum(self.cpu_s.values())

    def sample(self) -> Sample:
        """Rate and latency, then microseconds of processor time per call; `cpu` is that of the
        processes which the calls go through."""
        calls = max(1, self.figures.calls)
        found = {
            "calls/s": self.figures.rate,
            "p50 ms": self.figures.percentile_ms(0.50),
            "p99 ms": self.figures.percentile_ms(0.99),
        }
        if self.cpu_s:
            used = dict(self.cpu_s)
            others = sum(used.pop(role, 0.0) for role in OTHERS)
            found["cpu us/call"] = sum(used.values()) / calls * 1e6
            used["others"] = others
            found |= {f"{role} us/call": spent / calls * 1e6 for role, spent in used.items()}
        return Sample(found, self.figures.wrong)


def spent(
    pids: Pids, run: Callable[[], Figures], clock: Callable[[Pids], dict[str, float]] = exact_cpu_s
) -> Spent:
    before = clock(pids)
    found = run()
    after = clock(pids)
    return Spent(found, {role: after[role] - used for role, used in before.items()})


def timed(run: Callable[[], object]) -> float:
    """Seconds that it took."""
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin
