"""A list of 2,080 tools of 20 servers, in both eras, beside the same bytes that wait in memory.

`bytes` is the gateway's own HTTP server, which answers every request with what the gateway
answered: what it costs to send that much. One request at a time, in turns.
"""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from benchmarks import load, rigs, roles
from benchmarks.figures import Bar, Effort, Row, Sample, Table, compared, most
from benchmarks.held import Held
from benchmarks.load import Speech
from benchmarks.machine import ROOT
from benchmarks.turns import in_turns
from tests.live.client import LEGACY, MODERN
from tests.live.gateway import Gateway

TITLE = "The list of 2,080 tools of 20 servers"
SERVERS, TOOLS = 20, 104
OWN_TOOLS = 5
"""That the child has anyway."""
MS_BAR, CPU_MS_BAR, BYTES_BAR = 25.0, 1.0, 1.2


def measure(effort: Effort) -> Table:
    servers = effort.of(SERVERS, 2)
    rows: list[Row] = []
    with Gateway(rigs.children(servers, "--tools", str(TOOLS - OWN_TOOLS))) as gateway:
        pids = roles.of_gateway(gateway)
        for name, era in (("legacy", LEGACY), ("modern", MODERN)):
            said = rigs.listing(gateway, era)
            with Held(gateway.port, said, 1) as one:
                whole = one.answers()[0].partition(b"\r\n\r\n")[2]
            missing = whole.count(b'"inputSchema":') != servers * TOOLS
            with bare_bytes(whole.partition(b'"id":"H0H"')[2]) as (port, bare_pid):
                turns = {
                    f"bytes {name}": partial(
                        sample, port, said, {"front": [bare_pid]}, effort.seconds
                    ),
                    name: partial(sample, gateway.port, said, pids, effort.seconds),
                }
                rows += [
                    replace(row, wrong=row.wrong + missing)
                    for row in in_turns(turns, effort.rounds)
                ]
    size = f"{len(whole) / roles.MIB:.2f} MiB in one answer; a client has still to read them."
    return Table("listing", TITLE, tuple(rows), tuple(bars(rows)), (size,))


def bars(rows: list[Row]) -> list[Bar]:
    found = {row.name: row for row in rows}
    judged: list[Bar] = []
    for era in ("legacy", "modern"):
        here = found[era]
        beside = compared(here, found[f"bytes {era}"], "p50 ms")
        judged += [
            most(f"{era}: the list", here["p50 ms"], MS_BAR, "ms", absolute=True),
            most(f"{era}: processor time of it", here["cpu ms"], CPU_MS_BAR, "ms", absolute=True),
            most(f"{era}: the list beside its bytes alone", beside, BYTES_BAR),
        ]
    return judged


@contextmanager
def bare_bytes(body: bytes) -> Generator[tuple[int, int]]:
    """Port and pid of a server that has only these bytes."""
    command = [sys.executable, "-m", "benchmarks.bare_bytes"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"%d\n" % len(body) + body)
        process.stdin.flush()
        yield int(process.stdout.readline()), process.pid
        process.stdin.close()
        process.wait(timeout=10)


def sample(port: int, said: Speech, pids: roles.Pids, seconds: float) -> Sample:
    spent = roles.spent(pids, lambda: load.call(port, [said], 1, seconds))
    figures = spent.figures
    return Sample(
        {
            "p50 ms": figures.percentile_ms(0.50),
            "p99 ms": figures.percentile_ms(0.99),
            "cpu ms": spent.all_cpu_s / figures.calls * 1000,
        },
        figures.wrong,
    )
