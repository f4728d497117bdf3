"""Calls of one server, sent or waiting: whose turn is next, and how long they will wait.

Owns: the order of turns, the limits of the queue, who makes room in a full one (`FairCallQueue`);
the expected wait, from the times of the last calls (`WaitEstimator`). Never: which calls are in
flight (`server_calls`), clocks, the words of an answer."""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from msgspec import Struct

from metamcp_worker.ipc.frames import CallFrame

WAITING_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes of all waiting calls together; the limit of their number alone would allow 64
GiB."""
_CALL_BYTES = 512
"""Approximate bytes that a waiting call takes beside its parameters."""

Seat = tuple[object, ...]
"""Place of a call: workspace, principal, and the caller by front and peer. Each of them takes turns
with its like, as does every single call of a caller."""


Caller = tuple[int, int, int]
"""Front and peer; if the peer is 0, also the call, else 0."""


class WaitingCall(Struct, gc=False):
    """A call that has not been sent yet."""

    front: int
    frame: CallFrame
    deadline: float
    timeout_s: float

    @property
    def seat(self) -> Seat:
        payer = self.frame.payer
        return (payer >> 32, payer, (self.front, self.frame.peer))

    @property
    def size_bytes(self) -> int:
        return len(self.frame.params) + len(self.frame.meta) + len(self.frame.caller) + _CALL_BYTES


class SentCall(Struct, gc=False):
    """Call that was sent to the server. `call`: its number at the front. `since`: when it was sent.
    `alone`: whether only the server takes time for it, and not also its client. `traced`: as in
    `frames.CallFrame`. `asked_at`: the id that the next call was to get when the server began to
    ask the client something that is still open; 0 without an open question. `results`: as in
    `frames.CallFrame`; `tool`: name of the tool or the method, if `results` is set. `progressed`:
    whether the server reported progress."""

    front: int
    call: int
    method: str
    deadline: float
    timeout_s: float
    wants_progress: bool
    peer: int = 0
    caller: bytes = b""
    since: float = 0.0
    alone: bool = True
    traced: bool = False
    asked_at: int = 0
    results: bytes = b""
    tool: str = ""
    progressed: bool = False

    @property
    def by(self) -> Caller:
        return (self.front, self.peer, 0 if self.peer else self.call)


class _Share:
    """Waiting calls of all, of a workspace, of a principal, or of one caller: then they are in
    `calls`, else in `shares`, in the order of their turns. `count`, `size_bytes`: of all of
    them."""

    __slots__ = ("calls", "count", "shares", "size_bytes")

    def __init__(self) -> None:
        self.calls: deque[WaitingCall] = deque()
        self.shares: OrderedDict[object, _Share] = OrderedDict()
        self.count = self.size_bytes = 0

    def __iter__(self) -> Iterator[WaitingCall]:
        yield from self.calls
        for share in self.shares.values():
            yield from share

    def put(self, call: WaitingCall, seat: Seat) -> None:
        self.count += 1
        self.size_bytes += call.size_bytes
        if not seat:
            self.calls.append(call)
            return
        share = self.shares.get(seat[0])
        if share is None:
            share = self.shares[seat[0]] = _Share()
        share.put(call, seat[1:])

    def take(self) -> WaitingCall:
        """Take out the call whose turn it is. Raises IndexError if none waits."""
        if self.shares:
            key, share = next(iter(self.shares.items()))
            call = share.take()
            if share.count:
                self.shares.move_to_end(key)
            else:
                del self.shares[key]
        else:
            call = self.calls.popleft()
        self.count -= 1
        self.size_bytes -= call.size_bytes
        return call

    def count_ahead(self, seat: Seat) -> int:
        """Maximum number of calls that are sent before one that is added now."""
        if not seat:
            return self.count
        mine = self.shares.get(seat[0])
        turns = mine.count_ahead(seat[1:]) + 1 if mine is not None else 1
        others = len(self.shares) - (mine is not None)
        return min(self.count, turns * (others + 1) - 1)

    def yields(self, call: WaitingCall, seat: Seat, *, many: bool) -> WaitingCall | None:
        """Return the call whose place `call` takes, or None if that would not be fairer. `many`:
        there are too many calls, and not only too many bytes.

        Every share is looked at, but only where the queue is full.
        """
        if not self.shares:
            return None
        most, mine = self._most(many=many), self.shares.get(seat[0])
        if most is not mine:
            newest = most.newest(many=many)
            if many:
                fair = most.count - 1 >= (mine.count if mine else 0) + 1
            else:
                own = mine.size_bytes if mine else 0
                fair = most.size_bytes - newest.size_bytes >= own + call.size_bytes
            if fair:
                return newest
        return mine.yields(call, seat[1:], many=many) if mine is not None else None

    def newest(self, *, many: bool) -> WaitingCall:
        """Return the newest call of the caller with the most."""
        return self._most(many=many).newest(many=many) if self.shares else self.calls[-1]

    def drop_newest(self, seat: Seat) -> WaitingCall:
        """Take out the newest call of a caller."""
        if seat:
            share = self.shares[seat[0]]
            call = share.drop_newest(seat[1:])
            if not share.count:
                del self.shares[seat[0]]
        else:
            call = self.calls.pop()
        self.count -= 1
        self.size_bytes -= call.size_bytes
        return call

    def keep(self, is_kept: Callable[[WaitingCall], bool]) -> None:
        """Take out all other calls. Turns stay in order."""
        self.calls = deque(call for call in self.calls if is_kept(call))
        for share in self.shares.values():
            share.keep(is_kept)
        self.shares = OrderedDict((key, share) for key, share in self.shares.items() if share.count)
        self.count = len(self.calls) + sum(share.count for share in self.shares.values())
        self.size_bytes = sum(call.size_bytes for call in self)

    def _most(self, *, many: bool) -> "_Share":
        return max(
            self.shares.values(), key=lambda share: share.count if many else share.size_bytes
        )


class FairCallQueue:
    """The waiting calls, at most `calls_max`. `count`: how many there are.

    Turns go round the workspaces, one call each, in the order in which they came; a turn of a
    workspace goes round its principals, and theirs round their callers. So a workspace, a key or a
    caller with two hundred waiting calls delays the first call of another one by only as many calls
    as there are of its kind. The calls of one caller keep their order. A session is a caller, and
    so is a client that says who it is. Calls that stand alone count as one caller for each front,
    since nothing shows that they come from different clients.

    Places in a full queue are shared in the same way. A call without room takes the place of the
    newest call of the workspace with the most, if that workspace then still has at least as many as
    that of the newcomer; else the same is tried inside its own workspace, and so on. So a caller
    cannot keep others out by being first, a caller with few calls loses none, and two callers with
    equally many do not push each other out. The newest call makes room because it has waited least.
    """

    def __init__(self, calls_max: int) -> None:
        self.count = 0
        self._calls_max = calls_max
        self._all = _Share()

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[WaitingCall]:
        """Yield the calls caller by caller, those of each in order."""
        return iter(self._all)

    def put(self, call: WaitingCall) -> WaitingCall | None:
        """Add a call. Return the call that has no room then, if any: this call, or another one that
        made room for it."""
        seat, size = call.seat, call.size_bytes
        many = self._all.count >= self._calls_max
        moved = None
        if many or self._all.size_bytes + size > WAITING_BYTES_MAX:
            moved = self._all.yields(call, seat, many=many)
            if moved is None:
                return call
            if self._all.size_bytes - moved.size_bytes + size > WAITING_BYTES_MAX:
                return call
            self._all.drop_newest(moved.seat)
        self._all.put(call, seat)
        self.count = self._all.count
        return moved

    def take(self) -> WaitingCall:
        """Take out the call whose turn it is. Raises IndexError if none waits."""
        call = self._all.take()
        self.count = self._all.count
        return call

    def count_ahead(self, seat: Seat) -> int:
        """Maximum number of calls that are sent before one that is added at this place now."""
        return self._all.count_ahead(seat)

    def remove(self, unwanted: Callable[[WaitingCall], bool]) -> list[WaitingCall]:
        """Take out and return the unwanted calls, whoever has the next turn."""
        removed = [call for call in self if unwanted(call)]
        if removed:
            self._all.keep(lambda call: not unwanted(call))
            self.count = self._all.count
        return removed


SAMPLES_MIN = 8
"""Number of answers before the mean counts. The weight of the newest answer is then one part in as
many."""
BEYOND = 2.0
"""Factor by which the expected wait must exceed the timeout of a call to make the call hopeless."""
RETRY_AFTER_S_MAX = 60.0
"""Maximum seconds after which a caller should come back, because much can change in that time."""


class WaitEstimator:
    """The expected wait in the queue. `concurrency`: number of calls that the server has at
    once."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self._mean_s = 0.0
        self._samples = 0

    def add_sample(self, seconds: float) -> None:
        """Note that a call was answered after so many seconds, while others waited."""
        self._samples = min(self._samples + 1, SAMPLES_MIN)
        self._mean_s += (seconds - self._mean_s) / self._samples

    def forget(self) -> None:
        """Forget the times, because the queue was empty and a call waits now."""
        self._mean_s, self._samples = 0.0, 0

    def wait_s(self, ahead: int) -> float | None:
        """Seconds that a call with so many ahead of it waits; None if that is not known yet."""
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
