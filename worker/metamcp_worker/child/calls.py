"""The calls of fronts that the server has not answered: in flight, or waiting for their turn.

Owns: the two tables, their bounds, the ids on the wire, deadlines, and the verdict whose call made
the server say something. Never: messages, clocks, the words of an error.

An id is an integer, unique for the life of the connection and never used again, so an answer that
comes late or twice can reach nobody else. The table is keyed by the bytes of the id: what is not
the same bytes (`"7"`, `7.0`) is not the same id.

On a stream that all calls share nothing says on whose behalf a server asks or logs. What it says is
passed on only if one caller alone can have caused it, and refused otherwise: not to the first, not
to the last, not to everybody. A call that was cancelled counts for a while as well, since a server
may go on with it and need not say when it stops; without that, one could cancel a call and have
what it asks put to somebody else.
"""

from collections import deque
from collections.abc import Callable, Iterator

from msgspec import Struct

from metamcp_worker.frames import Call

WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Parameters of all waiting calls together; the count alone would allow 64 GiB."""
_CALL_BYTES = 512
"""What a waiting call costs beside its parameters, roughly."""
LINGER_S_MAX = 60.0
"""How long a call that is not waited for any more still counts as a possible cause; at most as long
as it could have taken."""
LINGERING_MAX = 1024
"""Such calls; if there are more, nobody can be told apart until the time of all of them is over."""

Caller = tuple[int, int, int]
"""Front, peer and, if that is 0, call."""


class InFlight(Struct, gc=False):
    """A call that was sent to the server. `call`: its number at the front."""

    front: int
    call: int
    method: str
    deadline: float
    timeout_s: float
    wants_progress: bool
    peer: int = 0
    caller: bytes = b""

    @property
    def by(self) -> Caller:
        return (self.front, self.peer, 0 if self.peer else self.call)


class Waiting(Struct, gc=False):
    """A call that was not sent yet."""

    front: int
    frame: Call
    deadline: float
    timeout_s: float

    @property
    def size_bytes(self) -> int:
        return len(self.frame.params) + len(self.frame.meta) + len(self.frame.caller) + _CALL_BYTES


class Calls:
    """`in_flight`: by id on the wire, the oldest first."""

    def __init__(self, *, concurrency: int, queue: int) -> None:
        self.in_flight: dict[bytes, InFlight] = {}
        self._waiting: deque[Waiting] = deque()
        self._waiting_bytes = 0
        self._concurrency = concurrency
        self._queue = queue
        self._next_id = 1
        self._earliest = float("inf")
        """No deadline is before it; so that most ticks need not look at every call."""
        self._lingering: dict[bytes, tuple[Caller, float]] = {}
        self._crowded_until = 0.0

    @property
    def queued(self) -> int:
        return len(self._waiting)

    def new_id(self) -> bytes:
        key = b"%d" % self._next_id
        self._next_id += 1
        return key

    def was_used(self, key: bytes) -> bool:
        """Did a request with this id go out once?"""
        return key.isdigit() and key[:1] != b"0" and len(key) < 20 and int(key) < self._next_id

    def free(self) -> bool:
        """Could a new call be sent at once, without overtaking others?"""
        return not self._waiting and len(self.in_flight) < self._concurrency

    def send(self, front: int, frame: Call, deadline: float, timeout_s: float) -> bytes:
        """Note the call as in flight; its id."""
        key = self.new_id()
        self.in_flight[key] = InFlight(
            front, frame.id, frame.method, deadline, timeout_s, frame.wants_progress,
            frame.peer, frame.caller,
        )  # fmt: skip
        self._earliest = min(self._earliest, deadline)
        return key

    def wait(self, front: int, frame: Call, deadline: float, timeout_s: float) -> bool:
        """Put the call in the queue. False if there is no room."""
        waiting = Waiting(front, frame, deadline, timeout_s)
        full = self._waiting_bytes + waiting.size_bytes > WAITING_BYTES_MAX
        if len(self._waiting) >= self._queue or full:
            return False
        self._waiting.append(waiting)
        self._waiting_bytes += waiting.size_bytes
        self._earliest = min(self._earliest, deadline)
        return True

    def turns(self) -> Iterator[Waiting]:
        """Take out the waiting calls whose turn it is; `send` each before asking for the next."""
        while self._waiting and len(self.in_flight) < self._concurrency:
            waiting = self._waiting.popleft()
            self._waiting_bytes -= waiting.size_bytes
            yield waiting

    def cancel(self, front: int, call: int, now: float) -> tuple[bytes, bool]:
        """Forget one call. Its id if it was in flight, else nothing; and whether it was there."""
        for key, found in self.in_flight.items():
            if found.call == call and found.front == front:
                self.leave(key, now)
                return key, True
        before = len(self._waiting)
        self._keep(lambda one: not (one.front == front and one.frame.id == call))
        return b"", len(self._waiting) < before

    def forget(self, front: int, now: float) -> list[bytes]:
        """Forget all calls of this front. The ids of those that were in flight."""
        keys = [key for key, found in self.in_flight.items() if found.front == front]
        for key in keys:
            self.leave(key, now)
        self._keep(lambda one: one.front != front)
        return keys

    def leave(self, key: bytes, now: float) -> InFlight | None:
        """A call in flight is not waited for any more; the server may still work on it."""
        found = self.in_flight.pop(key, None)
        if found is None:
            return None
        until = now + min(found.timeout_s, LINGER_S_MAX)
        if len(self._lingering) >= LINGERING_MAX:
            self._calm_down(now)
        if len(self._lingering) >= LINGERING_MAX:
            self._crowded_until = max(self._crowded_until, until)
        else:
            self._lingering[key] = (found.by, until)
        return found

    def late(self, key: bytes) -> None:
        """A call that is not waited for any more was answered after all."""
        self._lingering.pop(key, None)

    def expired(self, now: float) -> tuple[list[tuple[bytes, InFlight]], list[Waiting]]:
        """Forget the calls whose time is up; them."""
        if now < self._earliest:
            return [], []
        sent = [(key, found) for key, found in self.in_flight.items() if found.deadline <= now]
        for key, _ in sent:
            self.leave(key, now)
        waiting = [one for one in self._waiting if one.deadline <= now]
        if waiting:
            self._keep(lambda one: one.deadline > now)
        left = [found.deadline for found in self.in_flight.values()]
        left += [one.deadline for one in self._waiting]
        self._earliest = min(left, default=float("inf"))
        return sent, waiting

    def set_deadline(self, key: bytes, deadline: float) -> None:
        """Of a call in flight."""
        self.in_flight[key].deadline = deadline
        self._earliest = min(self._earliest, deadline)

    def cause(self, stream: bytes | None, now: float) -> bytes | None:
        """Whose call made the server say something: its id. Nothing if that cannot be told, None
        if no call can have done it.

        `stream`: the call on whose stream it was said; empty or None for a stream that all share.
        Of several calls of one caller it is the newest.
        """
        if stream:
            return stream if stream in self.in_flight else b""
        self._calm_down(now)
        if not self.in_flight and not self._lingering and now >= self._crowded_until:
            return None
        if not self.in_flight or now < self._crowded_until:
            return b""
        newest = next(reversed(self.in_flight))
        by = self.in_flight[newest].by
        alone = all(one.by == by for one in self.in_flight.values())
        return newest if alone and all(one == by for one, _ in self._lingering.values()) else b""

    def _calm_down(self, now: float) -> None:
        """Forget those that linger no more."""
        for key in [key for key, (_, until) in self._lingering.items() if until <= now]:
            del self._lingering[key]

    def all(self) -> list[tuple[int, int]]:
        """Forget everything; (front, call) of each."""
        found = [(one.front, one.call) for one in self.in_flight.values()]
        found += [(one.front, one.frame.id) for one in self._waiting]
        self.in_flight.clear()
        self._keep(lambda _: False)
        return found

    def _keep(self, wanted: Callable[[Waiting], bool]) -> None:
        self._waiting = deque(one for one in self._waiting if wanted(one))
        self._waiting_bytes = sum(one.size_bytes for one in self._waiting)
