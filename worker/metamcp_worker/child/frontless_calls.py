"""Calls that outlive their front, with the frames that wait until another front claims them.

Owns: which calls these are, the events that their server sends, their answers, how long and how
much of these is kept. Never: calls in flight (`server_calls`), the way to a front, clocks.

A front says of a call that its client can come back for the answer (`frames.KeepCall`). When that
front is gone, the call is an *orphan*: the call goes on, and its events and answer wait here until
a front claims them. The claiming front then has the call as if it had made it. Two words of the
front, `owner` and `name`, identify the call: a front that does not know them gets nothing.

An answer may be on its way when its front dies, or wait for a front that hangs. So a small answer
is kept for a moment even while its front is there. A client that has the answer does not ask for
it.
"""

from collections import deque
from collections.abc import Callable, Iterator

from msgspec import structs

from metamcp_worker.child.actions import Actions, ReplyToFront
from metamcp_worker.child.server_calls import ServerCalls
from metamcp_worker.child.server_questions import ServerQuestions
from metamcp_worker.ipc.frames import (
    Error,
    KeepCall,
    KeptFrame,
    Notice,
    Progress,
    QuestionFrame,
    RecoverCall,
    ReleaseCalls,
    Result,
    WithdrawQuestion,
)

ORPHAN_S = 60.0
"""Seconds for a client to come back, from the end of its front or, if that is later, from the
answer. A call that no client has come back for by then is cancelled."""
SENT_S = 10.0
"""Seconds for a front to take an answer that was sent to it: a front that hangs is killed
earlier."""
SENT_BYTES_MAX = 64 * 1024
"""Maximum bytes of an answer that is kept although it was sent to its front. Most likely the front
read it, so larger answers are not kept."""
EVENTS_MAX = 256
"""Maximum number of events kept for one orphan. The newest are kept, because a client may have
missed those."""
KEPT_ANSWERS_MAX = 256
KEPT_BYTES_MAX = 17 * 1024 * 1024
"""Maximum bytes of all kept answers and events; a larger answer is not kept. Beyond these two
limits the oldest go first, and a client that comes back learns that its answer is lost."""
EVENT_BYTES = 512
"""Bytes that a kept frame counts beside its body."""

NOBODY = -1
"""Number in place of the front for a call whose front is gone."""

_Answer = Result | Error
_Frame = _Answer | Progress | Notice | QuestionFrame | WithdrawQuestion | KeptFrame


class _Orphan:
    """Call that is kept. `front`: the front that had it. `until`: when it is dropped. `events`:
    frames to pass on, the oldest first."""

    __slots__ = ("answer", "events", "front", "keep", "size_bytes", "until")

    def __init__(self, front: int, keep: KeepCall, until: float) -> None:
        self.front = front
        self.keep = keep
        self.until = until
        self.events: deque[Progress | Notice] = deque()
        self.answer: _Answer | None = None
        self.size_bytes = 0


class Orphans:
    """All calls of one server that are kept, or will be. `give_up(ids, reason, now)`: function that
    stops waiting for these calls in flight."""

    def __init__(
        self,
        calls: ServerCalls,
        asks: ServerQuestions,
        give_up: Callable[[list[bytes], bytes, float], Actions],
    ) -> None:
        self._calls = calls
        self._asks = asks
        self._give_up = give_up
        self._marks: dict[tuple[int, int], KeepCall] = {}
        """Calls of living fronts that are to be kept, by front and call."""
        self._orphans: dict[int, _Orphan] = {}
        """Orphans by number, the oldest first. The number is also the id of the call under
        NOBODY."""
        self._next = 1
        self._size_bytes = 0

    @property
    def any(self) -> bool:
        """Whether there is a call that outlives its front, or something kept of such a call."""
        return bool(self._marks or self._orphans)

    # --- what fronts say ----------------------------------------------------------------------

    def keep(self, front: int, frame: KeepCall) -> None:
        """Note that this call outlives its front."""
        for number in [*self._find_by_name(frame.owner, frame.name)]:
            self._forget(number)  # an earlier call for the same request of the client
        self._marks[front, frame.id] = frame

    def claim(self, front: int, frame: RecoverCall, now: float) -> Actions:
        """Hand over the call with this owner and name to a front, which goes on with it."""
        actions: Actions = []
        for (before, call), mark in list(self._marks.items()):
            if (mark.owner, mark.name) == (frame.owner, frame.name):
                actions += self._orphan(before, call, now)  # its front has died unnoticed
        number = next(self._find_by_name(frame.owner, frame.name), 0)
        if not number:
            return [*actions, ReplyToFront(front, KeptFrame(frame.id))]
        orphan = self._orphans[number]
        self._forget(number)
        if orphan.answer is None:
            self._calls.pass_on(NOBODY, number, (front, frame.id), frame.peer)
        self._marks[front, frame.id] = structs.replace(orphan.keep, id=frame.id)
        frames = [*orphan.events, *([orphan.answer] if orphan.answer is not None else [])]
        actions.append(ReplyToFront(front, KeptFrame(frame.id, orphan.keep.note)))
        actions += [ReplyToFront(front, structs.replace(stored, id=frame.id)) for stored in frames]
        return actions

    def release(self, front: int, frame: ReleaseCalls, now: float) -> Actions:
        """Drop calls that no client comes back for: those of this owner or, without an owner, the
        marks of all calls of this front."""
        if not frame.owner:
            self._marks = {key: mark for key, mark in self._marks.items() if key[0] != front}
            return []
        mine = [n for n, orphan in self._orphans.items() if orphan.keep.owner == frame.owner]
        return self._drop(mine, b"the session has ended", now)

    def front_gone(self, front: int, now: float) -> Actions:
        """Turn the marked calls of a dead front into orphans. Call this before the calls of the
        front are forgotten."""
        for orphan in self._orphans.values():
            if orphan.front == front:
                orphan.until = max(orphan.until, now + ORPHAN_S)
        there = set(self._calls.of(front))
        actions: Actions = []
        for marked_key in [key for key in self._marks if key[0] == front]:
            if marked_key[1] in there:
                actions += self._orphan(*marked_key, now)
            else:
                del self._marks[marked_key]
        return actions

    # --- what is said to fronts ---------------------------------------------------------------

    def on_frame_sent(self, front: int, frame: _Frame, now: float) -> None:
        """Keep a frame that was sent to a front, if its call is to be kept, or that is for an
        orphan."""
        if front == NOBODY:
            self._put(frame, now)
        elif isinstance(frame, Result | Error):
            mark = self._marks.pop((front, frame.id), None)
            if mark is not None and len(frame.body) <= SENT_BYTES_MAX:
                self._answer(self._new(front, mark, now + SENT_S), frame)

    def tick(self, now: float) -> Actions:
        """Drop the orphans whose time is over."""
        if self._marks:
            there = {
                front: set(self._calls.of(front))
                for front in {marked_front for marked_front, _ in self._marks}
            }
            self._marks = {
                key: mark for key, mark in self._marks.items() if key[1] in there[key[0]]
            }
        late = [number for number, orphan in self._orphans.items() if orphan.until <= now]
        return self._drop(late, b"nobody came back for it", now)

    # --- underneath ---------------------------------------------------------------------------

    def _find_by_name(self, owner: bytes, name: bytes) -> Iterator[int]:
        return (
            number
            for number, orphan in self._orphans.items()
            if orphan.keep.owner == owner and orphan.keep.name == name
        )

    def _new(self, front: int, mark: KeepCall, until: float) -> int:
        number, self._next = self._next, self._next + 1
        self._orphans[number] = _Orphan(front, mark, until)
        return number

    def _orphan(self, front: int, call: int, now: float) -> Actions:
        """Turn a call into an orphan, and refuse its open questions, because no client can answer
        them."""
        mark = self._marks.pop((front, call))
        number = self._new(front, mark, now + ORPHAN_S)
        # Two orphans may be of one client or not, so each stands alone.
        key = self._calls.pass_on(front, call, (NOBODY, number), 0)
        if key is None:
            self._forget(number)
        if not key:
            return []
        actions = self._asks.close_questions(key, tell_front=False)
        if actions:
            sent = self._calls.in_flight[key]
            self._calls.set_deadline(key, now + sent.timeout_s)
            self._calls.set_asked(key, is_asked=False)
        return actions

    def _put(self, frame: _Frame, now: float) -> None:
        """Keep a frame for an orphan."""
        if not isinstance(frame, Result | Error | Progress | Notice):
            return
        orphan = self._orphans.get(frame.id)
        if orphan is None:
            return
        if isinstance(frame, Result | Error):
            orphan.until = max(orphan.until, now + ORPHAN_S)
            self._answer(frame.id, frame)
            return
        orphan.events.append(frame)
        self._count(orphan, len(frame.body) + EVENT_BYTES)
        if len(orphan.events) > EVENTS_MAX:
            self._tell_no_more(orphan)
        self._shrink()

    def _answer(self, number: int, frame: _Answer) -> None:
        orphan = self._orphans[number]
        orphan.answer = frame
        self._count(orphan, len(frame.body) + EVENT_BYTES)
        answered = [number for number, orphan in self._orphans.items() if orphan.answer is not None]
        for oldest in answered[: max(0, len(answered) - KEPT_ANSWERS_MAX)]:
            self._forget(oldest)
        self._shrink()

    def _shrink(self) -> None:
        """Keep to the limit of bytes: the oldest call loses its events first, then its answer."""
        for number, orphan in list(self._orphans.items()):
            while self._size_bytes > KEPT_BYTES_MAX and orphan.events:
                self._tell_no_more(orphan)
            if self._size_bytes > KEPT_BYTES_MAX and orphan.answer is not None:
                self._forget(number)

    def _tell_no_more(self, orphan: _Orphan) -> None:
        """Drop the oldest event of an orphan."""
        self._count(orphan, -len(orphan.events.popleft().body) - EVENT_BYTES)

    def _count(self, orphan: _Orphan, size_bytes: int) -> None:
        orphan.size_bytes += size_bytes
        self._size_bytes += size_bytes

    def _drop(self, numbers: list[int], reason: bytes, now: float) -> Actions:
        """Drop these orphans, and stop waiting for those without an answer."""
        keys: list[bytes] = []
        for number in numbers:
            if self._orphans[number].answer is None:
                keys.append(self._calls.cancel(NOBODY, number, now)[0])
            self._forget(number)
        return self._give_up([key for key in keys if key], reason, now) if keys else []

    def _forget(self, number: int) -> None:
        self._size_bytes -= self._orphans.pop(number).size_bytes
