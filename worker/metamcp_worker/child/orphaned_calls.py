"""Calls that outlive their front: what comes for them until another front goes on with them.

Owns: which calls these are, what their server tells meanwhile, their answers, how long and how much
of that is kept. Never: calls in flight (`server_calls`), the way to a front, clocks.

A front says of a call that its client can come back for the answer (`frames.Keep`). When that
front is gone the call is nobody's, an *orphan*: it goes on, and what comes for it waits here until
a front claims it. That front has it then as if it had made it. Whose it is, the two words of the
front say: whoever does not know them gets nothing.

An answer may be on its way when its front dies, or wait for one that hangs. So a small one is kept
for a moment even if its front is there. A client that has it does not ask for it.
"""

from collections import deque
from collections.abc import Callable, Iterator

from msgspec import structs

from metamcp_worker.child.actions import Actions, ReplyToFront
from metamcp_worker.child.server_calls import ServerCalls
from metamcp_worker.child.server_questions import Asks
from metamcp_worker.ipc.frames import (
    Ask,
    Claim,
    Error,
    Keep,
    KeptFrame,
    Notice,
    Progress,
    Release,
    Result,
    Withdraw,
)

ORPHAN_S = 60.0
"""From the end of a front, or from the answer if that comes later: for a client to come back. A
call that nobody has come back for by then is cancelled."""
SENT_S = 10.0
"""For a front to take an answer that was sent to it: one that hangs is killed before that."""
SENT_BYTES_MAX = 64 * 1024
"""Of such an answer: most likely it was read, and a larger one is not kept on suspicion."""
EVENTS_MAX = 256
"""Of one call, told while nobody was there; the youngest are what a client may have missed."""
KEPT_ANSWERS_MAX = 256
KEPT_BYTES_MAX = 17 * 1024 * 1024
"""Of all calls together: the largest answer, and what was told before it. Over these two the oldest
goes; whoever comes for it is told that it is lost."""
EVENT_BYTES = 512
"""What a frame counts beside its body."""

NOBODY = -1
"""The front of a call whose front is gone."""

_Answer = Result | Error
_Frame = _Answer | Progress | Notice | Ask | Withdraw | KeptFrame


class _Orphan:
    """`front`: whose it was; `until`: kept so long; `events`: to be told, the oldest first."""

    __slots__ = ("answer", "events", "front", "keep", "size_bytes", "until")

    def __init__(self, front: int, keep: Keep, until: float) -> None:
        self.front = front
        self.keep = keep
        self.until = until
        self.events: deque[Progress | Notice] = deque()
        self.answer: _Answer | None = None
        self.size_bytes = 0


class Orphans:
    """`give_up(ids, reason, now)`: these calls in flight are not waited for any more."""

    def __init__(
        self,
        calls: ServerCalls,
        asks: Asks,
        give_up: Callable[[list[bytes], bytes, float], Actions],
    ) -> None:
        self._calls = calls
        self._asks = asks
        self._give_up = give_up
        self._marks: dict[tuple[int, int], Keep] = {}
        """What fronts that are there have said of their calls, by front and call."""
        self._orphans: dict[int, _Orphan] = {}
        """By their numbers, the oldest first. Such a number is also that of the call for nobody."""
        self._next = 1
        self._size_bytes = 0

    @property
    def any(self) -> bool:
        """Is there a call that outlives its front, or what is left of one?"""
        return bool(self._marks or self._orphans)

    # --- what fronts say ----------------------------------------------------------------------

    def keep(self, front: int, frame: Keep) -> None:
        """This call of the front outlives it."""
        for number in [*self._named(frame.owner, frame.name)]:
            self._forget(number)  # the call before, with which the same request was to be answered
        self._marks[front, frame.id] = frame

    def claim(self, front: int, frame: Claim, now: float) -> Actions:
        """A front goes on with what is here for these words."""
        actions: Actions = []
        for (before, call), mark in list(self._marks.items()):
            if (mark.owner, mark.name) == (frame.owner, frame.name):
                actions += self._orphan(before, call, now)  # whose end is not known here yet
        number = next(self._named(frame.owner, frame.name), 0)
        if not number:
            return [*actions, ReplyToFront(front, KeptFrame(frame.id))]
        found = self._orphans[number]
        self._forget(number)
        if found.answer is None:
            self._calls.pass_on(NOBODY, number, (front, frame.id), frame.peer)
        self._marks[front, frame.id] = structs.replace(found.keep, id=frame.id)
        told = [*found.events, *([found.answer] if found.answer is not None else [])]
        actions.append(ReplyToFront(front, KeptFrame(frame.id, found.keep.note)))
        actions += [ReplyToFront(front, structs.replace(one, id=frame.id)) for one in told]
        return actions

    def release(self, front: int, frame: Release, now: float) -> Actions:
        """Nobody comes back for these."""
        if not frame.owner:
            self._marks = {where: mark for where, mark in self._marks.items() if where[0] != front}
            return []
        mine = [n for n, one in self._orphans.items() if one.keep.owner == frame.owner]
        return self._drop(mine, b"the session has ended", now)

    def front_gone(self, front: int, now: float) -> Actions:
        """Before the calls of this front are forgotten: these are not."""
        for one in self._orphans.values():
            if one.front == front:
                one.until = max(one.until, now + ORPHAN_S)
        there = set(self._calls.of(front))
        actions: Actions = []
        for where in [where for where in self._marks if where[0] == front]:
            if where[1] in there:
                actions += self._orphan(*where, now)
            else:
                del self._marks[where]
        return actions

    # --- what is said to fronts ---------------------------------------------------------------

    def sent(self, front: int, frame: _Frame, now: float) -> None:
        """This went to a front, or would have gone to one that is not there any more."""
        if front == NOBODY:
            self._put(frame, now)
        elif isinstance(frame, Result | Error):
            mark = self._marks.pop((front, frame.id), None)
            if mark is not None and len(frame.body) <= SENT_BYTES_MAX:
                self._answer(self._new(front, mark, now + SENT_S), frame)

    def tick(self, now: float) -> Actions:
        """Time has passed."""
        if self._marks:
            there = {front: set(self._calls.of(front)) for front in {one for one, _ in self._marks}}
            self._marks = {
                where: mark for where, mark in self._marks.items() if where[1] in there[where[0]]
            }
        late = [number for number, one in self._orphans.items() if one.until <= now]
        return self._drop(late, b"nobody came back for it", now)

    # --- underneath ---------------------------------------------------------------------------

    def _named(self, owner: bytes, name: bytes) -> Iterator[int]:
        return (
            number
            for number, one in self._orphans.items()
            if one.keep.owner == owner and one.keep.name == name
        )

    def _new(self, front: int, mark: Keep, until: float) -> int:
        number, self._next = self._next, self._next + 1
        self._orphans[number] = _Orphan(front, mark, until)
        return number

    def _orphan(self, front: int, call: int, now: float) -> Actions:
        """This call is nobody's from now on. What was asked in it nobody can answer."""
        mark = self._marks.pop((front, call))
        number = self._new(front, mark, now + ORPHAN_S)
        # Nobody knows whether it and another orphan are of one client: each stands alone.
        key = self._calls.pass_on(front, call, (NOBODY, number), 0)
        if key is None:
            self._forget(number)
        if not key:
            return []
        actions = self._asks.over(key, told=False)
        if actions:
            found = self._calls.in_flight[key]
            self._calls.set_deadline(key, now + found.timeout_s)
            self._calls.set_asked(key, asked=False)
        return actions

    def _put(self, frame: _Frame, now: float) -> None:
        """Something came for a call that is nobody's."""
        if not isinstance(frame, Result | Error | Progress | Notice):
            return
        one = self._orphans.get(frame.id)
        if one is None:
            return
        if isinstance(frame, Result | Error):
            one.until = max(one.until, now + ORPHAN_S)
            self._answer(frame.id, frame)
            return
        one.events.append(frame)
        self._count(one, len(frame.body) + EVENT_BYTES)
        if len(one.events) > EVENTS_MAX:
            self._tell_no_more(one)
        self._shrink()

    def _answer(self, number: int, frame: _Answer) -> None:
        one = self._orphans[number]
        one.answer = frame
        self._count(one, len(frame.body) + EVENT_BYTES)
        answered = [number for number, one in self._orphans.items() if one.answer is not None]
        for oldest in answered[: max(0, len(answered) - KEPT_ANSWERS_MAX)]:
            self._forget(oldest)
        self._shrink()

    def _shrink(self) -> None:
        """Keep to the bound: the oldest call gives what it has, its answer last."""
        for number, one in list(self._orphans.items()):
            while self._size_bytes > KEPT_BYTES_MAX and one.events:
                self._tell_no_more(one)
            if self._size_bytes > KEPT_BYTES_MAX and one.answer is not None:
                self._forget(number)

    def _tell_no_more(self, one: _Orphan) -> None:
        """The oldest of what was told is kept no longer."""
        self._count(one, -len(one.events.popleft().body) - EVENT_BYTES)

    def _count(self, one: _Orphan, size_bytes: int) -> None:
        one.size_bytes += size_bytes
        self._size_bytes += size_bytes

    def _drop(self, numbers: list[int], reason: bytes, now: float) -> Actions:
        """Nobody comes for these: those without an answer are not waited for any more."""
        keys: list[bytes] = []
        for number in numbers:
            if self._orphans[number].answer is None:
                keys.append(self._calls.cancel(NOBODY, number, now)[0])
            self._forget(number)
        return self._give_up([key for key in keys if key], reason, now) if keys else []

    def _forget(self, number: int) -> None:
        self._size_bytes -= self._orphans.pop(number).size_bytes
