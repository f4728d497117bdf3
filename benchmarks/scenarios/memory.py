"""Memory of the gateway's own processes, by role, as servers are added; without the servers.

PSS: what a process has for itself, and its share of what it has with others.
"""

from functools import partial

from benchmarks import rigs, roles
from benchmarks.figures import Bar, Effort, Row, Sample, Table, most
from benchmarks.turns import in_turns
from tests.live import processes
from tests.live.gateway import Gateway

TITLE = "Memory by number of servers"
COUNTS = (0, 1, 5, 20, 100)
COUNTS_QUICK = (0, 2)
GATEWAY = "metamcp_supervisor"
"""In the command line of each."""
ALONE_BAR, EACH_BAR, TWENTY_BAR = 50.0, 4.5, 140.0


def measure(effort: Effort) -> Table:
    others = len(processes.marked(GATEWAY))
    rows: list[Row] = []
    for count in COUNTS_QUICK if effort.quick else COUNTS:
        rows += in_turns({f"{count} servers": partial(_sample, count)}, 1)
    others = max(others, len(processes.marked(GATEWAY)))
    return Table("memory", TITLE, tuple(rows), tuple(bars(rows)), (remark(others),))


def remark(others: int) -> str:
    """`others`: gateways that ran before or after those which were measured."""
    said = "Without the servers themselves. PSS counts a page that n processes share as 1/n of it."
    if not others:
        return said
    return f"{said} Other gateways ran ({others}) and shared pages: with none, all of this is more."


def bars(rows: list[Row]) -> list[Bar]:
    whole = {row.name: row["all MiB"] for row in rows}
    nothing = whole["0 servers"]
    judged = [most("the gateway without servers", nothing, ALONE_BAR, "MiB", absolute=True)]
    if (twenty := whole.get("20 servers")) is not None:
        each = (twenty - nothing) / 20
        judged += [
            most("each of 20 servers", each, EACH_BAR, "MiB", absolute=True),
            most("the gateway with 20 servers", twenty, TWENTY_BAR, "MiB", absolute=True),
        ]
    return judged


def _sample(count: int) -> Sample:
    with Gateway(rigs.children(count)) as gateway:
        found = roles.pss_mib(roles.of_gateway(gateway))
    whole = sum(found.values())
    each = found["worker"] / count if count else 0.0
    return Sample(
        {
            "all MiB": whole,
            **{f"{role} MiB": used for role, used in found.items()},
            "per worker MiB": each,
        }
    )
