"""A worker whose server is at a URL: questions, subscriptions and log messages over HTTP."""

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.frames import Notice, QuestionFrame, ReplyFrame, Result
from tests.waiting import until
from tests.worker.child.worker import ROOT, ChildWorker, Front

pytestmark = [pytest.mark.process, pytest.mark.promise("M11")]

SERVER = ROOT / "tests" / "fakes" / "everything.py"
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])
ASKABLE = codec.dump(
    {"clientInfo": {"name": "c", "version": "1"}, "clientCapabilities": {"elicitation": {}}}
)
UPDATED = "notifications/resources/updated"
ADA = b'{"action":"accept","content":{"username":"ada","email":"a@example.com"}}'


@contextmanager
def worker_of(era: str) -> Generator[ChildWorker]:
    """A worker of the fixture of one era, which is ready."""
    command = [sys.executable, str(SERVER), "--transport", "http", "--era", era]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().strip()
            with ChildWorker(command=(), url=url) as worker:
                worker.ready()
                yield worker
        finally:
            server.terminate()


def tool(front: Front, name: str, caller: bytes = b"", **arguments: object) -> int:
    params = codec.dump({"name": name, "arguments": arguments})
    return front.call("tools/call", params, caller=caller)


@ERAS
def test_calls_cross_and_the_worker_stops(era: str) -> None:
    with worker_of(era) as worker:
        front = worker.front()
        assert "simple text" in front.text(tool(front, "test_simple_text"))
        assert front.error(front.call("example.com/none"))["code"] == -32601
        assert worker.stop().reason == "clean"


@pytest.mark.promise("M23")
def test_each_question_comes_on_the_stream_of_its_call_however_many_callers_there_are() -> None:
    with worker_of("legacy") as worker:
        fronts = [worker.front(number) for number in (1, 2)]
        calls = [tool(one, "test_elicitation", ASKABLE, message="Who?") for one in fronts]
        for front, call in zip(fronts, calls, strict=True):
            question = front.read()
            assert isinstance(question, QuestionFrame)
            assert (question.id, question.method) == (call, "elicitation/create")
            front.send(ReplyFrame(question.question, ADA))
        for front, call in zip(fronts, calls, strict=True):
            assert "ada" in front.text(call)


@pytest.mark.promise("M23")
def test_a_client_that_was_not_declared_able_is_not_asked() -> None:
    with worker_of("legacy") as worker:
        front = worker.front()
        assert front.error(tool(front, "test_elicitation", message="Who?"))["code"] == -32021
        assert front.seen == []


@pytest.mark.promise("M23")
@ERAS
def test_log_messages_belong_to_the_call_on_whose_stream_they_come(era: str) -> None:
    caller = codec.dump({"clientCapabilities": {}, "logLevel": "debug"})
    with worker_of(era) as worker:
        front = worker.front()
        number = tool(front, "test_tool_with_logging", caller)
        front.text(number)
        found = [one for one in front.seen if isinstance(one, Notice)]
        assert {one.method for one in found} == {"notifications/message"}
        assert [one.id for one in found] == [number] * 3


@pytest.mark.promise("M21")
@ERAS
def test_a_resource_is_watched(era: str) -> None:
    uri = b'{"uri":"test://watched-resource"}'
    with worker_of(era) as worker:
        front = worker.front()
        for method in ("subscribe", "subscribe", "unsubscribe"):
            assert isinstance(front.answer(front.call(f"resources/{method}", uri)), Result)
        front.text(tool(front, "test_update_watched_resource"))

        def told() -> list[Any]:
            front.text(tool(front, "test_simple_text"))
            found = [one for one in front.seen if isinstance(one, Notice)]
            return [json.loads(one.body) for one in found if one.method == UPDATED]

        assert until(told, "the update is told") == [{"uri": "test://watched-resource"}]
        assert isinstance(front.answer(front.call("resources/unsubscribe", uri)), Result)
