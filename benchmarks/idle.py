"""How much processor time a gateway takes while nothing happens.

    python -m benchmarks.idle [--servers 1 20 60 100] [--seconds 20] [--foreign 500]

Real processes and a real clock. Prints a table: one row for each number of servers, and one more
for the last of them with foreign processes on the machine, which do nothing. Each figure is
milliseconds of processor time in one second. The servers' own programs do not count.
"""

import argparse
import subprocess
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager

from benchmarks import roles
from benchmarks.scenarios.startup import QUICK
from tests.live import processes
from tests.live.gateway import Gateway

SERVERS = (1, 20, 60, 100)
SECONDS = 20.0
FOREIGN = 500
READY_S_MAX = 300.0
SETTLE_S = 8.0
"""Seconds after the last start until what follows a start is done."""
ROLES = ("worker", "supervisor", "front", "nursery", "others")


@contextmanager
def ready(servers: int) -> Generator[Gateway]:
    """A gateway with so many quick servers, all of them ready."""
    entries = {f"s{number:03}": {"command": QUICK} for number in range(servers)}
    with Gateway(entries, wait=False) as gateway:
        gateway.wait_ready()
        gateway.ctl("wait", "--timeout", f"{READY_S_MAX:g}s")
        yield gateway


def own(gateway: Gateway) -> dict[str, list[int]]:
    """The processes of the gateway by their role, without the servers' own programs."""
    found = roles.of_gateway(gateway)
    known = {pid for pids in found.values() for pid in pids}
    programs = {pid for worker in found["worker"] for pid in processes.below(worker)}
    return found | {"others": sorted(processes.below(gateway.pid) - known - programs)}


def idle_ms_per_s(gateway: Gateway, seconds: float) -> dict[str, float]:
    """Milliseconds of processor time in one second, by role."""
    pids = own(gateway)
    begun, before = time.monotonic(), roles.exact_cpu_s(pids)
    time.sleep(seconds)
    after = roles.exact_cpu_s(pids)
    past_s = time.monotonic() - begun
    return {role: (after[role] - before[role]) / past_s * 1000 for role in pids}


@contextmanager
def foreign(count: int) -> Generator[None]:
    """So many processes that sleep and do not belong to the gateway."""
    sleepers = [subprocess.Popen(("sleep", "infinity")) for _ in range(count)]
    try:
        yield
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


def row(title: str, found: dict[str, float]) -> str:
    cells = [f"{found[role]:.2f}" for role in ROLES]
    return f"| {title} | {sum(found.values()):.2f} | {' | '.join(cells)} |"


def main(
    servers: Sequence[int], seconds: float, strangers: int, settle_s: float = SETTLE_S
) -> Iterator[str]:
    yield f"| servers | all | {' | '.join(ROLES)} |"
    yield "|---" * (len(ROLES) + 2) + "|"
    for count in servers:
        with ready(count) as gateway:
            time.sleep(settle_s)
            yield row(str(count), idle_ms_per_s(gateway, seconds))
            if count == servers[-1] and strangers:
                with foreign(strangers):
                    found = idle_ms_per_s(gateway, seconds)
                yield row(f"{count}, and {strangers} foreign processes", found)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--servers", type=int, nargs="+", default=SERVERS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--foreign", type=int, default=FOREIGN)
    options = parser.parse_args()
    for line in main(options.servers, options.seconds, options.foreign):
        print(line, flush=True)
