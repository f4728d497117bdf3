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
from benchmarks.figures import (
    Bar,
    Compared,
    Effort,
    Row,
    Sample,
    Table,
    compared,
    difference,
    least,
    most,
    ratio,
)
from benchmarks.load import Speech
from benchmarks.machine import CHILD, COMPILED, PURE, gateway
from benchmarks.turns import in_turns
from tests.live.gateway import Gateway

TITLE = "One server, more and more callers"
CALLERS = (1, 16, 64, 256)
DIALECTS = ("legacy", "modern", "rest", "sse", "connect")
"""Of the gateway. `sse`: a word of progress comes before each answer; `connect`: over the pipes of
`metamcp connect`, whose own processor time is counted too."""
ROUNDS, SHARE = 5, 2 / 3
"""Short ones, so that what the machine does meanwhile hits all rows. Share of the usual length."""
BUSY = 64
TAIL_BAR = 2.0
MODERN_BAR = 1.15


@dataclass(frozen=True, slots=True)
class Goals:
    """`cpu`: processor time of a call beside the ceiling. `bare`, `ceiling`: calls/s beside them.
    `added_ms`: p50 of one caller above the ceiling."""

    cpu: float
    bare: float
    added_ms: float
    ceiling: float | None = None


GOALS = {
    PURE: Goals(cpu=1.55, bare=1.0, added_ms=0.06),
    COMPILED: Goals(cpu=1.2, bare=1.2, added_ms=0.045, ceiling=0.8),
}


def measure(effort: Effort) -> Table:
    callers = CALLERS[:2] if effort.quick else CALLERS
    with ExitStack() as stack:
        ways = _ways(stack, effort.seconds * SHARE)
        rows: list[Row] = []
        for count in callers:
            turns = {f"{name} {count}": partial(way, count) for name, way in ways.items()}
            rows += in_turns(turns, effort.of(ROUNDS, 1))
    judged = () if effort.quick else tuple(bars(rows, GOALS[gateway()]))
    return Table("ladder", TITLE, tuple(rows), judged, (beside_ceiling(rows),))


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


def bars(rows: list[Row], goals: Goals) -> list[Bar]:
    found = {row.name: row for row in rows}
    busy = {name: found[f"{name} {BUSY}"] for name in ("legacy", "modern", "bare", "ceiling")}
    legacy, cpu, at = busy["legacy"], "cpu us/call", f"at {BUSY} callers"
    judged = [
        most(
            f"legacy: processor time of a call beside the ceiling {at}",
            compared(legacy, busy["ceiling"], cpu),
            goals.cpu,
        ),
        most(
            f"modern: processor time of a call beside legacy {at}",
            compared(busy["modern"], legacy, cpu),
            MODERN_BAR,
        ),
        least(
            f"legacy: calls/s beside the bare relay {at}",
            compared(legacy, busy["bare"], "calls/s"),
            goals.bare,
        ),
        most(
            "legacy: p50 above the ceiling at one caller",
            compared(found["legacy 1"], found["ceiling 1"], "p50 ms", difference),
            goals.added_ms,
            "ms",
            absolute=True,
        ),
    ]
    if goals.ceiling is not None:
        beside = compared(legacy, busy["ceiling"], "calls/s")
        judged.append(least(f"legacy: calls/s beside the ceiling {at}", beside, goals.ceiling))
    tails = {era: tail(found[f"{era} 1"]) for era in ("legacy", "modern")}
    what = "p99 beside p50 at one caller"
    return [*judged, *(most(f"{era}: {what}", one, TAIL_BAR) for era, one in tails.items())]


def tail(row: Row) -> Compared:
    """p99 beside p50."""
    slow, middle = row.figures["p99 ms"], row.figures["p50 ms"]
    return Compared(
        ratio(slow.median, middle.median),
        tuple(ratio(*pair) for pair in zip(slow.rounds, middle.rounds, strict=True)),
    )


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
    ours = stack.enter_context(Gateway({rigs.NAME: rigs.child()}))
    command, env = rigs.bridge(ours)
    bridge = stack.enter_context(direct.started(command, hello=True, env=env))
    pids = roles.of_gateway(ours)
    said = {
        "legacy": rigs.legacy(ours),
        "modern": rigs.modern(ours),
        "rest": rigs.rest(ours),
        "sse": rigs.streamed(ours),
    }

    def straight(callers: int) -> Sample:
        return roles.Spent(direct.over_stdio(CHILD, callers, seconds), {}).sample()

    return {
        "direct": straight,
        "ceiling": Over(ceiling.port, rigs.bare(ceiling.port), ceiling.pids, seconds),
        "bare": Over(bare.port, rigs.bare(bare.port), bare.pids, seconds),
        **{name: Over(ours.port, each, pids, seconds) for name, each in said.items()},
        "connect": _over_bridge(bridge, {**pids, "bridge": [bridge.pid]}, seconds),
    }


def _over_bridge(
    bridge: subprocess.Popen[bytes], pids: roles.Pids, seconds: float
) -> Callable[[int], Sample]:
    said = direct.line(f"{rigs.NAME}__echo")
    return lambda callers: roles.spent(
        pids, lambda: direct.over_pipes(bridge, said, callers, seconds)
    ).sample()
