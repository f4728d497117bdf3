"""Whose the tasks in a list are, as the worker of their server knows it."""

import json

import pytest

from metamcp_worker.child import lists
from metamcp_worker.child.actions import ReplyToFront, TellFronts
from metamcp_worker.child.call_queue import SentCall
from metamcp_worker.child.lists import OWNED_MAX, TaskOwners
from metamcp_worker.front_calls import task_ids
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.frames import Notice, QuestionFrame
from tests.worker.child.talk import Talk, ready_legacy

CALL, LIST = task_ids.CALL, task_ids.LIST


def call(method: str, word: str = "") -> SentCall:
    caller = b'{"clientCapabilities":{}}'
    if word:
        caller = task_ids.with_word(caller, word)
    return SentCall(0, 1, method, 0.0, 0.0, wants_progress=False, caller=caller)


def created(task: object) -> bytes:
    return codec.dump({"task": {"taskId": task, "status": "working"}})


def owners(listed: bytes) -> dict[str, object]:
    return {one["taskId"]: one.get("owner") for one in codec.value(listed)["tasks"]}


def test_a_list_says_whose_each_task_is() -> None:
    known = TaskOwners()
    for word, task in (("ann", "1"), ("bob", "2")):
        result = created(task)
        assert known.record_owners(call(CALL, word), result) == result
    known.record_owners(call(CALL), created("3"))
    listed = codec.dump({"tasks": [{"taskId": one, "owner": "ann"} for one in "123"]})
    assert owners(known.record_owners(call(LIST, "ann"), listed)) == {
        "1": "ann",
        "2": "bob",
        "3": "",
    }


def test_a_list_for_a_server_without_owners_passes_as_it_came() -> None:
    listed = b'{"tasks": [ {"taskId":"1"} ]}'
    assert TaskOwners().record_owners(call(LIST), listed) == listed


def test_what_is_not_a_task_or_a_list_of_tasks_is_nobodys() -> None:
    known = TaskOwners()
    for result in (b'{"content":[]}', b'{"task":"taskId"}', b'["taskId"]', created(7)):
        assert known.record_owners(call(CALL, "ann"), result) == result
    for listed in (b'{"tasks":{}}', b'{"tasks":[7]}', b"{}"):
        assert codec.value(known.record_owners(call(LIST, "ann"), listed)) == {"tasks": []}


def test_the_oldest_tasks_make_room() -> None:
    known = TaskOwners()
    for number in range(OWNED_MAX + 1):
        known.record_owners(call(CALL, "ann"), created(str(number)))
    listed = codec.dump({"tasks": [{"taskId": "0"}, {"taskId": str(OWNED_MAX)}]})
    assert owners(known.record_owners(call(LIST, "ann"), listed)) == {
        "0": "",
        str(OWNED_MAX): "ann",
    }


ABOUT = {"_meta": {lists.RELATED: {"taskId": "1"}}, "data": "of the first task"}


def talking() -> Talk:
    """With a server that has begun the task `1` for ann."""
    talk = ready_legacy(timeout_s=1000.0)
    talk.call(1, 10, peer=5, caller=task_ids.with_word(b"", "ann"))
    talk.answers("tools/call", {"task": {"taskId": "1", "status": "working"}})
    return talk


@pytest.mark.promise("M60")
@pytest.mark.parametrize("method", ["notifications/message", "notifications/example.com/own"])
def test_what_is_told_of_a_task_is_for_its_owner_whoever_calls_now(method: str) -> None:
    params = codec.dump(ABOUT)
    line = b'{"jsonrpc":"2.0","method":"%b","params":%b}' % (method.encode(), params)
    for_fronts = [TellFronts(Notice(method, params))]
    talk = talking()
    assert talk.says(line) == for_fronts
    talk.call(1, 11, peer=6, caller=task_ids.with_word(b"", "bob"))
    assert talk.says(line) == for_fronts
    talk.call(1, 12, peer=7)
    assert talk.says(line) == for_fronts

    talk = talking()
    talk.call(1, 13, peer=5, method="tasks/result", caller=task_ids.with_word(b"", "ann"))
    assert talk.says(line) == [ReplyToFront(1, Notice(method, params, 13))]


@pytest.mark.promise("M60")
@pytest.mark.parametrize(("word", "reaches"), [("ann", True), ("bob", False), ("", False)])
def test_a_question_of_a_task_is_put_to_its_owner_or_to_nobody(word: str, reaches: bool) -> None:
    talk = talking()
    talk.call(1, 11, peer=6, caller=task_ids.with_word(b"", word) if word else b"{}")
    found = talk.says(
        {"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": ABOUT}
    )
    asked = [
        one
        for one in found
        if isinstance(one, ReplyToFront) and isinstance(one.frame, QuestionFrame)
    ]
    assert bool(asked) is reaches
    assert bool(talk.answered("q")) is not reaches


def test_both_ends_name_the_owner_alike() -> None:
    assert (task_ids.OWNER, task_ids.RELATED) == (lists.OWNER, lists.RELATED)
    assert json.loads(task_ids.with_word(b"", "ann")) == {"owner": "ann"}
    assert json.loads(task_ids.with_word(b"{}", "ann")) == {"owner": "ann"}
