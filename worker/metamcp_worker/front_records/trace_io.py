"""Spans of traced calls on their way to the supervisor.

Owns: when and in which messages spans are sent (`Tracer`). Never: the contents of spans (`trace`),
records of calls (`call_log_io`), figures (`stats`).
"""

import asyncio
import random
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic
from typing import Self

from msgspec import Raw

from metamcp_worker.front_calls.client_questions import Question
from metamcp_worker.front_calls.mcp_request import ServerNotReady
from metamcp_worker.front_calls.request_facts import CallAnswer, McpRequest
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.front_records.trace import TracedCall, Tracing
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.messages import Message, Span, Spans

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

    def adjust(self, sample: float | None, salt: bytes = b"") -> Self | None:
        """Trace this share of the calls whose client does not trace; None: trace no call. `salt`:
        of the audit's pseudonyms. Returns None if nothing is traced."""
        if sample is None:
            self._tracing.forget()
            return None
        self._tracing.adjust(sample, salt)
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
        if self._tracing.on_call_end(call, answer, outcome, monotonic()):
            self._plan()

    def on_list(self, endpoint: str, request: McpRequest, began: float) -> None:
        if self._tracing.on_list(endpoint, request, began, monotonic()):
            self._plan()

    def on_server_missing(
        self, early: ServerNotReady, endpoint: str, first: Call | None = None
    ) -> None:
        if self._tracing.on_server_missing(early, endpoint, first, monotonic()):
            self._plan()

    def on_span(self, span: Span) -> None:
        self._tracing.put(span)
        self._plan()

    def on_asked(self, call: Call, question: Question) -> None:
        """Note a question of the server of a call."""
        traced = self._tracing.find(call)
        if traced is not None:
            question.on_over = partial(self._on_question_over, traced, question, monotonic())

    def _on_question_over(
        self, traced: TracedCall, question: Question, began: float, error: bytes | None
    ) -> None:
        self._tracing.on_question_over(traced, question, began, monotonic(), error)
        self._plan()

    def _plan(self) -> None:
        """Let the spans that wait be sent, at once if there are many."""
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
