"""What a good server's calls cost while bad servers run behind the same gateway.

    python -m benchmarks.neighbours [--rounds 5] [--seconds 6]

A good server is called fifty times a second: alone, beside six bad ones (one is never ready, one
floods its stdout, one leaks memory, one forks daemons, one ignores SIGTERM and is restarted, one
hangs) from the moment that they start, beside them once they are contained, and with the same six
programs started outside of the gateway, which is what they cost whoever has to share a machine with
them. All in turns, and medians over the rounds. Exit code 1 if the contained ones make the good
one's p50 or p99 more than 1.2 times what it is alone.
"""

import argparse
import contextlib
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from typing import Any

from tests.live.client import MODERN, Client
from tests.live.gateway import ROOT, Gateway, fake
from tests.waiting import until

ROUNDS, SECONDS = 5, 6.0
CALL_S = 0.02
BAR = 1.2
BAD: dict[str, dict[str, Any]] = {
    "never": {**fake("--hang"), "start_timeout": "3s"},
    "floods": fake("--stdout-flood"),
    "leaks": {**fake("--leak", "20"), "memory_max": "200M"},
    "forks": fake("--daemons", "20"),
    "stays": {**fake("--ignore-term", "--ignore-eof"), "stop_grace": "1s"},
    "hangs": {**fake(), "probe_interval": "1s"},
}
ROWS = ("alone", "as they start", "contained", "outside")
Figures = dict[str, list[tuple[float, float]]]
"""p50 and p99 in ms of each round."""


def called(port: int, seconds: float) -> tuple[float, float]:
    """p50 and p99 in ms of calls at a steady pace."""
    client, took = Client(port, MODERN), list[float]()
    pace = threading.Event()
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        assert client.text("good__echo", text="a") == "a"
        took.append(time.perf_counter() - begin)
        pace.wait(max(0.0, CALL_S - took[-1]))
    client.close()
    took.sort()
    return statistics.median(took) * 1000, took[int(len(took) * 0.99)] * 1000


def contained(gateway: Gateway) -> bool:
    """Is each of them where it stays?"""
    phases = {one["name"]: one["phase"] for one in gateway.status()["servers"]}
    return phases["floods"] == "quarantined" and phases["forks"] == phases["stays"] == "ready"


@contextlib.contextmanager
def outside() -> Generator[None]:
    """The same programs, as somebody would start them."""
    started = [
        subprocess.Popen(
            one["command"],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT,
            start_new_session=True,
        )
        for name, one in BAD.items() if name != "forks"
    ]  # fmt: skip
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()


def measured(rounds: int, seconds: float) -> Figures:
    found: Figures = {row: [] for row in ROWS}
    with Gateway({"good": fake(), **BAD}, wait=False) as gateway:
        gateway.ctl("wait", "good", "--timeout", "60s")
        for _ in range(rounds):
            gateway.ctl("stop", *BAD, "--wait", "--timeout", "60s")
            found["alone"].append(called(gateway.port, seconds))
            with outside():
                found["outside"].append(called(gateway.port, seconds))
            gateway.ctl("start", *BAD)
            with contextlib.closing(Client(gateway.port, MODERN)) as client:
                found["as they start"].append(called(gateway.port, seconds))
                until(lambda: contained(gateway), "they are contained", 60)
                gateway.ctl("wait", "hangs", "--timeout", "30s")
                client.text("hangs__deafen")
            gateway.ctl("restart", "stays")
            found["contained"].append(called(gateway.port, seconds))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    options = parser.parse_args()
    found = measured(options.rounds, options.seconds)
    middle = {
        row: tuple(statistics.median(one[at] for one in found[row]) for at in (0, 1))
        for row in ROWS
    }
    alone = middle["alone"]
    print(f"{'':16}{'p50':>9}{'p99':>9}{'ratios':>15}")
    for row in ROWS:
        p50, p99 = middle[row]
        ratios = f"{p50 / alone[0]:.2f} / {p99 / alone[1]:.2f}"
        print(f"{row:16}{p50:6.2f} ms{p99:6.2f} ms{ratios:>15}")
    return int(any(middle["contained"][at] / alone[at] > BAR for at in (0, 1)))


if __name__ == "__main__":
    sys.exit(main())
