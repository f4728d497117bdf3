"""Spans on their way to a collector, and out of everybody's.

Owns: the spans that wait, how many may, the thread that exports them, what is counted and said when
that fails. Never: the form in which a collector gets them (`otlp`), which calls are traced (the
fronts), the loop's time: nothing here is read or written on it.

A collector may be slow, dead, or not there yet. Spans wait for it as far as there is room; then
they are lost and counted, and the log says so once.
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

from metamcp_supervisor.wanted import remote
from metamcp_supervisor.wanted.config import Traces as Wanted
from metamcp_supervisor.watched.families import SPANS
from metamcp_supervisor.watched.spanned import Exemplar, Spanned, exemplars
from metamcp_worker import codec
from metamcp_worker.messages import Span

if TYPE_CHECKING:
    from metamcp_supervisor.watched.otlp import Exporter

QUEUE_MAX = 64
"""Batches of fronts that wait: a minute of a front with few spans, tens of thousands from one that
traces everything."""
CLOSE_S_MAX = 1.5
"""For the last spans of a gateway that ends; then they are lost."""
EXPORTED, LOST = SPANS

log = logging.getLogger("metamcp.traces")


class _Batch(Struct, frozen=True):
    """`blob`: as a front sent it, still to be read."""

    blob: bytes
    count: int


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
        if self._thread is None or not blob:
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
        exporter: Exporter | None = None
        failed = 0
        where = ""
        while (found := self._queue.get()) is not None:
            if isinstance(found, Wanted):
                if exporter is not None:
                    exporter.close()
                exporter, failed = self._exporter(found), 0
                where = remote.origin(found.endpoint)
            elif exporter is None:
                self._tell(LOST, found.count)
            else:
                failed = self._exported(exporter, found, where, failed)
        if exporter is not None:
            exporter.close()

    def _exporter(self, wanted: Wanted) -> "Exporter | None":
        if not wanted.endpoint:
            return None
        try:
            from metamcp_supervisor.watched.otlp import Exporter  # it takes its time, and memory

            return Exporter(
                wanted.endpoint, wanted.headers, version=self._version, instance=self._instance
            )
        except Exception as error:  # noqa: BLE001 - whatever a library makes of its environment
            log.error("spans are lost, because the exporter cannot be made: %r", error)
            return None

    def _exported(self, exporter: "Exporter", batch: _Batch, where: str, failed: int) -> int:
        """Try it. `failed`: how many spans were lost in a row until now; how many are now."""
        since_ns = time.time_ns() - time.monotonic_ns()
        found: list[Exemplar] = []
        try:
            spans = codec.typed(list[Span], batch.blob)
            why = exporter.export(spans, since_ns)
            found = exemplars(spans, since_ns)
        except Exception as error:  # noqa: BLE001 - one batch that cannot be exported is one batch
            why = repr(error)
        if why:
            self._tell(LOST, batch.count)
            if not failed:
                log.error("spans cannot be exported to %s: %s; calls go on", where, why)
            return failed + batch.count
        self._tell(EXPORTED, batch.count, found)
        if failed:
            log.warning("spans are exported to %s again; lost meanwhile: %d", where, failed)
        return 0

    def _tell(self, outcome: str, count: int, found: Sequence[Exemplar] = ()) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads it
            self._loop.call_soon_threadsafe(self._spanned.count, outcome, count)
            self._loop.call_soon_threadsafe(self._spanned.note, found)
