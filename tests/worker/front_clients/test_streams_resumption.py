"""Going on with a stream after a lost connection, over real sockets."""

import asyncio

import pytest

from metamcp_worker.access import gate
from metamcp_worker.front_clients import streams
from metamcp_worker.ipc.disclosure import ViewOwner
from metamcp_worker.ipc.frames import (
    MESSAGE_BYTES,
    CallFrame,
    Cancel,
    Progress,
    QuestionFrame,
    Result,
)
from tests.worker.front.door import Door, bodiless, legacy, opened_door, opened_session
from tests.worker.front.offers import offer

from ..rawhttp import Client, until

pytestmark = pytest.mark.process

CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}


async def told(door: Door, session: str) -> tuple[Client, CallFrame]:
    """A call in whose middle something was told, and the client that has read it."""
    client = await door.call(session, _meta={"progressToken": "p"})
    call = await door.peer.call()
    door.peer.write(Progress(call.id, b'{"progress":1}'))
    await client.head()
    assert (await client.event())["params"]["progress"] == 1
    return client, call


async def lost(door: Door, client: Client, connections: int) -> None:
    """Break this connection, and wait until the gateway knows."""
    await client.close()
    await until(lambda: door.server.connections == connections)


async def resumed(door: Door, session: str, event_id: str) -> Client:
    return await door.news(session, f"Last-Event-ID: {event_id}")


@pytest.mark.promise("M23")
@pytest.mark.parametrize(
    ("protocol", "first"), [("2025-11-25", b"retry: "), ("2025-06-18", b"event: message")]
)
async def test_a_stream_begins_with_an_id_where_clients_understand_that(
    protocol: str, first: bytes
) -> None:
    async with opened_session(protocol) as (door, session):
        client = await door.call(session, _meta={"progressToken": "p"})
        call = await door.peer.call()
        door.peer.write(Progress(call.id, b'{"progress":1}'))
        await client.head()
        chunk = await client.chunk()
        assert chunk.startswith(b"id: ")
        assert chunk.partition(b"\n")[2].startswith(first)


async def test_a_call_of_which_nothing_is_told_is_answered_with_plain_json() -> None:
    async with opened_session() as (door, session):
        client = await door.call(session)
        door.peer.write(Result((await door.peer.call()).id, b"{}"))
        reply = await client.reply()
        assert reply.headers["content-type"] == "application/json"


async def test_a_client_may_come_back_for_its_call_to_a_front_that_ends_but_not_for_news() -> None:
    async with opened_session() as (door, session):
        news = await door.news(session)
        client, call = await told(door, session)
        drain = asyncio.create_task(door.app.drain(30))
        assert await news.event() is None
        await client.close()
        second = await resumed(door, session, client.event_ids[-1])
        refused = await door.ask(bodiless("GET", f"Mcp-Session-Id: {session}"))
        assert refused.status == 503
        assert b"is ending" in refused.body
        door.peer.write(Result(call.id, b'{"n":1}'))
        assert (await second.event())["result"] == {"n": 1}
        await drain


@pytest.mark.promise("M23")
@pytest.mark.parametrize("protocol", ["2025-11-25", "2025-06-18"])
async def test_a_client_that_comes_back_gets_what_it_missed_and_the_answer_once(
    protocol: str,
) -> None:
    async with opened_session(protocol) as (door, session):
        client, call = await told(door, session)
        await lost(door, client, 1)
        door.peer.write(Progress(call.id, b'{"progress":2}'))
        second = await resumed(door, session, client.event_ids[-1])
        assert (await second.event())["params"]["progress"] == 2
        door.peer.write(Progress(call.id, b'{"progress":3}'))
        assert (await second.event())["params"]["progress"] == 3
        door.peer.write(Result(call.id, b'{"n":1}'))
        assert (await second.event())["result"] == {"n": 1}
        assert await second.event() is None
        third = await resumed(door, session, second.event_ids[-1])
        assert await third.event() is None  # there is nothing behind the answer


async def test_a_call_that_ended_in_the_meantime_is_answered_to_whoever_comes_back_for_it() -> None:
    async with opened_session() as (door, session):
        client, call = await told(door, session)
        await lost(door, client, 1)
        door.peer.write(Result(call.id, b'{"n":1}'))
        ping = legacy("ping", id=9, session=session)
        assert (await door.ask(ping)).status == 200  # behind the result, which came before it
        for _ in range(2):  # the second connection may break as well
            second = await resumed(door, session, client.event_ids[-1])
            assert (await second.event())["result"] == {"n": 1}
            assert await second.event() is None


async def test_a_client_may_come_back_before_anybody_knows_that_it_was_gone() -> None:
    async with opened_session() as (door, session):
        client, call = await told(door, session)
        second = await resumed(door, session, client.event_ids[0])
        assert (await second.event())["params"]["progress"] == 1
        assert await client.event() is None  # the connection before was given up
        door.peer.write(Result(call.id, b"{}"))
        assert (await second.event())["result"] == {}


async def test_a_question_waits_for_a_client_that_comes_back() -> None:
    async with opened_session(roots={}) as (door, session):
        client, call = await told(door, session)
        await lost(door, client, 1)
        door.peer.write(QuestionFrame(call.id, 1, "roots/list", b"{}"))
        second = await resumed(door, session, client.event_ids[-1])
        question = await second.event()
        await door.answer(session, question, '"result":{"roots":[]}')
        assert not (await door.peer.read()).failed  # type: ignore[union-attr] # it is a Reply


async def test_the_stream_of_a_session_tells_what_was_lost_on_the_way() -> None:
    async with opened_session() as (door, session):
        first = await door.news(session)
        door.offer(offer("t"))
        assert await first.event() == CHANGED
        await lost(door, first, 1)
        door.app.lists_changed({ViewOwner("default", gate.LOCAL): frozenset({"prompts"})})
        second = await resumed(door, session, first.event_ids[0])
        assert await second.event() == CHANGED  # it claims not to have read that
        assert (await second.event())["method"] == "notifications/prompts/list_changed"
        third = await resumed(door, session, second.event_ids[-1])
        door.offer(offer("t", "u"))
        assert await third.event() == CHANGED
        assert await second.event() is None


async def test_with_an_id_that_names_nothing_the_stream_is_a_new_one() -> None:
    async with opened_door() as door:
        session, other = await door.initialize(), await door.initialize()
        client, _ = await told(door, other)
        for name in ("nonsense", client.event_ids[-1]):  # also that of somebody else's stream
            news = await resumed(door, session, name)
            door.offer(offer("t"))
            assert await news.event() == CHANGED
            door.offer(offer("t", "u"))
            assert await news.event() == CHANGED


async def test_who_resumes_needs_a_session_and_names_one_event() -> None:
    async with opened_session() as (door, session):
        client, _ = await told(door, session)
        name = f"Last-Event-ID: {client.event_ids[-1]}"
        assert (await door.ask(bodiless("GET", name))).outcome == (400, -32600)
        twice = bodiless("GET", f"Mcp-Session-Id: {session}", name, name)
        assert (await door.ask(twice)).outcome == (400, -32600)
        gone = bodiless("GET", "Mcp-Session-Id: gone", name)
        assert (await door.ask(gone)).outcome == (404, -32600)


async def test_a_call_can_be_cancelled_by_a_client_that_came_back() -> None:
    async with opened_session() as (door, session):
        client, call = await told(door, session)
        await lost(door, client, 1)
        second = await resumed(door, session, client.event_ids[-1])
        params = {"requestId": 1, "reason": "enough"}
        await door.ask(legacy("notifications/cancelled", params, id=None, session=session))
        assert await door.peer.read() == Cancel(call.id, b"enough")
        assert (await second.event())["error"]["code"] == -32800


@pytest.mark.promise("M98")
async def test_a_reader_that_was_too_slow_can_come_back_for_the_answer() -> None:
    async with opened_session() as (door, session):
        client, call = await told(door, session)
        large = b'{"progress":2,"message":"%b"}' % (b"x" * streams.QUEUE_BYTES_MAX)
        while door.stats.refusals != {"slow_reader": 1}:
            await asyncio.to_thread(door.peer.write, Progress(call.id, large))
        door.peer.write(Result(call.id, b'{"n":1}'))
        await until(lambda: not any(door.calls.inflight().values()))
        second = await resumed(door, session, client.event_ids[-1])
        while "result" not in (message := await second.event()):
            assert message["method"] == "notifications/progress"
        assert message["result"] == {"n": 1}


@pytest.mark.promise("M98")
async def test_an_answer_of_the_largest_size_waits_for_its_client() -> None:
    async with opened_session() as (door, session):
        client, call = await told(door, session)
        await lost(door, client, 1)
        body = b'{"x":"%b"}' % (b"x" * (MESSAGE_BYTES - 8))
        await asyncio.to_thread(door.peer.write, Result(call.id, body))
        second = await resumed(door, session, client.event_ids[-1])
        assert len((await second.event())["result"]["x"]) == len(body) - 8
        assert await second.event() is None


@pytest.mark.promise("M2")
@pytest.mark.parametrize(
    ("method", "answer"), [("tools/list", "result"), ("resources/subscribe", "error")]
)
async def test_who_would_rather_read_a_stream_gets_one_for_every_request(
    method: str, answer: str
) -> None:
    async with opened_session() as (door, session):
        client = await door.connect()
        accept = "Accept: text/event-stream, application/json"
        client.send(legacy(method, {}, accept, session=session))
        assert (await client.head()).headers["content-type"] == "text/event-stream"
        assert answer in await client.event()
        assert client.event_ids
        assert await client.event() is None
