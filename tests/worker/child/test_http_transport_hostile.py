"""Remote servers that mix up their answers, never end them, or misuse what is sent back to them."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from metamcp_worker.child import jsonrpc_lines
from metamcp_worker.child.http_transport import TELLS_AT_ONCE_MAX
from tests.fakes.http_server import event
from tests.worker.child.far import Far, can, far, met_server
from tests.worker.child.test_http_sessions_handshakes import Odd, odd
from tests.worker.rawhttp import until
from tests.worker.scripted import Request, Wire, serving

pytestmark = pytest.mark.process


def answer(number: object) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "result": {"of": number}}


Respond = Callable[[Wire, Request, Any], Awaitable[None]]


@asynccontextmanager
async def responding(respond: Respond, **spec: Any) -> AsyncGenerator[Far]:
    """A transport to a server whose answer to each request, with this id, is a stream."""

    async def script(wire: Wire) -> None:
        request = await wire.request()
        if request is not None:
            await respond(wire, request, json.loads(request.body).get("id"))
            await wire.closed()

    async with serving(script) as url, far(url, **spec) as there:
        yield there


async def test_the_answer_to_another_request_on_a_stream_is_not_taken_for_that_of_its_own() -> None:
    async def respond(wire: Wire, _: Request, number: Any) -> None:
        await wire.stream(event(answer(number + 1)), event(answer(number)))

    async with responding(respond) as there:
        found = await there.outcome(there.call("x"))
        assert found["result"] == {"of": found["id"]} == {"of": 1}
        assert [one["result"] for one, _, _ in there.ear.messages] == [{"of": 2}, {"of": 1}]


async def test_no_client_gets_the_answer_of_another_from_a_server_that_writes_ids_as_strings() -> (
    None
):
    """The server writes the answer of the first request to the stream of the second one only."""
    streams: list[tuple[Wire, Any]] = []

    async def respond(wire: Wire, _: Request, number: Any) -> None:
        streams.append((wire, number))
        if len(streams) == 2:
            (first, one), (second, two) = streams
            await second.stream(event({**answer(one), "id": str(one)}), event(nobody("null")))
            await second.stream(event({**answer(two), "id": str(two)}))
            await first.stream(event({**answer(two), "id": str(two)}))

    def nobody(text: str) -> dict[str, Any]:
        return {"jsonrpc": "2.0", "id": None, "result": {"of": text}}

    async with responding(respond) as there:
        keys = [there.call("x"), there.call("x")]
        found = [await there.outcome(key) for key in keys]
        assert [one["result"] for one in found] == [{"of": 1}, {"of": 2}]


async def test_an_own_request_whose_stream_never_brings_the_answer_fails_in_the_end() -> None:
    async def respond(wire: Wire, _: Request, number: Any) -> None:
        await wire.stream(b": I think\n\n")

    async with responding(respond, timeout_s=0.2, start_timeout_s=0.2) as there:
        found = await there.ask("tools/list", own=True)
        assert "no whole answer" in found["failed"]["message"]
        await there.settled(b"1")


async def test_streams_that_answer_notifications_do_not_hold_up_the_next_ones() -> None:
    async with met_server(kind=Odd, era="legacy") as (server, there):
        await there.text(there.call("echo", text="hi"))
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
        odd(server, notifications__x=head)
        assert isinstance(server, Odd)
        server.endless = True
        before = len(server.seen)
        for _ in range(TELLS_AT_ONCE_MAX + 1):
            assert there.transport.write(jsonrpc_lines.notification("notifications/x"))
        await until(lambda: len(server.seen) == before + TELLS_AT_ONCE_MAX + 1)


async def test_answers_whose_streams_do_not_end_do_not_use_up_the_requests() -> None:
    async def respond(wire: Wire, _: Request, number: Any) -> None:
        await wire.stream(event(answer(number)))

    async with responding(respond, concurrency=1) as there:
        for number in range(1, 400):
            found = await there.outcome(there.call("x"))
            assert found.get("result") == {"of": number}, found
        assert there.ear.losses == []


@pytest.mark.promise("M23")
async def test_an_answer_to_a_question_of_a_forgotten_session_does_not_reach_the_next_one() -> None:
    async with met_server(era="legacy") as (server, there):
        there.call("ask", can("elicitation"))
        await there.ear.until(lambda: there.ear.messages[-1][0].get("method"))
        question, _, via = there.ear.messages[-1]
        server.sessions.clear()
        again = there.call("echo", can("elicitation"), text="hi")
        assert await there.text(again) == "hi"
        raw = json.dumps(question["id"]).encode()
        assert not there.transport.write(jsonrpc_lines.answer(raw, b'{"action":"accept"}'), via)
