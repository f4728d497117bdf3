"""Calls of fronts that the server has not answered: in flight, or waiting for their turn.

Owns: the calls in flight, the ids on the wire, deadlines, and the decision which call made the
server speak (`cause`); the histograms of the server's answers by method and error, and the clock
readings of the calls that are timed in each part of the gateway (`Timing`). Never: the order of the
queue and the expected wait (`call_queue`), messages, clocks, the words of an error.

An id is an integer that is used only once in the life of a connection, so an answer that comes late
or twice cannot reach another call. The table is keyed by the bytes of the id: different bytes
(`"7"`, `7.0`) are a different id.

On a stream that all calls share, a question or log message of a server does not name its call. So
the message is passed on only if exactly one caller can have caused it, and refused otherwise,
instead of going to the first caller, the last one or all. A call whose client was already being
asked before the newest call was sent waits for that answer, and is not counted as the cause of
later questions: otherwise a client that never answers would keep all others from being asked. A
cancelled call counts for a while as well, because a server may go on with it and need not say when
it stops; otherwise a client could cancel a call and have its questions put to another client.
"""

import math
from bisect import bisect_left
from collections.abc import Iterator

from msgspec import structs

from metamcp_worker.child.call_queue import (
    Caller,
    FairCallQueue,
    SentCall,
    WaitEstimator,
    WaitingCall,
)
from metamcp_worker.ipc import codec, figures
from metamcp_worker.ipc.figures import BUCKETS_S, AnswerStats, WorkerCallTimes
from metamcp_worker.ipc.frames import CallFrame, Notice

LINGER_S_MAX = 60.0
"""Maximum seconds for which a call that is not waited for any more still counts as a possible
cause; less if its timeout is shorter."""
LINGERING_MAX = 1024
"""Maximum number of such calls; if there are more, callers cannot be distinguished until the time
of all of them is over."""


class ServerCalls:
    """All calls of one server. `in_flight`: by id on the wire, oldest first. Calls whose clients
    are being asked take no places from others, unless the server gets one call at a time.
    `timeout_max_s`: seconds up to which progress extends the time of a call."""

    def __init__(self, *, concurrency: int, queue: int, timeout_max_s: float = math.inf) -> None:
        self.in_flight: dict[bytes, SentCall] = {}
        self._turns = FairCallQueue(queue)
        self._pace = WaitEstimator(concurrency)
        self._concurrency = concurrency
        self._queue = queue
        self._timeout_max_s = timeout_max_s
        self._next_id = 1
        self._earliest = float("inf")
        """Lower bound of all deadlines, so that most ticks need not look at every call."""
        self._lingering: dict[bytes, tuple[Caller, float]] = {}
        self._crowded_until = 0.0
        self._asked = 0
        """Number of calls in flight whose clients are being asked."""

    @property
    def queue_length(self) -> int:
        return self._turns.count

    @property
    def waiting_calls(self) -> list[tuple[int, int]]:
        """Front and number of every call that waits for its turn."""
        return [(call.front, call.frame.id) for call in self._turns]

    def new_id(self) -> bytes:
        key = b"%d" % self._next_id
        self._next_id += 1
        return key

    def was_used(self, key: bytes) -> bool:
        """Whether a request with this id was ever sent."""
        return key.isdigit() and key[:1] != b"0" and len(key) < 20 and int(key) < self._next_id

    def free(self) -> bool:
        """Whether a new call can be sent at once, without overtaking others."""
        if self._turns.count:
            return False
        return len(self.in_flight) < self._concurrency or self._has_place()

    def send(
        self, front: int, frame: CallFrame, deadline: float, timeout_s: float, now: float
    ) -> bytes:
        """Note the call as in flight, and return its id."""
        key = b"%d" % self._next_id
        self._next_id += 1
        results = frame.results
        self.in_flight[key] = SentCall(
            front, frame.id, frame.method, deadline, timeout_s, frame.wants_progress,
            frame.peer, frame.caller, now, True, frame.traced,
            0, results, _tool(frame) if results else "",
        )  # fmt: skip
        if deadline < self._earliest:
            self._earliest = deadline
        return key

    def on_answer(self, key: bytes, now: float) -> SentCall | None:
        """Forget and return the call that the server answered; None if it is not in flight."""
        if not (self._asked or self._turns.count):
            return self.in_flight.pop(key, None)
        call = self.drop(key)
        if call is not None and call.alone and self._turns.count:
            self._pace.add_sample(now - call.since)
        return call

    def wait(
        self, front: int, frame: CallFrame, deadline: float, timeout_s: float
    ) -> WaitingCall | None:
        """Put the call in the queue. Return the call without a place, if any: this call, or another
        one that made room for it."""
        waiting = WaitingCall(front, frame, deadline, timeout_s)
        if not self._turns.count:
            self._pace.forget()
        if self._pace.hopeless(self._turns.count_ahead(waiting.seat), timeout_s):
            return waiting
        self._earliest = min(self._earliest, deadline)
        return self._turns.put(waiting)

    def turns(self) -> Iterator[WaitingCall]:
        """Take out the waiting calls whose turn it is; `send` each before asking for the next."""
        while self._turns.count and self._has_place():
            yield self._turns.take()

    def load(self) -> dict[str, object]:
        """Return the data of the error for a call without a place."""
        return {
            "inflight": len(self.in_flight),
            "queued": self._turns.count,
            "limit": self._queue,
            "retry_after_ms": self._pace.retry_after_ms(self._turns.count),
        }

    def cancel(self, front: int, call: int, now: float) -> tuple[bytes, bool]:
        """Forget one call. Return its id if it was in flight, else nothing, and whether it was
        found."""
        for key, sent_call in self.in_flight.items():
            if sent_call.call == call and sent_call.front == front:
                self.leave(key, now)
                return key, True
        removed = self._turns.remove(
            lambda waiting_call: waiting_call.front == front and waiting_call.frame.id == call
        )
        return b"", bool(removed)

    def forget(self, front: int, now: float) -> dict[bytes, SentCall]:
        """Forget all calls of this front. Return the calls that were in flight, by id."""
        calls = {key: call for key, call in self.in_flight.items() if call.front == front}
        for key in calls:
            self.leave(key, now)
        self._turns.remove(lambda call: call.front == front)
        return calls

    def of(self, front: int) -> list[int]:
        """Return the calls of this front, in flight or waiting."""
        numbers = [call.call for call in self.in_flight.values() if call.front == front]
        return numbers + [call.frame.id for call in self._turns if call.front == front]

    def pass_on(self, front: int, call: int, to: tuple[int, int], peer: int) -> bytes | None:
        """Pass a call to another front. `to`: that front, and the number of the call there. Return
        the id of the call, empty if the call waits for its turn; None if the call is not found."""
        for key, sent_call in self.in_flight.items():
            if sent_call.call == call and sent_call.front == front:
                (sent_call.front, sent_call.call), sent_call.peer = to, peer
                return key
        for waiting_call in self._turns.remove(
            lambda waiting: waiting.front == front and waiting.frame.id == call
        ):
            frame = structs.replace(waiting_call.frame, id=to[1], peer=peer)
            # The call has a place, because it has just left one.
            self._turns.put(
                WaitingCall(to[0], frame, waiting_call.deadline, waiting_call.timeout_s)
            )
            return b""
        return None

    def leave(self, key: bytes, now: float) -> SentCall | None:
        """Stop waiting for a call in flight, on which the server may still work. Return the call;
        None if it is not in flight."""
        call = self.drop(key)
        if call is None:
            return None
        until = now + min(call.timeout_s, LINGER_S_MAX)
        if len(self._lingering) >= LINGERING_MAX:
            self._calm_down(now)
        if len(self._lingering) >= LINGERING_MAX:
            self._crowded_until = max(self._crowded_until, until)
        else:
            self._lingering[key] = (call.by, until)
        return call

    def on_late_reply(self, key: bytes) -> None:
        """Note the late answer to a call that is not waited for any more."""
        self._lingering.pop(key, None)

    def take_expired(self, now: float) -> tuple[list[tuple[bytes, SentCall]], list[WaitingCall]]:
        """Forget the calls whose time is over. Return those in flight and those that waited."""
        if now < self._earliest:
            return [], []
        sent = [(key, call) for key, call in self.in_flight.items() if call.deadline <= now]
        for key, _ in sent:
            self.leave(key, now)
        waiting = self._turns.remove(lambda call: call.deadline <= now)
        deadlines = [call.deadline for call in self.in_flight.values()]
        deadlines += [call.deadline for call in self._turns]
        self._earliest = min(deadlines, default=float("inf"))
        return sent, waiting

    def set_deadline(self, key: bytes, deadline: float) -> None:
        """Set the deadline of a call in flight whose client is asked something."""
        call = self.in_flight[key]
        call.deadline, call.alone = deadline, False
        self._earliest = min(self._earliest, deadline)

    def on_progress(self, key: bytes, now: float) -> SentCall | None:
        """Let the time of a call begin again, because the server reports progress, and return the
        call; None if it is not in flight."""
        call = self.in_flight.get(key)
        if call is not None:
            call.progressed = True
            most = call.since + self._timeout_max_s
            call.deadline = max(call.deadline, min(most, now + call.timeout_s))
        return call

    def set_asked(self, key: bytes, *, is_asked: bool) -> None:
        """Note that the client of a call in flight is asked something, or has answered
        everything."""
        call = self.in_flight[key]
        self._asked += is_asked - bool(call.asked_at)
        call.asked_at = (call.asked_at or self._next_id) if is_asked else 0

    def cause(self, stream: bytes | None, now: float, *, asks: bool = False) -> bytes | None:
        """Return the id of the call that made the server speak: empty if that cannot be decided,
        None if no call can be the cause.

        `stream`: id of the call on whose stream the message came; empty or None for a stream that
        all share. `asks`: whether the message is a question. If one caller has several calls, the
        newest is returned.
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
        sent = int(newest) if asks else 0
        alone = all(call.by == by or 0 < call.asked_at <= sent for call in self.in_flight.values())
        return (
            newest if alone and all(caller == by for caller, _ in self._lingering.values()) else b""
        )

    def at_work(self, now: float) -> int:
        """Return on how many calls the server may be at work, also those that are not waited for
        any more."""
        self._calm_down(now)
        return len(self.in_flight) + len(self._lingering)

    def busy_until(self, before: bytes) -> float:
        """Return until when the server may be at work on an unanswered call that was sent before
        the request of this id; a time in the past if there is none."""
        border = int(before)
        times = [
            call.deadline + min(call.timeout_s, LINGER_S_MAX)
            for key, call in self.in_flight.items()
            if int(key) < border
        ]
        times += [until for key, (_, until) in self._lingering.items() if int(key) < border]
        return max([self._crowded_until, *times])

    def drop(self, key: bytes) -> SentCall | None:
        """Forget and return a call in flight, whatever the server does with it; None if there is
        none."""
        call = self.in_flight.pop(key, None)
        if call is not None and call.asked_at:
            self._asked -= 1
        return call

    def _has_place(self) -> bool:
        away = self._asked if self._concurrency > 1 else 0
        return len(self.in_flight) - away < self._concurrency

    def _calm_down(self, now: float) -> None:
        """Forget the lingering calls whose time is over."""
        for key in [key for key, (_, until) in self._lingering.items() if until <= now]:
            del self._lingering[key]

    def all(self) -> list[tuple[int, int]]:
        """Forget all calls. Return (front, call) of each."""
        pairs = [(call.front, call.call) for call in self.in_flight.values()]
        waiting = self._turns.remove(lambda _: True)
        self.in_flight.clear()
        self._asked = 0
        return pairs + [(call.front, call.frame.id) for call in waiting]


SERIES_MAX = 64
"""Maximum number of pairs of a method and an error; there are some twenty methods. Further pairs
count as OTHER."""
TIMED_MAX = 256
"""Maximum number of calls under way that are timed. Beyond that the oldest is forgotten: most
probably it was cancelled or ended with an error, for which no times are taken."""
OTHER = "_OTHER"


class _Series:
    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.seconds = 0.0
        self.buckets = [0] * (len(BUCKETS_S) + 1)


class Timing:
    """Times of the server's answers. `news`: whether there are times that were not sent yet."""

    def __init__(self) -> None:
        self.news = False
        self._series: dict[tuple[str, str], _Series] = {}
        self._timed: dict[tuple[int, int], tuple[float, float]] = {}

    def count_call(self, method: str, seconds: float, error_type: str = "") -> None:
        """Count the end of a call. `error_type`: as in `AnswerStats`."""
        series = self._series.get((method, error_type))
        if series is None:
            series = self._add_series(method, error_type)
        series.seconds += seconds
        series.buckets[bisect_left(BUCKETS_S, seconds)] += 1
        self.news = True

    def stats(self) -> tuple[AnswerStats, ...]:
        self.news = False
        return tuple(
            AnswerStats(series.seconds, tuple(series.buckets), method, error_type)
            for (method, error_type), series in self._series.items()
        )

    def on_sent(self, front: int, call: int, came: float, now: float) -> None:
        """Note that a timed call was sent to the server, or waits for its turn. `came`: when its
        frame came."""
        if len(self._timed) >= TIMED_MAX:
            del self._timed[next(iter(self._timed))]
        self._timed[front, call] = came, now - came

    def take_times(self, front: int, call: int, heard: float, now: float) -> Notice:
        """Return the times of a timed call, to send to its front before the answer. `heard`: when
        the answer came. The times of a call that is not known any more are measured from now on."""
        came, own_s = self._timed.pop((front, call), (now, heard - now))
        return Notice(
            figures.NOTICE, figures.pack(WorkerCallTimes(call, now - came, own_s + now - heard))
        )

    def _add_series(self, method: str, error_type: str) -> _Series:
        if len(self._series) >= SERIES_MAX:
            method, error_type = OTHER, OTHER if error_type else ""
        return self._series.setdefault((method, error_type), _Series())


def _tool(frame: CallFrame) -> str:
    """Return the name of the tool that is called, or the method if there is none."""
    return codec.text(codec.members(frame.params).get("name", b"null")) or frame.method


def error_type(error: bytes) -> str:
    """Return the code of a raw error object, as text; OTHER if it cannot be read."""
    code = bytes(codec.members(error).get("code", b""))
    return code.decode() if len(code) < 12 and code.lstrip(b"-").isdigit() else OTHER
