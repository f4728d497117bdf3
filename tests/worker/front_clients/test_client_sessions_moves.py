"""Sessions that go on in another front, and sessions that nobody comes back to."""

import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from metamcp_worker.front_clients import client_sessions as sessions
from metamcp_worker.front_clients.client_sessions import IDLE_S, ClientSessions
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.frames import Notice, Result
from metamcp_worker.ipc.messages import SessionRecord
from tests.worker.front.door import LEGACY, Door, bodiless, legacy, opened_door
from tests.worker.front.offers import offer, resource

pytestmark = pytest.mark.process

UPDATED = "notifications/resources/updated"


async def left(door: Door) -> str:
    """A session that has a level and watches a resource."""
    door.offer(offer("t", resources=[resource("r:1")]))
    session = await door.initialize(roots={})
    await door.ask(legacy("logging/setLevel", {"level": "error"}, session=session))
    await door.peer.read()
    client = await door.connect()
    client.send(legacy("resources/subscribe", {"uri": "r:1"}, session=session))
    door.peer.write(Result((await door.peer.call()).id, b"{}"))
    assert (await client.reply()).outcome == (200, 0)
    return session


@asynccontextmanager
async def two_doors() -> AsyncGenerator[tuple[Door, Door, str]]:
    """The first front, the one that comes after it, and a session of the first."""
    async with opened_door() as first:
        session = await left(first)
        async with opened_door() as second:
            second.offer(offer("t", resources=[resource("r:1")]))
            yield first, second, session


@pytest.mark.promise("M79")
async def test_a_session_goes_on_in_another_front_with_all_that_is_known_of_it() -> None:
    async with two_doors() as (first, second, session):
        second.app.adopt([first.kept[-1]])
        again = await second.peer.call()
        assert (again.method, again.params) == ("resources/subscribe", b'{"uri":"r:1"}')
        second.peer.write(Result(again.id, b"{}"))
        client = await second.call(session)
        call = await second.peer.call()
        caller = codec.value(call.caller)
        assert caller["logLevel"] == "error"
        assert caller["clientCapabilities"] == {"roots": {}}
        second.peer.write(Result(call.id, b'{"n":1}'))
        assert (await client.reply()).json["result"] == {"n": 1}
        news = await second.news(session)
        second.peer.write(Notice(UPDATED, b'{"uri":"r:1"}'))
        assert (await news.event())["method"] == UPDATED
        assert second.over == []


async def test_what_another_front_has_asked_or_told_is_nothing_here() -> None:
    async with two_doors() as (first, second, session):
        news = await first.news(session)
        first.offer(offer("t", "u"))
        await news.event()
        second.app.adopt([first.kept[-1]])
        await second.peer.call()
        resumed = await second.news(session, f"Last-Event-ID: {news.event_ids[-1]}")
        second.offer(offer("t"))
        assert (await resumed.event())["method"] == "notifications/resources/list_changed"
        assert set(news.event_ids).isdisjoint(resumed.event_ids)
        await second.answer(session, {"id": 1}, '"result":{}')
        assert second.stats.refusals == {"stray_answer": 1}


async def test_sessions_that_cannot_be_adopted_are_over() -> None:
    async with two_doors() as (first, second, session):
        record = first.kept[-1]
        gone = SessionRecord(id="g", endpoint="gone", protocol=LEGACY, caller="{}")
        second.app.adopt([record, gone, record])
        assert second.over == ["g"]
        second.app.adopt([record])  # it is here already
        assert second.app.counts().sessions[LEGACY] == 1
        assert (await second.ask(legacy("ping", session=session))).status == 200


async def test_the_end_of_a_session_is_told_once_however_it_ends() -> None:
    async with opened_door() as door:
        names = [await door.initialize() for _ in range(2)]
        assert [record.id for record in door.kept] == names
        goodbye = bodiless("DELETE", f"Mcp-Session-Id: {names[0]}")
        assert (await door.ask(goodbye)).status == 200
        assert (await door.ask(goodbye)).status == 404
        door.serve_only("dev")
        assert door.over == names


async def test_a_drain_ends_no_session_for_good() -> None:
    async with opened_door() as door:
        await door.initialize()
        await door.app.drain(0.1)
        assert door.over == []


def fill(table: ClientSessions) -> None:
    """As many sessions as there may be, of clients that say much of themselves."""
    info = {"name": "x" * 1024}
    caller = codec.dump({"clientCapabilities": {"roots": {}}, "clientInfo": info})
    for number in range(sessions.SESSIONS_MAX):
        record = SessionRecord(
            id=f"{number:032}", endpoint="default", protocol=LEGACY, caller=caller.decode()
        )
        one = table.open(record, 0.0)
        assert one is not None
        one.missed.add("notifications/tools/list_changed")


@pytest.mark.promise("M98")
def test_ten_thousand_sessions_that_nobody_comes_back_to_are_small_and_go() -> None:
    tracemalloc.start()
    try:
        table = ClientSessions("n", lambda over: None)
        before = tracemalloc.get_traced_memory()[0]
        fill(table)
        grown = tracemalloc.get_traced_memory()[0] - before
        assert grown <= 20 * 1024 * sessions.SESSIONS_MAX
        table.expire(IDLE_S)
        assert len(table) == 0
        assert tracemalloc.get_traced_memory()[0] - before <= grown / 20  # the empty table
    finally:
        tracemalloc.stop()


async def test_a_session_that_ends_while_it_asks_is_kept_for_nobody() -> None:
    async with opened_door() as door:
        session = await left(door)
        door.offer(offer("t", resources=[resource("r:1"), resource("r:2")]))
        client = await door.connect()
        client.send(legacy("resources/subscribe", {"uri": "r:2"}, session=session))
        await door.peer.call()
        known = len(door.kept)
        await door.ask(bodiless("DELETE", f"Mcp-Session-Id: {session}"))
        assert (await client.reply()).outcome == (200, -32800)
        assert (len(door.kept), door.over) == (known, [session])
