"""What servers ask clients of the handshake era, over real sockets and a real pipe."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from metamcp_worker.front_calls.client_questions import ASKED_MAX
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.frames import (
    CallFrame,
    ClientNotice,
    Notice,
    QuestionFrame,
    ReplyFrame,
    Result,
    WithdrawQuestion,
)
from tests.worker.front.door import Door, bodiless, legacy, opened_door, opened_session

from ..rawhttp import Client, until

pytestmark = pytest.mark.process

FORM = b'{"message":"Name?",  "requestedSchema":{"type":"object","x":1.0}}'
CAPABLE: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
JSON_ALONE = "Accept: application/json"


async def asked(door: Door, call: CallFrame, client: Client, question: int = 1) -> Any:
    """What the client is asked when the server asks for a form."""
    door.peer.write(QuestionFrame(call.id, question, "elicitation/create", FORM))
    if question == 1:
        assert (await client.head()).headers["content-type"] == "text/event-stream"
    message = await client.event()
    assert message["method"] == "elicitation/create"
    return message


async def replied(door: Door) -> ReplyFrame:
    frame = await door.peer.read()
    assert isinstance(frame, ReplyFrame), frame
    return frame


@asynccontextmanager
async def called_door() -> AsyncGenerator[tuple[Door, str, Client, CallFrame]]:
    """A front, a session that can be asked, and its call, which the server has."""
    async with opened_session(**CAPABLE) as (door, session):
        client = await door.call(session)
        yield door, session, client, await door.peer.call()


@pytest.mark.promise("M23")
@pytest.mark.parametrize(
    ("method", "params", "result"),
    [
        ("elicitation/create", FORM, '{"action":"accept","content":{"n": 1.0,"unknown":[]}}'),
        ("sampling/createMessage", b'{"messages":[],"maxTokens":1}', '{"role":"assistant" }'),
        ("roots/list", b"", '{"roots":[{"uri":"file:///a"}]}'),
        ("roots/list", b'{"_meta":{"a/b":1}}', '{"roots":[]}'),
    ],
)
async def test_a_server_asks_in_the_middle_of_a_call_and_gets_the_answer_byte_for_byte(
    method: str, params: bytes, result: str
) -> None:
    async with called_door() as (door, session, client, call):
        door.peer.write(QuestionFrame(call.id, 7, method, params))
        await client.head()
        question = await client.event()
        wanted = {"params": codec.value(params)} if params else {}
        assert question == {"jsonrpc": "2.0", "id": question["id"], "method": method, **wanted}
        assert await door.answer(session, question, f'"result":{result}') == 202
        assert await replied(door) == ReplyFrame(7, result.encode())
        door.peer.write(Result(call.id, b'{"n":1}'))
        assert await client.event() == {"jsonrpc": "2.0", "id": 1, "result": {"n": 1}}
        assert await client.event() is None
        assert door.stats.refusals == {}


@pytest.mark.promise("M23")
async def test_an_error_of_the_client_reaches_the_server_as_it_is() -> None:
    async with called_door() as (door, session, client, call):
        question = await asked(door, call, client)
        error = '{"code":-1,"message":"no", "data":[1.0],"x":null}'
        assert await door.answer(session, question, f'"error":{error}') == 202
        assert await replied(door) == ReplyFrame(1, error.encode(), failed=True)


@pytest.mark.promise("M98")
async def test_an_answer_counts_once_and_only_in_its_own_session() -> None:
    async with opened_door() as door:
        mine, other = [await door.initialize(**CAPABLE) for _ in range(2)]
        client = await door.call(mine)
        call = await door.peer.call()
        question = await asked(door, call, client)
        assert await door.answer(other, question, '"result":{"n":0}') == 202
        assert await door.answer(mine, {"id": 1}, '"result":{"n":0}') == 202
        assert await door.answer(mine, question, '"result":{"n":1}') == 202
        assert await door.answer(mine, question, '"result":{"n":2}') == 202
        assert await replied(door) == ReplyFrame(1, b'{"n":1}')
        assert door.peer.quiet()
        assert door.stats.refusals == {"stray_answer": 3}


async def test_two_questions_of_one_call_are_open_at_once() -> None:
    async with called_door() as (door, session, client, call):
        first = await asked(door, call, client, 1)
        second = await asked(door, call, client, 2)
        await door.answer(session, second, '"result":{"n":2}')
        await door.answer(session, first, '"result":{"n":1}')
        assert [await replied(door), await replied(door)] == [
            ReplyFrame(2, b'{"n":2}'),
            ReplyFrame(1, b'{"n":1}'),
        ]


@pytest.mark.promise("M23")
async def test_a_question_that_the_server_takes_back_is_taken_back_from_the_client() -> None:
    async with called_door() as (door, session, client, call):
        question = await asked(door, call, client)
        door.peer.write(WithdrawQuestion(1))
        cancelled = await client.event()
        assert cancelled["method"] == "notifications/cancelled"
        assert cancelled["params"]["requestId"] == question["id"]
        assert await door.answer(session, question, '"result":{}') == 202
        assert door.stats.refusals == {"stray_answer": 1}
        assert door.peer.quiet()


async def test_with_the_end_of_a_call_its_questions_end_before_the_answer() -> None:
    async with called_door() as (door, _, client, call):
        question = await asked(door, call, client)
        door.peer.write(Result(call.id, b"{}"))
        cancelled = await client.event()
        assert cancelled["params"]["requestId"] == question["id"]
        assert (await client.event())["result"] == {}
        assert await client.event() is None


@pytest.mark.promise("M23")
@pytest.mark.parametrize(
    ("capabilities", "method", "params"),
    [
        ({}, "elicitation/create", FORM),
        ({"elicitation": {}}, "elicitation/create", b'{"mode":"url","url":"http://a"}'),
        ({"elicitation": {}}, "sampling/createMessage", b"{}"),
        ({"roots": {}}, "example.com/ask", b"{}"),
    ],
)
async def test_no_client_is_asked_what_it_has_not_declared(
    capabilities: dict[str, Any], method: str, params: bytes
) -> None:
    async with opened_session(**capabilities) as (door, session):
        client = await door.call(session)
        call = await door.peer.call()
        door.peer.write(QuestionFrame(call.id, 1, method, params))
        reply = await replied(door)
        assert (reply.failed, codec.value(reply.body)["code"]) == (True, -32601)
        door.peer.write(Result(call.id, b"{}"))
        assert (await client.reply()).json["result"] == {}  # it has noticed nothing


@pytest.mark.promise("M23")
async def test_a_client_that_reads_no_stream_for_its_call_is_asked_on_that_of_its_session() -> None:
    async with opened_session(**CAPABLE) as (door, session):
        client = await door.call(session, JSON_ALONE)
        call = await door.peer.call()
        door.peer.write(QuestionFrame(call.id, 1, "roots/list", b"{}"))
        assert (await replied(door)).failed  # there is none yet
        news = await door.news(session)
        door.peer.write(QuestionFrame(call.id, 2, "roots/list", b"{}"))
        question = await news.event()
        assert question["method"] == "roots/list"
        await door.answer(session, question, '"result":{"roots":[]}')
        assert await replied(door) == ReplyFrame(2, b'{"roots":[]}')
        door.peer.write(Result(call.id, b'{"n":1}'))
        assert (await client.reply()).json["result"] == {"n": 1}


async def test_a_client_whose_connection_is_lost_is_asked_on_the_stream_of_its_session() -> None:
    async with opened_session(**CAPABLE) as (door, session):
        news = await door.news(session)
        client = await door.call(session)
        call = await door.peer.call()
        await client.close()
        await until(lambda: door.server.connections == 2)  # the handshake's and that of the news
        door.peer.write(QuestionFrame(call.id, 1, "roots/list", b"{}"))
        question = await news.event()
        await door.answer(session, question, '"result":{"roots":[]}')
        assert not (await replied(door)).failed


@pytest.mark.promise("M98")
async def test_a_client_has_only_so_many_open_questions() -> None:
    async with called_door() as (door, session, client, call):
        for number in range(1, ASKED_MAX + 2):
            await asyncio.to_thread(
                door.peer.write, QuestionFrame(call.id, number, "elicitation/create", FORM)
            )
        reply = await replied(door)
        assert (reply.question, reply.failed) == (ASKED_MAX + 1, True)
        await client.head()
        await door.answer(session, await client.event(), '"result":{}')
        assert (await replied(door)).question == 1


@pytest.mark.promise("M23")
async def test_progress_of_a_client_reaches_the_server_that_asked_and_no_other_does() -> None:
    async with opened_door() as door:
        session, other = [await door.initialize(**CAPABLE) for _ in range(2)]
        client = await door.call(session)
        call = await door.peer.call()
        door.peer.write(QuestionFrame(call.id, 1, "roots/list", b'{"_meta":{"progressToken":"p"}}'))
        await client.head()
        token = (await client.event())["params"]["_meta"]["progressToken"]
        for who, what in ((other, token), (session, "p"), (session, token)):
            params = {"progressToken": what, "progress": 0.5}
            told = legacy("notifications/progress", params, id=None, session=who)
            assert (await door.ask(told)).status == 202
        assert await door.peer.read() == ClientNotice(
            "notifications/progress", b'{"progressToken":"p","progress":0.5}'
        )
        assert door.stats.refusals == {"stray_progress": 2}


@pytest.mark.promise("M23")
async def test_the_end_of_a_visit_is_told_to_the_client_that_was_asked_for_it() -> None:
    async with opened_door() as door:
        session, other = [await door.initialize(**CAPABLE) for _ in range(2)]
        news, of_other = await door.news(session), await door.news(other)
        client = await door.call(session)
        call = await door.peer.call()
        visit = b'{"mode":"url","elicitationId":"e1","url":"https://a.example/x"}'
        door.peer.write(QuestionFrame(call.id, 1, "elicitation/create", visit))
        await client.head()
        assert (await client.event())["params"] == codec.value(visit)
        done = b'{"elicitationId":"e1", "x":1.0}'
        door.peer.write(Notice("notifications/elicitation/complete", b'{"elicitationId":"e2"}'))
        door.peer.write(Notice("notifications/elicitation/complete", done))
        door.peer.write(Notice("example.com/last", b"{}"))
        assert (await news.event())["params"] == codec.value(done)
        for stream in (news, of_other):
            assert (await stream.event())["method"] == "example.com/last"


async def test_the_end_of_a_session_ends_its_questions() -> None:
    async with called_door() as (door, session, client, call):
        await asked(door, call, client)
        await door.ask(bodiless("DELETE", f"Mcp-Session-Id: {session}"))
        assert (await door.peer.cancelled()).id == call.id
        assert (await client.event())["method"] == "notifications/cancelled"
        assert (await client.event())["error"]["code"] == -32800
