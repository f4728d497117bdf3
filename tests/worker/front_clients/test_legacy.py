"""The handshake era, over a real socket and a real pipe."""

import asyncio
from typing import Any

import pytest

from metamcp_worker.access import gate
from metamcp_worker.front_clients.client_sessions import CALLER_BYTES_MAX
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.disclosure import ViewOwner
from metamcp_worker.ipc.frames import Cancel, Error, Progress, Result
from tests.worker.front.door import (
    LEGACY,
    Door,
    bodiless,
    legacy,
    opened_door,
    opened_session,
)
from tests.worker.front.offers import offer

from ..rawhttp import Client, post, until

PARAMS: dict[str, Any] = {
    "protocolVersion": LEGACY,
    "capabilities": {"roots": {}, "sampling": {}, "elicitation": {}, "experimental": {"x": [1.5]}},
    "clientInfo": {"name": "c", "version": "1"},
}


HERE = ViewOwner("default", gate.LOCAL)


def news(session: str) -> bytes:
    return bodiless("GET", f"Mcp-Session-Id: {session}")


def cancelled(session: str, request: object) -> bytes:
    params = {"requestId": request, "reason": "enough"}
    return legacy("notifications/cancelled", params, id=None, session=session)


async def calling(door: Door, session: str, **more: Any) -> Client:
    client = await door.connect()
    client.send(legacy("tools/call", {"name": "t", **more}, session=session))
    return client


@pytest.mark.promise("M1")
@pytest.mark.parametrize(
    ("asked", "spoken"),
    [
        ("2025-11-25", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2025-03-26", "2025-03-26"),
        ("2024-11-05", "2024-11-05"),
        ("2026-07-28", "2025-11-25"),
        ("1900-01-01", "2025-11-25"),
    ],
)
async def test_the_handshake_opens_a_session_in_a_revision_that_both_speak(
    asked: str, spoken: str
) -> None:
    async with opened_door() as door:
        reply = await door.ask(legacy("initialize", {**PARAMS, "protocolVersion": asked}))
        result = reply.json["result"]
        assert result["protocolVersion"] == spoken
        assert result["capabilities"]["tools"] == {"listChanged": True}
        assert result["serverInfo"] == {"name": "metamcp", "version": "1.2.3"}
        assert len(reply.headers["mcp-session-id"]) >= 22  # 128 bits
        assert door.app.counts().sessions[spoken] == 1
        session = reply.headers["mcp-session-id"]
        done = legacy(
            "notifications/initialized", None, f"MCP-Protocol-Version: {spoken}",
            id=None, session=session,
        )  # fmt: skip
        reply = await door.ask(done)
        assert (reply.status, reply.body) == (202, b"")
        assert session != await door.initialize()


async def test_a_handshake_needs_its_version_and_is_made_once() -> None:
    async with opened_door() as door:
        assert (await door.ask(legacy("initialize", {}))).outcome == (400, -32602)
        session = await door.initialize()
        again = legacy("initialize", PARAMS, session=session)
        assert (await door.ask(again)).outcome == (400, -32600)
        lost = legacy("initialize", PARAMS, session="gone")
        assert (await door.ask(lost)).outcome == (404, -32600)


async def test_a_session_belongs_to_its_endpoint_and_its_revision() -> None:
    async with opened_session() as (door, session):
        ping = legacy("ping", session=session, path="/metamcp/dev/mcp")
        assert (await door.ask(ping)).outcome == (404, -32600)
        ping = legacy("ping", None, "MCP-Protocol-Version: 2025-06-18", session=session)
        assert (await door.ask(ping)).outcome == (400, -32600)


async def test_goodbye_ends_the_session_with_its_stream_and_its_calls() -> None:
    async with opened_session() as (door, session):
        stream = await door.connect()
        stream.send(news(session))
        await stream.head()
        client = await calling(door, session)
        call = await door.peer.call()
        goodbye = bodiless("DELETE", f"Mcp-Session-Id: {session}")
        assert (await door.ask(goodbye)).status == 200
        assert await stream.event() is None
        assert (await door.peer.cancelled()).id == call.id
        assert (await client.reply()).json["error"]["code"] == -32800
        assert (await door.ask(goodbye)).outcome == (404, -32600)
        assert (await door.ask(news(session))).outcome == (404, -32600)


@pytest.mark.promise("M22")
async def test_a_call_in_a_session_is_relayed_with_what_the_client_said_of_itself() -> None:
    async with opened_door() as door:
        session = (await door.ask(legacy("initialize", PARAMS))).headers["mcp-session-id"]
        client = await calling(door, session, _meta={"a/b": 1}, arguments={})
        call = await door.peer.call()
        assert call.params == b'{"name":"t","arguments":{}}'
        assert call.meta == b'{"a/b":1}'
        assert codec.value(call.caller) == {
            "clientCapabilities": PARAMS["capabilities"],
            "clientInfo": PARAMS["clientInfo"],
        }
        assert call.peer > 0
        door.peer.write(Error(call.id, b'{"code":-32602,"message":"no", "x":1}'))
        reply = await client.reply()
        assert reply.status == 200  # an error of a method is no matter of HTTP in this era
        assert reply.body.endswith(b'"error":{"code":-32602,"message":"no", "x":1}}')


async def test_no_client_of_this_era_says_in_meta_what_only_the_gateway_may() -> None:
    async with opened_session() as (door, session):
        names = ("clientCapabilities", "clientInfo", "logLevel", "protocolVersion", "related-task")
        meta: dict[str, object] = {f"io.modelcontextprotocol/{name}": {} for name in names}
        await calling(door, session, _meta=meta)
        found = codec.value((await door.peer.call()).meta)
        assert found == {"io.modelcontextprotocol/related-task": {}}


@pytest.mark.promise("M98")
@pytest.mark.parametrize("capabilities", [{"x": "y" * CALLER_BYTES_MAX}, [], None, 1])
async def test_a_session_keeps_only_so_much_of_what_a_client_says_of_itself(
    capabilities: object,
) -> None:
    async with opened_door() as door:
        hello = legacy("initialize", {**PARAMS, "capabilities": capabilities})
        assert (await door.ask(hello)).outcome == (400, -32602)
        assert sum(door.app.counts().sessions.values()) == 0


async def test_refusals_of_methods_are_answers_too() -> None:
    async with opened_session() as (door, session):
        unknown = legacy("tools/call", {"name": "v"}, session=session)
        assert (await door.ask(unknown)).outcome == (200, -32602)
        cursor = legacy("tools/list", {"cursor": "x"}, session=session)
        assert (await door.ask(cursor)).outcome == (200, -32602)


@pytest.mark.promise("M23")
async def test_a_cancelled_call_is_cancelled_at_its_server_and_its_request_ends() -> None:
    async with opened_session() as (door, session):
        other = await door.initialize()
        for meta in ({}, {"progressToken": 1}):
            client = await calling(door, session, _meta=meta)
            call = await door.peer.call()
            for stray in (cancelled(session, "1"), cancelled(other, 1), cancelled(session, 2)):
                assert (await door.ask(stray)).status == 202
            assert door.peer.quiet()  # another id, another session, another type
            assert (await door.ask(cancelled(session, 1))).status == 202
            assert await door.peer.cancelled() == Cancel(call.id, b"enough")
            assert (await client.reply()).outcome == (200, -32800)
        assert door.stats.refusals == {"stray_cancel": 6}


@pytest.mark.promise("M98")
async def test_an_id_in_flight_cannot_be_used_again_and_the_first_is_unharmed() -> None:
    async with opened_session() as (door, session):
        client = await calling(door, session)
        call = await door.peer.call()
        again = await calling(door, session)
        assert (await again.reply()).outcome == (400, -32600)
        door.peer.write(Result(call.id, b'{"first":1}'))
        assert (await client.reply()).json["result"] == {"first": 1}
        later = await calling(door, session)
        door.peer.write(Result((await door.peer.call()).id, b"{}"))
        assert (await later.reply()).status == 200


@pytest.mark.promise("M23")
async def test_a_client_that_goes_away_has_cancelled_nothing() -> None:
    async with opened_session() as (door, session):
        client = await calling(door, session)
        call = await door.peer.call()
        await client.close()
        await until(lambda: door.server.connections == 1)  # that of the handshake
        assert door.peer.quiet()
        assert (await door.ask(cancelled(session, 1))).status == 202  # it still can
        assert (await door.peer.cancelled()).id == call.id


@pytest.mark.promise("M23")
async def test_progress_makes_a_stream_of_the_answer() -> None:
    async with opened_session() as (door, session):
        client = await calling(door, session, _meta={"progressToken": "p"})
        call = await door.peer.call()
        for step in (1, 2):
            door.peer.write(Progress(call.id, b'{"progress":%d}' % step))
        door.peer.write(Result(call.id, b'{"n":1}'))
        assert (await client.head()).headers["content-type"] == "text/event-stream"
        steps = [(await client.event())["params"]["progress"] for _ in range(2)]
        assert steps == [1, 2]
        assert (await client.event())["result"] == {"n": 1}
        assert await client.event() is None


async def test_a_posted_answer_is_accepted_and_counted() -> None:
    async with opened_session() as (door, session):
        answer = b'{"jsonrpc":"2.0","id":1,"result":{}}'
        reply = await door.ask(post(answer, f"Mcp-Session-Id: {session}"))
        assert (reply.status, reply.body) == (202, b"")
        assert door.stats.refusals == {"stray_answer": 1}


@pytest.mark.promise("M28")
async def test_the_stream_of_a_session_tells_of_changed_lists_also_of_those_before_it() -> None:
    async with opened_session() as (door, session):
        door.offer(offer("t"))
        stream = await door.connect()
        stream.send(news(session))
        assert (await stream.head()).headers["content-type"] == "text/event-stream"
        changed = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
        assert await stream.event() == changed
        door.offer(offer("t", "u"))
        assert await stream.event() == changed
        door.app.lists_changed({HERE: frozenset({"resources", "resourceTemplates"})})
        assert (await stream.event())["method"] == "notifications/resources/list_changed"


async def test_the_newest_stream_of_a_session_replaces_the_one_before() -> None:
    async with opened_session() as (door, session):
        first, second = await door.connect(), await door.connect()
        for stream in (first, second):
            stream.send(news(session))
            await stream.head()
        assert await first.event() is None
        door.offer(offer("t"))
        assert await second.event() is not None
        await second.close()
        await until(lambda: door.app.counts().streams == 0)


async def test_a_stream_needs_a_session_and_a_reader() -> None:
    async with opened_door() as door:
        assert (await door.ask(bodiless("GET"))).outcome == (400, -32600)
        session = await door.initialize()
        deaf = bodiless("GET", f"Mcp-Session-Id: {session}", "Accept: application/json")
        assert (await door.ask(deaf)).outcome == (406, -32600)


@pytest.mark.promise("M98")
async def test_many_requests_of_one_session_run_side_by_side() -> None:
    async with opened_session() as (door, session):
        clients = [await door.connect() for _ in range(8)]
        for number, client in enumerate(clients):
            client.send(legacy("tools/call", {"name": "t"}, id=number, session=session))
        calls = [await door.peer.call() for _ in clients]
        for call in reversed(calls):
            door.peer.write(Result(call.id, b"{}"))
        replies = await asyncio.gather(*(client.reply() for client in clients))
        assert [reply.json["id"] for reply in replies] == list(range(8))
