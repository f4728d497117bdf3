"""How soon the next call is answered after something was killed, beside the server's own start.

    python -m benchmarks.recovery [--rounds 20]

One row for each: the server's process with a spare and without, its worker, a front of two, a lazy
server that is called for the first time, and how long the tree of a killed supervisor lives. Where
the start of the server is most of it, once with the scripted server, which starts faster than any
real one, and once with an ordinary one on the official SDK. Medians of `--rounds`; `direct` is the
same server, started by hand, to its first answer. Exit code 1 if a bar is missed.
"""

import argparse
import math
import os
import signal
import statistics
import sys
import time
from typing import Any

from benchmarks.footprint import alone
from tests.live import processes
from tests.live.client import MODERN, Client
from tests.live.gateway import ROOT, Gateway, fake
from tests.waiting import until

ROUNDS = 20
KILLS_MAX = 5
"""Of one gateway: a server that dies more often within two minutes is left alone for a while."""
SPARE_BAR_S, FRONT_BAR_S, TREE_BAR_S = 0.05, 0.05, 0.5
START_BAR, LAZY_BAR = 1.5, 1.2

Entry = dict[str, Any]
"""Of a configuration."""
Row = tuple[str, float, float]
"""What was done, seconds, and how many they may be."""
SERVERS: dict[str, Entry] = {
    "scripted": fake(),
    "ordinary": {"command": [sys.executable, "-m", "benchmarks.ordinary_server"], "cwd": str(ROOT)},
}


def answered(port: int, tool: str = "git__echo") -> float:
    """Seconds until a call on a new connection is answered rightly, tried again until it is."""
    begin = time.perf_counter()
    while True:
        client = Client(port, MODERN)
        try:
            if "result" in client.call(tool, text="a"):
                return time.perf_counter() - begin
        except OSError:
            pass
        finally:
            client.close()


def killed(gateway: Gateway, role: str) -> float:
    """Seconds from a SIGKILL to the next answer."""
    os.kill(gateway.server("git")[role], signal.SIGKILL)
    return answered(gateway.port)


def spare_takes_over(role: str, rounds: int) -> float:
    took: list[float] = []
    for _ in range(0, rounds, KILLS_MAX):
        with Gateway({"git": {**fake(), "spares": 1}}) as gateway:
            for _ in range(KILLS_MAX):
                until(lambda: spared(gateway), "the spare is ready", 60)
                took.append(killed(gateway, role))
    return statistics.median(took)


def starts_again(rounds: int, entry: Entry) -> float:
    """A gateway for each, or the second death within a minute would be waited out."""
    took: list[float] = []
    for _ in range(rounds):
        with Gateway({"git": entry}) as gateway:
            took.append(killed(gateway, "pid"))
    return statistics.median(took)


def spared(gateway: Gateway) -> bool:
    """Is there a spare that is ready?"""
    lines = gateway.ctl("events", "-n", "10000").splitlines()
    ready = sum("spare ready" in line for line in lines)
    taken = sum("ready→ready" in line for line in lines)
    return ready > taken and bool(gateway.server("git")["state"] == "active")


def front_killed(rounds: int) -> float:
    took: list[float] = []
    with Gateway({"git": fake()}, extra="[gateway]\nfronts = 2") as gateway:
        for number in range(rounds):
            until(lambda: all(f["state"] == "ready" for f in gateway.status()["fronts"]), "both")
            os.kill(gateway.status()["fronts"][number % 2]["pid"], signal.SIGKILL)
            took.append(answered(gateway.port))
    return statistics.median(took)


def tree_gone(rounds: int) -> float:
    took: list[float] = []
    for _ in range(rounds):
        gateway = Gateway({"git": fake("--ignore-eof", "--ignore-term"), "other": fake()})
        with gateway:
            tree = processes.below(gateway.pid)
            begin = time.perf_counter()
            os.kill(gateway.pid, signal.SIGKILL)
            while processes.alive(tree):
                pass
            took.append(time.perf_counter() - begin)
            assert gateway.process is not None
            gateway.process.wait()
    return statistics.median(took)


def first_call(rounds: int, entry: Entry) -> float:
    took: list[float] = []
    with Gateway({"git": {**entry, "start": "lazy", "idle_stop": "1ms"}}) as gateway:
        for _ in range(rounds):
            until(lambda: gateway.server("git")["state"] == "idle", "it rests", 30)
            took.append(answered(gateway.port))
    return statistics.median(took)


def starts(rounds: int, name: str, entry: Entry) -> list[Row]:
    direct = statistics.median(alone(entry["command"]) for _ in range(rounds))
    return [
        (f"{name} server: direct start", direct, math.inf),
        (f"{name} server: killed, no spare", starts_again(rounds, entry), START_BAR * direct),
        (f"{name} server: first call, lazy", first_call(rounds, entry), LAZY_BAR * direct),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds: int = parser.parse_args().rounds
    rows = [row for name, entry in SERVERS.items() for row in starts(rounds, name, entry)]
    rows += [
        ("server killed, a spare is ready", spare_takes_over("pid", rounds), SPARE_BAR_S),
        ("worker killed, a spare is ready", spare_takes_over("worker_pid", rounds), SPARE_BAR_S),
        ("one of two fronts killed", front_killed(rounds), FRONT_BAR_S),
        ("tree of a killed supervisor", tree_gone(rounds), TREE_BAR_S),
    ]  # fmt: skip
    for name, took, bar in rows:
        most = f"  (at most {bar * 1000:.0f})" if bar < math.inf else ""
        print(f"{name:40}{took * 1000:8.0f} ms{most}")
    return int(any(took > bar for _, took, bar in rows))


if __name__ == "__main__":
    sys.exit(main())
