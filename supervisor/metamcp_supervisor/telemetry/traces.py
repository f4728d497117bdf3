"""Spans on their way to a collector, without a delay for any call.

Owns: the spans that wait, their maximum number, the thread that exports them, counts and log lines
about failures. Never: the format (`otlp`), which calls are traced (the fronts), reading or writing
on the event loop: the thread does both.

A collector may be slow, dead, or not started yet, or ask for a pause. Spans wait as far as there is
room; then they are lost and counted, and the log has one line about it.
"""

import asyncio
import contextlib
import logging
import queue
import threading
import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from metamcp_supervisor.config import sections
from metamcp_supervisor.config.config import TracesConfig as Wanted
from metamcp_supervisor.telemetry.histograms import Exemplar, SpanCounts, exemplars
from metamcp_supervisor.telemetry.metric_names import SPANS
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.messages import Span

if TYPE_CHECKING:
    from metamcp_supervisor.telemetry.otlp import Exporter, ExportOutcome

QUEUE_MAX = 64
"""Maximum number of batches that wait: a minute of a front with few spans, tens of thousands of
spans from a front that traces everything."""
CLOSE_S_MAX = 1.5
"""Maximum seconds to export the last spans when the gateway ends; then they are lost."""
NOTE_S = 60.0
"""Seconds between two log lines about messages of a collector that accepts spans."""
EXPORTED, LOST = SPANS

log = logging.getLogger("metamcp.traces")


class _Batch(Struct, frozen=True):
    """Spans of a front. `blob`: JSON as the front sent it; `count`: number of spans."""

    blob: bytes
    count: int


class _CollectorExport(Struct):
    """Export to one collector. `where`: origin of its URL; `failed`: number of spans lost since the
    last success; `quiet_until`: monotonic time until which messages of the collector are not
    logged."""

    exporter: "Exporter"
    where: str
    failed: int = 0
    quiet_until: float = 0.0


class Traces:
    """Export of spans in a thread. `version`: of the gateway; `spanned`: counts outcomes, on the
    event loop. Call `adjust` first."""

    def __init__(self, version: str, spanned: SpanCounts) -> None:
        self._version = version
        self._instance = str(uuid.uuid4())
        self._spanned = spanned
        self._loop = asyncio.get_running_loop()
        self._wanted = Wanted()
        self._queue: queue.Queue[_Batch | Wanted | None] = queue.Queue(QUEUE_MAX)
        self._thread: threading.Thread | None = None
        self._latest: Wanted | None = None
        """The latest of the orders."""
        self._ordered = threading.Event()
        """Set while an order is in the queue: it ends a pause."""

    def adjust(self, collector: Wanted) -> None:
        """Export to this collector from now on; without an endpoint, do not export."""
        if (collector.endpoint, collector.headers) == (self._wanted.endpoint, self._wanted.headers):
            return
        self._wanted = collector
        if self._thread is None:
            self._thread = threading.Thread(target=self._export, name="traces", daemon=True)
            self._thread.start()
        self._put_first(collector)

    def take(self, blob: bytes, count: int, lost: int) -> None:
        """Take spans of a front. `blob`: JSON of `count` spans; if empty, these are lost, too.
        `lost`: number of other spans that the front has lost."""
        if self._thread is None or not blob or not count:
            lost += count
        else:
            try:
                self._queue.put_nowait(_Batch(blob, count))
            except queue.Full:
                lost += count
        if lost:
            self._spanned.count(LOST, lost)

    async def close(self) -> None:
        """Export the spans that wait, within CLOSE_S_MAX."""
        if self._thread is not None:
            self._put_first(None)
            await asyncio.to_thread(self._thread.join, CLOSE_S_MAX)

    def _put_first(self, order: Wanted | None) -> None:
        """Put an order into the queue; if the queue is full, the oldest spans are lost."""
        self._latest = order
        self._ordered.set()
        while True:
            with contextlib.suppress(queue.Full):
                self._queue.put_nowait(order)
                return
            with contextlib.suppress(queue.Empty):
                oldest = self._queue.get_nowait()
                if isinstance(oldest, _Batch):
                    self._spanned.count(LOST, oldest.count)

    # --- in the thread ------------------------------------------------------------------------

    def _export(self) -> None:
        way: _CollectorExport | None = None
        while (job := self._queue.get()) is not None:
            if isinstance(job, Wanted):
                if way is not None:
                    way.exporter.close()
                self._ordered.clear()
                if self._latest is not job:  # another order is behind this one
                    self._ordered.set()
                way = self._way(job)
            elif way is None:
                self._tell(LOST, job.count)
            else:
                self._ordered.wait(self._export_batch(way, job))
        if way is not None:
            way.exporter.close()

    def _way(self, collector: Wanted) -> _CollectorExport | None:
        if not collector.endpoint:
            return None
        try:
            from metamcp_supervisor.telemetry.otlp import Exporter  # takes time and memory

            exporter = Exporter(
                collector.endpoint,
                collector.headers,
                version=self._version,
                instance=self._instance,
            )
        except Exception as error:  # noqa: BLE001 - whatever a library makes of its environment
            log.error("spans are lost, because the exporter cannot be made: %r", error)
            return None
        return _CollectorExport(exporter, sections.origin(collector.endpoint))

    def _export_batch(self, way: _CollectorExport, batch: _Batch) -> float:
        """Try to export a batch. Return the seconds of the pause that the collector asks for."""
        since_ns = time.time_ns() - time.monotonic_ns()
        try:
            spans = codec.decode_as(list[Span], batch.blob)
            outcome = way.exporter.export(spans, since_ns)
            batch_exemplars = [] if outcome.lost else exemplars(spans, since_ns)
        except Exception as error:  # noqa: BLE001 - one batch that cannot be exported is one batch
            self._record_loss(way, batch.count, repr(error))
            return 0.0
        if outcome.lost == batch.count:
            self._record_loss(way, batch.count, outcome.why or "the collector rejects them")
            return outcome.pause_s
        self._tell(EXPORTED, batch.count - outcome.lost, batch_exemplars)
        if outcome.lost:
            self._tell(LOST, outcome.lost)
        if way.failed:
            log.warning("spans are exported to %s again; lost meanwhile: %d", way.where, way.failed)
            way.failed = 0
        self._note(way, batch.count, outcome)
        return 0.0

    def _record_loss(self, way: _CollectorExport, count: int, reason: str) -> None:
        self._tell(LOST, count)
        if not way.failed:
            log.error("spans cannot be exported to %s: %s; calls go on", way.where, reason)
        way.failed += count

    def _note(self, way: _CollectorExport, count: int, outcome: "ExportOutcome") -> None:
        """Log the message of a collector that accepted all or some spans, at most once per
        NOTE_S."""
        now = time.monotonic()
        if now < way.quiet_until or not (outcome.lost or outcome.why):
            return
        way.quiet_until = now + NOTE_S
        reason = outcome.why or "it does not say why"
        if outcome.lost:
            log.warning("%s rejects %d of %d spans: %s", way.where, outcome.lost, count, reason)
        else:
            log.warning("%s takes spans, and says: %s", way.where, reason)

    def _tell(self, outcome: str, count: int, batch_exemplars: Sequence[Exemplar] = ()) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads it
            self._loop.call_soon_threadsafe(self._spanned.count, outcome, count)
            self._loop.call_soon_threadsafe(self._spanned.note, batch_exemplars)
