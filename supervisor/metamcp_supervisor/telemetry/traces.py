"""Spans on their way to a collector, and out of everybody's.

Owns: the spans that wait, how many may, the thread that exports them, what is counted and said when
that fails. Never: the form in which a collector gets them (`otlp`), which calls are traced (the
fronts), the loop's time: nothing here is read or written on it.

A collector may be slow, dead, or not there yet, or ask to be left alone for a while. Spans wait for
it as far as there is room; then they are lost and counted, and the log says so once.
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

from metamcp_supervisor.config import server_sections
from metamcp_supervisor.config.config import TracesConfig as Wanted
from metamcp_supervisor.telemetry.exemplars import Exemplar, Spanned, exemplars
from metamcp_supervisor.telemetry.metric_names import SPANS
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.messages import Span

if TYPE_CHECKING:
    from metamcp_supervisor.telemetry.otlp import Exporter, ExportOutcome

QUEUE_MAX = 64
"""Batches of fronts that wait: a minute of a front with few spans, tens of thousands from one that
traces everything."""
CLOSE_S_MAX = 1.5
"""For the last spans of a gateway that ends; then they are lost."""
NOTE_S = 60.0
"""Between two lines about what a collector has to say of spans that it takes."""
EXPORTED, LOST = SPANS

log = logging.getLogger("metamcp.traces")


class _Batch(Struct, frozen=True):
    """`blob`: as a front sent it, still to be read."""

    blob: bytes
    count: int


class _Way(Struct):
    """To one collector. `where`: its origin; `failed`: how many spans were lost in a row until now,
    because it took none; `quiet_until`: nothing more of its words until then, monotonic."""

    exporter: "Exporter"
    where: str
    failed: int = 0
    quiet_until: float = 0.0


class Traces:
    """`version`: of the gateway; `spanned`: told on the loop what became of spans. `adjust` before
    anything else."""

    def __init__(self, version: str, spanned: Spanned) -> None:
        self._version = version
        self._instance = str(uuid.uuid4())
        self._spanned = spanned
        self._loop = asyncio.get_running_loop()
        self._wanted = Wanted()
        self._queue: queue.Queue[_Batch | Wanted | None] = queue.Queue(QUEUE_MAX)
        self._thread: threading.Thread | None = None
        self._latest: Wanted | None = None
        """Of the orders."""
        self._ordered = threading.Event()
        """There is an order in the queue: no pause any more."""

    def adjust(self, wanted: Wanted) -> None:
        """Export to there from now on; without an endpoint, nowhere."""
        if (wanted.endpoint, wanted.headers) == (self._wanted.endpoint, self._wanted.headers):
            return
        self._wanted = wanted
        if self._thread is None:
            self._thread = threading.Thread(target=self._export, name="traces", daemon=True)
            self._thread.start()
        self._put_first(wanted)

    def take(self, blob: bytes, count: int, lost: int) -> None:
        """From a front: JSON of so many spans, and how many more it has lost. Without a blob these
        are lost too."""
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
        """Export the rest, for as long as CLOSE_S_MAX."""
        if self._thread is not None:
            self._put_first(None)
            await asyncio.to_thread(self._thread.join, CLOSE_S_MAX)

    def _put_first(self, order: Wanted | None) -> None:
        """An order that must not be missed; spans make room for it."""
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
        way: _Way | None = None
        while (found := self._queue.get()) is not None:
            if isinstance(found, Wanted):
                if way is not None:
                    way.exporter.close()
                self._ordered.clear()
                if self._latest is not found:  # another one is behind it
                    self._ordered.set()
                way = self._way(found)
            elif way is None:
                self._tell(LOST, found.count)
            else:
                self._ordered.wait(self._exported(way, found))
        if way is not None:
            way.exporter.close()

    def _way(self, wanted: Wanted) -> _Way | None:
        if not wanted.endpoint:
            return None
        try:
            from metamcp_supervisor.telemetry.otlp import Exporter  # it takes its time, and memory

            exporter = Exporter(
                wanted.endpoint, wanted.headers, version=self._version, instance=self._instance
            )
        except Exception as error:  # noqa: BLE001 - whatever a library makes of its environment
            log.error("spans are lost, because the exporter cannot be made: %r", error)
            return None
        return _Way(exporter, server_sections.origin(wanted.endpoint))

    def _exported(self, way: _Way, batch: _Batch) -> float:
        """Try it; for how many seconds the collector then wants to be left alone."""
        since_ns = time.time_ns() - time.monotonic_ns()
        try:
            spans = codec.typed(list[Span], batch.blob)
            outcome = way.exporter.export(spans, since_ns)
            found = [] if outcome.lost else exemplars(spans, since_ns)
        except Exception as error:  # noqa: BLE001 - one batch that cannot be exported is one batch
            self._missed(way, batch.count, repr(error))
            return 0.0
        if outcome.lost == batch.count:
            self._missed(way, batch.count, outcome.why or "the collector rejects them")
            return outcome.pause_s
        self._tell(EXPORTED, batch.count - outcome.lost, found)
        if outcome.lost:
            self._tell(LOST, outcome.lost)
        if way.failed:
            log.warning("spans are exported to %s again; lost meanwhile: %d", way.where, way.failed)
            way.failed = 0
        self._note(way, batch.count, outcome)
        return 0.0

    def _missed(self, way: _Way, count: int, why: str) -> None:
        self._tell(LOST, count)
        if not way.failed:
            log.error("spans cannot be exported to %s: %s; calls go on", way.where, why)
        way.failed += count

    def _note(self, way: _Way, count: int, outcome: "ExportOutcome") -> None:
        """What the collector says of spans of which it has taken some, at most once in a while."""
        now = time.monotonic()
        if now < way.quiet_until or not (outcome.lost or outcome.why):
            return
        way.quiet_until = now + NOTE_S
        why = outcome.why or "it does not say why"
        if outcome.lost:
            log.warning("%s rejects %d of %d spans: %s", way.where, outcome.lost, count, why)
        else:
            log.warning("%s takes spans, and says: %s", way.where, why)

    def _tell(self, outcome: str, count: int, found: Sequence[Exemplar] = ()) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads it
            self._loop.call_soon_threadsafe(self._spanned.count, outcome, count)
            self._loop.call_soon_threadsafe(self._spanned.note, found)
