"""Questions of servers: to whom they go, who answers, and when they are over."""

import asyncio

import pytest

from metamcp_worker.front_calls.client_questions import Question
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import (
    ClientNotice,
    Notice,
    QuestionFrame,
    ReplyFrame,
    Result,
    ServerGone,
    WithdrawQuestion,
)
from tests.worker.front.callers import Caller, answer_of
from tests.worker.front.routed import attached_front

pytestmark = pytest.mark.promise("M23")

NOBODY = codec.dump({
    "code": int(Code.METHOD_NOT_FOUND),
    "message": "Nobody waits for the call in which this was asked.",
})  # fmt: skip


async def test_a_question_reaches_its_caller_and_the_first_reply_goes_back() -> None:
    async with attached_front() as (front, peer):
        caller = Caller()
        call = front.call(caller=caller)
        asked = await peer.call()
        peer.write(Notice("notifications/message", b'{"level":"info"}', asked.id))
        peer.write(QuestionFrame(asked.id, 5, "elicitation/create", b'{"message":"who?"}'))
        peer.write(QuestionFrame(999, 6, "elicitation/create", b"{}"))
        assert await peer.read() == ReplyFrame(6, NOBODY, failed=True)
        (question,) = caller.questions
        assert (question.method, question.params) == ("elicitation/create", b'{"message":"who?"}')
        question.answer(b'{"action":"accept"}')
        question.fail(b"{}")
        assert await peer.read() == ReplyFrame(5, b'{"action":"accept"}')
        peer.write(Result(asked.id, b"{}"))
        await answer_of(call)
        assert caller.notices == [("notifications/message", b'{"level":"info"}')]


@pytest.mark.parametrize("end", ["withdrawn", "answered", "cancelled", "down"])
async def test_a_question_is_withdrawn_with_its_call_and_an_answer_then_goes_nowhere(
    end: str,
) -> None:
    async with attached_front() as (front, peer):
        gone: list[str] = []
        heard = asyncio.Event()

        def take(question: Question) -> None:
            question.on_withdrawn = lambda: gone.append(end)
            heard.set()

        caller = Caller(take)
        call = front.call(caller=caller)
        asked = await peer.call()
        peer.write(QuestionFrame(asked.id, 5, "roots/list", b"{}"))
        if end == "withdrawn":
            peer.write(WithdrawQuestion(5))
            peer.write(Result(asked.id, b"{}"))
        elif end == "answered":
            peer.write(Result(asked.id, b"{}"))
        elif end == "down":
            peer.write(ServerGone(b"{}"))
        else:
            await heard.wait()
            call.cancel("enough")
        await call.answer.wait()
        assert gone == [end]
        assert not caller.questions[0].open


async def test_what_belongs_to_no_call_is_told_apart_and_clients_can_tell_servers_something() -> (
    None
):
    async with attached_front() as (front, peer):
        peer.write(Notice("notifications/resources/updated", b'{"uri":"a:"}'))
        front.routing.tell("git", "x/note", b'{"a":1.0}')
        front.routing.tell("nobody", "x/note")
        assert await peer.read() == ClientNotice("x/note", b'{"a":1.0}')
        told = await front.notices.get()
        assert told == ("git", "notifications/resources/updated", b'{"uri":"a:"}')
