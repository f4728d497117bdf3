"""Whose call is next: the calls that wait for one server, a line for each caller, a turn for each.

Owns: the order of turns, the bounds of the queue, and who makes room in a full one. Never: calls in
flight, clocks, what a caller is told.

Turns go round the callers, one call each, in the order in which they came: who has two hundred
calls waiting delays one who comes with his first by as many calls as there are callers. Within a
line the order is that of asking. A session is a caller, and so is a client that says who it is;
calls that stand alone count as one caller for each front, since nothing says that they are not.

In a full queue the same holds for places. A call for which there is no room takes the place of the
newest call of whoever has most, if he has still no fewer than the newcomer after that. So nobody
keeps others out by being first, who has few calls loses none, and two with equally many do not push
each other about. The newest makes room because it has waited least.
"""

from collections import deque
from collections.abc import Callable, Iterator

from msgspec import Struct

from metamcp_worker.ipc.frames import CallFrame

WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Parameters of all waiting calls together; the count alone would allow 64 GiB."""
_CALL_BYTES = 512
"""What a waiting call costs beside its parameters, roughly."""

Seat = tuple[int, int]
"""Front and peer."""


class WaitingCall(Struct, gc=False):
    """A call that was not sent yet."""

    front: int
    frame: CallFrame
    deadline: float
    timeout_s: float

    @property
    def seat(self) -> Seat:
        return (self.front, self.frame.peer)

    @property
    def size_bytes(self) -> int:
        return len(self.frame.params) + len(self.frame.meta) + len(self.frame.caller) + _CALL_BYTES


class _Line:
    """The calls of one caller."""

    __slots__ = ("calls", "size_bytes")

    def __init__(self) -> None:
        self.calls: deque[WaitingCall] = deque()
        self.size_bytes = 0


class Turns:
    """At most `calls_max` calls. `count`: so many wait."""

    def __init__(self, calls_max: int) -> None:
        self._calls_max = calls_max
        self._lines: dict[Seat, _Line] = {}
        self._round: deque[Seat] = deque()
        """Every caller with a line once; the first one is next."""
        self.count = 0
        self._size_bytes = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[WaitingCall]:
        """Caller by caller, the calls of each in order."""
        for line in self._lines.values():
            yield from line.calls

    def put(self, one: WaitingCall) -> WaitingCall | None:
        """The call for which there is no room: this one, or one that made room for it."""
        size = one.size_bytes
        many = self.count >= self._calls_max
        much = self._size_bytes + size > WAITING_BYTES_MAX
        moved = None
        if many or much:
            moved = self._makes_room(one, many=many)
            if moved is None:
                return one
            self._leave(moved)
        line = self._lines.get(one.seat)
        if line is None:
            line = self._lines[one.seat] = _Line()
            self._round.append(one.seat)
        line.calls.append(one)
        line.size_bytes += size
        self.count += 1
        self._size_bytes += size
        return moved

    def take(self) -> WaitingCall:
        """The call whose turn it is. Raises IndexError if nobody waits."""
        seat = self._round.popleft()
        line = self._lines[seat]
        one = line.calls.popleft()
        size = one.size_bytes
        line.size_bytes -= size
        self.count -= 1
        self._size_bytes -= size
        if line.calls:
            self._round.append(seat)
        else:
            del self._lines[seat]
        return one

    def ahead(self, seat: Seat) -> int:
        """How many calls are sent before one that this caller adds now, at most."""
        line = self._lines.get(seat)
        rounds = len(line.calls) + 1 if line is not None else 1
        return min(self.count, rounds * (len(self._lines) + 1))

    def remove(self, unwanted: Callable[[WaitingCall], bool]) -> list[WaitingCall]:
        """Take these out, whoever's turn it is."""
        gone = [one for one in self if unwanted(one)]
        if gone:
            for line in self._lines.values():
                line.calls = deque(one for one in line.calls if not unwanted(one))
                line.size_bytes = sum(one.size_bytes for one in line.calls)
            self._lines = {seat: line for seat, line in self._lines.items() if line.calls}
            self._round = deque(seat for seat in self._round if seat in self._lines)
            self.count -= len(gone)
            self._size_bytes -= sum(one.size_bytes for one in gone)
        return gone

    def _makes_room(self, one: WaitingCall, *, many: bool) -> WaitingCall | None:
        """The call whose place this one takes; None if that would be no fairer. `many`: there are
        too many calls, and not only too many bytes.

        It looks at every caller, but only where the queue is full.
        """
        if not self._lines:
            return None
        mine = self._lines.get(one.seat)
        if many:
            most = max(self._lines.values(), key=lambda line: len(line.calls))
            fair = len(most.calls) - 1 >= (len(mine.calls) if mine else 0) + 1
        else:
            most = max(self._lines.values(), key=lambda line: line.size_bytes)
            left = most.size_bytes - most.calls[-1].size_bytes
            fair = left >= (mine.size_bytes if mine else 0) + one.size_bytes
        newest = most.calls[-1]
        room = self._size_bytes - newest.size_bytes + one.size_bytes <= WAITING_BYTES_MAX
        return newest if fair and room else None

    def _leave(self, newest: WaitingCall) -> None:
        """The last of its line goes; the line stays, since its caller had others."""
        line = self._lines[newest.seat]
        line.calls.pop()
        size = newest.size_bytes
        line.size_bytes -= size
        self.count -= 1
        self._size_bytes -= size


SAMPLES_MIN = 8
"""Answers before the mean counts; the weight of the newest is one such part as well."""
BEYOND = 2.0
"""How many times the time of a call the expected wait must be."""
RETRY_AFTER_S_MAX = 60.0
"""Nobody is told to come back later than that: much can change meanwhile."""


class Pace:
    """`concurrency`: calls that the server has at once."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._mean_s = 0.0
        self._samples = 0

    def served(self, seconds: float) -> None:
        """One call was answered while others waited."""
        self._samples = min(self._samples + 1, SAMPLES_MIN)
        self._mean_s += (seconds - self._mean_s) / self._samples

    def forget(self) -> None:
        """Nobody waited, and now somebody does."""
        self._mean_s, self._samples = 0.0, 0

    def wait_s(self, ahead: int) -> float | None:
        """How long a call with so many ahead of it waits; None if that cannot be told yet."""
        if self._samples < SAMPLES_MIN:
            return None
        return self._mean_s * ahead / self._concurrency

    def hopeless(self, ahead: int, timeout_s: float) -> bool:
        wait_s = self.wait_s(ahead)
        return wait_s is not None and wait_s > BEYOND * timeout_s

    def retry_after_ms(self, queued: int) -> int | None:
        """Until the calls that wait now have had their turns."""
        wait_s = self.wait_s(queued)
        return None if wait_s is None else int(min(wait_s, RETRY_AFTER_S_MAX) * 1000)
