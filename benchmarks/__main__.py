"""The whole suite: every scenario, a table of each on the terminal, and one JSON file of the run.

    python -m benchmarks [--quick] [--only SCENARIO] [--seconds S] [--out DIR]

Exit code 1 if an answer was wrong or a bar is missed, 2 for wrong usage, as of a tree whose gateway
is not the one that would be started. `--quick` runs every line once within a minute: it looks at no
bar, and its figures mean nothing. The file is written after each scenario.
"""

import argparse
import datetime as dt
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from benchmarks import machine, tables
from benchmarks.figures import Effort, Result, Table, speed
from benchmarks.scenarios import (
    attacks,
    blocking,
    clients,
    code,
    confinement,
    counting,
    door,
    growth,
    ladder,
    large,
    listing,
    many,
    memory,
    neighbours,
    outage,
    recovery,
    revocation,
    sessions,
    startup,
    views,
    workflows,
)

SCENARIOS: dict[str, Callable[[Effort], Table]] = {
    "ladder": ladder.measure,
    "clients": clients.measure,
    "many": many.measure,
    "large": large.measure,
    "listing": listing.measure,
    "views": views.measure,
    "blocking": blocking.measure,
    "counting": counting.measure,
    "door": door.measure,
    "revocation": revocation.measure,
    "code": code.measure,
    "confinement": confinement.measure,
    "attacks": attacks.measure,
    "workflows": workflows.measure,
    "recovery": recovery.measure,
    "neighbours": neighbours.measure,
    "outage": outage.measure,
    "memory": memory.measure,
    "startup": startup.measure,
    "sessions": sessions.measure,
    "growth": growth.measure,
}
SECONDS, SECONDS_QUICK = 1.2, 0.1
ROUNDS = 3
FLOOR_ROUNDS = 3
OUT = machine.ROOT / "build" / "bench"
"""Not part of the repository."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    if wrong := machine.elsewhere():
        print(wrong, file=sys.stderr)
        return 2
    machine.compile_ahead()
    quick: bool = options.quick
    seconds: float = options.seconds or (SECONDS_QUICK if quick else SECONDS)
    effort = Effort(seconds, 1 if quick else ROUNDS, quick)
    before = machine.floor(seconds, FLOOR_ROUNDS)
    result = Result(
        date=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        commit=machine.commit(),
        quick=quick,
        seconds=seconds,
        floor={"before": before},
        machine=machine.machine(),
        versions=machine.versions(),
    )
    for name in options.only or SCENARIOS:
        begin_s = time.perf_counter()
        table = SCENARIOS[name](effort)
        result = replace(result, tables=(*result.tables, table))
        written(result, options.out)  # what is measured is not lost with what comes after it
        print("\n".join(tables.lines_of(table, speed(result.floor), judged=not quick)))
        print(f"{name} took {time.perf_counter() - begin_s:.0f} s", flush=True)
    after = machine.floor(seconds, FLOOR_ROUNDS)
    result = replace(result, floor={"before": before, "after": after})
    print("\n".join(tables.summary(result)))
    print(f"written: {written(result, options.out)}")
    return int(result.failed)


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run of less than a minute")
    parser.add_argument("--only", nargs="+", metavar="SCENARIO", choices=SCENARIOS, default=None,
                        help=f"some of: {', '.join(SCENARIOS)}")  # fmt: skip
    parser.add_argument("--seconds", type=float, help="length of one measurement")
    parser.add_argument("--out", type=Path, metavar="DIR", default=OUT,
                        help="where the JSON file is written to")  # fmt: skip
    return parser.parse_args(arguments)


def written(result: Result, folder: Path) -> Path:
    """The file of this run, as text that shows line by line what changed since another one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{result.date[:19].replace(':', '')}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    return path


if __name__ == "__main__":
    sys.exit(main())
