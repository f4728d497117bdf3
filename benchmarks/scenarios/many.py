"""Twenty servers behind one endpoint, and callers who go from one to the next with each call."""

from functools import partial

from benchmarks import load, rigs, roles
from benchmarks.figures import Effort, Sample, Table, least
from benchmarks.turns import in_turns
from tests.live.gateway import Gateway

TITLE = "Twenty servers, callers spread over all of them"
SERVERS = 20
CALLERS = (1, 16, 64)
RATE_BAR = 20_000.0


def measure(effort: Effort) -> Table:
    servers = rigs.children(effort.of(SERVERS, 4))
    with Gateway(servers) as gateway:
        pids = roles.of_gateway(gateway)
        said = {
            "legacy": [rigs.legacy(gateway, server=name) for name in servers],
            "modern": [rigs.modern(gateway, server=name) for name in servers],
        }

        def sample(era: str, callers: int) -> Sample:
            return roles.spent(
                pids, lambda: load.call(gateway.port, said[era], callers, effort.seconds)
            ).sample()

        turns = {
            f"{era} {callers}": partial(sample, era, callers) for callers in CALLERS for era in said
        }
        rows = in_turns(turns, effort.rounds)
    table = Table("many", TITLE, rows)
    rate = table.row("legacy 64")["calls/s"]
    bar = least("calls/s over all of them at 64 callers", rate, RATE_BAR, "calls/s", absolute=True)
    return Table("many", TITLE, rows, (bar,))
