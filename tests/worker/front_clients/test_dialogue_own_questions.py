"""Questions of the gateway itself to clients in sessions: asked once, and closed in any case."""

import asyncio
from functools import partial

import pytest

from metamcp_worker.front_calls.client_questions import ASKED_MAX, Ids, Question
from metamcp_worker.front_clients.client_sessions import ClientSession
from metamcp_worker.front_clients.dialogue import RootsRequest, ask_aside
from metamcp_worker.ipc import codec, roots
from metamcp_worker.ipc.messages import SessionRecord

WAIT_S = 10.0
CALLER = '{"clientCapabilities":{"roots":{}}}'


class Stream:
    """The stream of a session, with the messages on it."""

    def __init__(self) -> None:
        self.messages: list[dict[str, object]] = []

    def put(self, event: bytes) -> None:
        self.messages.append(codec.value(event.partition(b"data: ")[2].split(b"\n")[0]))

    def end(self) -> None:
        raise AssertionError("the session goes on")


def opened() -> tuple[ClientSession, Stream]:
    record = SessionRecord(id="s", endpoint="default", protocol="2025-11-25", caller=CALLER)
    session, stream = ClientSession(record, 1, Ids("n"), None, 0.0), Stream()
    session.attach(stream)
    return session, stream


@pytest.mark.promise("M23")
async def test_a_question_for_roots_that_gets_no_answer_is_closed() -> None:
    session, stream = opened()
    over = asyncio.Event()
    RootsRequest(session, partial(ask_aside, session), over.set, wait_s=0.01)
    async with asyncio.timeout(WAIT_S):
        await over.wait()
    asked, cancelled = stream.messages
    assert asked["method"] == roots.METHOD
    assert cancelled["method"] == "notifications/cancelled"
    params = cancelled["params"]
    assert isinstance(params, dict)
    assert params["requestId"] == asked["id"]
    assert len(session.asked) == 0


async def test_an_answer_closes_the_question_for_roots_too() -> None:
    session, stream = opened()
    over = asyncio.Event()
    RootsRequest(session, partial(ask_aside, session), over.set)
    question = session.asked.take(codec.dump(stream.messages[0]["id"]))
    assert question is not None
    question.answer(b'{"roots":[{"uri":"file:///here"}]}')
    assert over.is_set()
    assert session.roots == b'{"roots":[{"uri":"file:///here"}]}'
    assert len(stream.messages) == 1


def test_one_client_is_asked_so_much_at_once_and_no_more() -> None:
    session, stream = opened()
    refused: list[bytes] = []

    def reply(question: Question, body: bytes, failed: bool) -> None:
        refused.append(body)

    for _ in range(ASKED_MAX + 1):
        ask_aside(session, Question("", 0, 0, roots.METHOD, b"{}", reply))
    assert len(stream.messages) == ASKED_MAX
    assert len(refused) == 1
