"""Random faults, for minutes, against a real gateway that serves many clients meanwhile.

    python -m tests.faults.soak --seconds 600 --seed 7 --servers 20 --clients 200

Owns: the order of a soak: warm up, look, break things while clients ask, let it heal, look again,
stop. Ends with 0 when everything held, else with 1 and a sentence for each thing that did not.
Never: the faults (`soak_plan`, `soak_faults`), the callers (`soak_clients`, `soak_streams`,
`soak_rude`), what an end of a request means (`soak_ledger`).
"""

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from metamcp_supervisor.control.client import Failed
from metamcp_supervisor.verbs import GatewayStatus
from tests.faults import soak_report, soak_warm
from tests.faults.soak_clients import Caller, Field, Legacy, Modern, Rest, Streaming
from tests.faults.soak_faults import Faults
from tests.faults.soak_gateway import Soaked
from tests.faults.soak_ledger import Ledger
from tests.faults.soak_plan import Fault, bystanders, plan
from tests.faults.soak_report import Outcome, grown
from tests.faults.soak_streams import Bridged, Sse, Subscriber
from tests.faults.soak_watch import Figures, Metrics, bugs, figures
from tests.waiting import until

KINDS: tuple[type[Caller], ...] = (
    Legacy, Modern, Rest, Streaming, Legacy, Modern, Sse, Modern, Legacy, Modern,
)  # fmt: skip
BRIDGES, SUBSCRIBERS = 3, 4
READY_S_MAX = 60.0
SETTLE_S_MAX = 90.0
"""For what was broken to be whole, and for memory to be given back."""
GONE_S_MAX = 10.0
STEP_S = 0.5
OVERDUE_S = 1.0
EARLY_SHARE = 0.25
"""Of the time of a soak by hand, before the first look."""


@dataclass(frozen=True, slots=True)
class Wish:
    """`warm_s`: how long all clients ask before the first look; `early_s`: how long faults happen
    before it, so that most errors of each server have their rows on the page of metrics; `think_s`:
    of a client, between an answer and its next question, on average."""

    seconds: float
    seed: int
    servers: int = 20
    clients: int = 200
    pace_s: float = 0.8
    warm_s: float = 25.0
    early_s: float = 0.0
    think_s: float = 1.0


def soak(wish: Wish, keep: Path | None = None, kind: "type[Soak] | None" = None) -> Outcome:
    """All of it. `keep`: where the log of the gateway goes; `kind`: another soak than that with
    faults. Raises AssertionError when the gateway does not even start."""
    with Soaked(wish.servers) as gateway:
        outcome = asyncio.run((kind or Soak)(wish, gateway).run())
        problems = [*outcome.problems]
        if (code := gateway.stop()) != 0:
            problems.append(f"the gateway ended with {code}")
        try:
            until(lambda: not gateway.left(), "nothing is left", GONE_S_MAX)
        except AssertionError:
            problems.append(f"processes {gateway.left()} are left after the end")
        problems += [f"in the journal: {sentence}" for sentence in bugs(gateway.log)]
        if keep is not None:
            keep.write_bytes(gateway.log.read_bytes())
    return replace(outcome, problems=problems)


class Soak:
    def __init__(self, wish: Wish, gateway: Soaked) -> None:
        self.wish, self.gateway = wish, gateway
        self.calm = frozenset(bystanders(gateway.names))
        self.problems: list[str] = []

    async def run(self) -> Outcome:
        wish = self.wish
        await self._wait("the gateway answers", lambda _: True)
        await self._wait("all servers are ready at first", self._whole)
        metrics = Metrics(self.gateway)
        warm = Ledger(self.calm)
        await soak_warm.remember(self.gateway)
        await self._round(warm, metrics, self._warm_up(), wish.warm_s)
        if wish.early_s:
            await self._round(warm, metrics, self._early_faults(), wish.early_s)
            await self._start_again()
        await self._replace_nursery()
        before = await self._look()
        ledger = Ledger(self.calm)
        doer = await self._round(ledger, metrics, self._faults(), wish.seconds)
        await self._start_again()
        after = await self._settle(before)
        self.problems += [*warm.problems, *ledger.problems, *metrics.problems, *doer.problems]
        self.problems += [*grown(before.by_role, after.by_role), *self._judged()]
        if after.below > before.below:
            self.problems.append(f"{after.below} processes in all, before {before.below}")
        return Outcome(
            wish.seed, wish.seconds, doer.done, doer.missed, ledger.ends,
            f"{ledger.worst_s:.2f} s ({ledger.worst})", before.by_role, after.by_role,
            metrics.scrapes, self.problems, self._said(),
        )  # fmt: skip

    async def _round(
        self, ledger: Ledger, metrics: Metrics, faults: tuple[Fault, ...], seconds: float
    ) -> Faults:
        """All clients come, faults happen, all clients leave."""
        field = Field(
            self.gateway.port, self.gateway.names, ledger, asyncio.Event(), self.wish.think_s
        )
        doer = Faults(self.gateway, field)
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for caller in self._callers(field):
                group.create_task(caller.run())
            group.create_task(metrics.run(field))
            group.create_task(self._overdue(field))
            await doer.run(faults)
            await field.pause(max(0.0, end - time.monotonic()))
            field.over.set()
        ledger.overdue(float("inf"))
        return doer

    def _faults(self) -> tuple[Fault, ...]:
        wish = self.wish
        return plan(Random(wish.seed), wish.seconds, self.gateway.names, wish.pace_s)

    def _judged(self) -> list[str]:
        """A sentence for each thing that did not hold and that only this kind of soak looks at."""
        return []

    def _said(self) -> tuple[str, ...]:
        """What else is to be in the report."""
        return ()

    def _callers(self, field: Field) -> list[Caller]:
        dice = Random(self.wish.seed)
        made: list[Caller] = []
        for number in range(self.wish.clients - BRIDGES - SUBSCRIBERS):
            kind = KINDS[number % len(KINDS)]
            made.append(kind(field, number, Random(dice.getrandbits(32))))
        seeds = (Random(dice.getrandbits(32)) for _ in range(SUBSCRIBERS + BRIDGES))
        made += [Subscriber(field, number, next(seeds)) for number in range(SUBSCRIBERS)]
        connect = self.gateway.command("connect")
        made += [Bridged(field, number, next(seeds), connect) for number in range(BRIDGES)]
        return made

    async def _overdue(self, field: Field) -> None:
        while not await field.pause(OVERDUE_S):
            field.ledger.overdue(time.monotonic())

    def _warm_up(self) -> tuple[Fault, ...]:
        return soak_warm.faults(Random(self.wish.seed), self.wish.warm_s, self.gateway.names)

    def _early_faults(self) -> tuple[Fault, ...]:
        dice = Random(self.wish.seed + 1)
        return plan(dice, self.wish.early_s, self.gateway.names, self.wish.pace_s)

    async def _start_again(self) -> None:
        """What was left stopped or gave up, by bad luck, comes back when it is told to."""
        await self.gateway.order("undrain", *self.gateway.names)
        await self.gateway.order("start", *self.gateway.names)

    async def _replace_nursery(self) -> None:
        """The first nursery is a fork of the supervisor and shares memory with it; the next ones
        do not, so the figures before and after the faults are those with a later one."""
        self.gateway.signal((await self.gateway.status_of()).nursery_pid, signal.SIGKILL)
        await self._start_again()

    def _whole(self, status: GatewayStatus) -> bool:
        """Everything serves, spares stand by, and what starts when it is called rests again."""
        return all(front.state == "ready" for front in status.fronts) and all(
            one.phase == "idle"
            if self.gateway.lazy(one.name)
            else one.phase == "ready" and len(one.worker_pids) == self.gateway.copies(one.name)
            for one in status.servers
        )

    async def _wait(self, what: str, fact: Callable[[GatewayStatus], bool]) -> None:
        end = time.monotonic() + READY_S_MAX
        status: GatewayStatus | None = None
        while status is None or not fact(status):
            try:
                status = await self.gateway.status_of()
            except Failed:
                status = None
            if time.monotonic() > end:
                shown = [] if status is None else [(s.name, s.phase) for s in status.servers]
                self.problems.append(f"not within {READY_S_MAX:g} s: {what}: {shown}")
                return
            await self._step()

    async def _step(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STEP_S):
                await asyncio.Event().wait()

    async def _look(self) -> Figures:
        """When everything is whole and nobody is connected any more."""
        await self._wait("all servers are ready again", self._whole)
        await self._wait("all clients are gone", lambda status: not any(
            front.connections for front in status.fronts
        ))  # fmt: skip
        return figures(await self.gateway.status_of())

    async def _settle(self, before: Figures) -> Figures:
        """Look until everything is as before, or for as long as that may take."""
        end = time.monotonic() + SETTLE_S_MAX
        while True:
            after = await self._look()
            if not grown(before.by_role, after.by_role) and after.below <= before.below:
                return after
            if time.monotonic() > end:
                return after
            await self._step()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    option = parser.add_argument
    option("--seconds", type=float, default=600.0, help="of faults")
    option("--seed", type=int, default=7)
    option("--servers", type=int, default=20)
    option("--clients", type=int, default=200)
    option("--pace", type=float, default=0.8, help="seconds between two faults, on average")
    option("--log", type=Path, default=None, help="where the log of the gateway is kept")
    chosen = parser.parse_args()
    early_s = chosen.seconds * EARLY_SHARE
    wish = Wish(
        chosen.seconds, chosen.seed, chosen.servers, chosen.clients, chosen.pace, early_s=early_s
    )  # fmt: skip
    outcome = soak(wish, chosen.log)
    sys.stdout.write(soak_report.words(outcome) + "\n")
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
