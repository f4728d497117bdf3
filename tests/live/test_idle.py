"""A gateway with nothing to do takes next to no processor time, however many servers it has."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks import idle, roles
from tests.live.gateway import Gateway
from tests.waiting import until

pytestmark = pytest.mark.live

WINDOW_S = 5.0
WAIT_S = 40.0
SHARES = {1: 0.2, 60: 0.9}
"""Processor time of an idle gateway by its number of servers, as a share of that of the reference
in the same seconds: one and a half to two times what such a gateway takes, because other tests
empty the caches of the processor."""
REFERENCE = """
import asyncio, json, socket
async def main():
    one, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asyncio.get_running_loop().add_reader(one, lambda: json.loads(one.recv(4096)))
    while True:
        await asyncio.sleep(1 / 60)
        other.send(b'{"method": "beat", "lag_ms": 0.25, "pid": 12345, "seconds": 1.5}')
asyncio.run(main())
"""
"""Program that sends itself sixty short messages in a second: 9 ms of processor time in a second on
a quick machine, 20 on one that is half as quick."""


@contextmanager
def reference() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-c", REFERENCE])
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def share(gateway: Gateway, reference_pid: int) -> float:
    """Processor time of the gateway, as a share of that of the reference."""
    role = {"reference": [reference_pid]}
    started, before = time.monotonic(), roles.exact_cpu_s(role)["reference"]
    idle_ms = sum(idle.idle_ms_per_s(gateway, WINDOW_S).values())
    spent_s = roles.exact_cpu_s(role)["reference"] - before
    return idle_ms / (spent_s * 1000 / (time.monotonic() - started))


@pytest.mark.parametrize(("servers", "most"), SHARES.items())
def test_a_gateway_with_nothing_to_do_keeps_its_budget_of_processor_time(
    servers: int, most: float
) -> None:
    with idle.ready(servers) as gateway, reference() as pid:
        until(
            lambda: share(gateway, pid) <= most,
            f"{servers} servers take {most:g} of the time of the reference",
            WAIT_S,
        )
