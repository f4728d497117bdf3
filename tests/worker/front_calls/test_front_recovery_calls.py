"""Calls that outlive their front, over real sockets: what a worker hears of them, and going on with
one that another front has left."""

import base64
import json
from typing import Any

import pytest

from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import Cancel, KeptFrame, Progress, RecoverCall, ReleaseCalls, Result
from metamcp_worker.ipc.messages import SessionRecord
from tests.worker.front.door import Door, bodiless, legacy, opened_door, opened_session
from tests.worker.front.offers import offer

from ..rawhttp import Client, until

pytestmark = pytest.mark.process

SESSION = "adopted.7"
TOLD = b'{"progress":1}'


def event_id(raw_id: str = '"c"', place: int = 2) -> str:
    """Of another front."""
    word = base64.urlsafe_b64encode(raw_id.encode()).rstrip(b"=").decode()
    return f"abc123-4-{place}-{word}"


def adopt(door: Door, session: str = SESSION) -> None:
    record = SessionRecord(id=session, endpoint="default", protocol="2025-11-25", caller="{}")
    door.app.adopt([record])


async def back(door: Door, name: str, session: str = SESSION) -> Client:
    """A client that comes back for what is behind this event."""
    return await door.news(session, f"Last-Event-ID: {name}")


async def claimed(door: Door) -> RecoverCall:
    frame = await door.peer.read()
    assert isinstance(frame, RecoverCall), frame
    return frame


def note(raw_id: str = '"c"', token: str = '"p"') -> bytes:
    return f'{{"id":{raw_id},"token":{token},"label":"tools/call"}}'.encode()


@pytest.mark.promise("M79")
async def test_a_worker_hears_once_of_a_call_whose_client_can_come_back_and_of_no_other() -> None:
    async with opened_session() as (door, session):
        plain = await door.call(session)
        door.peer.write(Result((await door.peer.call()).id, b"{}"))
        await plain.reply()
        assert door.peer.quiet()
        assert door.peer.kept == []
        client = await door.call(session, _meta={"progressToken": "p"})
        call = await door.peer.call()
        for _ in range(2):
            door.peer.write(Progress(call.id, TOLD))
        await client.head()
        assert (await client.event())["params"]["progress"] == 1
        door.peer.write(Result(call.id, b"{}"))
        assert (await client.event())["params"]["progress"] == 1
        assert (await client.event())["result"] == {}
        assert door.peer.quiet()
        (kept,) = door.peer.kept
        assert kept.id == call.id
        assert json.loads(kept.note) == {"id": 1, "token": "p", "label": "tools/call"}
        assert session.encode() not in kept.owner + kept.name + kept.note
        middle, last = client.event_ids[-2], client.event_ids[-1]
        assert middle.count("-") == last.count("-") + 1  # who has the last has the answer


@pytest.mark.promise("M23", "M79")
async def test_what_another_front_has_left_of_a_stream_goes_on_under_the_ids_of_the_client() -> (
    None
):
    async with opened_door() as door:
        adopt(door)
        first = await back(door, event_id())
        claim = await claimed(door)
        door.peer.write(KeptFrame(claim.id, note()))
        door.peer.write(Progress(claim.id, TOLD))
        told = await first.event()
        assert told["params"] == {"progressToken": "p", "progress": 1}
        door.peer.write(Result(claim.id, b'{"n": 1.50}'))
        assert await first.event() == {"jsonrpc": "2.0", "id": "c", "result": {"n": 1.50}}
        assert await first.event() is None
        assert door.peer.quiet()
        assert [kept.id for kept in door.peer.kept] == [claim.id]  # it outlives this front as well
        for name, left in ((event_id(), 2), (first.event_ids[-1], 0)):
            again = await back(door, name)
            for _ in range(left):  # its connection may have broken before it read any of it
                assert await again.event() is not None
            assert await again.event() is None
        assert door.peer.quiet()  # and no worker was asked again


async def test_the_newest_of_two_clients_that_come_back_goes_on() -> None:
    async with opened_door() as door:
        adopt(door)
        first = await back(door, event_id())
        claim = await claimed(door)
        second = await back(door, event_id())
        assert await first.event() is None
        door.peer.write(KeptFrame(claim.id, note()))
        door.peer.write(Result(claim.id, b"{}"))
        assert (await second.event())["id"] == "c"
        assert door.peer.quiet()


@pytest.mark.promise("M79")
async def test_an_answer_that_is_lost_is_an_error_that_says_so() -> None:
    async with opened_door() as door:
        adopt(door)
        client = await back(door, event_id("17"))
        door.peer.write(KeptFrame((await claimed(door)).id))
        lost = await client.event()
        assert (lost["id"], lost["error"]["code"]) == (17, Code.SERVER_DOWN)
        assert lost["error"]["data"]["may_have_run"] is True
        assert await client.event() is None


async def test_a_worker_that_dies_while_it_is_asked_has_nothing() -> None:
    async with opened_door() as door:
        adopt(door)
        client = await back(door, event_id())
        await claimed(door)
        door.peer.close()
        assert (await client.event())["error"]["code"] == Code.SERVER_DOWN


@pytest.mark.promise("M98")
@pytest.mark.parametrize(
    "name",
    ["abc123-4-2", "abc123-4-2-", "abc123-4-2-!", "abc123-4-2-bnVsbA", "abc123-4-2-IgoxIg", "x"],
)
async def test_a_name_that_no_front_gives_is_no_reason_to_ask(name: str) -> None:
    async with opened_door() as door:
        adopt(door)
        client = await back(door, name)  # the stream for what belongs to no request
        door.offer(_other())
        assert (await client.event())["method"] == "notifications/tools/list_changed"
        assert door.peer.quiet()


async def test_in_a_session_that_began_here_nothing_is_left_elsewhere() -> None:
    async with opened_door() as door:
        client = await back(door, event_id(), await door.initialize())
        door.offer(_other())
        assert (await client.event())["method"] == "notifications/tools/list_changed"
        assert door.peer.quiet()


async def test_a_client_cancels_a_call_that_it_came_back_for() -> None:
    async with opened_door() as door:
        adopt(door)
        client = await back(door, event_id())
        claim = await claimed(door)
        door.peer.write(KeptFrame(claim.id, note()))
        door.peer.write(Progress(claim.id, TOLD))
        await client.event()
        params = {"requestId": "c"}
        ask = legacy("notifications/cancelled", params, id=None, session=SESSION)
        assert (await door.ask(ask)).status == 202
        cancel = await door.peer.read()
        assert isinstance(cancel, Cancel)
        assert cancel.id == claim.id


async def test_a_session_that_ends_while_a_worker_is_asked_cancels_what_that_has() -> None:
    async with opened_door() as door:
        adopt(door)
        client = await back(door, event_id())
        claim = await claimed(door)
        assert (await door.ask(bodiless("DELETE", f"Mcp-Session-Id: {SESSION}"))).status == 200
        assert isinstance(await door.peer.read(), ReleaseCalls)
        door.peer.write(KeptFrame(claim.id, note()))
        cancel = await door.peer.read()
        assert isinstance(cancel, Cancel)
        assert cancel.id == claim.id
        await client.close()


async def test_workers_hear_of_the_end_of_a_session_that_another_front_had() -> None:
    async with opened_door() as door:
        adopt(door)
        own = await door.initialize()
        for session in (own, SESSION):
            gone = await door.ask(bodiless("DELETE", f"Mcp-Session-Id: {session}"))
            assert gone.status == 200
        release = await door.peer.read()
        assert isinstance(release, ReleaseCalls)
        assert release.owner
        assert door.peer.quiet()
        await door.calls.close()
        assert (
            await door.peer.read() == ReleaseCalls()
        )  # whoever ends in order answers all by itself


async def test_a_client_that_is_gone_again_finds_the_answer_where_it_was() -> None:
    async with opened_door() as door:
        adopt(door)
        first = await back(door, event_id())
        claim = await claimed(door)
        await first.close()
        await until(lambda: not door.server.connections)
        door.peer.write(KeptFrame(claim.id, note()))
        door.peer.write(Result(claim.id, b'{"n":1}'))
        second = await back(door, event_id())
        assert (await second.event())["result"] == {"n": 1}


def _other() -> Any:
    return offer("t", "other")
