"""Where the microseconds of one call go: `make profile`.

    python -m benchmarks.profile [--seconds 3]

Three looks at the gateway, beside the bare relay and the ceiling, which have its two processes:

1. One call alone. The child says when it read the call and when it answered; the clock of the
   machine is the same for all processes, so the way in, the child and the way back are measured
   without a word to the gateway. Beside them what a wake-up costs on this machine: a byte to
   another process and back, over what joins two stages.
2. The processor time of a call at 64 callers, in the process itself and in the kernel for it, and
   how often a process had to be woken up for it.
3. Which files of the gateway that time belongs to: a process looks where it is every few
   milliseconds of its own processor time (`benchmarks/tap`). This run is apart from the others.
"""

import argparse
import json
import os
import socket
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks import load, machine, rigs, roles
from benchmarks.figures import percentile
from benchmarks.load import Speech
from benchmarks.machine import ROOT
from benchmarks.tables import aligned, digits
from tests.live.gateway import Gateway

SECONDS = 3.0
BUSY_CALLERS = 64
TAP = ROOT / "benchmarks" / "tap"
TAP_VARIABLE = "METAMCP_BENCH_TAP"
FILES_SHOWN = 12
PINGS = 5000
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Shape:
    """Something to call, and the processes that a call goes through."""

    port: int
    said: Speech
    stamped: Speech
    pids: roles.Pids


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of one measurement")
    seconds: float = parser.parse_args().seconds
    if wrong := machine.elsewhere():
        print(wrong, file=sys.stderr)
        return 2
    machine.compile_ahead()
    with ExitStack() as stack:
        shapes = started(stack)
        alone = {name: one_call(shape, seconds) for name, shape in shapes.items()}
        busy = {name: many_calls(shape, seconds) for name, shape in shapes.items()}
    show("One call alone, us in the middle (p50)", alone)
    hops = {what: {"us": ping(make)} for what, make in HOPS.items()}
    show("A byte to another process and back, nothing else", hops)
    show(f"One of many, us of processor time, {BUSY_CALLERS} callers", busy)
    files(seconds)
    return 0


def show(title: str, found: Mapping[str, Mapping[str, float]]) -> None:
    names = list(dict.fromkeys(name for column in found.values() for name in column))
    rows = [["", *found]]
    rows += [
        [name, *(digits(one[name]) if name in one else "" for one in found.values())]
        for name in names
    ]
    print("", title, *aligned(rows), sep="\n")


def started(stack: ExitStack) -> dict[str, Shape]:
    """The relays call `stamps` whatever they are asked for."""
    found: dict[str, Shape] = {}
    for module in ("ceiling", "bare_relay"):
        relay = stack.enter_context(rigs.relay(module, tool="stamps"))
        said = rigs.bare(relay.port)
        found[module] = Shape(relay.port, said, said, relay.pids)
    gateway = stack.enter_context(Gateway({rigs.NAME: rigs.child()}))
    for era, speak in (("legacy", rigs.legacy), ("modern", rigs.modern)):
        found[era] = Shape(
            gateway.port, speak(gateway), speak(gateway, "stamps"), roles.of_gateway(gateway)
        )
    return found


# --- one call -------------------------------------------------------------------------------------


def one_call(shape: Shape, seconds: float) -> dict[str, float]:
    """Between the moments that the client and the child tell."""
    ways: list[tuple[float, float, float]] = []
    end = time.perf_counter() + seconds
    answer = load.Answer()
    with socket.create_connection(("127.0.0.1", shape.port)) as sock:
        number = 0
        while time.perf_counter() < end:
            number += 1
            request = shape.stamped.request(number, b"T")
            sent = time.perf_counter()
            sock.sendall(request)
            while (whole := answer.take(sock.recv(load.READ_BYTES))) is None:
                pass
            heard = time.perf_counter()
            told = whole.partition(b'"text":"T ')[2].partition(b'"')[0].split()
            read, written = map(float, told)
            ways.append((read - sent, written - read, heard - written))
    middle = [statistics.median(way) * 1e6 for way in zip(*ways, strict=True)]
    slow = percentile((sum(way) for way in ways), 0.99) * 1e6
    names = ("client, front, worker, child's stdin", "the child", "worker, front, client")
    return {**dict(zip(names, middle, strict=True)), "all of it": sum(middle), "p99": slow}


def ping(make: Callable[[], tuple[socket.socket, socket.socket]]) -> float:
    """Microseconds there and back between two processes that do nothing else."""
    near, far = make()
    pid = os.fork()
    if pid == 0:
        near.close()
        while data := far.recv(1):
            far.sendall(data)
        os._exit(0)
    far.close()
    took: list[float] = []
    with near:
        for _ in range(PINGS):
            begin = time.perf_counter()
            near.sendall(b"x")
            near.recv(1)
            took.append(time.perf_counter() - begin)
    os.waitpid(pid, 0)
    return statistics.median(took) * 1e6


def over_tcp() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    for end in (near, far):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near, far


HOPS: dict[str, Callable[[], tuple[socket.socket, socket.socket]]] = {
    "TCP": over_tcp,
    "a socket pair": socket.socketpair,
}


# --- many calls -----------------------------------------------------------------------------------


def many_calls(shape: Shape, seconds: float) -> dict[str, float]:
    """Per call and role: processor time in the process and in the kernel, and wake-ups."""
    before = {role: [used(pid) for pid in pids] for role, pids in shape.pids.items()}
    figures = load.call(shape.port, [shape.said], BUSY_CALLERS, seconds)
    found: dict[str, float] = {}
    for role in ("front", "worker"):
        spent = [
            [now - then for now, then in zip(used(pid), old, strict=True)]
            for pid, old in zip(shape.pids[role], before[role], strict=True)
        ]
        own, kernel, woken = (sum(column) / figures.calls for column in zip(*spent, strict=True))
        found[f"{role}, itself"] = own * 1e6
        found[f"{role}, kernel"] = kernel * 1e6
        found[f"{role}, wake-ups"] = woken
    found["both"] = sum(value for name, value in found.items() if "wake" not in name)
    found["calls/s"] = figures.rate
    return found


def used(pid: int) -> tuple[float, float, float]:
    """Seconds of user time and of system time, and how often it waited, so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    waits = sum(
        int(line.split()[1])
        for status in Path(f"/proc/{pid}/task").glob("*/status")
        for line in status.read_text().splitlines()
        if line.startswith("voluntary_ctxt_switches:")
    )
    return int(fields[11]) / TICKS_PER_S, int(fields[12]) / TICKS_PER_S, waits


# --- which files ----------------------------------------------------------------------------------


def files(seconds: float) -> None:
    """A gateway of its own, whose processes look at themselves."""
    with tempfile.TemporaryDirectory(prefix="metamcp-tap-") as folder:
        # A confined server would begin as a process that looks at itself, and get its signal.
        child = {**rigs.child(), "sandbox": "none"}
        gateway = rigs.customized(Gateway({rigs.NAME: child}), TAP)
        gateway.environ[TAP_VARIABLE] = folder
        with gateway:
            pids = roles.of_gateway(gateway)
            said = rigs.legacy(gateway)
            spent = roles.spent(
                pids, lambda: load.call(gateway.port, [said], BUSY_CALLERS, seconds)
            )  # fmt: skip
        for role in ("front", "worker"):
            per_call = spent.cpu_s[role] / spent.figures.calls * 1e6
            show(f"The {role} by file, us of a call's {digits(per_call)} (while it looks)", {
                "us": by_file(Path(folder), pids[role][0], per_call)
            })  # fmt: skip


def by_file(folder: Path, pid: int, per_call: float) -> dict[str, float]:
    """The shares of the files with the most, as parts of a call's time."""
    try:
        counts: Counter[str] = Counter(json.loads((folder / f"{pid}.json").read_text()))
    except FileNotFoundError:
        return {"too few looks: take more --seconds": 0.0}
    shares: Counter[str] = Counter()
    for name, count in counts.items():
        shares[short(name)] += count
    whole = shares.total()
    found = {name: count / whole * per_call for name, count in shares.most_common(FILES_SHOWN)}
    return {**found, "all others": per_call - sum(found.values())}


def short(path: str) -> str:
    """`front_calls/calls`, `uvicorn/protocols/http/httptools_impl`, `the event loop`"""
    name = path.removesuffix(".py")
    for root in ("metamcp_worker/", "site-packages/"):
        if root in name:
            found = name.rpartition(root)[2]
            return "the event loop" if found == "loop" else found
    return "the event loop" if name.endswith("asyncio/runners") else Path(name).name


if __name__ == "__main__":
    sys.exit(main())
