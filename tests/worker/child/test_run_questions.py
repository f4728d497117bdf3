"""Real servers that ask, log, tell and have tasks, over a real worker."""

import json
from typing import Any

import pytest

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.frames import (
    Cancel,
    ClientNotice,
    Notice,
    QuestionFrame,
    ReplyFrame,
    WithdrawQuestion,
)
from metamcp_worker.ipc.messages import LogLines
from tests.waiting import until
from tests.worker.child.talk import Json
from tests.worker.child.worker import ChildWorker, Front, ready_worker

pytestmark = [pytest.mark.process, pytest.mark.promise("M23")]

PREFIX = "io.modelcontextprotocol/"
ERAS = pytest.mark.parametrize("era", ["legacy", "modern"])


def asked(front: Front) -> QuestionFrame:
    """The next frame, which is a question."""
    frame = front.read()
    assert isinstance(frame, QuestionFrame), frame
    return frame


def notices(front: Front, method: str) -> list[Any]:
    """The parameters of the notifications of this name that came so far."""
    return [
        json.loads(one.body)
        for one in front.seen
        if isinstance(one, Notice) and one.method == method
    ]


def logged(worker: ChildWorker, words: str) -> str:
    """Wait for a line on stderr with these words."""
    while not any(words in line for line in worker.logs["stderr"]):
        worker.read(LogLines)
    return next(line for line in worker.logs["stderr"] if words in line)


@pytest.mark.parametrize(
    ("tool", "method"),
    [
        ("elicit", "elicitation/create"),
        ("sample", "sampling/createMessage"),
        ("roots", "roots/list"),
    ],
)
def test_a_legacy_server_asks_the_client_whose_call_it_serves(tool: str, method: str) -> None:
    with ready_worker("--era", "legacy") as (_, front):
        number = front.tool(tool)
        question = asked(front)
        assert (question.id, question.method) == (number, method)
        body = b'{"action":"accept","content":{"name":"Ada","n":1.50}}'
        front.send(ReplyFrame(question.question, body))
        assert json.loads(front.text(number)) == json.loads(body)


def test_a_server_may_ask_several_things_at_once_and_one_after_the_other() -> None:
    with ready_worker("--era", "legacy") as (_, front):
        number = front.tool("ask_many", n=3)
        questions = [asked(front) for _ in range(3)]
        for one in reversed(questions):
            message: str = json.loads(one.params)["message"]
            front.send(ReplyFrame(one.question, codec.dump({"said": message})))
        said = [one["said"] for one in json.loads(front.text(number))]
        assert said == ["Question 0", "Question 1", "Question 2"]
        rounds = front.tool("ask_rounds", n=2)
        for _ in range(2):
            front.send(ReplyFrame(asked(front).question, b"{}"))
        assert front.text(rounds) == "2 rounds"


def test_a_refusal_of_the_client_reaches_the_server() -> None:
    with ready_worker("--era", "legacy") as (_, front):
        number = front.tool("sample")
        error = b'{"code":-1,"message":"User rejected","x":[1.0]}'
        front.send(ReplyFrame(asked(front).question, error, failed=True))
        assert json.loads(front.text(number)) == {"error": json.loads(error)}


def test_a_server_takes_its_question_back() -> None:
    with ready_worker("--era", "legacy") as (worker, front):
        number = front.tool("ask_withdrawn")
        question = asked(front)
        assert front.text(number) == "withdrawn"
        assert front.seen == [WithdrawQuestion(question.question)]
        front.send(ReplyFrame(question.question, b"{}"))
        assert worker.counted("late_reply") == 1
        worker.stop()
        assert not any("unexpected answer" in line for line in worker.logs["stderr"])


@pytest.mark.parametrize("how", ["ended", "cancelled", "front gone"])
def test_no_question_hangs_when_its_call_is_over(how: str) -> None:
    with ready_worker("--era", "legacy") as (worker, front):
        number = front.tool("ask_and_end" if how == "ended" else "elicit")
        question = asked(front)
        if how == "ended":
            assert front.text(number) == "ended"
            assert front.seen == [WithdrawQuestion(question.question)]
            assert '"error"' in logged(worker, "heard")
        else:
            front.send(Cancel(number)) if how == "cancelled" else front.close()
            other = worker.front(2)
            assert other.text(other.tool("echo", text="next")) == "next"
            # The answer of the tool, which got an error instead of what it asked for.
            assert worker.counted("late_reply") == 1


def test_with_two_callers_nobody_is_asked() -> None:
    with ChildWorker("--era", "legacy") as worker:
        worker.ready()
        one, two = worker.front(1), worker.front(2)
        one.tool("sleep", ms=60_000)
        assert one.text(one.tool("echo", text="the other one is on its way")) != ""
        assert json.loads(two.text(two.tool("elicit")))["error"]["code"] == -32603
        assert worker.counted("unroutable_request") == 1


def test_what_a_cancelled_call_asks_for_is_put_to_nobody_else() -> None:
    with ChildWorker("--era", "legacy") as worker:
        worker.ready()
        one, two = worker.front(1), worker.front(2)
        one.send(Cancel(one.tool("ask_late", ms=100)))
        assert one.text(one.tool("echo", text="cancelled before this")) != ""
        assert two.text(two.tool("sleep", ms=300)) == "slept 300 ms"
        assert two.seen == []
        assert worker.counted("unroutable_request") == 1


def test_a_server_that_all_share_is_told_what_can_be_asked() -> None:
    with ready_worker("--era", "legacy") as (_, front):
        declared = json.loads(front.text(front.tool("client")))["capabilities"]
        assert declared == {
            "elicitation": {"form": {}, "url": {}},
            "sampling": {},
            "roots": {"listChanged": True},
        }


def test_a_modern_server_asks_with_its_result_and_gets_the_answer_with_the_next_call() -> None:
    caller = codec.dump({"clientCapabilities": {"elicitation": {}}})
    with ready_worker("--era", "modern") as (_, front):
        call: Json = {"name": "elicit", "arguments": {}}
        found = json.loads(front.answer(front.call("tools/call", codec.dump(call))).body)
        assert found["code"] == -32021
        number = front.call("tools/call", codec.dump(call), caller=caller)
        found = json.loads(front.answer(number).body)
        assert found["resultType"] == "input_required"
        answer = {"action": "accept", "content": {"name": "Ada"}}
        again = {**call, "inputResponses": {"who": answer}, "requestState": found["requestState"]}
        number = front.call("tools/call", codec.dump(again), caller=caller)
        assert json.loads(front.text(number)) == answer


@pytest.mark.promise("M21")
@ERAS
def test_updates_of_a_resource_come_to_those_who_subscribed(era: str) -> None:
    uri = b'{"uri":"fake://one"}'
    with ChildWorker("--era", era, "--resources") as worker:
        worker.ready()
        one, two = worker.front(1), worker.front(2)
        assert one.answer(one.call("resources/subscribe", uri)).body.startswith(b"{")
        assert two.answer(two.call("resources/subscribe", uri)).body == b"{}"
        assert one.text(one.tool("touch")) == "1"
        assert notices(one, "notifications/resources/updated") == [
            {"uri": "fake://one", "x-kept": 1.0}
        ]
        one.close()
        assert two.answer(two.call("resources/unsubscribe", uri)).body.startswith(b"{")
        until(lambda: two.text(two.tool("touch")) == "0", "nobody watches any more")
        refused = two.error(two.call("resources/subscribe", b'{"uri":"other://x"}'))
        assert refused["code"] == (-32002 if era == "legacy" else -32602)


def test_after_a_modern_server_ended_its_subscription_it_is_listened_to_again() -> None:
    with ready_worker("--era", "modern", "--resources") as (_, front):
        front.answer(front.call("resources/subscribe", b'{"uri":"fake://one"}'))
        assert front.text(front.tool("end_listens")) == "1"
        until(lambda: front.text(front.tool("touch")) != "0", "it is listened to again")
        assert len(notices(front, "notifications/resources/updated")) == 1


@ERAS
def test_a_server_logs_as_much_as_a_client_wants(era: str) -> None:
    caller = b'{"logLevel":"error"}'
    call = codec.dump({"name": "log_levels", "arguments": {}})
    with ready_worker("--era", era, "--logging") as (_, front):
        assert front.text(front.call("tools/call", call, caller=caller)) == "4"
        found = [one for one in front.seen if isinstance(one, Notice)]
        levels = [json.loads(one.body)["level"] for one in found]
        assert levels == ["error", "critical", "alert", "emergency"]
        assert {one.id for one in found} == {1}
        front.send(ClientNotice("logging/setLevel", b'{"level":"debug"}'))
        relayed = json.loads(front.text(front.tool("state")))["relayed"]
        both = ["logging/setLevel error", "logging/setLevel debug"]
        assert relayed == (both if era == "legacy" else [])


@ERAS
def test_other_words_of_clients_and_servers_cross(era: str) -> None:
    with ready_worker("--era", era) as (_, front):
        front.send(ClientNotice("notifications/example.com/told", b'{"x":1.0}'))
        number = front.tool("state")
        told = json.loads(front.text(number))["told"]
        words = [one for one in told if one["method"] == "notifications/example.com/told"]
        assert [one["params"] for one in words] == ([{"x": 1.0}] if era == "legacy" else [])
        number = front.tool("notify")
        assert front.text(number) == "told"
        (notice,) = front.seen
        assert isinstance(notice, Notice)
        assert (notice.id, json.loads(notice.body)) == (number, {"x-kept": 1.0})


@pytest.mark.promise("M24")
@ERAS
def test_tasks_are_calls_like_others_and_their_news_comes(era: str) -> None:
    extension: Json = {"extensions": {PREFIX + "tasks": {}}}
    caller = codec.dump({"clientCapabilities": extension}) if era == "modern" else b""
    call: Json = {"name": "task", "arguments": {"ms": 300}}
    if era == "legacy":
        call["task"] = {"ttl": 1000}
    with ready_worker("--era", era, "--tasks") as (_, front):
        number = front.call("tools/call", codec.dump(call), caller=caller)
        found: dict[str, Any] = json.loads(front.answer(number).body)
        found = found.get("task", found)
        ids = codec.dump({"taskIds": [found["taskId"]]})
        front.send(ClientNotice("metamcp/tasks", ids))
        news = "notifications/tasks/status" if era == "legacy" else "notifications/tasks"
        get = codec.dump({"taskId": found["taskId"]})

        def told() -> list[Any]:
            front.answer(front.call("tasks/get", get, caller=caller))
            return notices(front, news)

        until(lambda: bool(told()), "the end of the task is told")
        (ended,) = notices(front, news)
        assert (ended["taskId"], ended["status"]) == (found["taskId"], "completed")
        assert "_meta" not in ended
