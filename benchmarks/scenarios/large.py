"""Large results: how many MiB per second get through, and what one of them costs."""

from collections.abc import Callable
from functools import partial

from benchmarks import direct, load, rigs, roles
from benchmarks.figures import Effort, Sample, Table, least
from benchmarks.machine import CHILD
from benchmarks.roles import Spent
from benchmarks.turns import in_turns
from tests.live.gateway import Gateway

TITLE = "Large results"
SIZES = {"1 MiB": 1024, "16 MiB": 16 * 1024 - 64}
"""In KiB. A message may have 16 MiB with everything in it."""
CALLERS = 4
RATE_BAR = 400.0


def measure(effort: Effort) -> Table:
    sizes = {"1 MiB": 1024} if effort.quick else SIZES
    with Gateway({rigs.NAME: rigs.child()}) as gateway:
        pids = roles.of_gateway(gateway)

        def through(kib: int) -> Sample:
            said = [rigs.legacy(gateway, "blob", kib=kib)]
            return _sample(
                roles.spent(
                    pids, lambda: load.call(gateway.port, said, CALLERS, effort.seconds)
                ),
                kib,
            )  # fmt: skip

        def straight(kib: int) -> Sample:
            with direct.started(CHILD, hello=True) as child:
                line = direct.line("blob", f'"kib":{kib}')
                found = direct.over_pipes(child, line, CALLERS, effort.seconds)
            return _sample(Spent(found, {}), kib)

        turns: dict[str, Callable[[], Sample]] = {}
        for name, kib in sizes.items():
            turns[f"direct {name}"] = partial(straight, kib)
            turns[f"legacy {name}"] = partial(through, kib)
        rows = in_turns(turns, effort.rounds)
    rate = Table("large", TITLE, rows).row("legacy 1 MiB")["MiB/s"]
    bar = least("results of 1 MiB", rate, RATE_BAR, "MiB/s", absolute=True)
    return Table("large", TITLE, rows, (bar,), (f"{CALLERS} callers in every row.",))


def _sample(spent: Spent, kib: int) -> Sample:
    mib = spent.figures.calls * kib / 1024
    found = {"MiB/s": mib / spent.figures.seconds, "p50 ms": spent.figures.percentile_ms(0.5)}
    if spent.cpu_s:
        found["cpu ms/MiB"] = spent.all_cpu_s / mib * 1000
        found |= {
            f"{role} ms/MiB": spent.cpu_s[role] / mib * 1000 for role in ("front", "worker")
        }  # fmt: skip
    return Sample(found, spent.figures.wrong)
