"""One request and its answer, when whoever was to give it fails."""

import pytest

from metamcp_worker.front_calls.request_facts import CallAnswer
from metamcp_worker.front_calls.server_links import Call
from metamcp_worker.front_clients.exchange import Exchange
from metamcp_worker.front_clients.header_policy import RequestFacts
from metamcp_worker.front_clients.streams import Streams
from metamcp_worker.http.requests import HttpRequest, Pending
from metamcp_worker.ipc.frames import CallFrame
from tests.worker.http.test_serve import opened_server

from ..rawhttp import post, until

pytestmark = pytest.mark.process


async def test_an_answer_that_fails_after_its_stream_began_leaves_no_stream_behind() -> None:
    calls: list[Call] = []
    overs: list[None] = []
    streams = Streams(lambda reason: None)

    def app(exchange: HttpRequest) -> Pending:
        assert isinstance(exchange, Exchange)
        exchange.facts, exchange.streams = RequestFacts("default", accepts_sse=True), streams
        exchange.on_over = lambda: overs.append(None)

        def begin() -> Pending:
            call = Call("a", CallFrame(1, "tools/call", b""), lambda call, why: None, 0.0)
            calls.append(call)
            exchange.put(b"data: 1\n\n")
            return exchange.expect(call, fail)

        return begin()

    def fail(answer: CallAnswer | None) -> Pending:
        raise LookupError("secret detail")

    async with opened_server(app, request=Exchange) as one:
        client = await one.connect()
        client.send(post(b"{}"))
        assert (await client.head()).status == 200
        assert await client.event() == 1
        assert (streams.running, overs) == (1, [])
        calls[0].answer.end(CallAnswer(b"{}"))
        assert await client.closed() == b""
        await until(lambda: streams.running == 0)
        assert overs == [None]
