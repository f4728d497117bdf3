"""The start gate: which servers may start now, so that many starts do not overload the machine.

Owns: the queue of servers that want to start and the places of those that are warming up. Never:
clocks, timers, starting anything (`tree`).

A place stands for the processor time that a start costs: it is given back when the server is ready
or down, and at the latest after PLACE_S_MAX, because a start that takes longer waits for something
other than the processor. So servers that hang do not delay others for long. Servers that failed
before queue behind those that did not.

After the kernel has killed a process for lack of memory, each start could cause the next kill: no
server starts for a while, and then one server at a time.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace

PLACES_MIN = 2
PLACES_PER_CORE = 2
PLACE_S_MAX = 2.0
"""Maximum seconds that a start has a place: Node.js and Python servers need 0.2 to 0.5 s of
processor time until they are ready."""
STARTS_MAX = 8
STARTS_WINDOW_S = 0.25
"""Seconds in which at most STARTS_MAX servers start, however many cores there are."""
CROWDED_S = 5.0
"""Seconds without a start after the kernel killed a process for lack of memory. For as long again,
servers start one at a time."""


@dataclass(frozen=True, slots=True)
class WaitingStart:
    name: str
    failures: int


@dataclass(frozen=True, slots=True)
class Gate:
    """`warming`: (server, since when) of the places taken; `starts`: times of the last starts;
    `crowded`: when the kernel killed a process for lack of memory, None if that was long ago."""

    places: int
    queue: tuple[WaitingStart, ...] = ()
    warming: tuple[tuple[str, float], ...] = ()
    starts: tuple[float, ...] = ()
    crowded: float | None = None


def for_cores(cores: int) -> Gate:
    return Gate(places=max(PLACES_MIN, PLACES_PER_CORE * cores))


def join(gate: Gate, name: str, failures: int) -> Gate:
    """Queue `name` behind all servers that failed as often or less often; do nothing if the server
    is queued already."""
    if any(waiting.name == name for waiting in gate.queue):
        return gate
    before = tuple(waiting for waiting in gate.queue if waiting.failures <= failures)
    behind = tuple(waiting for waiting in gate.queue if waiting.failures > failures)
    return replace(gate, queue=(*before, WaitingStart(name, failures), *behind))


def leave(gate: Gate, name: str) -> Gate:
    """Remove `name` from the queue and give back its place, if there is one."""
    return replace(
        gate,
        queue=tuple(waiting for waiting in gate.queue if waiting.name != name),
        warming=tuple(place for place in gate.warming if place[0] != name),
    )


def admit(
    gate: Gate, now: float, held: Collection[str]
) -> tuple[Gate, tuple[str, ...], float | None]:
    """Return the gate, the servers to start now, and when to ask again (None: when something
    changes).

    `held`: servers that cannot start yet, for example because an earlier instance is still leaving.
    Held servers keep their place in the queue and do not delay others.
    """
    if gate.crowded is not None and now >= gate.crowded + 2 * CROWDED_S:
        gate = replace(gate, crowded=None)
    warming = tuple(place for place in gate.warming if now < place[1] + PLACE_S_MAX)
    starts = tuple(start for start in gate.starts if now < start + STARTS_WINDOW_S)
    room = max(0, min(_places(gate, now) - len(warming), STARTS_MAX - len(starts)))
    able = [waiting for waiting in gate.queue if waiting.name not in held]
    chosen = able[:room]
    gate = replace(
        gate,
        queue=tuple(waiting for waiting in gate.queue if waiting not in chosen),
        warming=(*warming, *((waiting.name, now) for waiting in chosen)),
        starts=(*starts, *(now for _ in chosen)),
    )
    again = _next_opening(gate, now) if len(able) > len(chosen) else None
    return gate, tuple(waiting.name for waiting in chosen), again


def crowded(gate: Gate, now: float) -> Gate:
    """Note that the kernel killed a process for lack of memory."""
    return replace(gate, crowded=now)


def _places(gate: Gate, now: float) -> int:
    if gate.crowded is None:
        return gate.places
    return 1 if now >= gate.crowded + CROWDED_S else 0


def _next_opening(gate: Gate, now: float) -> float:
    places, openings = _places(gate, now), list[float]()
    if not places and gate.crowded is not None:
        openings.append(gate.crowded + CROWDED_S)
    elif len(gate.warming) >= places:
        openings.append(min(since for _, since in gate.warming) + PLACE_S_MAX)
    if len(gate.starts) >= STARTS_MAX:
        openings.append(min(gate.starts) + STARTS_WINDOW_S)
    return max(openings)
