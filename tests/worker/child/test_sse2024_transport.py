"""The way to servers of 2024: one event stream, and an endpoint that it names."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from metamcp_worker.child import jsonrpc_lines
from tests.fakes.http_server import event, running
from tests.worker.child.far import far
from tests.worker.child.test_streamable_http_failures import loss
from tests.worker.rawhttp import until
from tests.worker.scripted import Wire, serving

pytestmark = pytest.mark.process


def sse(url: str) -> str:
    return url.replace("/mcp", "/sse")


@pytest.mark.promise("M12")
@pytest.mark.parametrize("transport", ["auto", "sse"])
async def test_a_server_of_2024_is_spoken_to_on_its_event_stream(transport: str) -> None:
    async with running() as (server, url), far(sse(url), transport=transport) as there:
        found = await there.discover()
        assert "failed" in found
        found = await there.initialize()
        assert found["result"]["protocolVersion"] == "2024-11-05"
        keys = [there.call("echo", text=str(number)) for number in range(20)]
        texts = await asyncio.gather(*(there.text(key) for key in keys))
        assert texts == [str(number) for number in range(20)]
        assert {stream for _, stream, _ in there.ear.messages} == {None}
        posts = [one for one in server.seen if one.line.startswith("POST /messages")]
        assert b'"notifications/initialized"' in posts[1].body
        assert not any(b"server/discover" in one.body for one in posts)


@pytest.mark.promise("M12")
async def test_a_cancellation_follows_the_request_that_it_is_about() -> None:
    async with running() as (server, url), far(sse(url), transport="sse") as there:
        await there.initialize()
        key = there.call("wait")
        assert there.drop(key)
        await until(lambda: server.cancelled == [int(key)])
        bodies = [one.body for one in server.seen if b'"id":2' in one.body]
        assert len(bodies) == 1


async def test_answers_and_notifications_go_to_the_endpoint_too() -> None:
    async with running() as (server, url), far(sse(url), transport="sse") as there:
        await there.initialize()
        question = {"jsonrpc": "2.0", "id": "q", "method": "ping"}
        await server.older[0].write(b": keep\n\n" + event(question))
        await there.ear.until(lambda: len(there.ear.messages) == 2)
        assert there.transport.write(jsonrpc_lines.answer(b'"q"', b"{}"))
        await until(lambda: any(b'"result":{}' in one.body for one in server.seen))


async def test_the_end_of_the_stream_is_the_end_of_the_server() -> None:
    async with running() as (server, url), far(sse(url), transport="sse") as there:
        await there.initialize()
        await server.older[0].shut()
        reason, message = await loss(there)
        assert reason == "exit"
        assert "event stream" in message


def streaming(*events: bytes) -> Callable[[Wire], Any]:
    """A server whose GET brings this, and whose POST does not exist."""

    async def script(line: Wire) -> None:
        while request := await line.request():
            if request.line.startswith("GET"):
                await line.stream(*events)
                await line.closed()
                return
            await line.answer(b"", status="405 X")

    return script


@pytest.mark.parametrize("place", ["http://127.0.0.1:1/steal", "//evil.example/x", "file:///etc"])
async def test_an_endpoint_of_another_origin_is_refused(place: str) -> None:
    named = f"event: endpoint\ndata: {place}\n\n".encode()
    async with serving(streaming(named)) as url, far(url, transport="sse") as there:
        there.send("initialize", {}, own=True)
        reason, message = await loss(there)
        assert reason == "protocol"
        assert "endpoint" in message


def of_2024(status: int, body: bytes) -> Callable[[Wire], Any]:
    """A server of 2024 that answers a POST to its stream so; it takes messages at another place."""
    streams: list[Wire] = []

    async def script(line: Wire) -> None:
        while request := await line.request():
            if request.line.startswith("GET"):
                streams.append(line)
                await line.stream(b"event: endpoint\ndata: /messages\n\n")
                await line.closed()
                return
            if request.line.startswith("POST /messages"):
                await line.answer(b"", status="202 X")
                number = json.loads(request.body)["id"]
                await streams[0].write(event({"jsonrpc": "2.0", "id": number, "result": {}}))
            else:
                await line.answer(body, "Content-Type: application/json", status=f"{status} X")

    return script


OWN_ERROR = b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Method not allowed"}}'


@pytest.mark.promise("M12")
@pytest.mark.parametrize("status", [400, 404, 405])
@pytest.mark.parametrize("body", [OWN_ERROR, b'{"detail":"Method Not Allowed"}', b"No"])
async def test_the_status_of_the_first_answer_leads_to_the_event_stream_whatever_its_body(
    status: int, body: bytes
) -> None:
    async with serving(of_2024(status, body)) as url, far(url) as there:
        assert "result" in await there.ask("initialize", own=True)


@pytest.mark.parametrize("stream", [b": no endpoint, ever\n\n", b""])
async def test_without_an_endpoint_on_the_stream_the_first_answer_counts(stream: bytes) -> None:
    async def script(line: Wire) -> None:
        while request := await line.request():
            if request.line.startswith("GET") and stream:
                await line.stream(stream)
                await line.closed()
                return
            await line.answer(OWN_ERROR, "Content-Type: application/json", status="400 X")

    async with serving(script) as url, far(url, start_timeout_s=1.0) as there:
        for _ in range(2):  # the second time the stream is not looked for
            found = await there.ask("initialize", own=True)
            assert found["error"]["message"] == "Method not allowed"
        assert there.ear.losses == []


async def test_a_pinned_way_is_not_left() -> None:
    async with running() as (server, url), far(sse(url), transport="http") as there:
        found = await there.ask("initialize", own=True)
        assert found["failed"]["data"]["status"] == 405
        assert server.older == []


async def test_a_message_above_the_limit_ends_the_server() -> None:
    huge = b"data: " + b"x" * 200_000
    script = streaming(b"event: endpoint\ndata: /m\n\n", huge)
    async with serving(script) as url, far(url, transport="sse", message_bytes=65536) as there:
        there.send("initialize", {}, own=True)
        assert (await loss(there))[0] == "limit"


async def test_a_refused_message_fails_its_request() -> None:
    script = streaming(b"event: endpoint\ndata: /m\n\n")
    async with serving(script) as url, far(url, transport="sse") as there:
        found = await there.ask("initialize", own=True)
        assert found["failed"]["data"] == {
            "server": "far", "status": 405, "may_have_run": False,
        }  # fmt: skip


async def test_a_notification_that_is_refused_is_logged() -> None:
    script = streaming(b"event: endpoint\ndata: /m\n\n")
    async with serving(script) as url, far(url, transport="sse") as there:
        there.transport.tick()
        assert there.transport.write(jsonrpc_lines.notification("notifications/initialized"))
        assert there.transport.write(jsonrpc_lines.notification("notifications/x"))
        logged: list[str] = []

        def warned() -> bool:
            logged.extend(line for log in there.transport.take_log_lines() for line in log.lines)
            return len(logged) == 2

        await until(warned)
        assert all("HTTP 405" in line for line in logged)
