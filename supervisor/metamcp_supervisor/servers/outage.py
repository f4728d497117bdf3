"""Outages shared by many servers: the server that tries a start for all of them, and when.

Owns: the definition of a shared outage, and how often a server tries whether the outage is over.
Never: clocks, timers, starting anything (`outage_io`), the consequences of a failed try for the
server that made it (`server`).

Theory. Full jitter and open circuits make each server wait longer, and that is right for a broken
server. But if fifty servers lost the same upstream, the next one to try may still wait for a minute
when the upstream is back. So the servers take turns: when the last try was a moment ago, the next
server tries for all. A try costs its server nothing: if the start fails like the last one, the
server waits for its own time as before. If it succeeds, the others are started too (`server`). The
longer an outage lasts, the rarer are the tries: the added wait stays small compared with the time
for which everything was gone already.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from metamcp_supervisor.servers.server import ServerLife
from metamcp_supervisor.servers.states import ExitClass, ServerPhase

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


@dataclass(frozen=True, slots=True)
class Seen:
    """A server and its current life. `launcher`: servers that share it fail together. `held`: the
    server cannot start for a reason other than its trouble."""

    name: str
    launcher: str
    life: ServerLife
    held: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """The server that tries now, and how many others it tries for."""

    name: str
    others: int


def pace_s(lasted_s: float) -> float:
    """Return the seconds between two tries when all tries have failed for `lasted_s`."""
    return min(PACE_S_MAX, max(PACE_S, lasted_s * PACE_PART))


def turns(seen: Iterable[Seen], now: float) -> tuple[tuple[Turn, ...], float | None]:
    """Return the servers that try now, at most one for each outage, and when to ask again (None:
    there is not an outage)."""
    troubles: dict[tuple[str, ExitClass], list[Seen]] = {}
    for one in seen:
        life, why = one.life, one.life.reason
        if why is None or why not in _SHARED or life.vain is None:
            continue
        if life.phase in _TRYING or _waits(life):
            troubles.setdefault((one.launcher, why), []).append(one)
    found: list[Turn] = []
    dues: list[float] = []
    for ones in troubles.values():
        if len(ones) >= OUTAGE_SERVERS_MIN:
            name, due = _turn(ones, now)
            dues.append(due)
            if name is not None:
                found.append(Turn(name, len(ones) - 1))
    return tuple(found), min(dues, default=None)


def _turn(ones: list[Seen], now: float) -> tuple[str | None, float]:
    """Return which of these servers tries now, if any, and when to ask again."""
    if any(one.life.phase in _TRYING and not one.held for one in ones):
        return None, now + PACE_S
    vain = [one.life.vain for one in ones if one.life.vain is not None]
    since = sorted(first for first, _ in vain)[len(vain) // 2]  # some may have been broken before
    pace = pace_s(now - since)
    due = max(last for _, last in vain) + pace
    if now < due:
        return None, due
    able = [one for one in ones if _able(one, now)]
    if not able:
        return None, now + pace
    return min(able, key=_longest_ago).name, now + PACE_S


def _able(one: Seen, now: float) -> bool:
    return _waits(one.life) and now >= one.life.not_before and not one.held


def _waits(life: ServerLife) -> bool:
    """Whether a server waits for its next start. A server that its restart policy leaves down does
    not wait."""
    return life.phase in _WAITING and life.retry_at is not None


def _longest_ago(one: Seen) -> float:
    return one.life.vain[1] if one.life.vain is not None else 0.0
