"""The gateway beside public gateways in one run.

    python -m benchmarks.peers [--seconds 1.0] [--rounds 5] [--servers 20] [--only NAME ...]
                               [--json FILE] [--page] [--quick]
    python -m benchmarks.peers --page-only

Same machine, same server behind each, same callers, in turns; see docs/peers.md. Exit code 1 if one
of our answers was wrong or a bar is missed. `--json` is where a run leaves its figures, `--page`
writes them into docs/peers.md; `--page-only` does so with those in benchmarks/peers/results.json.
`--only`: with these of the others (or none of them, with the word `none`).
"""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from benchmarks import machine
from benchmarks.figures import Effort, Result, Table
from benchmarks.peers import crash, measures, page, verdict
from benchmarks.peers.plans import GATEWAY, GATEWAY_COMPILED, PEERS, Peer
from benchmarks.peers.running import Failed, Running, started, versions

FLOOR_S, FLOOR_ROUNDS = 1.0, 3
RESULTS = machine.ROOT / "benchmarks" / "peers" / "results.json"
PAGE = machine.ROOT / "docs" / "peers.md"


def compare(peers: Sequence[Peer], effort: Effort, servers: int) -> Result:
    """All of it: our gateway, pure and as far as it is installed compiled, and those others."""
    compiled = [GATEWAY_COMPILED] if machine.gateway() == machine.COMPILED else []
    taking = [GATEWAY, *compiled, *peers]
    begun = time.strftime("%Y-%m-%d", time.gmtime())
    before = machine.floor(min(FLOOR_S, effort.seconds), effort.of(FLOOR_ROUNDS, 1))
    tables: list[Table] = []
    with ExitStack() as stack:
        single = up(stack, taking, 1, tables, "one")
        measures.warm(single, effort)
        ladder = measures.ladder(single, effort)
        tables += [replace(ladder, bars=verdict.bars(ladder)), measures.large(single, effort)]
        with ExitStack() as second:
            several = up(second, [peer for peer in taking if peer.many], servers, tables, "many")
            measures.warm(several, effort)
            tables.append(measures.lists(single, several))
            tables.append(measures.many(several, effort))
    tables.append(crash.crash(taking))
    after = machine.floor(min(FLOOR_S, effort.seconds), effort.of(FLOOR_ROUNDS, 1))
    return Result(
        date=begun,
        commit=machine.commit(),
        quick=effort.quick,
        seconds=effort.seconds,
        floor={"before": before, "after": after},
        machine=machine.machine(),
        versions={**machine.versions(), **versions([one.peer for one in single])},
        tables=tuple(tables),
    )


def up(
    stack: ExitStack, peers: Sequence[Peer], count: int, tables: list[Table], what: str
) -> list[Running]:
    """Those that started, one after the other, and a table of what they cost at rest."""
    running: list[Running] = []
    failed: list[str] = []
    for peer in peers:
        try:
            running.append(stack.enter_context(started(peer, count)))
        except Failed as failure:
            if peer.plan is None:
                raise
            failed.append(str(failure))
            print(failure, file=sys.stderr)
    cost = measures.footprint(running, {one.peer.name: one.ready_s for one in running}, what)
    tables.append(replace(cost, said=tuple(failed)))
    return running


def publish(result: Result) -> None:
    PAGE.write_text(page.renewed(PAGE.read_text(), result))


def chosen(names: Sequence[str] | None) -> list[Peer]:
    if names is None:
        return list(PEERS)
    return [peer for peer in PEERS if peer.name in names]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--seconds", type=float, default=1.0, help="length of one measurement")
    option("--rounds", type=int, default=5)
    option("--servers", type=int, default=20)
    option("--only", action="append", metavar="NAME", help="/".join(p.name for p in PEERS))
    option("--json", type=Path, metavar="FILE")
    option("--quick", action="store_true", help="every line of code once")
    option("--page", action="store_true")
    option("--page-only", action="store_true")
    options = parser.parse_args()
    if options.page_only:
        publish(page.parsed(RESULTS.read_bytes()))
        return 0
    if wrong := machine.elsewhere():
        print(wrong, file=sys.stderr)
        return 2
    machine.compile_ahead()
    effort = (
        Effort(0.3, 1, quick=True) if options.quick else Effort(options.seconds, options.rounds)
    )
    result = compare(chosen(options.only), effort, 3 if options.quick else options.servers)
    print(page.words(result))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_bytes(page.written(result))
    if options.page:
        publish(result)
    return 1 if verdict.wrong(result.tables) or (not result.quick and result.missed) else 0


if __name__ == "__main__":
    sys.exit(main())
