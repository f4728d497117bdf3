"""Fifty servers lose what all of them need for a minute: how they come back.

    python -m benchmarks.outage [--seconds 60]

Real processes and a real clock. Prints how many were down, how often they were started meanwhile,
how many were starting at the same moment at most, and how long after the end of the outage the
servers were ready, in the middle and at worst. Two parts make that up: until the first start that
comes to something, and from there on. The second is what this machine can do: beside it stands how
long the same fifty take, from the first start on, when a fresh gateway starts them with everything
there. Exit code 1 if a bar is missed.

Nothing looks on while they come back: a `ctl status` costs as much of a processor as the start of
a server, and who asks again and again measures himself.
"""

import argparse
import os
import statistics
import sys
import threading
import time
from functools import partial
from typing import Any

from tests.faults.test_outage import NEEDY, SERVERS, Upstream, come_back, events
from tests.live.gateway import Gateway, free_port
from tests.waiting import until

OUTAGE_S = 60.0
STARTS_BAR = 8
MEAN_BAR_S = 2.0
STARTED, READY = "launched", "warming→ready"


def servers(port: int) -> dict[str, dict[str, Any]]:
    command = [sys.executable, NEEDY, str(port)]
    return {f"s{number:02}": {"command": command} for number in range(SERVERS)}


def times(told: list[dict[str, Any]], what: str, after: float) -> list[float]:
    """Seconds from `after` to each event of this kind behind it."""
    return [e["time"] - after for e in told if e["what"] == what and e["time"] > after]


def course(told: list[dict[str, Any]], after: float) -> tuple[float, list[float]]:
    """Seconds from `after` to the first start that came to something, and to each that is ready."""
    started: dict[str, float] = {}
    came: list[tuple[float, float]] = []
    for event in told:
        if event["what"] == STARTED:
            started[event["who"]] = event["time"] - after
        elif event["what"] == READY and event["time"] > after and event["who"] in started:
            came.append((started[event["who"]], event["time"] - after))
    return min(start for start, _ in came), sorted(ready for _, ready in came)


def peak(told: list[dict[str, Any]], after: float) -> int:
    """How many were starting at the same moment, at most."""
    starting: set[str] = set()
    most = 0
    for event in told:
        if event["time"] > after and (event["what"] == STARTED or "warming→" in event["what"]):
            (starting.add if event["what"] == STARTED else starting.discard)(event["who"])
            most = max(most, len(starting))
    return most


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=OUTAGE_S)
    outage_s: float = parser.parse_args().seconds
    with Upstream(free_port()) as upstream:
        begin = time.time()
        with Gateway(servers(upstream.port)) as gateway:
            lost = time.time()
            upstream.down()
            threading.Event().wait(outage_s)
            failed = sum(server["state"] == "error" for server in gateway.status()["servers"])
            back, size = time.time(), gateway.log.stat().st_size
            upstream.up()
            until(partial(come_back, gateway.log, size), "all of them are back", 60)
            told = events(gateway.log)
    tries = len(times(told, STARTED, lost)) - len(times(told, STARTED, back))
    most = peak(told, lost)
    first, ready = course(told, back)
    fresh_first, fresh = course([event for event in told if event["time"] < lost], begin)
    mean = statistics.mean(ready)
    print(f"down after {outage_s:.0f} s: {failed} of {SERVERS}; starts meanwhile: {tries}")
    print(f"starting at the same moment: {most}  (at most {STARTS_BAR})")
    print(f"ready after it: mean {mean:.2f} s  (at most {MEAN_BAR_S}), worst {ready[-1]:.2f} s")
    print(f"  of that, until the first start that comes to something: {first:.2f} s")
    print(f"  from there on: {row(ready, first)}")
    print(f"a fresh start of all of them, from the first start on: {row(fresh, fresh_first)}")
    print(f"load of the machine meanwhile: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    return int(len(ready) != SERVERS or most > STARTS_BAR or mean > MEAN_BAR_S)


def row(ready: list[float], first: float) -> str:
    return f"mean {statistics.mean(ready) - first:.2f} s, worst {ready[-1] - first:.2f} s"


if __name__ == "__main__":
    sys.exit(main())
