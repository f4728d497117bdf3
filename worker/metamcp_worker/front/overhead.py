"""The gateway's own time in sampled calls, by stage, seen from the front.

Owns: the clock readings of the calls that are timed (`figures`), and three histograms. Never:
which calls these are, other figures (`stats`).

    front    from the request at the application to its frame, and from the frame of the answer to
             the response, waiting for the event loop among it
    pipe     from frame to frame, without what the worker says that it had them
    worker   what the worker says that it needed for itself

What the server needs is in none of them, and neither is waiting for its turn. HTTP is read and
written below the application, so that it is not in them either.
"""

import asyncio
from bisect import bisect_left
from time import monotonic

from metamcp_worker.front.links import Answer, Call
from metamcp_worker.ipc.figures import MASK, NEXT, unpack
from metamcp_worker.ipc.messages import OVERHEAD_BUCKETS_S, Durations

UNDER_WAY_MAX = 256
"""Timed calls that wait for their answer; of more than these no times are kept."""
STAGES: tuple[str, ...] = ("front", "pipe", "worker")


class _Times:
    """`to_s`: how long it took on its way to the pipe; `sent`: when it was there."""

    __slots__ = ("own_s", "sent", "to_s", "total_s")

    def __init__(self, to_s: float, sent: float) -> None:
        self.to_s = to_s
        self.sent = sent
        self.total_s = 0.0
        self.own_s = 0.0


class Overhead:
    """`armed`: the next call is timed, so whoever gets a request calls `arrived`."""

    def __init__(self) -> None:
        self.armed = False
        self._arrived = 0.0
        self._under_way: dict[int, _Times] = {}
        self._seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self._buckets = {stage: [0] * (len(OVERHEAD_BUCKETS_S) + 1) for stage in STAGES}

    def arrived(self) -> None:
        """A request that may become the call that is timed."""
        self._arrived = monotonic()

    def started(self, call: Call) -> None:
        """A call is in the pipe whose number is the one that is timed, or the one before it."""
        self.armed = call.id & MASK == NEXT
        if self.armed or call.wire is None or len(self._under_way) >= UNDER_WAY_MAX:
            return
        now = monotonic()
        since = self._arrived if call.started - self._arrived < 1.0 else call.started
        self._under_way[call.id] = _Times(now - since, now)
        call.answer.add_done_callback(lambda answer: self._answered(call, answer))

    def told(self, server: str, notice: bytes) -> None:
        """A worker says how long it had a call."""
        timed = unpack(notice)
        times = self._under_way.get(timed.id) if timed is not None else None
        if timed is not None and times is not None:
            times.total_s, times.own_s = timed.total_s, timed.own_s

    def figures(self) -> dict[str, Durations]:
        return {
            stage: Durations(self._seconds[stage], tuple(buckets))
            for stage, buckets in self._buckets.items()
        }

    def _answered(self, call: Call, answer: asyncio.Future[Answer]) -> None:
        """The answer is there, and whoever waits for it comes next in this turn of the loop. Of a
        call that was sent once more no times are kept: it waited for another server."""
        times = self._under_way.pop(call.id, None)
        if times is not None and not answer.cancelled() and times.total_s and not call.ends:
            answer.get_loop().call_soon(self._over, times, monotonic())

    def _over(self, times: _Times, answered: float) -> None:
        self._observe("front", times.to_s + monotonic() - answered)
        self._observe("pipe", answered - times.sent - times.total_s)
        self._observe("worker", times.own_s)

    def _observe(self, stage: str, seconds: float) -> None:
        seconds = max(0.0, seconds)
        self._seconds[stage] += seconds
        self._buckets[stage][bisect_left(OVERHEAD_BUCKETS_S, seconds)] += 1
