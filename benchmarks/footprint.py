"""What an operator pays for: memory per server, start of servers, a look at the status.

    python -m benchmarks.footprint

Prints the PSS of each kind of process with 20 idle servers, how long the gateway took until all
20 were ready beside one server started by hand, and the wall time of `metamcp ctl status --json`
with the gateway under load. Figures of this machine; the ratios are what travels.
"""

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from metamcp_supervisor.lives.spawn import Nursery
from tests.live import processes
from tests.live.gateway import SERVER, Gateway, fake
from tests.live.load import Callers
from tests.waiting import until

SERVERS = 20
LOOKS = 11
MIB = 1024 * 1024
PROBE = b'{"jsonrpc":"2.0","id":1,"method":"server/discover","params":{}}\n'


def alone(command: Sequence[str] = SERVER) -> float:
    """Seconds from spawn to first answer of one server, the scripted one, without a gateway."""
    start = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(PROBE)
        child.stdin.flush()
        child.stdout.readline()
        took = time.perf_counter() - start
        child.stdin.close()
        child.wait(timeout=10)
    return took


def fork_to_ready(rounds: int) -> list[float]:
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

    return asyncio.run(measured())


def main() -> int:
    names = [f"s{number:02}" for number in range(SERVERS)]
    forks = fork_to_ready(20)
    by_hand = statistics.median(alone() for _ in range(5))
    start = time.perf_counter()
    with Gateway({name: fake() for name in names}) as gateway:
        all_ready = time.perf_counter() - start
        status = gateway.status()
        workers = [processes.memory(server["worker_pid"]) for server in status["servers"]]
        print(f"one server by hand: {by_hand * 1000:.0f} ms to its first answer")
        print(f"gateway with {SERVERS}: {all_ready * 1000:.0f} ms until all are ready")
        print(f"fork to first heartbeat: {statistics.median(forks) * 1000:.1f} ms (median of 20)")
        print(f"one more idle worker: {max(workers) / MIB:.1f} MiB PSS (largest of {SERVERS})")
        for name, pid in (
            ("supervisor", status["pid"]),
            ("nursery", status["nursery_pid"]),
            ("front", status["fronts"][0]["pid"]),
        ):
            print(f"{name}: {processes.memory(pid) / MIB:.1f} MiB PSS")
        with Callers(gateway.port, names, callers=16) as run:
            until(lambda: run.tally.right > 100, "calls are answered")
            looks: list[float] = []
            for _ in range(LOOKS):
                begin = time.perf_counter()
                gateway.ctl("status", "--json", ok=(0, 3))
                looks.append(time.perf_counter() - begin)
        median = statistics.median(looks)
        print(f"ctl status --json under load: {median * 1000:.0f} ms (median of {LOOKS})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
