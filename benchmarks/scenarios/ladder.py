"""Calls per second, latency and processor time, in every dialect, as the number of callers grows.

Beside the child called straight over its pipes (`direct`), a relay of the same shape with nothing
in it (`bare`), and the least that this shape can cost in Python (`ceiling`): all in turns.
"""

import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from benchmarks import direct, load, rigs, roles
from benchmarks.figures import Bar, Effort, Row, Sample, Table, least, most, ratio
from benchmarks.load import Speech
from benchmarks.machine import CHILD
from benchmarks.turns import in_turns
from tests.live.gateway import Gateway

TITLE = "One server, more and more callers"
CALLERS = (1, 16, 64, 256)
DIALECTS = ("legacy", "modern", "rest", "sse", "connect")
"""Of the gateway. `sse`: a word of progress comes before each answer; `connect`: over the pipes of
`metamcp connect`, whose own processor time is counted too."""
RELAY_BAR = 0.75
ADDED_MS_BAR = 0.09
TAIL_BAR = 2.0
CPU_US_BAR = 40.0


def measure(effort: Effort) -> Table:
    callers = CALLERS[:2] if effort.quick else CALLERS
    with ExitStack() as stack:
        ways = _ways(stack, effort.seconds)
        rows: list[Row] = []
        for count in callers:
            turns = {f"{name} {count}": partial(way, count) for name, way in ways.items()}
            rows += in_turns(turns, effort.rounds)
    return Table("ladder", TITLE, tuple(rows), tuple(bars(rows)), (beside_ceiling(rows),))


def beside_ceiling(rows: list[Row]) -> str:
    """What is left of the best that this shape can do."""
    found = {row.name: row["calls/s"] for row in rows}
    shares = [
        f"{era} {ratio(found[f'{era} {count}'], found[f'ceiling {count}']):.2f} at {count}"
        for era in ("legacy", "modern")
        for count in CALLERS
        if f"{era} {count}" in found
    ]
    return f"Calls/s beside the ceiling: {', '.join(shares)} callers."


def bars(rows: list[Row]) -> list[Bar]:
    found = {row.name: row for row in rows}
    judged: list[Bar] = []
    for era in ("legacy", "modern"):
        for count in (16, 64):
            if (here := found.get(f"{era} {count}")) is not None:
                rate = ratio(here["calls/s"], found[f"bare {count}"]["calls/s"])
                what = f"{era}: calls/s beside the bare relay at {count} callers"
                judged.append(least(what, rate, RELAY_BAR))
        alone, floor = found[f"{era} 1"], found["direct 1"]
        tail = ratio(alone["p99 ms"], alone["p50 ms"])
        added = alone["p50 ms"] - floor["p50 ms"]
        judged += [
            most(f"{era}: p99 beside p50 at one caller", tail, TAIL_BAR),
            most(f"{era}: p50 added to the direct call", added, ADDED_MS_BAR, "ms", absolute=True),
        ]
        busy = found.get(f"{era} 64", found[f"{era} 16"])["cpu us/call"]
        judged.append(
            most(f"{era}: processor time of a call", busy, CPU_US_BAR, "us", absolute=True)
        )
    return judged


@dataclass(frozen=True, slots=True)
class Over:
    """Load over HTTP upon these processes."""

    port: int
    said: Speech
    pids: roles.Pids
    seconds: float

    def __call__(self, callers: int) -> Sample:
        return roles.spent(
            self.pids, lambda: load.call(self.port, [self.said], callers, self.seconds)
        ).sample()


def _ways(stack: ExitStack, seconds: float) -> dict[str, Callable[[int], Sample]]:
    bare = stack.enter_context(rigs.relay("bare_relay"))
    ceiling = stack.enter_context(rigs.relay("ceiling"))
    gateway = stack.enter_context(Gateway({rigs.NAME: rigs.child()}))
    command, env = rigs.bridge(gateway)
    bridge = stack.enter_context(direct.started(command, hello=True, env=env))
    pids = roles.of_gateway(gateway)
    said = {
        "legacy": rigs.legacy(gateway),
        "modern": rigs.modern(gateway),
        "rest": rigs.rest(gateway),
        "sse": rigs.streamed(gateway),
    }

    def straight(callers: int) -> Sample:
        return roles.Spent(direct.over_stdio(CHILD, callers, seconds), {}).sample()

    return {
        "direct": straight,
        "ceiling": Over(ceiling.port, rigs.bare(ceiling.port), ceiling.pids, seconds),
        "bare": Over(bare.port, rigs.bare(bare.port), bare.pids, seconds),
        **{name: Over(gateway.port, each, pids, seconds) for name, each in said.items()},
        "connect": _over_bridge(bridge, {**pids, "bridge": [bridge.pid]}, seconds),
    }


def _over_bridge(
    bridge: subprocess.Popen[bytes], pids: roles.Pids, seconds: float
) -> Callable[[int], Sample]:
    said = direct.line(f"{rigs.NAME}__echo")
    return lambda callers: roles.spent(
        pids, lambda: direct.over_pipes(bridge, said, callers, seconds)
    ).sample()
