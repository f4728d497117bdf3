"""From nothing to a list with the tools of twenty servers in it; and what a look at them costs."""

import asyncio
import statistics
import sys
import time
from contextlib import closing

from benchmarks import rigs, roles
from benchmarks.alone import alone
from benchmarks.figures import Effort, Sample, Table, most
from benchmarks.machine import ROOT
from benchmarks.turns import in_turns
from metamcp_supervisor.processes.nursery import Nursery
from tests.live.client import MODERN, Client
from tests.live.gateway import Gateway
from tests.live.load import Callers
from tests.waiting import until

TITLE = "Start of the gateway, and a look at it under load"
SERVERS = 20
FORKS = 20
LOOKS = 5
CALLERS = 16
LISTED_S_MAX = 60.0
READY_BAR_S = 1.0
QUICK = [sys.executable, "-I", "-S", str(ROOT / "benchmarks" / "quick_child.py")]
"""Boots in about 20 ms on the reference machine."""


def measure(effort: Effort) -> Table:
    servers = effort.of(SERVERS, 3)
    turns = {
        "one server by hand": lambda: _ms(alone(QUICK)),
        "a worker, fork to first heartbeat": lambda: _ms(fork_to_ready(effort.of(FORKS, 2))),
        f"{servers} servers listed": lambda: _ms(listed(servers)),
        "status --json under load": lambda: _ms(look(servers, effort.of(LOOKS, 1))),
    }
    rows = in_turns(turns, effort.rounds)
    took_s = rows[2]["ms"] / 1000
    bar = most(f"{servers} servers listed", took_s, READY_BAR_S, "s", absolute=True)
    return Table("startup", TITLE, rows, (bar,))


def _ms(seconds: float) -> Sample:
    return Sample({"ms": seconds * 1000})


def listed(servers: int) -> float:
    """Seconds from the start of the gateway's process to a list with all tools in it."""
    wanted = {f"s{number:03}": {"command": QUICK} for number in range(servers)}
    gateway = Gateway(wanted, wait=False)
    begin = time.perf_counter()
    with gateway:
        while tools(gateway.port) < servers:
            if time.perf_counter() > begin + LISTED_S_MAX:
                raise TimeoutError(f"{servers} servers are not listed: {gateway.log.read_text()}")
        took = time.perf_counter() - begin
        gateway.wait_ready()
    return took


def tools(port: int) -> int:
    """How many are listed now; none while nobody listens."""
    try:
        with closing(Client(port, MODERN)) as client:
            answer = client.request("tools/list")
            return len(answer["result"]["tools"]) if "result" in answer else 0
    except OSError:
        return 0


def look(servers: int, looks: int) -> float:
    """Seconds for `metamcp ctl status --json`, a process of its own, while calls are made."""
    names = [f"s{number:03}" for number in range(servers)]
    with (
        Gateway(rigs.children(servers)) as gateway,
        Callers(gateway.port, names, callers=CALLERS) as run,
    ):
        until(lambda: run.tally.right > 100, "calls are answered")
        return statistics.median(roles.timed(gateway.status) for _ in range(looks))


def fork_to_ready(rounds: int) -> float:
    """Seconds from the order to fork a worker to its first heartbeat, from a warm nursery."""

    async def measured() -> list[float]:
        loop = asyncio.get_running_loop()
        nursery = Nursery(
            on_exit=lambda _: None,
            on_halt=lambda _pid, _halted: None,
            on_lost=lambda _: None,
            on_event=lambda _: None,
        )
        await nursery.start()
        took: list[float] = []
        for number in range(rounds):
            begin = time.perf_counter()
            worker = await nursery.fork("child", f"probe-{number}")
            with worker.sock as sock:
                sock.setblocking(False)
                await loop.sock_recv(sock, 65536)
                took.append(time.perf_counter() - begin)
        await nursery.close()
        return took

    return statistics.median(asyncio.run(measured()))
