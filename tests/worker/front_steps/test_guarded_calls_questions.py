"""Clients that are asked about their own calls, over a real socket: who may answer, and when."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.consent_records import ConsentClosed, ConsentDecided, ConsentOpened, place
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.frames import Result
from metamcp_worker.ipc.spec import ConsentRule, ConsentSpec
from tests.worker.front.door import META, Door, legacy, modern, opened_door

from ..rawhttp import Client, post

pytestmark = pytest.mark.promise("M97")

CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
ABLE: dict[str, Any] = {**META, CAPABILITIES: {"elicitation": {"form": {}}}}
CALL: dict[str, Any] = {"name": "t", "arguments": {"n": 1}}
YES = {"action": "accept", "content": {"consent": "once"}}
Told = asyncio.Queue[Message]
DONE = b'{"content":[],"isError":false}'


@asynccontextmanager
async def asking_door(timeout_s: float = 60.0) -> AsyncGenerator[tuple[Door, Told]]:
    """A front that asks about calls of `t`, and what it tells the supervisor."""
    async with opened_door() as door:
        told: Told = asyncio.Queue()
        rule = ConsentRule(match=("s/t",), effect="ask")
        spec = replace(door.spec, consent=ConsentSpec(rules=(rule,), timeout_s=timeout_s))
        door.steps.configure(spec)
        door.calls.refresh()
        door.steps.guard.consent.tell = told.put_nowait
        yield door, told


async def asked(door: Door) -> tuple[Client, dict[str, Any]]:
    """A modern client whose call was answered with the question."""
    client = await door.connect()
    client.send(modern("tools/call", CALL, meta=ABLE))
    result: dict[str, Any] = (await client.reply()).json["result"]
    assert result["resultType"] == "input_required"
    return client, result


def again(result: dict[str, Any], answer: object = YES, **other: Any) -> bytes:
    (key,) = result["inputRequests"]
    back = {"inputResponses": {key: answer}, "requestState": result["requestState"]}
    return modern("tools/call", {**CALL, **other, **back}, id="again", meta=ABLE)


async def served(door: Door) -> dict[str, Any]:
    """The arguments with which the server is called; it answers."""
    call = await door.peer.call()
    door.peer.write(Result(call.id, DONE))
    arguments: dict[str, Any] = codec.value(call.params)["arguments"]
    return arguments


async def test_a_session_is_asked_on_its_stream_and_no_other_session_answers() -> None:
    async with asking_door() as (door, _):
        session = await door.initialize(elicitation={})
        other = await door.initialize(elicitation={})
        client = await door.call(session, arguments={"n": 1})
        await client.head()
        question = await client.event()
        assert question["method"] == "elicitation/create"
        body = f'"result":{codec.dump(YES).decode()}'
        await door.answer(other, question, body)
        await door.answer(session, {"id": "made-up"}, body)
        assert door.peer.quiet()
        await door.answer(session, question, body)
        assert await served(door) == {"n": 1}
        await door.answer(session, question, body)
        assert (await client.event())["result"] == codec.value(DONE)
        assert door.peer.quiet()


async def test_a_session_that_cancels_its_call_takes_the_question_back() -> None:
    async with asking_door() as (door, _):
        session = await door.initialize(elicitation={})
        client = await door.call(session)
        await client.head()
        question = await client.event()
        cancel = {"requestId": 1, "reason": "enough"}
        await door.ask(legacy("notifications/cancelled", cancel, id=None, session=session))
        withdrawn = await client.event()
        assert withdrawn["method"] == "notifications/cancelled"
        assert withdrawn["params"]["requestId"] == question["id"]
        assert "error" in await client.event()
        await door.answer(session, question, f'"result":{codec.dump(YES).decode()}')
        assert door.peer.quiet()
        assert door.steps.guard.consent.counts == {"left": 1}


async def test_an_error_for_an_answer_is_a_client_that_cannot_ask() -> None:
    async with asking_door() as (door, _):
        session = await door.initialize(elicitation={})
        client = await door.call(session)
        await client.head()
        question = await client.event()
        await door.answer(session, question, '"error":{"code":-32601,"message":"what?"}')
        result = (await client.event())["result"]
        assert "cannot ask" in result["content"][0]["text"]
        assert door.peer.quiet()


async def test_the_retry_of_the_very_request_lets_the_call_through_once() -> None:
    async with asking_door() as (door, _):
        client, result = await asked(door)
        changed = await door.ask(again(result, arguments={"n": 2}))
        assert "another request" in changed.json["error"]["message"]
        client.send(again(result))
        assert await served(door) == {"n": 1}
        assert (await client.reply()).json["result"]["isError"] is False
        replayed = await door.ask(again(result))
        assert "of no use" in replayed.json["error"]["message"]
        assert door.peer.quiet()


@pytest.mark.parametrize("scope", ["once", ""])
async def test_an_operator_answers_while_the_client_is_away(scope: Any) -> None:
    async with asking_door() as (door, told):
        client, result = await asked(door)
        opened = await told.get()
        assert isinstance(opened, ConsentOpened)
        where = place(opened.question.id)
        assert where is not None
        decided = ConsentDecided(call=where[1], scope=scope, by="ops")
        door.steps.guard.consent.on_decision(decided)
        if scope:
            assert await served(door) == {"n": 1}
        client.send(again(result))
        answer = (await client.reply()).json["result"]
        assert answer["isError"] is not bool(scope)
        assert door.peer.quiet()


async def test_a_client_that_comes_back_too_late_is_told() -> None:
    async with asking_door(timeout_s=0.5) as (door, told):
        client, result = await asked(door)
        assert isinstance(await told.get(), ConsentOpened)
        assert isinstance(await told.get(), ConsentClosed)
        client.send(again(result))
        answer = (await client.reply()).json["result"]
        assert "Nobody agreed" in answer["content"][0]["text"]
        assert door.peer.quiet()


async def test_a_key_that_was_revoked_meanwhile_lets_nothing_through() -> None:
    async with asking_door() as (door, _):
        client, result = await asked(door)
        for call, state in list(door.calls.under_way()):
            assert state == "asking"
            assert call.origin is not None
            call.cancel("its key was revoked")
        client.send(again(result))
        assert "error" in (await client.reply()).json
        assert door.peer.quiet()


async def test_a_caller_of_rest_is_refused_as_its_tool_failed() -> None:
    async with asking_door() as (door, _):
        reply = await door.ask(post(b'{"n":1}', path="/metamcp/default/api/t"))
        assert reply.status == 422
        assert "cannot ask" in reply.json["content"][0]["text"]
        assert door.peer.quiet()
