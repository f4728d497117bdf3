"""Observers of calls: the gateway's own time in sampled calls, spans of traces, records of calls.

Owns: the clock readings and histograms of sampled calls (`Overhead`), sending spans to the
supervisor (`Tracer`), passing each call to tracer and recorder (`CallObserver`). Never: the
contents of spans (`trace`) and records (`call_log`), other figures (`stats`). The stages of the own
time:

    front    from the request at the application to its frame, and from the frame of the answer to
             the response, including waits for the event loop
    pipe     from frame to frame, without the time that the worker reports for the call
    worker   the time that the worker reports for its own work

The time of the server, and waiting for a turn at the server, are in none of these stages. HTTP is
read and written below the application, so it is not counted either.
"""

import asyncio
import random
import secrets
from bisect import bisect_left
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from typing import Self

from msgspec import Raw

from metamcp_worker.front.call_log_io import Recorder
from metamcp_worker.front.trace import Tracing
from metamcp_worker.front_calls.request_facts import CallAnswer, McpRequest
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.figures import MASK, NEXT, unpack
from metamcp_worker.ipc.messages import OVERHEAD_BUCKETS_S, Durations, Message, Spans

UNDER_WAY_MAX = 256
"""Maximum number of timed calls that wait for their answer; further calls are not timed."""
STAGES: tuple[str, ...] = ("front", "pipe", "worker")


class _Times:
    """Times of one call. `to_s`: seconds on the way to the pipe; `sent`: moment of arrival there;
    `total_s`, `own_s`: seconds that the worker had the call, and worked on it itself."""

    __slots__ = ("own_s", "sent", "to_s", "total_s")

    def __init__(self, to_s: float, sent: float) -> None:
        self.to_s = to_s
        self.sent = sent
        self.total_s = 0.0
        self.own_s = 0.0


class Overhead:
    """Own time of the gateway. `armed`: the next call is timed, so the application has to call
    `on_request` for each request."""

    def __init__(self) -> None:
        self.armed = False
        self._arrived = 0.0
        self._under_way: dict[int, _Times] = {}
        self._seconds: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self._buckets = {stage: [0] * (len(OVERHEAD_BUCKETS_S) + 1) for stage in STAGES}

    def on_request(self) -> None:
        """Note the arrival of a request that may become the timed call."""
        self._arrived = monotonic()

    def time_call(self, call: Call) -> None:
        """Time a call that is in the pipe now, or arm the timing if the next call is the one."""
        self.armed = call.id & MASK == NEXT
        if self.armed or call.wire is None or len(self._under_way) >= UNDER_WAY_MAX:
            return
        now = monotonic()
        since = self._arrived if call.started - self._arrived < 1.0 else call.started
        self._under_way[call.id] = _Times(now - since, now)
        call.answer.add_callback(partial(self._on_answer, call))

    def on_worker_notice(self, server: str, notice: bytes) -> None:
        """Take over the notice in which a worker says how long it had a call."""
        timed = unpack(notice)
        times = self._under_way.get(timed.id) if timed is not None else None
        if timed is not None and times is not None:
            times.total_s, times.own_s = timed.total_s, timed.own_s

    def figures(self) -> dict[str, Durations]:
        return {
            stage: Durations(self._seconds[stage], tuple(buckets))
            for stage, buckets in self._buckets.items()
        }

    def _on_answer(self, call: Call, answer: CallAnswer | None) -> None:
        """Finish the times of a call in the next turn of the loop, after the code that waits for
        the answer. The times of a call that was sent again are dropped: it waited for another
        server."""
        times = self._under_way.pop(call.id, None)
        if times is not None and answer is not None and times.total_s and not call.ends:
            asyncio.get_running_loop().call_soon(self._observe_times, times, monotonic())

    def _observe_times(self, times: _Times, answered: float) -> None:
        self._observe("front", times.to_s + monotonic() - answered)
        self._observe("pipe", answered - times.sent - times.total_s)
        self._observe("worker", times.own_s)

    def _observe(self, stage: str, seconds: float) -> None:
        seconds = max(0.0, seconds)
        self._seconds[stage] += seconds
        self._buckets[stage][bisect_left(OVERHEAD_BUCKETS_S, seconds)] += 1


BATCH_S = 1.0
"""Seconds that a span may wait to be sent."""
BATCH_SPANS = 512
"""Maximum number of spans in one message: encoding them takes the loop a part of a millisecond."""
QUEUED_MAX = 64
"""Number of packets waiting in the control socket at which spans are dropped, because the
supervisor is busy."""


class Tracer:
    """Sends the spans of traced calls. `front`: its number; `send`: queues a message with its
    descriptors; `queued`: number of messages in that queue. Call `adjust` before anything else."""

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
        """Trace this share of the calls whose client does not trace; None: trace no call. Returns
        None if nothing is traced."""
        if sample is None:
            self._tracing.forget()
            return None
        self._tracing.adjust(sample)
        return self

    def on_call_start(
        self, call: Call, subject: str, request: McpRequest, params: Mapping[str, Raw]
    ) -> None:
        self._tracing.on_call_start(call, subject, request, params)

    def on_worker_notice(self, server: str, notice: bytes) -> None:
        """Take over the notice in which a worker says when its server had a call."""
        self._tracing.on_worker_notice(notice)

    def on_call_end(self, call: Call, answer: CallAnswer | None, outcome: str) -> None:
        if not self._tracing.on_call_end(call, answer, outcome, monotonic()):
            return
        if self._due is None:
            self._due = self._loop.call_later(BATCH_S, self._batch)
        elif self._tracing.pending_count >= BATCH_SPANS:
            self._due.cancel()
            self._due = self._loop.call_soon(self._batch)

    def close(self) -> None:
        """Send all remaining spans at once, because the front ends."""
        if self._due is not None:
            self._due.cancel()
        while self._tracing.pending_count:
            self._tell()

    def _batch(self) -> None:
        self._tell()
        self._due = self._loop.call_soon(self._batch) if self._tracing.pending_count else None

    def _tell(self) -> None:
        spans, lost = self._tracing.take(BATCH_SPANS)
        if self._queued() >= QUEUED_MAX:
            self._tracing.lose(len(spans) + lost)
            return
        try:
            blob = packets.blob(codec.dump(spans))
        except (OSError, TooLarge):  # no descriptor is free, so the spans cannot be sent
            self._tracing.lose(len(spans) + lost)
            return
        self._send(Spans(count=len(spans), lost=lost), (blob,))


class CallObserver:
    """Passes each call to the recorder and the tracer; None where one of them is not wanted."""

    __slots__ = ("_recorder", "_tracer")

    def __init__(self, recorder: Recorder | None, tracer: Tracer | None) -> None:
        self._recorder = recorder
        self._tracer = tracer

    def on_call_start(
        self, call: Call, subject: str, request: McpRequest, params: Mapping[str, Raw]
    ) -> None:
        """Report a call that is about to be sent; `params`: as the server will get them."""
        if self._tracer is not None:
            self._tracer.on_call_start(call, subject, request, params)
        if self._recorder is not None:
            self._recorder.on_call_start(call, subject, params.get("arguments"))

    def on_call_end(
        self, call: Call, answer: CallAnswer | None, seconds: float, outcome: str
    ) -> None:
        """Report a finished call. `answer`: None if it was cancelled; `outcome`: empty, or what was
        wrong."""
        if self._tracer is not None:
            self._tracer.on_call_end(call, answer, outcome)
        if self._recorder is not None:
            self._recorder.on_call_end(call, answer, seconds, outcome)


def witness(recorder: Recorder | None, tracer: Tracer | None) -> CallObserver | None:
    """Return the witness of all calls; None if there is neither a recorder nor a tracer."""
    return CallObserver(recorder, tracer) if recorder is not None or tracer is not None else None
