"""Many servers, one upstream, and a clock that costs no time: lives, gate and turns put together.

The machine is a simple one: whoever is admitted is ready after READY_S, or gone after VAIN_S if
what it needs is not there then. Two processors, so four places at the gate.
"""

import heapq
import random
from collections.abc import Callable, Collection
from functools import partial

from metamcp_supervisor.servers import start_gate
from metamcp_supervisor.servers.server import (
    Admitted,
    BecameReady,
    Fact,
    ServerLife,
    SiblingRecovered,
    Start,
    WentDown,
    evidence,
    step,
)
from metamcp_supervisor.servers.start_gate import ObservedServer
from metamcp_supervisor.servers.states import Action, ExitClass, ServerPhase

READY_S = 0.16
"""Four at once: twenty-five servers in a second, as two processors manage them."""
VAIN_S = 0.1
LOST = WentDown(ExitClass.EXIT, "the upstream is not there")


class Play:
    """`broken`: servers that never come up, whatever is there. `turns`: does somebody try for all?

    `starts`: (when, who, by turn for all); `ready`: when each was ready last.
    """

    def __init__(
        self, names: Collection[str], seed: int, broken: Collection[str] = (), turns: bool = True
    ) -> None:
        self.lives = {name: ServerLife() for name in names}
        self.starts: list[tuple[float, str, bool]] = []
        self.ready: dict[str, float] = {}
        self.now = 0.0
        self.upstream = True
        self._broken = set(broken)
        self._turns = turns
        self._dice = random.Random(seed)
        self._gate = start_gate.for_cores(2)
        self._todo: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0
        self._looks_at: float | None = None
        for name in names:
            self.feed(name, Start("boot"))

    def until(self, when: float) -> None:
        """Let everything happen that happens until then."""
        while self._todo and self._todo[0][0] <= when:
            self.now, _, do = heapq.heappop(self._todo)
            do()
        self.now = when

    def lose(self) -> None:
        """What all of them need is gone, and those that are up notice it at once."""
        self.upstream = False
        for name, life in self.lives.items():
            if life.phase is ServerPhase.READY:
                self.feed(name, LOST)

    def feed(self, name: str, fact: Fact) -> None:
        before = self.lives[name]
        life, actions = step(before, fact, self.now, self._dice.random())
        self.lives[name] = life
        for action in actions:
            self._act(name, life, action)
        if life.phase is ServerPhase.READY and before.phase is not ServerPhase.READY:
            self.ready[name] = self.now
        if life.vain is not None and self._turns and self._looks_at is None:
            self._look_at(self.now + start_gate.PACE_S)
        if reason := evidence(before, life):
            for other in self.lives:
                if other != name:
                    self.feed(other, SiblingRecovered(reason))

    def _act(self, name: str, life: ServerLife, action: Action) -> None:
        match action:
            case Action.JOIN_GATE:
                self._gate = start_gate.join(
                    self._gate, name, life.failures, again=life.generation > 0
                )
                self._at(self.now, self._open)
            case Action.LEAVE_GATE:
                self._gate = start_gate.leave(self._gate, name)
                self._at(self.now, self._open)
            case Action.FORK:
                self.starts.append((self.now, name, life.planned_at is not None))
                works = self.upstream and name not in self._broken
                fact: Fact = BecameReady() if works else LOST
                self._at(self.now + (READY_S if works else VAIN_S), partial(self.feed, name, fact))
            case Action.ARM_RETRY if life.retry_at is not None:
                self._at(life.retry_at, partial(self._retry, name, life.retry_at))
            case _:
                pass

    def _retry(self, name: str, planned: float) -> None:
        if self.lives[name].retry_at == planned:
            self.feed(name, Start("timer"))

    def _open(self) -> None:
        self._gate, names, again = start_gate.admit(self._gate, self.now, ())
        for name in names:
            self.feed(name, Admitted())
        if again is not None:
            self._at(again, self._open)

    def _look_at(self, when: float) -> None:
        self._looks_at = when
        self._at(when, self._look)

    def _look(self) -> None:
        self._looks_at = None
        seen = [ObservedServer(name, "python", life) for name, life in self.lives.items()]
        chosen, again = start_gate.turns(seen, self.now)
        if again is not None:
            self._look_at(again)
        for turn in chosen:
            self.feed(turn.name, Start("others"))

    def _at(self, when: float, do: Callable[[], None]) -> None:
        self._numbers += 1
        heapq.heappush(self._todo, (when, self._numbers, do))
