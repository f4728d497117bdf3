"""Calls of one server while 64 callers wait for another one, against nobody waiting."""

from benchmarks import load, rigs, roles
from benchmarks.figures import Effort, Sample, Table, compared, most
from benchmarks.held import Held
from benchmarks.turns import in_turns
from tests.live.gateway import Gateway

TITLE = "A server beside one that makes 64 callers wait"
HELD = 64
CALLERS = 4
BESIDE_S = 0.5
"""How much longer the waiting ones wait than the others call."""
BAR = 1.25


def measure(effort: Effort) -> Table:
    with Gateway({"quick": rigs.child(), "slow": rigs.child()}) as gateway:
        pids = roles.of_gateway(gateway)
        quick = [rigs.legacy(gateway, server="quick")]
        ms = int((effort.seconds + BESIDE_S) * 1000)
        slow = rigs.legacy(gateway, "sleep", "slow", ms=ms)

        def quiet() -> Sample:
            return roles.spent(
                pids, lambda: load.call(gateway.port, quick, CALLERS, effort.seconds)
            ).sample()

        def beside() -> Sample:
            with Held(gateway.port, slow, HELD) as held:
                found = quiet()
                return Sample(found.figures, found.wrong + held.wrong())

        rows = in_turns({"nobody waits": quiet, f"{HELD} wait": beside}, effort.rounds)
    p99 = compared(rows[1], rows[0], "p99 ms")
    bar = most(f"p99 while {HELD} wait, beside the quiet one", p99, BAR)
    return Table("blocking", TITLE, rows, (bar,), (f"{CALLERS} callers of the other server.",))
