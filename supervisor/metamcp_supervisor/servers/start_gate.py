"""The start gate: which servers may start now, so that many starts do not overload the machine, and
which server tries a start for all of them in a shared outage.

Owns: the queue of servers that want to start and the places of those that are warming up; the
definition of a shared outage, and how often a server tries whether the outage is over. Never:
clocks, timers, starting anything (`server_io`), the consequences of a failed try for the server
that made it (`server`).

A place stands for the processor time that a start costs: it is given back when the server is ready
or down, and at the latest after PLACE_S_MAX, because a start that takes longer waits for something
other than the processor. So servers that hang do not delay others for long. Servers that failed
before queue behind those that did not. The rate of starts is limited for servers that ran before:
many that lost the same upstream, or that die at once, give their places back at once.

After the kernel has killed a process for lack of memory, each start could cause the next kill: no
server starts for a while, and then one server at a time.

Full jitter and open circuits make each server wait longer, and that is right for a broken server.
But if fifty servers lost the same upstream, the next one to try may still wait for a minute when
the upstream is back. So the servers take turns: when the last try was a moment ago, the next server
tries for all. A try costs its server nothing: if the start fails like the last one, the server
waits for its own time as before. If it succeeds, the others are started too (`server`). The longer
an outage lasts, the rarer are the tries: the added wait stays small compared with the time for
which everything was gone already.
"""

from collections.abc import Collection, Iterable

from msgspec import Struct
from msgspec.structs import replace

from metamcp_supervisor.servers.server import ServerLife
from metamcp_supervisor.servers.states import ExitClass, ServerPhase

PLACES_MIN = 4
PLACES_PER_CORE = 4
"""A start waits for disks and sockets as long as it computes: with two a core 20 servers were ready
in 1.12 s, with four in 0.90 s."""
PLACE_S_MAX = 2.0
"""Maximum seconds that a start has a place: Node.js and Python servers need 0.2 to 0.5 s of
processor time until they are ready."""
STARTS_MAX = 8
STARTS_WINDOW_S = 0.25
"""Seconds in which at most STARTS_MAX servers start again, however many cores there are."""
CROWDED_S = 5.0
"""Seconds without a start after the kernel killed a process for lack of memory. For as long again,
servers start one at a time."""


class WaitingStart(Struct, frozen=True):
    """`again`: the server ran before in this gateway."""

    name: str
    failures: int
    again: bool


class Gate(Struct, frozen=True):
    """`warming`: (server, since when) of the places taken; `starts`: times of the last starts that
    were not the first;
    `crowded`: when the kernel killed a process for lack of memory, None if that was long ago."""

    places: int
    queue: tuple[WaitingStart, ...] = ()
    warming: tuple[tuple[str, float], ...] = ()
    starts: tuple[float, ...] = ()
    crowded: float | None = None


def for_cores(cores: int) -> Gate:
    return Gate(places=max(PLACES_MIN, PLACES_PER_CORE * cores))


def join(gate: Gate, name: str, failures: int, *, again: bool = False) -> Gate:
    """Queue `name` behind all servers that failed as often or less often; do nothing if the server
    is queued already. `again`: as in WaitingStart."""
    if any(waiting.name == name for waiting in gate.queue):
        return gate
    before = tuple(waiting for waiting in gate.queue if waiting.failures <= failures)
    behind = tuple(waiting for waiting in gate.queue if waiting.failures > failures)
    return replace(gate, queue=(*before, WaitingStart(name, failures, again), *behind))


def leave(gate: Gate, name: str) -> Gate:
    """Remove `name` from the queue and give back its place, if there is one."""
    return replace(
        gate,
        queue=tuple(waiting for waiting in gate.queue if waiting.name != name),
        warming=tuple(slot for slot in gate.warming if slot[0] != name),
    )


def admit(
    gate: Gate, now: float, blocked: Collection[str]
) -> tuple[Gate, tuple[str, ...], float | None]:
    """Return the gate, the servers to start now, and when to ask again (None: when something
    changes).

    `blocked`: servers that cannot start yet, for example because an earlier instance is still
    leaving. Blocked servers keep their place in the queue and do not delay others.
    """
    if gate.crowded is not None and now >= gate.crowded + 2 * CROWDED_S:
        gate = replace(gate, crowded=None)
    warming = tuple(slot for slot in gate.warming if now < slot[1] + PLACE_S_MAX)
    starts = tuple(start for start in gate.starts if now < start + STARTS_WINDOW_S)
    able = [waiting for waiting in gate.queue if waiting.name not in blocked]
    again = [waiting.name for waiting in able if waiting.again]
    late = set(again[max(0, STARTS_MAX - len(starts)) :])
    chosen = [waiting for waiting in able if waiting.name not in late]
    chosen = chosen[: max(0, _places(gate, now) - len(warming))]
    gate = replace(
        gate,
        queue=tuple(waiting for waiting in gate.queue if waiting not in chosen),
        warming=(*warming, *((waiting.name, now) for waiting in chosen)),
        starts=(*starts, *(now for waiting in chosen if waiting.again)),
    )
    opening = _next_opening(gate, now) if len(able) > len(chosen) else None
    return gate, tuple(waiting.name for waiting in chosen), opening


def on_oom_kill(gate: Gate, now: float) -> Gate:
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


OUTAGE_SERVERS_MIN = 5
"""Minimum number of servers that fail alike in an outage; fewer are separate broken servers, and
each waits for its own time."""
PACE_S = 0.5
"""Minimum seconds from the last failed try of any server to the next try for all."""
PACE_S_MAX = 30.0
"""Maximum seconds between two tries. A start costs a tenth of a second of a processor, with `npx` a
whole second: at this pace at most some percent of a processor."""
PACE_PART = 1 / 300
"""Seconds between two tries for each second of the outage: one second after five minutes, twelve
after an hour."""

_SHARED = (ExitClass.EXIT, ExitClass.SIGNAL, ExitClass.CONNECT, ExitClass.START_TIMEOUT)
"""Exit classes that a lost upstream can cause. Other classes are a matter of one server, or of a
person."""
_WAITING = (ServerPhase.BACKOFF, ServerPhase.FAILED)
_TRYING = (ServerPhase.QUEUED, ServerPhase.WARMING)


class ObservedServer(Struct, frozen=True):
    """A server and its current life. `launcher`: servers that share it fail together. `held`: the
    server cannot start for a reason other than its trouble."""

    name: str
    launcher: str
    life: ServerLife
    held: bool = False


class OutageProbe(Struct, frozen=True):
    """The server that tries now, and how many others it tries for."""

    name: str
    others: int


def pace_s(lasted_s: float) -> float:
    """Return the seconds between two tries when all tries have failed for `lasted_s`."""
    return min(PACE_S_MAX, max(PACE_S, lasted_s * PACE_PART))


def turns(
    seen: Iterable[ObservedServer], now: float
) -> tuple[tuple[OutageProbe, ...], float | None]:
    """Return the servers that try now, at most one for each outage, and when to ask again (None:
    there is not an outage)."""
    troubles: dict[tuple[str, ExitClass], list[ObservedServer]] = {}
    for server in seen:
        life, reason = server.life, server.life.reason
        if reason is None or reason not in _SHARED or life.vain is None:
            continue
        if life.phase in _TRYING or _waits(life):
            troubles.setdefault((server.launcher, reason), []).append(server)
    trying: list[OutageProbe] = []
    dues: list[float] = []
    for servers in troubles.values():
        if len(servers) >= OUTAGE_SERVERS_MIN:
            name, due = _turn(servers, now)
            dues.append(due)
            if name is not None:
                trying.append(OutageProbe(name, len(servers) - 1))
    return tuple(trying), min(dues, default=None)


def _turn(servers: list[ObservedServer], now: float) -> tuple[str | None, float]:
    """Return which of these servers tries now, if any, and when to ask again."""
    if any(server.life.phase in _TRYING and not server.held for server in servers):
        return None, now + PACE_S
    vain = [server.life.vain for server in servers if server.life.vain is not None]
    since = sorted(first for first, _ in vain)[len(vain) // 2]  # some may have been broken before
    pace = pace_s(now - since)
    due = max(last for _, last in vain) + pace
    if now < due:
        return None, due
    able = [server for server in servers if _able(server, now)]
    if not able:
        return None, now + pace
    return min(able, key=_longest_ago).name, now + PACE_S


def _able(server: ObservedServer, now: float) -> bool:
    return _waits(server.life) and now >= server.life.not_before and not server.held


def _waits(life: ServerLife) -> bool:
    """Whether a server waits for its next start. A server that its restart policy leaves down does
    not wait."""
    return life.phase in _WAITING and life.retry_at is not None


def _longest_ago(server: ObservedServer) -> float:
    return server.life.vain[1] if server.life.vain is not None else 0.0
