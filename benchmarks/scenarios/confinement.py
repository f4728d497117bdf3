"""The start of a server in each profile of confinement."""

import shutil
import statistics

from benchmarks.figures import Effort, Sample, Table, most
from benchmarks.scenarios.startup import QUICK
from benchmarks.turns import in_turns
from tests.live.gateway import Gateway
from tests.waiting import until

TITLE = "Start of a confined server"
PROFILES = ("none", "basic", "strict")
STARTS = 4
BARS_MS = {"basic": 15.0, "strict": 60.0}
"""How much longer a start may take than without confinement."""


def measure(effort: Effort) -> Table:
    profiles = [one for one in PROFILES if one != "strict" or shutil.which("bwrap")]
    servers = {name: {"command": QUICK, "sandbox": name} for name in profiles}
    with Gateway(servers) as gateway:

        def started(name: str) -> Sample:
            took = [restarted(gateway, name) for _ in range(effort.of(STARTS, 1))]
            return Sample({"ms": statistics.median(took) * 1000})

        turns = {name: lambda name=name: started(name) for name in profiles}
        rows = in_turns(turns, effort.rounds)
    median = {row.name: row["ms"] for row in rows}
    bars = tuple(
        most(f"start in the profile {name}, above none", median[name] - median["none"], bar, "ms",
             absolute=True)
        for name, bar in BARS_MS.items()
        if name in median
    )  # fmt: skip
    return Table("confinement", TITLE, rows, bars, ("From the start of its process to its lists.",))


def restarted(gateway: Gateway, name: str) -> float:
    """Seconds from the start of the process to the lists of the server."""
    before = gateway.server(name)["generation"]
    gateway.ctl("restart", name)

    def ready() -> float:
        found = gateway.server(name)
        new = found["generation"] > before and found["state"] == "active"
        return float(found["start_s"]) if new else 0.0

    return until(ready, f"{name} is back")
