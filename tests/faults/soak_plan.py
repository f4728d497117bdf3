"""The sequence of faults of a soak: what is done when, to whom, for how long. Pure.

Owns: how often each kind of fault comes, its bounds, how close faults may follow each other. Never:
how one is done (`soak_faults`), a clock, dice of its own: the same dice give the same plan.

Faults are drawn as cards from a deck that holds each kind as often as its weight says, so that even
a short run has all of them. A card that may not be played yet goes under the next ones.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

SERVER, FRONT, NURSERY, SUPERVISOR, CLIENT, HOUSE = (
    "server", "front", "nursery", "supervisor", "client", "house",
)  # fmt: skip

HANG_S = 9.0
"""A process that is stopped for so long is taken for hanging, and replaced."""
DEATHS_MAX, DEATHS_WINDOW_S = 4, 125.0
"""Of one server: with more than eight, its circuit opens for a minute, as it should."""
FRONT_GAP_S = 10.0
"""More than five crashes of fronts in a minute end the gateway, as they should."""
NURSERY_GAP_S = 110.0
"""More than five in a minute would end it too; and everything else ends with a nursery."""
LOOK_BACK_S = NURSERY_GAP_S + HANG_S
"""Nothing of what was done longer ago counts."""
BYSTANDER = 5
"""Every fifth server is left alone: whatever happens to the others, it works."""
LEAD_S = 1.0
"""Before the first fault."""


@dataclass(frozen=True, slots=True)
class Kind:
    """`whom`: what it is done to; `weight`: cards in the deck; `for_s`: shortest and longest;
    `hang`: of so many cards one is for longer than a process may hang; `deadly`: it ends."""

    whom: str
    weight: int
    for_s: tuple[float, float] = (0.0, 0.0)
    hang: int = 0
    deadly: bool = False


KINDS = {
    "kill-child": Kind(SERVER, 6, deadly=True),
    "kill-worker": Kind(SERVER, 6, deadly=True),
    "stop-child": Kind(SERVER, 5, (0.2, 3.0), hang=5),
    "stop-worker": Kind(SERVER, 5, (0.2, 3.0), hang=5, deadly=True),
    "exit": Kind(SERVER, 4, deadly=True),
    "hang": Kind(SERVER, 2, (1.0, 4.0)),
    "late": Kind(SERVER, 3),
    "flood": Kind(SERVER, 2, (0.3, 1.5)),
    "noise": Kind(SERVER, 3),
    "burst": Kind(SERVER, 3),
    "ctl-restart": Kind(SERVER, 3, deadly=True),
    "ctl-stop": Kind(SERVER, 3, (0.3, 5.0), deadly=True),
    "ctl-drain": Kind(SERVER, 2, (0.3, 5.0)),
    "reload": Kind(SERVER, 2, deadly=True),
    "kill-front": Kind(FRONT, 2),
    "stop-front": Kind(FRONT, 2, (0.2, 3.0), hang=4),
    "roll": Kind(FRONT, 1),
    "starve-front": Kind(FRONT, 1, (1.0, 3.0)),
    "kill-nursery": Kind(NURSERY, 1),
    "stop-supervisor": Kind(SUPERVISOR, 2, (0.2, 2.0)),
    "guest": Kind(HOUSE, 1, (1.0, 6.0)),
    "leave": Kind(CLIENT, 5),
    "slow-reader": Kind(CLIENT, 2, (1.0, 4.0)),
    "garbage": Kind(CLIENT, 4),
}


@dataclass(frozen=True, slots=True)
class Fault:
    """`at_s`: seconds from the start; `target`: the server, or ""; `for_s`: until it is undone;
    `dice`: seed of what else is random about it."""

    at_s: float
    kind: str
    target: str
    for_s: float
    dice: int


def bystanders(servers: Sequence[str]) -> list[str]:
    """Those that nothing is done to."""
    return list(servers[BYSTANDER - 1 :: BYSTANDER])


def plan(
    dice: Random, seconds: float, servers: Sequence[str], pace_s: float = 0.8
) -> tuple[Fault, ...]:
    """Faults in the order of their time. `pace_s`: between two of them, on average; nothing of it
    lasts longer than `seconds`."""
    victims = [name for name in servers if name not in bystanders(servers)]
    made: list[Fault] = []
    at_s = LEAD_S
    for kind in _cards(dice, made):
        whole = _fault(dice, kind, at_s, victims, made)
        if whole.at_s + whole.for_s > seconds:
            if at_s >= seconds:
                return tuple(made)
        else:
            made.append(whole)
        at_s += dice.expovariate(1 / pace_s)
    raise AssertionError("the deck has no end")


def _cards(dice: Random, made: Sequence[Fault]) -> Iterator[str]:
    """Kinds without end; one whose time has not come waits for its turn."""
    waiting: list[str] = []
    while True:
        deck = [name for name, kind in KINDS.items() for _ in range(kind.weight)]
        dice.shuffle(deck)
        for card in deck:
            waiting.append(card)
            ready = next((one for one in waiting if _may(one, made)), None)
            if ready is not None:
                waiting.remove(ready)
                yield ready
        waiting = list(dict.fromkeys(waiting))


def _may(card: str, made: Sequence[Fault]) -> bool:
    """May this kind follow those? Fronts and nurseries are let to heal first."""
    whom = KINDS[card].whom
    if whom not in {FRONT, NURSERY}:
        return True
    now = made[-1].at_s if made else 0.0
    near = itertools.takewhile(lambda fault: now - fault.at_s <= LOOK_BACK_S, reversed(made))
    return all(
        now - fault.at_s - fault.for_s >= _gap_s(whom, KINDS[fault.kind].whom) for fault in near
    )


def _gap_s(whom: str, before: str) -> float:
    if whom == before == NURSERY:
        return NURSERY_GAP_S
    return FRONT_GAP_S if before in {FRONT, NURSERY} else 0.0


def _fault(
    dice: Random, name: str, at_s: float, victims: Sequence[str], made: Sequence[Fault]
) -> Fault:
    kind = KINDS[name]
    for_s = dice.uniform(*kind.for_s)
    if kind.hang and dice.randrange(kind.hang) == 0:
        for_s = HANG_S
    target = ""
    if kind.whom == SERVER:
        near = itertools.takewhile(lambda one: at_s - one.at_s < DEATHS_WINDOW_S, reversed(made))
        deaths = Counter(one.target for one in near if KINDS[one.kind].deadly)
        able = [name for name in victims if not kind.deadly or deaths[name] < DEATHS_MAX]
        if not able:
            name = "garbage"  # all of them have had enough
        target = dice.choice(able) if able else ""
    return Fault(at_s, name, target, for_s, dice.getrandbits(32))
