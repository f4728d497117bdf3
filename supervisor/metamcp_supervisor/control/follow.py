"""The verbs that send one item after the other: `logs` and `events`, of the past and as they come.

Owns: which past items are sent, and which new items fit. Never: keeping items (`telemetry.logs`,
`telemetry.journal`), the socket and its limit for a slow reader (`control`).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from msgspec import Struct

from metamcp_supervisor.control.services import Steering
from metamcp_supervisor.control.stream import ControlStream, known
from metamcp_supervisor.telemetry.journal import Follower
from metamcp_supervisor.verbs import VERSION, JournalEvent, LogLine


class Numbered(Protocol):
    """Item of the journal or of a log."""

    @property
    def seq(self) -> int: ...

    @property
    def time(self) -> float: ...


T = TypeVar("T")
N = TypeVar("N", bound=Numbered)


class Logs(Struct, frozen=True, forbid_unknown_fields=True):
    """Lines of the last `since_s` seconds that contain `grep` in any case; of these lines the last
    `n`, or all. `after`: number and time of the last line that was seen, for a client that goes on
    from there."""

    name: str
    n: int | None = 100
    follow: bool = False
    since_s: float | None = None
    grep: str = ""
    after: tuple[int, float] | None = None


class Events(Struct, frozen=True, forbid_unknown_fields=True):
    """Events after number `since`, of the last `since_s` seconds, with `type` in what happened; of
    these events the last `n`, or all. `after`: as in `Logs`."""

    since: int = 0
    n: int | None = None
    follow: bool = False
    since_s: float | None = None
    type: str = ""
    after: tuple[int, float] | None = None


async def logs(steering: Steering, line: ControlStream, params: Logs) -> object:
    known(steering, [params.name])
    kept = steering.logs
    word = params.grep.casefold()

    def fits(item: LogLine) -> bool:
        return word in item.text.casefold()

    follower = kept.follow(params.name, line.wake) if params.follow else None
    try:
        past = newer(kept.past(params.name, params.since_s), params.after)
        for item in _last(filter(fits, past), params.n):
            await line.tell("log", item)
        if follower is None:
            return {"v": VERSION}
        await line.answer({"v": VERSION})
        await _feed(line, follower, "log", fits)
    finally:
        if follower is not None:
            kept.unfollow(params.name, follower)
    return None


async def events(steering: Steering, line: ControlStream, params: Events) -> object:
    journal = steering.journal

    def fits(item: JournalEvent) -> bool:
        return params.type in item.what

    follower = journal.follow(line.wake) if params.follow else None
    try:
        past = newer(journal.since(params.since, params.since_s), params.after)
        last = journal.last
        for item in _last(filter(fits, past), params.n):
            await line.tell("event", item)
        if follower is None:
            return {"v": VERSION, "last": last}
        await line.answer({"v": VERSION, "last": last})
        await _feed(line, follower, "event", fits)
    finally:
        if follower is not None:
            journal.unfollow(follower)
    return None


def newer(items: Sequence[N], after: tuple[int, float] | None) -> Sequence[N]:
    """Return the items that came after this number and time. If the item with both is missing,
    another gateway counts now, or the item is not kept any more; then the time alone decides."""
    if after is None:
        return items
    seq, time = after
    if any(item.seq == seq and item.time == time for item in items):
        return [item for item in items if item.seq > seq]
    return [item for item in items if item.time > time]


def _last(items: Iterable[T], n: int | None) -> list[T]:
    found = list(items)
    return found if n is None else found[max(0, len(found) - max(0, n)) :]


async def _feed(
    line: ControlStream, follower: Follower[T], method: str, fits: Callable[[T], bool]
) -> None:
    """Pass on new items that fit, until the client leaves or falls behind."""
    while True:
        await line.woken(None)
        for item in filter(fits, follower.take()):
            line.push(method, item)
        if follower.lagged:
            line.push("lagged", {"message": "more came than this connection could take"})
            return
