"""What a good server's calls cost while bad servers run behind the same gateway.

A good server is called fifty times a second: alone, beside six bad ones (one is never ready, one
floods its stdout, one leaks memory, one forks daemons, one ignores SIGTERM and is restarted, one
hangs) from the moment that they start, beside them once they are contained, and with the same six
programs started outside of the gateway, which is what they cost whoever has to share a machine with
them. All in turns, and medians over the rounds.
"""

import contextlib
import subprocess
import threading
import time
from collections.abc import Generator
from typing import Any

from benchmarks import figures
from benchmarks.figures import Bar, Effort, Row, Sample, Table, compared, most, percentile
from tests.live.client import MODERN, Client
from tests.live.gateway import ROOT, Gateway, fake
from tests.waiting import until

TITLE = "A good server beside six bad ones"
ROUNDS = 3
SECONDS, SECONDS_QUICK = 3, 1
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
CONTAINED_S_MAX = 90.0
"""A server that floods is quarantined after a minute, and a slow machine sees it later."""
ROWS = ("alone", "as they start", "contained", "outside")


def measure(effort: Effort) -> Table:
    found: dict[str, list[Sample]] = {name: [] for name in ROWS}
    rounds, seconds = effort.of(ROUNDS, 1), effort.of(SECONDS, SECONDS_QUICK)
    with Gateway({"good": fake(), **BAD}, wait=False) as gateway:
        until(gateway.answers, "the gateway answers")
        gateway.ctl("wait", "good", "--timeout", "60s")
        for _ in range(rounds):
            one_round(gateway, found, seconds)
    rows = [figures.row(name, samples) for name, samples in found.items()]
    return Table("neighbours", TITLE, tuple(rows), tuple(bars(rows)), (f"Calls every {CALL_S} s.",))


def bars(rows: list[Row]) -> list[Bar]:
    alone, contained = (next(row for row in rows if row.name == name) for name in ROWS[::2])
    return [
        most(
            f"{what} of the good one beside contained bad ones, against alone",
            compared(contained, alone, f"{what} ms"),
            BAR,
        )
        for what in ("p50", "p99")
    ]


def one_round(gateway: Gateway, found: dict[str, list[Sample]], seconds: float) -> None:
    gateway.ctl("stop", *BAD, "--wait", "--timeout", "60s")
    found["alone"].append(called(gateway.port, seconds))
    with outside():
        found["outside"].append(called(gateway.port, seconds))
    gateway.ctl("start", *BAD)
    with contextlib.closing(Client(gateway.port, MODERN)) as client:
        found["as they start"].append(called(gateway.port, seconds))
        until(lambda: contained(gateway), "they are contained", CONTAINED_S_MAX)
        gateway.ctl("wait", "hangs", "--timeout", "30s")
        client.text("hangs__deafen")
    gateway.ctl("restart", "stays")
    found["contained"].append(called(gateway.port, seconds))


def called(port: int, seconds: float) -> Sample:
    """Calls at a steady pace."""
    client, took = Client(port, MODERN), list[float]()
    pace = threading.Event()
    end = time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        assert client.text("good__echo", text="a") == "a"
        took.append(time.perf_counter() - begin)
        pace.wait(max(0.0, CALL_S - took[-1]))
    client.close()
    return Sample(
        {"p50 ms": percentile(took, 0.50) * 1000, "p99 ms": percentile(took, 0.99) * 1000}
    )


def contained(gateway: Gateway) -> bool:
    """Is each of them where it stays?"""
    phases = {one["name"]: one["phase"] for one in gateway.status()["servers"]}
    ready = {name for name, phase in phases.items() if phase == "ready"}
    return phases["floods"] == "quarantined" and {"forks", "stays"} <= ready


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
