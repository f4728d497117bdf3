"""What is measured of every gateway, in turns: each function gives one table, without its bars.

Owns: who takes part in what, for how long, which answers count. A gateway that fails loses its row
and gets a sentence. Never: starting (`running`), judging (`verdict`), crashes (`crash`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks import direct, figures, load, roles
from benchmarks.figures import Effort, Row, Sample, Table
from benchmarks.load import Speech
from benchmarks.machine import CHILD
from benchmarks.peers.doors import FAILURES
from benchmarks.peers.running import Running
from benchmarks.peers.taken import (
    CALLERS,
    CALLERS_OF_MANY,
    CPU,
    DIRECT,
    LARGE_CALLERS,
    LARGE_KIB,
    TOOLS,
)

WARM_CALLERS, WARM_S = 8, 0.7
LISTS = 3

Measure = Callable[[], Sample]


@dataclass(frozen=True, slots=True)
class Load:
    """So many callers of one gateway. Its sample: calls/s, latencies, processor time per call of
    the gateway's own processes."""

    running: Running
    speeches: Sequence[Speech]
    callers: int
    seconds: float

    def __call__(self) -> Sample:
        spent = roles.spent(
            self.running.own(),
            lambda: load.call(self.running.port, self.speeches, self.callers, self.seconds),
            roles.cpu_s,
        )
        return sample(spent.figures, spent.all_cpu_s)


def sample(found: load.Figures, cpu_s: float | None) -> Sample:
    figured = {
        "calls/s": found.rate,
        "p50 ms": found.percentile_ms(0.50),
        "p99 ms": found.percentile_ms(0.99),
    }
    if cpu_s is not None:
        figured[CPU] = cpu_s / max(1, found.calls) * 1000
    return Sample(figured, found.wrong)


def in_turns(turns: Mapping[str, Measure], rounds: int) -> tuple[list[Row], list[str]]:
    """The rows, and a sentence for each that failed, which is not tried again. Every second round
    goes backwards: nobody is always measured behind the same one."""
    found: dict[str, list[Sample]] = {name: [] for name in turns}
    failed: dict[str, str] = {}
    for number in range(rounds):
        for name in list(turns)[:: -1 if number % 2 else 1]:
            if name in failed:
                continue
            try:
                found[name].append(turns[name]())
            except FAILURES as error:
                failed[name] = f"{name}: {error}"
    rows = [figures.row(name, some) for name, some in found.items() if name not in failed]
    return rows, list(failed.values())


def warm(ones: Sequence[Running], effort: Effort) -> None:
    """What is done on the first calls only is not what a user waits for."""
    for one in ones:
        said = [one.door.speech(server, "echo") for server in one.servers]
        load.call(
            one.port, said, 1 if one.peer.per_call else WARM_CALLERS, min(WARM_S, effort.seconds)
        )


def ladder(ones: Sequence[Running], effort: Effort) -> Table:
    """One server, more and more callers."""
    rows: list[Row] = []
    said: list[str] = []
    for callers in CALLERS[:2] if effort.quick else CALLERS:
        turns: dict[str, Measure] = {f"{DIRECT} {callers}": straight("echo", callers, effort)}
        for one in ones:
            speech = one.door.speech(one.servers[0], "echo")
            turns[f"{one.peer.name} {callers}"] = Load(one, [speech], callers, effort.seconds)
        more, failed = in_turns(turns, effort.rounds)
        rows += more
        said += failed
    return Table("ladder", "One server, more and more callers", tuple(rows), (), tuple(said))


def straight(tool: str, callers: int, effort: Effort, arguments: str = "") -> Measure:
    """The child itself, over its pipes."""

    def measure() -> Sample:
        line = direct.line(tool, arguments) if arguments else direct.line(tool)
        with direct.started(CHILD) as child:
            return sample(direct.over_pipes(child, line, callers, effort.seconds), None)

    return measure


def large(ones: Sequence[Running], effort: Effort) -> Table:
    """Results of 1 MiB. Their length is looked at once, their words in every answer."""
    turns: dict[str, Measure] = {
        DIRECT: straight("blob", LARGE_CALLERS, effort, f'"kib":{LARGE_KIB}')
    }  # fmt: skip
    said: list[str] = []
    for one in ones:
        server = one.servers[0]
        text = one.door.text(server, "blob", text="length", kib=LARGE_KIB)
        if len(text) < LARGE_KIB * 1024:
            said.append(f"{one.peer.name}: a result of {len(text)} bytes for {LARGE_KIB} KiB")
            continue
        speech = one.door.speech(server, "blob", {"kib": LARGE_KIB})
        turns[one.peer.name] = Load(one, [speech], LARGE_CALLERS, effort.seconds)
    rows, failed = in_turns(turns, effort.rounds)
    title = f"Results of 1 MiB, {LARGE_CALLERS} callers"
    return Table("large", title, tuple(rows), (), (*said, *failed))


def many(ones: Sequence[Running], effort: Effort) -> Table:
    """Callers spread over all servers. Who starts every server anew for each call gets one caller
    and one round: 64 would be more than a thousand processes at once."""
    rows: list[Row] = []
    said: list[str] = []
    for callers in CALLERS_OF_MANY[:1] if effort.quick else CALLERS_OF_MANY:
        turns: dict[str, Measure] = {}
        for one in ones:
            speeches = [one.door.speech(server, "echo") for server in one.servers]
            run = Load(one, speeches, callers, effort.seconds)
            if not one.peer.per_call:
                turns[f"{one.peer.name} {callers}"] = run
            elif callers == 1:
                slow, failed = in_turns({f"{one.peer.name} {callers}": run}, 1)
                rows += slow
                said += failed
        more, failed = in_turns(turns, effort.rounds)
        rows += more
        said += failed
    count = len(ones[0].servers)
    return Table("many", f"{count} servers at once", tuple(rows), (), tuple(said))


def lists(single: Sequence[Running], several: Sequence[Running]) -> Table:
    """Every tool of every server, as often as it takes requests; the JSON is not read in that
    time. Who serves one server only lists one."""
    ones = [*several, *(one for one in single if not one.peer.many)]
    turns: dict[str, Measure] = {one.peer.name: Listing(one) for one in ones}
    rows, failed = in_turns(turns, LISTS)
    count = len(several[0].servers)
    title = f"All {TOOLS} tools of each of {count} servers"
    return Table("lists", title, tuple(rows), (), tuple(failed))


@dataclass(frozen=True, slots=True)
class Listing:
    running: Running

    def __call__(self) -> Sample:
        listed = self.running.door.listed()
        short = listed.tools != TOOLS * len(self.running.servers)
        return Sample(
            {
                "list ms": listed.seconds * 1000,
                "tools": listed.tools,
                "requests": listed.requests,
                "body MB": listed.bytes / 1e6,
            },
            int(short),
        )


def footprint(idle: Sequence[Running], ready: Mapping[str, float], what: str) -> Table:
    """Of the gateway's own processes, at rest, before any load. `ready`: seconds from the start
    until all tools were listed."""
    rows = [
        figures.row(
            one.peer.name,
            [
                Sample(
                    {
                        "PSS MiB": one.pss_mib(),
                        "ready s": ready[one.peer.name],
                        "processes": float(len(one.pids()[0])),
                        "servers held": float(len(one.pids()[1])),
                    }
                )
            ],
        )
        for one in idle
    ]
    count = len(idle[0].servers)
    return Table(f"footprint-{what}", f"Memory and start with {count} servers", tuple(rows))
