"""Spans of traced calls on their way to the supervisor.

Owns: when and in which messages spans are sent (`Tracer`). Never: the contents of spans (`trace`),
records of calls (`call_log_io`), figures (`stats`).
"""

import asyncio
import random
import secrets
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Self

from msgspec import Raw

from metamcp_worker.front_calls.request_facts import CallAnswer, McpRequest
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.front_records.trace import Tracing
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.messages import Message, Spans

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
        self, call: Call, subject: str, request: McpRequest, params: Mapping[str, Raw], run: str
    ) -> None:
        self._tracing.on_call_start(call, subject, request, params)

    def on_worker_notice(self, server: str, notice: bytes) -> None:
        """Take over the notice in which a worker says when its server had a call."""
        self._tracing.on_worker_notice(notice)

    def on_call_end(
        self, call: Call, answer: CallAnswer | None, seconds: float, outcome: str
    ) -> None:
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
