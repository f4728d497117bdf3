"""Mixed load for an hour against a real gateway: nothing grows, slows down or is lost.

    python -m benchmarks.soak_load [--seconds 3600] [--servers 20] [--callers 64] [--seed 7]
                                   [--think 0.3] [--log FILE]

Clients of both eras, REST, HTTP+SSE, `metamcp connect`; sessions that open and close, lists,
results of 1 KiB to 1 MiB, progress, calls that are cancelled or left; each thinks between two
requests, as programs on an SDK do. The order of things is that of `make soak` (tests/faults/soak),
without its faults: all callers come for WARM_S, leave, and the gateway is looked at; they come
again for the time that was asked for, leave, and it is looked at again. Exit code 1, and a sentence
for each, if a request did not get its one right answer; if descriptors, threads or processes are
more, or the memory of a role is more than 5 % more (`soak_report`, with its allowance for the heap
of fronts); or if p50 or p99 of the last minute is above 1.1 times that of the first
(`soak_load_drift`).
"""

import argparse
import sys
from pathlib import Path
from random import Random

from benchmarks.soak_load_callers import (
    Canceller,
    Floor,
    Large,
    LargeEvents,
    Leaver,
    Progressing,
    Timed,
    TimedLegacy,
    TimedModern,
    TimedRest,
    Visitor,
)
from benchmarks.soak_load_drift import JUDGED_S_MIN, Drift, drift
from tests.faults import soak_report
from tests.faults.soak import BRIDGES, SUBSCRIBERS, Soak, Wish, soak
from tests.faults.soak_clients import Caller, Field, Legacy, Modern, Rest, Streaming
from tests.faults.soak_gateway import Soaked
from tests.faults.soak_plan import Fault
from tests.faults.soak_streams import Bridged, Sse, Subscriber

HOUR_S = 3600.0
WARM_S = 120.0
"""Memory settles only when each process has seen its largest moments: streams, large results, many
callers at once. In a shorter time it has not, and what comes later looks like growth."""
THINK_S = 0.3
TIMED: tuple[type[Timed], ...] = (TimedModern, TimedLegacy, TimedRest) * 2
KINDS: tuple[type[Caller], ...] = (
    Legacy, Modern, Visitor, Large, Progressing, Rest, Canceller, Streaming, LargeEvents, Leaver,
    Sse,
)  # fmt: skip


class LoadSoak(Soak):
    """The same without faults: every server is calm, and every answer has to be right."""

    def __init__(self, wish: Wish, gateway: Soaked) -> None:
        super().__init__(wish, gateway)
        self.calm = frozenset(gateway.names)
        self._timed: list[Timed] = []
        self._floor: Floor | None = None

    def _faults(self) -> tuple[Fault, ...]:
        return ()

    def _warm_up(self) -> tuple[Fault, ...]:
        return ()

    def _callers(self, field: Field) -> list[Caller]:
        dice = Random(self.wish.seed)

        def luck() -> Random:
            return Random(dice.getrandbits(32))

        self._floor = Floor(field, 0, luck())
        self._timed = [kind(field, number, luck()) for number, kind in enumerate(TIMED)]
        connect = self.gateway.command("connect")
        made: list[Caller] = [self._floor, *self._timed]
        made += [Subscriber(field, number, luck()) for number in range(SUBSCRIBERS)]
        made += [Bridged(field, number, luck(), connect) for number in range(BRIDGES)]
        others = self.wish.clients - len(made) + 1
        made += [KINDS[number % len(KINDS)](field, number, luck()) for number in range(others)]
        return made

    def drift(self) -> Drift:
        assert self._floor is not None
        taken = [took for one in self._timed for took in one.took]
        moments = [at for at, _ in taken]
        return drift(taken, self._floor.took, min(moments), max(moments))

    def _judged(self) -> list[str]:
        return self.drift().problems() if self.wish.seconds >= JUDGED_S_MIN else []

    def _said(self) -> tuple[str, ...]:
        if self.wish.seconds >= JUDGED_S_MIN:
            return ("", *self.drift().words())
        said = f"latency is not judged in a run of less than {JUDGED_S_MIN:.0f} s"
        return ("", *self.drift().words(), "", said)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    option = parser.add_argument
    option("--seconds", type=float, default=HOUR_S)
    option("--servers", type=int, default=20)
    option("--callers", type=int, default=64)
    option("--seed", type=int, default=7)
    option("--think", type=float, default=THINK_S, help="seconds between an answer and a question")
    option("--warm", type=float, default=WARM_S, help="seconds before the first look")
    option("--log", type=Path, default=None, help="where the log of the gateway is kept")
    chosen = parser.parse_args()
    wish = Wish(
        chosen.seconds, chosen.seed, chosen.servers, chosen.callers,
        warm_s=chosen.warm, think_s=chosen.think,
    )  # fmt: skip
    outcome = soak(wish, chosen.log, LoadSoak)
    sys.stdout.write(soak_report.words(outcome) + "\n")
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
