"""Spans of calls on the loop: told in batches, and never in the way of a call."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from msgspec import Raw

from metamcp_worker.front_records.trace_io import BATCH_SPANS, QUEUED_MAX, Tracer
from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import CallFrame, Notice, QuestionFrame, Result
from metamcp_worker.ipc.messages import Message, ServerCallTimes, Span, Spans
from tests.waiting import until
from tests.worker.front.called import Front, opened_front, request
from tests.worker.front.callers import Caller, answer_of
from tests.worker.front.offers import offer, tool

pytestmark = pytest.mark.promise("M88")

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = b'{"traceparent":"00-%b-%b-01"}' % (TRACE.encode(), SPAN.encode())
ASKED = request("tools/call", b'{"name":"a__t"}', meta=PARENT)
PLAIN = request("tools/call", b'{"name":"a__t"}')


class Supervisor:
    """What it was told. `queued`: how much waits for it."""

    def __init__(self) -> None:
        self.told: list[tuple[Spans, list[Span]]] = []
        self.queued = 0

    def send(self, message: Message, fds: tuple[int, ...]) -> None:
        assert isinstance(message, Spans)
        (fd,) = fds
        self.told.append((message, codec.decode_as(list[Span], packets.read_blob(fd))))

    @property
    def spans(self) -> list[Span]:
        return [span for _, found in self.told for span in found]


@asynccontextmanager
async def opened_tracer(
    sample: float | None = 0.0,
) -> AsyncGenerator[tuple[Front, Supervisor, Tracer]]:
    async with opened_front(a=offer(tool("t", annotations={"readOnlyHint": True}))) as front:
        supervisor = Supervisor()
        tracer = Tracer(0, supervisor.send, lambda: supervisor.queued)
        front.calls.on_notice(messages.NOTICE, tracer.on_worker_notice)
        adjusted = tracer.adjust(sample)
        front.calls.observers = () if adjusted is None else (adjusted,)
        yield front, supervisor, tracer


def parent_of(sent: CallFrame) -> str:
    found: str = codec.value(sent.meta)["traceparent"]
    return found


async def test_a_traced_call_is_told_within_a_second() -> None:
    async with opened_tracer() as (front, supervisor, _):
        sent = await front.sent("a", ASKED)
        assert sent.traced
        trace, there = parent_of(sent).split("-")[1:3]
        peer = front.peers["a"]
        now = asyncio.get_running_loop().time()
        peer.write(
            Notice(
                messages.NOTICE,
                messages.pack_leg(ServerCallTimes(sent.id, now, now + 0.001, False)),
            )
        )
        peer.write(Result(sent.id, b"{}"))
        await asyncio.to_thread(until, lambda: supervisor.told, "spans", 5.0)
        server, client = supervisor.spans
        assert (trace, there) == (TRACE, client.span_id)
        assert client.attributes["network.transport"] == "pipe"
        assert (server.parent_id, client.parent_id) == (SPAN, server.span_id)
        assert server.start <= client.start <= client.end <= server.end
        assert supervisor.told[0][0] == Spans(count=2)


async def test_what_is_not_traced_is_sent_as_ever() -> None:
    async with opened_tracer() as (front, _, tracer):
        sent = await front.sent("a", PLAIN)
        assert (sent.traced, sent.meta) == (False, b"")
        assert tracer.adjust(None) is None
        front.calls.observers = ()
        sent = await front.sent("a", ASKED)
        assert (sent.traced, sent.meta) == (False, PARENT)


async def test_a_call_whose_worker_dies_ends_its_spans() -> None:
    async with opened_tracer() as (front, supervisor, tracer):
        call = front.calls.start(front.view, ASKED, None)
        await front.peers["a"].call()
        front.peers["a"].close()
        assert (await answer_of(call)).code == Code.SERVER_DOWN
        tracer.close()
        assert [span.error for span in supervisor.spans] == ["-10001", "-10001"]


async def test_a_call_that_is_sent_once_more_keeps_its_place_in_the_trace() -> None:
    async with opened_tracer() as (front, supervisor, tracer):
        front.retry({"a": "read-only"})
        call = front.calls.start(front.view, ASKED, None)
        first = front.peers["a"]
        before = await first.call()
        second = await front.attach("a", 2)
        first.close()
        again = await second.call()
        assert (parent_of(again), again.traced) == (parent_of(before), True)
        second.write(Result(again.id, b"{}"))
        await answer_of(call)
        tracer.close()
        server, client = supervisor.spans
        assert (server.error, client.error) == ("", "")
        assert client.attributes["metamcp.retried"] is True
        assert client.attributes["metamcp.generation"] == 2


async def test_a_question_that_its_client_answers_has_a_span() -> None:
    async with opened_tracer() as (front, supervisor, tracer):
        front.calls.routing.on_asked = tracer.on_asked
        caller = Caller(lambda question: question.answer(b"{}"))
        call = front.calls.start(front.view, ASKED, caller)
        sent = await front.peers["a"].call()
        front.peers["a"].write(QuestionFrame(sent.id, 1, "roots/list", b"{}"))
        front.peers["a"].write(Result(sent.id, b"{}"))
        await answer_of(call)
        tracer.close()
        asked, _, client = supervisor.spans
        assert (asked.name, asked.parent_id, asked.error) == ("roots/list", client.span_id, "")
        assert client.start <= asked.start <= asked.end <= client.end


async def test_many_spans_do_not_wait_and_a_supervisor_that_does_not_read_costs_spans_alone() -> (
    None
):
    async with opened_tracer() as (front, supervisor, tracer):
        for _ in range(BATCH_SPANS // 2):
            await front.answered("a", ASKED, b"{}")
        await asyncio.to_thread(until, lambda: supervisor.told, "they do not wait", 0.9)
        tracer.close()
        assert len(supervisor.spans) == BATCH_SPANS
        supervisor.queued = QUEUED_MAX
        await front.answered("a", ASKED, b"{}")
        tracer.close()
        supervisor.queued = 0
        await front.answered("a", ASKED, b"{}")
        tracer.close()
        assert supervisor.told[-1][0] == Spans(count=2, lost=2)


async def test_a_share_of_the_others_begins_a_trace() -> None:
    async with opened_tracer(sample=1.0) as (front, _, _):
        sent = await front.sent("a", PLAIN)
        assert parent_of(sent).startswith("00-")
        traces = {parent_of(await front.sent("a", PLAIN)).split("-")[1] for _ in range(20)}
        assert len(traces) == 20


async def test_what_a_witness_needs_is_of_the_request_as_it_came() -> None:
    async with opened_tracer() as (front, _, _):
        asked = request("tools/call", b'{"name":"a__t"}', meta=PARENT)
        await front.sent("a", asked)
        assert asked.meta == {"traceparent": Raw(PARENT[15:-1])}, "it may be sent anew"
