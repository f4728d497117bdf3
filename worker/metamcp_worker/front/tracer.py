"""Telling the supervisor of traced calls, without making one of them wait.

Owns: when spans are told, the dice, the ids and the clock that they need. Never: which calls are
traced and what a span says (`tracing`), collectors (the supervisor knows them).

A traced call costs a few entries in a table. Once a second, and sooner when there are many, what
there is goes over the control socket as one descriptor. A supervisor that does not read costs spans
and no call.
"""

import asyncio
import random
import secrets
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Self

from msgspec import Raw

from metamcp_worker.front.links import Answer, Call
from metamcp_worker.front.methods import Request
from metamcp_worker.front.tracing import Tracing
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.messages import Message, Spans

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

    def begun(self, call: Call, subject: str, request: Request, params: Mapping[str, Raw]) -> None:
        self._tracing.begun(call, subject, request, params)

    def told(self, server: str, notice: bytes) -> None:
        """A worker has sent a notice of this name."""
        self._tracing.told(notice)

    def finished(self, call: Call, answer: Answer | None, outcome: str) -> None:
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
