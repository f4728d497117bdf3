"""The way to a legacy server by streamable HTTP: sessions and their streams."""

import asyncio
import json

import pytest

from metamcp_worker.child import http_sessions, jsonrpc_lines
from tests.fakes.http_server import Server, event, running
from tests.worker.child.far import Far, can, far, met_server
from tests.worker.rawhttp import until

pytestmark = pytest.mark.process

LEVEL = {"level": "debug"}


@pytest.mark.promise("M11")
@pytest.mark.parametrize("answer", ["json", "events"])
async def test_a_legacy_server_has_its_session_named_in_every_request(answer: str) -> None:
    async with running(era="legacy", answer=answer) as (server, url), far(url) as there:
        found = await there.discover()
        assert found["error"]["code"] == -32600
        await there.initialize()
        (name,) = server.sessions
        assert await there.text(there.call("echo", text="hi")) == "hi"
        said = server.seen[-1].headers
        assert (said["mcp-session-id"], said["mcp-protocol-version"]) == (name, "2025-11-25")
        assert "mcp-method" not in said
        first = next(one for one in server.seen if b'"initialize"' in one.body)
        assert not {"mcp-session-id", "mcp-protocol-version"} & first.headers.keys()
    assert server.deleted == [name]


async def test_requests_wait_until_the_server_knows_that_the_session_is_begun() -> None:
    async with met_server(era="legacy") as (server, there):
        keys = [there.call("echo", text=str(number)) for number in range(5)]
        await asyncio.gather(*(there.text(key) for key in keys))
        (session,) = server.sessions.values()
        assert session.told[0]["method"] == "notifications/initialized"
        assert len(session.told) == 6


async def test_a_server_without_session_ids_is_sent_none() -> None:
    quiet = running(era="legacy", sessions=False, get=False)
    async with quiet as (server, url), far(url) as there:
        await there.initialize()
        assert await there.text(there.call("echo", can("elicitation"), text="hi")) == "hi"
        assert all("mcp-session-id" not in one.headers for one in server.seen)
    assert server.deleted == []


@pytest.mark.promise("M23")
async def test_a_caller_that_can_be_asked_has_a_session_that_declares_it() -> None:
    async with met_server(era="legacy") as (server, there):
        key = there.call("ask", can("elicitation", "tasks"))
        stream, via = await asked(there)
        assert stream == key
        there.transport.write(jsonrpc_lines.answer(b'"q1"', b'{"action":"accept","x":1.0}'), via)
        told = json.loads(await there.text(key))
        assert told["result"] == {"action": "accept", "x": 1.0}
        await there.text(there.call("echo", can(), text="hi"))
        declared = [session.capabilities for session in server.sessions.values()]
        assert declared == [{}, {"elicitation": {}}]
        base, other = server.sessions.values()
        assert [one.get("method") for one in other.told] == [
            "notifications/initialized", "tools/call", None,
        ]  # fmt: skip
        assert len(base.told) == 2


async def asked(there: Far) -> tuple[bytes | None, int]:
    """Wait for a question; the stream and the session that it came in."""

    def questions() -> list[tuple[bytes | None, int]]:
        return [
            (stream, via)
            for message, stream, via in there.ear.messages
            if message.get("method") == "elicitation/create"
        ]

    await there.ear.until(questions)
    return questions()[0]


@pytest.mark.promise("M23")
@pytest.mark.parametrize("answer", ["json", "events"])
async def test_a_cancelled_call_is_cancelled_with_a_notification_in_its_session(
    answer: str,
) -> None:
    async with met_server(era="legacy", answer=answer) as (server, there):
        key = there.call("wait", can("roots"))
        await until(lambda: server.calls == ["wait"])
        assert there.drop(key)
        await until(lambda: server.cancelled == [int(key)])
        _, other = server.sessions.values()
        assert other.told[-1]["method"] == "notifications/cancelled"
        await until(lambda: server.dropped == [int(key)])
        assert there.ear.answer(key) is None


@pytest.mark.parametrize("gone", [404, 400, 200])
async def test_a_forgotten_session_is_opened_anew_and_each_call_runs_once(gone: int) -> None:
    async with met_server(era="legacy", gone=gone) as (server, there):
        await there.text(there.call("echo", can("roots"), text="first"))
        server.sessions.clear()
        callers = [can("roots") if number % 2 else None for number in range(40)]
        keys = [there.call("echo", who, text=f"c{at}") for at, who in enumerate(callers)]
        texts = await asyncio.gather(*(there.text(key) for key in keys))
        assert texts == [f"c{number}" for number in range(40)]
        assert sorted(server.calls[1:]) == sorted(texts)
        declared = [session.capabilities for session in server.sessions.values()]
        assert sorted(map(str, declared)) == ["{'roots': {}}", "{}"]
        assert there.ear.failures == {}


async def test_sessions_that_are_forgotten_under_load_cost_no_call() -> None:
    async with met_server(era="legacy") as (server, there):

        async def caller(number: int) -> None:
            who = can("roots") if number % 2 else None
            for count in range(30):
                text = f"{number}-{count}"
                assert await there.text(there.call("echo", who, text=text)) == text
                if number == 0 and count % 6 == 5:
                    server.sessions.clear()

        await asyncio.gather(*(caller(number) for number in range(16)))
        assert len(server.calls) == len(set(server.calls)) == 16 * 30
        assert there.ear.failures == {}


async def test_what_was_set_in_a_forgotten_session_is_set_in_the_new_one() -> None:
    async with met_server(era="legacy") as (server, there):
        await there.ask("logging/setLevel", LEVEL, own=True)
        await there.ask("resources/subscribe", {"uri": "a:b"}, own=True)
        server.sessions.clear()
        await there.text(there.call("echo", text="hi"))
        (session,) = server.sessions.values()
        settings = ["logging/setLevel", "resources/subscribe"]
        methods = [one["method"] for one in session.told]
        assert methods == ["notifications/initialized", *settings, "tools/call"]
        assert session.told[2]["params"] == {"uri": "a:b"}
        # It may be another server than before, so everybody looks again.
        await there.ear.until(lambda: "notifications/tools/list_changed" in told(there))


def told(there: Far) -> list[str]:
    """Notifications that belong to no request."""
    return [one["method"] for one, stream, _ in there.ear.messages if stream == b""]


async def test_a_server_that_forgets_every_session_at_once_is_asked_twice_and_no_more() -> None:
    async with met_server(era="legacy") as (server, there):
        server.amnesia = True
        server.sessions.clear()
        found = await there.outcome(there.call("echo", text="hi"))
        assert "twice" in found["failed"]["message"]
        assert found["failed"]["data"]["may_have_run"] is False
        calls = [one for one in server.seen if b'"tools/call"' in one.body]
        assert len(calls) == 2
        assert server.calls == []


async def test_a_server_that_opens_no_new_session_is_lost() -> None:
    async with met_server(era="legacy") as (server, there):
        await there.text(there.call("echo", text="hi"))
        server.sessions.clear()
        server.closed = True
        key = there.call("echo", text="hi")
        await there.ear.until(lambda: there.ear.losses)
        assert there.ear.losses[0].reason == "protocol"
        assert "does not open a new one" in there.ear.losses[0].message
        assert there.ear.answer(key) is None


async def test_a_legacy_server_that_was_replaced_by_a_modern_one_is_lost() -> None:
    async with met_server(era="legacy") as (server, there):
        await there.text(there.call("echo", text="hi"))
        server.options.era = "modern"
        found = await there.outcome(there.call("echo", text="hi"))
        assert found["error"]["code"] == -32022
        (loss,) = there.ear.losses
        assert (loss.reason, "2025-11-25" in loss.message) == ("protocol", True)


async def test_with_too_many_kinds_of_clients_in_use_the_next_is_refused() -> None:
    async with met_server(era="legacy") as (server, there):
        for number in range(http_sessions.SESSIONS_MAX):
            there.call("wait", {"clientCapabilities": {"roots": {"n": number}}})
        await until(lambda: len(server.calls) == http_sessions.SESSIONS_MAX)
        found = await there.outcome(there.call("echo", can("sampling"), text="hi"))
        assert found["failed"]["code"] == -10002
        assert await there.text(there.call("echo", text="hi")) == "hi"


async def test_what_the_server_says_on_its_own_comes_without_a_request() -> None:
    async with met_server(era="legacy") as (server, there):
        await there.text(there.call("echo", can("roots"), text="hi"))
        await until(lambda: all(one.stream for one in server.sessions.values()))
        for session in server.sessions.values():
            assert session.stream is not None
            await session.stream.write(b": keep\n\n" + event(note("notifications/message")))
        await there.ear.until(lambda: len(there.ear.messages) == 4)
        news = there.ear.messages[-2:]
        assert [stream for _, stream, _ in news] == [b"", b""]
        assert len({via for _, _, via in news}) == 2


def note(method: str) -> dict[str, object]:
    return {"jsonrpc": "2.0", "method": method, "params": {}}


async def stream_of(server: Server, number: int = 0) -> None:
    """Wait until the base session has a stream, and end that."""
    (session,) = server.sessions.values()
    await until(lambda: session.stream is not None)
    assert session.stream is not None
    stream, session.stream = session.stream, None
    await stream.write(b"id: g%d\nretry: 100\ndata:\n\n" % number)
    await stream.shut()


async def test_a_stream_that_ends_is_taken_up_from_its_last_event() -> None:
    async with met_server(era="legacy") as (server, there):
        server.resumed["g0"] = event(note("notifications/message"))
        await stream_of(server)
        await there.ear.until(lambda: "notifications/message" in told(there))
        await stream_of(server, 1)
        last = [one.headers.get("last-event-id") for one in server.seen if "GET" in one.line]
        assert last == [None, "g0", "g0"]


async def test_a_session_that_is_gone_when_its_stream_ends_is_opened_anew() -> None:
    async with met_server(era="legacy") as (server, there):
        (session,) = server.sessions.values()
        await until(lambda: session.stream is not None)
        server.sessions.clear()
        assert session.stream is not None
        await session.stream.write(b"retry: 100\n\n")
        await session.stream.shut()
        await there.ear.until(lambda: "notifications/tools/list_changed" in told(there))
        assert len(server.sessions) == 1


async def test_a_server_without_a_stream_of_its_own_is_asked_once() -> None:
    async with met_server(era="legacy", get=False) as (server, there):
        await until(lambda: any("GET" in one.line for one in server.seen))
        await there.text(there.call("echo", text="hi"))
        await there.text(there.call("echo", text="hi"))
        assert sum("GET" in one.line for one in server.seen) == 1


@pytest.mark.promise("M11")
async def test_a_call_whose_connection_the_server_ends_is_taken_up_by_event_id() -> None:
    async with met_server(era="legacy") as (server, there):
        assert await there.text(there.call("poll")) == "polled"
        last = server.seen[-1]
        assert last.line.startswith("GET")
        assert last.headers["last-event-id"] == "e1"
        assert last.headers["mcp-session-id"] in server.sessions
        assert server.calls == ["poll"]


async def test_a_call_whose_stream_cannot_be_taken_up_fails_and_may_have_run() -> None:
    async with met_server(era="legacy") as (server, there):
        found = await there.outcome(there.call("break"))
        assert found["failed"]["code"] == -10001
        assert found["failed"]["data"]["may_have_run"] is True
        assert server.calls == ["break"]


async def test_a_session_is_closed_when_nobody_needs_it_any_more() -> None:
    async with met_server(era="legacy") as (server, there):
        for number in range(http_sessions.SESSIONS_MAX + 1):
            who = {"clientCapabilities": {"roots": {"n": number}}}
            await there.text(there.call("echo", who, text="hi"))
        first = next(one.id for one in server.sessions.values() if one.capabilities)
        there.transport.tick()
        await until(lambda: server.deleted == [first])
