"""Spans on their way to a collector: bounded, counted, and never on the loop."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from urllib.request import urlopen

import pytest

from metamcp_supervisor.config.config import TracesConfig as Wanted
from metamcp_supervisor.telemetry.histograms import SpanCounts
from metamcp_supervisor.telemetry.otlp import EXPORT_S_MAX
from metamcp_supervisor.telemetry.traces import QUEUE_MAX, Traces
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.messages import Span
from tests.faults.badnet import dripping
from tests.live.collector import Collector
from tests.live.gateway import free_port
from tests.waiting import until

pytestmark = [pytest.mark.promise("M88"), pytest.mark.process]


def span(number: int = 1, **fields: object) -> Span:
    said: dict[str, object] = {
        "kind": "server", "name": "tools/call t", "trace_id": f"{number:032x}",
        "span_id": f"{number:016x}", "parent_id": "", "far": True, "flags": 1, "start": 1.0,
        "end": 1.5, "attributes": {"metamcp.call.id": 7, "metamcp.retried": True}, **fields,
    }  # fmt: skip
    return codec.decode_as(Span, codec.dump(list(said.values())))


def blob(*found: Span) -> bytes:
    return codec.dump(found)


class Counts(SpanCounts):
    @property
    def exported(self) -> int:
        return self.counts["exported"]

    @property
    def lost(self) -> int:
        return self.counts["lost"]


@asynccontextmanager
async def opened_traces(
    url: str = "", headers: Mapping[str, str] | None = None
) -> AsyncGenerator[tuple[Traces, Counts]]:
    counts = Counts()
    traces = Traces("1.0", counts)
    traces.adjust(Wanted(endpoint=url, headers=headers or {}))
    yield traces, counts
    await traces.close()


async def fact(found: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(until, found, what)


async def test_what_a_front_told_arrives_whole() -> None:
    with Collector() as collector:
        async with opened_traces(collector.url, {"X-Key": "k"}) as (traces, counts):
            first = span(1, parent_id="0" * 15 + "9", state="a=1,b=2", error="-32603")
            traces.take(blob(first, span(2, kind="client")), 2, 0)
            await fact(lambda: counts.exported, "they are exported")
    one, two = collector.spans
    assert (one.kind, one.name, one.trace, one.id) == (
        "server", "tools/call t", f"{1:032x}", f"{1:016x}",
    )  # fmt: skip
    assert (one.parent, one.state, one.failed) == ("0" * 15 + "9", "a=1,b=2", True)
    assert one.end - one.start == 500_000_000
    assert one.attributes == {"metamcp.call.id": 7, "metamcp.retried": True}
    assert (two.kind, two.parent, two.failed) == ("client", "", False)
    assert collector.headers[0]["x-key"] == "k"


async def test_without_an_endpoint_nothing_is_exported() -> None:
    async with opened_traces() as (traces, counts):
        traces.take(blob(span()), 1, 0)
        assert counts.lost == 1, "a front that has not been told yet"


async def test_what_fronts_have_lost_is_counted_here() -> None:
    with Collector() as collector:
        async with opened_traces(collector.url) as (traces, counts):
            traces.take(blob(span()), 1, 5)
            traces.take(b"", 3, 0)  # what came without its descriptor
            assert counts.lost == 8
            await fact(lambda: counts.exported == 1, "the other one is exported")


async def test_a_collector_that_refuses_is_told_of_once_and_again_when_it_takes_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Collector() as collector, caplog.at_level(logging.WARNING):
        async with opened_traces(collector.url) as (traces, counts):
            collector.status = 400
            for number in range(5):
                traces.take(blob(span(number)), 1, 0)
            await fact(lambda: counts.lost == 5, "they are lost")
            collector.status = 200
            traces.take(blob(span(9)), 1, 0)
            await fact(lambda: counts.exported == 1, "it is exported")
    first, second = said(caplog)
    assert first.startswith(f"spans cannot be exported to http://127.0.0.1:{collector.port}: ")
    assert second.endswith("again; lost meanwhile: 5")
    assert {record.name for record in caplog.records} == {"metamcp.traces"}


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "metamcp.traces"]


async def test_rejected_spans_are_lost_and_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    with Collector() as collector, caplog.at_level(logging.WARNING):
        async with opened_traces(collector.url) as (traces, counts):
            collector.rejected, collector.message = 1, "too old"
            for number in range(3):
                traces.take(blob(span(number), span(number + 10)), 2, 0)
            await fact(lambda: counts.exported == counts.lost == 3, "half of them are lost")
            assert not counts.exemplars(), "nobody knows which ones the collector has"
            collector.rejected = 0
            traces.take(blob(span(9)), 1, 0)
            await fact(lambda: counts.exported == 4, "it is exported")
            assert counts.exemplars()
    assert said(caplog) == [f"http://127.0.0.1:{collector.port} rejects 1 of 2 spans: too old"]


async def test_a_collector_that_rejects_all_takes_none(caplog: pytest.LogCaptureFixture) -> None:
    with Collector() as collector, caplog.at_level(logging.WARNING):
        async with opened_traces(collector.url) as (traces, counts):
            collector.rejected = 2
            traces.take(blob(span(1), span(2)), 2, 0)
            await fact(lambda: counts.lost == 2, "they are lost")
    (line,) = said(caplog)
    assert line.endswith(": the collector rejects them; calls go on")


async def test_what_a_collector_wants_to_be_known_is_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Collector() as collector, caplog.at_level(logging.WARNING):
        async with opened_traces(collector.url) as (traces, counts):
            collector.message = "this address moves soon"
            traces.take(blob(span()), 1, 0)
            await fact(lambda: counts.exported == 1, "it is exported")
    (line,) = said(caplog)
    assert line.endswith(" takes spans, and says: this address moves soon")


async def test_a_collector_that_asks_for_it_is_left_alone_until_the_last_spans() -> None:
    with Collector() as collector:
        async with opened_traces(collector.url) as (traces, counts):
            collector.status, collector.answer_headers = 503, {"Retry-After": "60"}
            traces.take(blob(span()), 1, 0)
            await fact(lambda: counts.lost == 1, "it is lost")
            collector.status = 200
            for number in range(QUEUE_MAX + 10):
                traces.take(blob(span(number)), 1, 0)
            await asyncio.to_thread(urlopen, collector.url.replace("traces", "nothing"), b"")
            assert counts.lost == 11, "the others wait"
            assert not collector.spans
        # On a slow machine this takes longer than a gateway waits that ends.
        until(lambda: len(collector.spans) >= QUEUE_MAX - 1, "all that waited are exported")
        assert len(collector.spans) == QUEUE_MAX - 1, "the order to end has taken a place"
    assert counts.lost == 12


async def test_an_answer_that_drips_costs_one_export(caplog: pytest.LogCaptureFixture) -> None:
    """Seconds: as long as an export may take."""

    with Collector() as collector, caplog.at_level(logging.WARNING):
        with dripping(b"HTTP/1.1 200 Fine\r\nX: ", b"x") as url:
            async with opened_traces(url) as (traces, counts):
                traces.take(blob(span(1)), 1, 0)
                traces.adjust(Wanted(endpoint=collector.url))
                traces.take(blob(span(2)), 1, 0)
                await fact(
                    lambda: (counts.exported, counts.lost) == (1, 1), "the next one is exported"
                )
        assert len(collector.spans) == 1
    (line,) = said(caplog)
    assert line.endswith(f": it takes longer than {EXPORT_S_MAX:g} s; calls go on")


async def test_what_cannot_be_read_is_lost_and_ends_nothing() -> None:
    with Collector() as collector:
        async with opened_traces(collector.url) as (traces, counts):
            traces.take(b"[[1]]", 1, 0)
            traces.take(blob(span()), 1, 0)
            await fact(lambda: counts.exported == 1, "the next one is exported")
            assert counts.lost == 1


async def test_spans_wait_for_a_dead_collector_as_far_as_there_is_room() -> None:
    async with opened_traces(f"http://127.0.0.1:{free_port()}/v1/traces") as (traces, counts):
        for number in range(QUEUE_MAX + 10):
            traces.take(blob(span(number)), 1, 0)
        assert counts.lost >= 8, "one or two are being tried"
        assert counts.lost + QUEUE_MAX >= 10


async def test_another_endpoint_counts_from_the_next_batch_on() -> None:
    with Collector() as first, Collector() as second:
        async with opened_traces(first.url) as (traces, counts):
            traces.take(blob(span(1)), 1, 0)
            await fact(lambda: first.spans, "the first one is exported")
            traces.adjust(Wanted(endpoint=second.url))
            traces.take(blob(span(2)), 1, 0)
            await fact(lambda: second.spans, "the second one is exported")
            traces.adjust(Wanted())
            traces.take(blob(span(3)), 1, 0)
            await fact(lambda: counts.lost == 1, "the third one is not")
        assert (len(first.spans), len(second.spans)) == (1, 1)


async def test_the_last_spans_of_a_gateway_are_exported() -> None:
    with Collector() as collector:
        async with opened_traces(collector.url) as (traces, _):
            for number in range(10):
                traces.take(blob(span(number)), 1, 0)
        assert len(collector.spans) == 10
