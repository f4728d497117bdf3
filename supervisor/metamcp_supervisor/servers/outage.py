"""Which of many servers that wait for the same thing tries it for all of them, and when.

Owns: what an outage is that servers share, and how often somebody looks whether it is over. Never:
clocks, timers, starting anything (`outage_io`), what a try in vain means for who made it
(`server`).

Theory. Full jitter and open circuits make each server wait longer, and that is right for one that
is broken; of fifty that lost the same upstream the next one to try may be a minute away when it is
back. So one of them tries for all, in turns, when nobody has for a moment. Such a start costs its
server nothing: when it fails as the last one did, it waits for its own time as before. When it
succeeds, that wakes the others (`server`). An outage that lasts is looked at less often:
the wait that is added stays small beside the time for which everything was gone already.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from metamcp_supervisor.servers.server import Life
from metamcp_supervisor.servers.states import ExitClass, Phase

OUTAGE_SERVERS_MIN = 5
"""Fewer that fail alike are so many broken servers; each waits for its own time."""
PACE_S = 0.5
"""So long after the last try in vain of anybody the next one tries for all."""
PACE_S_MAX = 30.0
"""A start costs a tenth of a second of a processor, that of `npx` a whole one: at most some percent
of one."""
PACE_PART = 1 / 300
"""Of the time that the outage has lasted: a second after five minutes, twelve after an hour."""

_SHARED = (ExitClass.EXIT, ExitClass.SIGNAL, ExitClass.CONNECT, ExitClass.START_TIMEOUT)
"""What a lost upstream looks like. The others are a matter of one server, or of a person."""
_WAITING = (Phase.BACKOFF, Phase.FAILED)
_TRYING = (Phase.QUEUED, Phase.WARMING)


@dataclass(frozen=True, slots=True)
class Seen:
    """One server as it stands. `launcher`: those who share it fail together. `held`: something else
    than its trouble keeps it from starting."""

    name: str
    launcher: str
    life: Life
    held: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """Who tries now, and for how many others."""

    name: str
    others: int


def pace_s(lasted_s: float) -> float:
    """Seconds between two tries when nothing has come of them for so long."""
    return min(PACE_S_MAX, max(PACE_S, lasted_s * PACE_PART))


def turns(seen: Iterable[Seen], now: float) -> tuple[tuple[Turn, ...], float | None]:
    """Who tries now, at most one of each outage, and when to ask again (None: there is none)."""
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
    """Who of these tries now, and when to ask again."""
    if any(one.life.phase in _TRYING and not one.held for one in ones):
        return None, now + PACE_S
    vain = [one.life.vain for one in ones if one.life.vain is not None]
    since = sorted(first for first, _ in vain)[len(vain) // 2]  # whatever was broken before it
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


def _waits(life: Life) -> bool:
    """Not those that are down for good, as their restart policy says: nothing wakes them."""
    return life.phase in _WAITING and life.retry_at is not None


def _longest_ago(one: Seen) -> float:
    return one.life.vain[1] if one.life.vain is not None else 0.0
