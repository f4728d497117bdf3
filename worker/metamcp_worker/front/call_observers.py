"""The gateway's own time in sampled calls, by stage, seen from the front.

Owns: the clock readings of the calls that are timed (`run`), and three histograms. Never:
which calls these are, other figures (`stats`).

    front    from the request at the application to its frame, and from the frame of the answer to
             the response, waiting for the event loop among it
    pipe     from frame to frame, without what the worker says that it had them
    worker   what the worker says that it needed for itself

What the server needs is in none of them, and neither is waiting for its turn. HTTP is read and
written below the application, so that it is not in them either.
"""

import asyncio
import random
import secrets
from bisect import bisect_left
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Self

from msgspec import Raw

from metamcp_worker.front.call_log_io import Recorder
from metamcp_worker.front.mcp_request import McpRequest
from metamcp_worker.front.server_links import Call, CallAnswer
from metamcp_worker.front.trace import Tracing
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.figures import MASK, NEXT, unpack
from metamcp_worker.ipc.messages import OVERHEAD_BUCKETS_S, Durations, Message, Spans

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

    def _answered(self, call: Call, answer: asyncio.Future[CallAnswer]) -> None:
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


BATCH_S = 1.0
"""How long a span may wait to be told."""
BATCH_SPANS = 512
"""Told at once: making their text takes the loop a part of a millisecond."""
QUEUED_MAX = 64
"""Packets that may wait in the control socket; with more, the supervisor has other worries."""


class Tracer:
    """`front`: its number; `send`: queues a message with its descriptors; `queued`: how many are
    queued there. `adjust` before anything else."""

    def __init__(
        self,
        front: int,
        send: Callable[[Message, tuple[int, ...]], None],
        queued: Callable[[], int],
    ) -> None:
        self._send = send
        self._queued = queued
        self._loop = asyncio.get_running_loop()
        self._tracing = Tracing(front, random.random, secrets.token_hex)
        self._due: asyncio.Handle | None = None

    def adjust(self, sample: float | None) -> Self | None:
        """Trace this share of the calls whose client does not trace. None: nothing is traced."""
        if sample is None:
            self._tracing.forget()
            return None
        self._tracing.adjust(sample)
        return self

    def begun(
        self, call: Call, subject: str, request: McpRequest, params: Mapping[str, Raw]
    ) -> None:
        self._tracing.begun(call, subject, request, params)

    def told(self, server: str, notice: bytes) -> None:
        """A worker has sent a notice of this name."""
        self._tracing.told(notice)

    def finished(self, call: Call, answer: CallAnswer | None, outcome: str) -> None:
        if not self._tracing.finished(call, answer, outcome, monotonic()):
            return
        if self._due is None:
            self._due = self._loop.call_later(BATCH_S, self._batch)
        elif self._tracing.waiting >= BATCH_SPANS:
            self._due.cancel()
            self._due = self._loop.call_soon(self._batch)

    def close(self) -> None:
        """Tell the rest at once: there will be no later."""
        if self._due is not None:
            self._due.cancel()
        while self._tracing.waiting:
            self._tell()

    def _batch(self) -> None:
        self._tell()
        self._due = self._loop.call_soon(self._batch) if self._tracing.waiting else None

    def _tell(self) -> None:
        found, lost = self._tracing.take(BATCH_SPANS)
        if self._queued() >= QUEUED_MAX:
            self._tracing.lose(len(found) + lost)
            return
        try:
            blob = packets.blob(codec.dump(found))
        except (OSError, TooLarge):  # no free descriptor, so no way for them
            self._tracing.lose(len(found) + lost)
            return
        self._send(Spans(count=len(found), lost=lost), (blob,))


class Witness:
    """`recorder`, `tracer`: None where that is not wanted."""

    __slots__ = ("_recorder", "_tracer")

    def __init__(self, recorder: Recorder | None, tracer: Tracer | None) -> None:
        self._recorder = recorder
        self._tracer = tracer

    def begun(
        self, call: Call, subject: str, request: McpRequest, params: Mapping[str, Raw]
    ) -> None:
        """This call is about to be sent; `params`: as the server will get them."""
        if self._tracer is not None:
            self._tracer.begun(call, subject, request, params)
        if self._recorder is not None:
            self._recorder.begun(call, subject, params.get("arguments"))

    def finished(self, call: Call, answer: CallAnswer | None, seconds: float, outcome: str) -> None:
        """It is over. `answer`: None if it was cancelled; `outcome`: empty, or what was wrong."""
        if self._tracer is not None:
            self._tracer.finished(call, answer, outcome)
        if self._recorder is not None:
            self._recorder.finished(call, answer, seconds, outcome)


def witness(recorder: Recorder | None, tracer: Tracer | None) -> Witness | None:
    """None if nobody wants to be told."""
    return Witness(recorder, tracer) if recorder is not None or tracer is not None else None
