"""How soon the next call is answered after something was killed, beside the server's own start.

The server's process with a spare and without, its worker, a front of two, a lazy server that is
called for the first time, a caller whose server is killed under its call, and how long the tree of
a killed supervisor lives. Where the start of the server is most of it, once with the scripted
server, which starts faster than any real one, and once with an ordinary one on the official SDK;
`by hand` is the same server, started without a gateway, to its first answer. Medians.
"""

import os
import signal
import sys
import time
from dataclasses import replace
from typing import Any

from benchmarks import figures, rigs
from benchmarks.alone import alone
from benchmarks.figures import Bar, Effort, Row, Sample, Table, most, ratio
from benchmarks.held import Held
from tests.live import processes
from tests.live.client import MODERN, Client
from tests.live.gateway import ROOT, Gateway, fake
from tests.waiting import until

TITLE = "After a SIGKILL"
ROUNDS = 6
KILLS_MAX = 5
"""Of one gateway: a server that dies more often within two minutes is left alone for a while."""
HELD_MS = 60_000
START_BAR, LAZY_BAR = 1.5, 1.2
BOOT_MORE_BAR_MS = 50.0
INFLIGHT_BAR_MS = 20.0
SPARE_BAR_MS, FRONT_BAR_MS, TREE_BAR_MS = 50.0, 50.0, 500.0

Entry = dict[str, Any]
"""Of a configuration."""
SERVERS: dict[str, Entry] = {
    "scripted": fake(),
    "ordinary": {"command": [sys.executable, "-m", "benchmarks.ordinary_server"], "cwd": str(ROOT)},
}


def measure(effort: Effort) -> Table:
    rounds = effort.of(ROUNDS, 1)
    names = ["scripted"] if effort.quick else list(SERVERS)
    rows = [row for name in names for row in _starts(name, rounds)]
    spare = spare_takes_over(rounds)
    others = {
        "server killed, a spare is ready": spare["pid"],
        "worker killed, a spare is ready": spare["worker_pid"],
        "one of two fronts killed": front_killed(rounds),
        "tree of a killed supervisor": tree_gone(rounds),
    }
    rows += [_row(name, took) for name, took in others.items()]
    return Table("recovery", TITLE, tuple(rows), tuple(bars(rows)))


def bars(rows: list[Row]) -> list[Bar]:
    found = {row.name: row["ms"] for row in rows}
    judged: list[Bar] = []
    for name in SERVERS:
        if (boot := found.get(f"{name}: by hand")) is None:
            continue
        again, first = found[f"{name}: killed, no spare"], found[f"{name}: first call, lazy"]
        told = found[f"{name}: the caller is told"]
        judged += [
            most(f"{name}: the caller is told", told, INFLIGHT_BAR_MS, "ms", absolute=True),
            most(f"{name}: works again, beside its start", ratio(again, boot), START_BAR),
            most(
                f"{name}: works again, after its start",
                again - boot,
                BOOT_MORE_BAR_MS,
                "ms",
                absolute=True,
            ),
            most(f"{name}: first call, beside its start", ratio(first, boot), LAZY_BAR),
        ]
    return [
        *judged,
        *(
            most(name, found[name], limit, "ms", absolute=True)
            for name, limit in {
                "server killed, a spare is ready": SPARE_BAR_MS,
                "worker killed, a spare is ready": SPARE_BAR_MS,
                "one of two fronts killed": FRONT_BAR_MS,
                "tree of a killed supervisor": TREE_BAR_MS,
            }.items()
        ),
    ]


def _row(name: str, took_s: list[float]) -> Row:
    return figures.row(name, [Sample({"ms": seconds * 1000}) for seconds in took_s])


def _starts(name: str, rounds: int) -> list[Row]:
    entry = SERVERS[name]
    told, again = starts_again(rounds, entry)
    return [
        _row(f"{name}: by hand", [alone(entry["command"]) for _ in range(rounds)]),
        _row(f"{name}: the caller is told", told),
        _row(f"{name}: killed, no spare", again),
        _row(f"{name}: first call, lazy", first_call(rounds, entry)),
    ]


# --- what is killed -------------------------------------------------------------------------------


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


def spare_takes_over(rounds: int) -> dict[str, list[float]]:
    """Seconds after a kill of the server's process, and of its worker, in turns."""
    took: dict[str, list[float]] = {"pid": [], "worker_pid": []}
    kills = [*took] * rounds
    for at in range(0, len(kills), KILLS_MAX):
        with Gateway({"git": {**fake(), "spares": 1}}) as gateway:
            for role in kills[at : at + KILLS_MAX]:
                until(lambda: spared(gateway), "the spare is ready", 60)
                took[role].append(killed(gateway, role))
    return took


def spared(gateway: Gateway) -> bool:
    """Is there a spare that is ready?"""
    lines = gateway.ctl("events", "-n", "10000").splitlines()
    ready = sum("spare ready" in line for line in lines)
    taken = sum("ready→ready" in line for line in lines)
    return ready > taken and bool(gateway.server("git")["state"] == "active")


def starts_again(rounds: int, entry: Entry) -> tuple[list[float], list[float]]:
    """Seconds from the SIGKILL of a server to the error that its caller gets, and to the next right
    answer. A gateway for each, or the second death within a minute would be waited out."""
    told: list[float] = []
    took: list[float] = []
    for _ in range(rounds):
        with Gateway({"git": entry}) as gateway:
            pid = gateway.server("git")["pid"]
            said = rigs.modern(gateway, "sleep", "git", ms=HELD_MS)
            said = replace(said, body=said.body.replace(b'"text":"%(text)b",', b""))
            with Held(gateway.port, said, 1) as held:
                until(lambda: gateway.ctl("calls", "--json").count("sleep"), "the call is there")
                begin = time.perf_counter()
                os.kill(pid, signal.SIGKILL)
                (answer,) = held.answers()
                told.append(time.perf_counter() - begin)
                assert b'"error"' in answer, answer
                answered(gateway.port)
                took.append(time.perf_counter() - begin)
    return told, took


def front_killed(rounds: int) -> list[float]:
    took: list[float] = []
    with Gateway({"git": fake()}, extra="[gateway]\nfronts = 2") as gateway:
        for number in range(rounds):
            until(lambda: all(f["state"] == "ready" for f in gateway.status()["fronts"]), "both")
            os.kill(gateway.status()["fronts"][number % 2]["pid"], signal.SIGKILL)
            took.append(answered(gateway.port))
    return took


def tree_gone(rounds: int) -> list[float]:
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
    return took


def first_call(rounds: int, entry: Entry) -> list[float]:
    took: list[float] = []
    with Gateway({"git": {**entry, "start": "lazy", "idle_stop": "1ms"}}) as gateway:
        for _ in range(rounds):
            until(lambda: gateway.server("git")["state"] == "idle", "it rests", 30)
            took.append(answered(gateway.port))
    return took
