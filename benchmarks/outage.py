"""Fifty servers lose what all of them need for a minute: how they come back.

    python -m benchmarks.outage [--seconds 60]

Real processes and a real clock. Prints how many were down, how many were starting at the same
moment at most, and how long after the end of the outage the servers were ready, in the middle and
at worst; beside it, how long the same fifty take when a fresh gateway starts them with everything
there: what this machine can do. Exit code 1 if a bar is missed.
"""

import argparse
import statistics
import sys
import threading
import time
from typing import Any

from tests.faults.test_outage import NEEDY, SERVERS, Upstream, all_active, events
from tests.live.gateway import Gateway, free_port
from tests.waiting import until

OUTAGE_S = 60.0
STARTS_BAR = 8
MEAN_BAR_S = 2.0


def servers(port: int) -> dict[str, dict[str, Any]]:
    command = [sys.executable, NEEDY, str(port)]
    return {f"s{number:02}": {"command": command} for number in range(SERVERS)}


def times(told: list[dict[str, Any]], what: str, after: float) -> list[float]:
    """Seconds from `after` to each event of this kind behind it."""
    return [e["time"] - after for e in told if e["what"] == what and e["time"] > after]


def peak(told: list[dict[str, Any]], after: float) -> int:
    """How many were starting at the same moment, at most."""
    starting: set[str] = set()
    most = 0
    for event in told:
        if event["time"] > after and "warming" in event["what"]:
            (starting.add if event["what"].endswith("→warming") else starting.discard)(event["who"])
            most = max(most, len(starting))
    return most


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=OUTAGE_S)
    outage_s: float = parser.parse_args().seconds
    with Upstream(free_port()) as upstream:
        begin = time.time()
        with Gateway(servers(upstream.port)) as gateway:
            fresh = times(events(gateway.log), "warming→ready", begin)
            lost = time.time()
            upstream.down()
            threading.Event().wait(outage_s)
            failed = sum(server["state"] == "error" for server in gateway.status()["servers"])
            back = time.time()
            upstream.up()
            until(lambda: all_active(gateway), "all of them are back", 60)
            told = events(gateway.log)
    ready = sorted(times(told, "warming→ready", back))
    most = peak(told, lost)
    mean = statistics.mean(ready)
    first = min(fresh)
    print(f"down after {outage_s:.0f} s: {failed} of {SERVERS}; starts meanwhile:"
          f" {len(times(told, 'queued→warming', lost))}")  # fmt: skip
    print(f"starting at the same moment: {most}  (at most {STARTS_BAR})")
    print(f"ready after it: mean {mean:.2f} s  (at most {MEAN_BAR_S}), worst {ready[-1]:.2f} s")
    print(f"a fresh start of all of them: mean {statistics.mean(fresh) - first:.2f} s,"
          f" worst {max(fresh) - first:.2f} s after the first")  # fmt: skip
    return int(len(ready) != SERVERS or most > STARTS_BAR or mean > MEAN_BAR_S)


if __name__ == "__main__":
    sys.exit(main())
