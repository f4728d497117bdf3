"""Calls that wait for one server: whose turn is next, and how long they will wait.

Owns: the order of turns, the limits of the queue, who makes room in a full one (`Turns`); the
expected wait, from the times of the last calls (`Pace`). Never: calls in flight, clocks, the words
of an answer.
"""

from collections import deque
from collections.abc import Callable, Iterator

from msgspec import Struct

from metamcp_worker.ipc.frames import CallFrame

WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes of all waiting calls together; the limit of their number alone would allow 64
GiB."""
_CALL_BYTES = 512
"""Approximate bytes that a waiting call takes beside its parameters."""

Seat = tuple[int, int]
"""Front and peer."""


class WaitingCall(Struct, gc=False):
    """A call that has not been sent yet."""

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
    """The waiting calls, at most `calls_max`. `count`: how many there are.

    Turns go round the callers, one call each, in the order in which the callers came. So a caller
    with two hundred waiting calls delays the first call of another one by only as many calls as
    there are callers. The calls of one caller keep their order. A session is a caller, and so is a
    client that says who it is. Calls that stand alone count as one caller for each front, since
    nothing shows that they come from different clients.

    Places in a full queue are shared in the same way. A call without room takes the place of the
    newest call of the caller with the most, if that caller then still has at least as many as the
    newcomer. So a caller cannot keep others out by being first, a caller with few calls loses none,
    and two callers with equally many do not push each other out. The newest call makes room because
    it has waited least.
    """

    def __init__(self, calls_max: int) -> None:
        self._calls_max = calls_max
        self._lines: dict[Seat, _Line] = {}
        self._round: deque[Seat] = deque()
        """Every caller with waiting calls, once; the first has the next turn."""
        self.count = 0
        self._size_bytes = 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[WaitingCall]:
        """Yield the calls caller by caller, those of each in order."""
        for line in self._lines.values():
            yield from line.calls

    def put(self, one: WaitingCall) -> WaitingCall | None:
        """Add a call. Return the call that has no room then, if any: this call, or another one that
        made room for it."""
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
        """Take out the call whose turn it is. Raises IndexError if none waits."""
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
        """Maximum number of calls that are sent before one that this caller adds now."""
        line = self._lines.get(seat)
        rounds = len(line.calls) + 1 if line is not None else 1
        return min(self.count, rounds * (len(self._lines) + 1))

    def remove(self, unwanted: Callable[[WaitingCall], bool]) -> list[WaitingCall]:
        """Take out and return the unwanted calls, whichever caller has the next turn."""
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
        """Return the call whose place this one takes, or None if that would not be fairer. `many`:
        there are too many calls, and not only too many bytes.

        Every caller is looked at, but only where the queue is full.
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
        """Remove the newest call of a caller, who has other calls, so the line stays."""
        line = self._lines[newest.seat]
        line.calls.pop()
        size = newest.size_bytes
        line.size_bytes -= size
        self.count -= 1
        self._size_bytes -= size


SAMPLES_MIN = 8
"""Number of answers before the mean counts. The weight of the newest answer is then one part in as
many."""
BEYOND = 2.0
"""Factor by which the expected wait must exceed the timeout of a call to make the call hopeless."""
RETRY_AFTER_S_MAX = 60.0
"""Maximum seconds after which a caller is told to come back, because much can change meanwhile."""


class Pace:
    """The expected wait in the queue. `concurrency`: number of calls that the server has at
    once."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._mean_s = 0.0
        self._samples = 0

    def served(self, seconds: float) -> None:
        """Note that a call was answered after so many seconds, while others waited."""
        self._samples = min(self._samples + 1, SAMPLES_MIN)
        self._mean_s += (seconds - self._mean_s) / self._samples

    def forget(self) -> None:
        """Forget the times, because the queue was empty and a call waits now."""
        self._mean_s, self._samples = 0.0, 0

    def wait_s(self, ahead: int) -> float | None:
        """Seconds that a call with so many ahead of it waits; None if that cannot be told yet."""
        if self._samples < SAMPLES_MIN:
            return None
        return self._mean_s * ahead / self._concurrency

    def hopeless(self, ahead: int, timeout_s: float) -> bool:
        wait_s = self.wait_s(ahead)
        return wait_s is not None and wait_s > BEYOND * timeout_s

    def retry_after_ms(self, queued: int) -> int | None:
        """Milliseconds until the calls that wait now have had their turns; None if that is not
        known."""
        wait_s = self.wait_s(queued)
        return None if wait_s is None else int(min(wait_s, RETRY_AFTER_S_MAX) * 1000)
