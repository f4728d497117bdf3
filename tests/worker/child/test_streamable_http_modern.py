"""The way to a modern server by streamable HTTP."""

import itertools
import json

import pytest

from metamcp_worker.child import request_headers
from metamcp_worker.child.http_transport import STARTS_AT_ONCE_MAX
from metamcp_worker.child.streamable_http import RemoteTransport
from tests.fakes.http_server import MODERN, event, running
from tests.worker.child.far import far, met_server
from tests.worker.rawhttp import until
from tests.worker.scripted import Wire, serving

pytestmark = pytest.mark.process


@pytest.mark.promise("M11")
@pytest.mark.parametrize("answer", ["json", "events"])
async def test_a_modern_server_is_told_in_headers_what_it_wants_to_know(answer: str) -> None:
    async with running(era="modern", answer=answer) as (server, url), far(url) as there:
        found = await there.discover()
        assert found["result"]["supportedVersions"] == [MODERN]
        await there.ask("tools/list", own=True)
        assert await there.text(there.call("echo", text="hi", region="eu")) == "hi"
        said = server.seen[-1].headers
        assert said["mcp-protocol-version"] == MODERN
        assert (said["mcp-method"], said["mcp-name"]) == ("tools/call", "echo")
        assert said["mcp-param-region"] == "eu"
        assert said["accept"] == "application/json, text/event-stream"
        assert "mcp-session-id" not in said
        assert there.ear.messages[-1][1:] == (b"3", 0)


async def test_configured_headers_go_with_every_request_and_never_replace_ours() -> None:
    configured = {"Authorization": "Bearer t", "Mcp-Method": "x", "accept": "x"}
    async with running() as (server, url), far(url, headers=configured) as there:
        await there.discover()
        await there.text(there.call("echo", text="hi"))
        assert {one.headers["authorization"] for one in server.seen} == {"Bearer t"}
        assert server.seen[0].headers["mcp-method"] == "server/discover"
        (log,) = there.transport.take_log_lines()
        assert len(log.lines) == 2
        assert "'Mcp-Method'" in log.lines[0]


async def test_progress_comes_on_the_stream_of_its_call_before_the_answer() -> None:
    async with met_server() as (_, there):
        key = there.call("progress")
        assert await there.text(key) == "done"
        (note, note_stream, _), (_, answer_stream, _) = there.ear.messages[-2:]
        assert note["method"] == "notifications/progress"
        assert note_stream == answer_stream == key


@pytest.mark.promise("M23")
@pytest.mark.parametrize("answer", ["json", "events"])
async def test_a_call_that_nobody_waits_for_is_cancelled_by_closing_its_answer(answer: str) -> None:
    async with running(answer=answer) as (server, url), far(url) as there:
        await there.discover()
        key = there.call("wait")
        await until(lambda: server.calls == ["wait"])
        assert there.drop(key)
        await until(lambda: server.dropped == [int(key)])
        assert server.cancelled == []
        assert await there.text(there.call("echo", text="next")) == "next"
        assert there.ear.answer(key) is None


async def test_errors_of_the_server_keep_their_bytes_whatever_the_http_status() -> None:
    async with met_server() as (_, there):
        found = await there.ask("unknown/method")
        assert found["error"] == {
            "code": -32601, "message": "no such method", "data": None, "x-kept": 1.0,
        }  # fmt: skip
        found = await there.outcome(there.call("nothing"))
        assert found["error"]["code"] == -32602


async def test_a_tool_with_an_invalid_annotation_is_left_out_and_the_log_says_so() -> None:
    async with running() as (server, url), far(url) as there:
        bad = {"type": "object", "properties": {"a": {"type": "array", "x-mcp-header": "A"}}}
        server.tools.append({"name": "bad", "inputSchema": bad})
        await there.discover()
        found = await there.ask("tools/list", own=True)
        assert "bad" not in [tool["name"] for tool in found["result"]["tools"]]
        (log,) = there.transport.take_log_lines()
        assert "'bad'" in log.lines[0]


async def test_a_mismatch_of_headers_makes_the_lists_be_read_again() -> None:
    async with met_server() as (_, there):
        found = await there.outcome(there.call("echo", region="eu"))
        assert found["error"]["code"] == -32020
        assert there.ear.messages[-1][0]["method"] == "notifications/tools/list_changed"


async def test_a_name_that_is_too_long_for_a_header_is_an_error_of_that_call_only() -> None:
    async with met_server() as (server, there):
        found = await there.ask("resources/read", {"uri": "x" * request_headers.HEADERS_BYTES_MAX})
        assert found["failed"]["code"] == -10004
        assert found["failed"]["data"]["may_have_run"] is False
        assert len(server.seen) == 1


async def test_a_subscription_is_open_until_it_is_dropped() -> None:
    async with met_server() as (server, there):
        key = there.send("subscriptions/listen", {"notifications": {}}, own=True)
        await there.ear.until(lambda: len(there.ear.messages) == 2)
        note, stream, _ = there.ear.messages[-1]
        assert note["method"] == "notifications/subscriptions/acknowledged"
        assert stream == key
        there.drop(key)
        await until(lambda: server.dropped == [int(key)])


async def test_nothing_but_requests_is_sent_to_a_modern_server() -> None:
    async with met_server() as (server, there):
        assert not there.transport.write(b'{"jsonrpc":"2.0","method":"notifications/x"}\n')
        await there.text(there.call("echo", text="hi"))
        assert len(server.seen) == 2
    assert server.deleted == []


async def test_a_modern_server_that_was_replaced_by_a_legacy_one_is_lost() -> None:
    async with met_server() as (server, there):
        server.options.era = "legacy"
        found = await there.outcome(there.call("echo", text="hi"))
        assert found["error"]["code"] == -32600
        await there.ear.until(lambda: there.ear.losses)
        (loss,) = there.ear.losses
        assert (loss.reason, MODERN in loss.message) == ("protocol", True)


async def test_an_error_about_a_request_costs_no_look_at_the_server() -> None:
    async with met_server() as (server, there):
        for _ in range(5):
            await there.ask("unknown/method")
        assert len(server.seen) == 6


async def test_an_answer_of_several_lines_becomes_one() -> None:
    async with met_server() as (server, there):
        server.indent = 2
        assert await there.text(there.call("echo", text="a\nb")) == "a\nb"
        assert b"\n" not in there.ear.raw[-1]
        assert json.loads(there.ear.raw[-1])["result"]["x-kept"] == 1.0


async def test_a_connection_is_used_again_after_an_answer_on_a_stream() -> None:
    connections: list[Wire] = []

    async def script(wire: Wire) -> None:
        connections.append(wire)
        while request := await wire.request():
            number = json.loads(request.body)["id"]
            body = event({"jsonrpc": "2.0", "id": number, "result": {}})
            head = b"Transfer-Encoding: chunked\r\nContent-Type: text/event-stream"
            await wire.write(b"HTTP/1.1 200 OK\r\n%b\r\n\r\n" % head)
            await wire.write(b"%x\r\n%b\r\n" % (len(body), body))
            await wire.write(b"0\r\n\r\n")

    async with serving(script) as url, far(url) as there:
        for _ in range(5):
            key = there.send("tools/list")
            assert "result" in await there.outcome(key)
            await there.settled(key)
    assert len(connections) == 1


async def test_a_pause_keeps_answers_away_until_it_is_over() -> None:
    async with met_server() as (server, there):
        there.transport.pause()
        keys = [there.call("echo", text=str(number)) for number in range(3)]
        await until(lambda: len(server.calls) == 3)
        turns = itertools.count()
        await until(lambda: next(turns) > 50)
        assert len(there.ear.messages) == 1
        there.transport.resume()
        assert [await there.text(key) for key in keys] == ["0", "1", "2"]


async def test_requests_of_the_gateway_wait_for_no_call() -> None:
    async with running() as (_, url), far(url) as there:
        assert isinstance(there.transport, RemoteTransport)
        starts = there.transport.starts
        for _ in range(STARTS_AT_ONCE_MAX):
            await starts.acquire()
        key = there.call("echo", text="late")
        assert "result" in await there.discover()
        assert "result" in await there.ask("tools/list", own=True)
        assert there.ear.answer(key) is None
        starts.release()
        assert await there.text(key) == "late"
        assert not starts.locked()


async def test_a_burst_of_calls_is_sent_at_the_pace_of_the_server() -> None:
    async with met_server() as (server, there):
        keys = [there.call("wait") for _ in range(300)]
        await until(lambda: len(server.calls) == 300)
        assert there.ear.failures == {}
        for key in keys:
            there.drop(key)
        await until(lambda: len(server.dropped) == 300)
