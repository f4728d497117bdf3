"""Ids of tasks, whose they are, and where they stand."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metamcp_worker.catalog.catalog import Catalog, MergedCatalog
from metamcp_worker.front_calls import task_ids
from metamcp_worker.front_calls.client_questions import Question
from metamcp_worker.front_calls.task_ids import (
    OWNER,
    RELATED,
    TaskIdCaller,
    TaskOwner,
    in_list,
    in_result,
    read_task_id,
    seal,
    unseal,
)
from metamcp_worker.ipc import codec
from tests.worker.front.callers import Caller
from tests.worker.front.offers import MODERN, endpoint, offer


def merged(*servers: str, name: str = "default") -> MergedCatalog:
    """Modern ones, but for `old`."""
    catalog = Catalog()
    for server in servers:
        catalog.put(server, offer() if server == "old" else offer(protocol=MODERN))
    return catalog.merge(endpoint(*servers, name=name))


def shout(task: str) -> str:
    return task.upper()


def raw(value: Any) -> bytes:
    return json.dumps(value).encode()


ALICE = TaskOwner(bytes(32), "default", "key:alice")


@pytest.mark.promise("M24")
@given(st.text())
def test_an_exposed_id_leads_to_its_server_and_its_own_id(task: str) -> None:
    for servers in (("new", "old"), ("new",), ("old",)):
        found = merged(*servers)
        for server in servers:
            whose = ALICE.find_server(found, ALICE.expose_id(server, task))
            assert whose is not None
            assert (whose.server, codec.value(whose.original)) == (server, task)
            assert whose.legacy is (server == "old")


@pytest.mark.promise("M98")
@given(st.text() | st.binary().map(lambda data: data.decode("latin-1")))
def test_no_other_text_is_the_id_of_a_task(task: str) -> None:
    assert ALICE.find_server(merged("new", "old"), task) is None
    assert ALICE.find_server(merged("new"), task) is None


@pytest.mark.promise("M60")
@pytest.mark.parametrize(
    "other",
    [
        TaskOwner(bytes(32), "default", "key:bob"),
        TaskOwner(bytes(32), "other", "key:alice"),
        TaskOwner(b"\1" * 32, "default", "key:alice"),
        TaskOwner(bytes(32), "defaultkey", ":alice"),
        TaskOwner(bytes(32), "default", ""),
    ],
)  # fmt: skip
def test_an_id_is_of_use_to_its_owner_alone(other: TaskOwner) -> None:
    task = ALICE.expose_id("new", "t")
    for servers in (("new", "old"), ("new",)):
        assert other.find_server(merged(*servers), task) is None
    assert ALICE.word != other.word


def test_an_id_leads_to_a_server_of_the_endpoint_and_in_one_spelling() -> None:
    task = ALICE.expose_id("new", "t")
    assert ALICE.find_server(merged("old", "third"), task) is None
    for another in (task + "=", task + "\n", " " + task, task[:-1]):
        assert ALICE.find_server(merged("new", "old"), another) is None


@given(st.binary(), st.lists(st.binary(), max_size=3), st.lists(st.binary(), max_size=3))
def test_what_is_sealed_comes_back_for_the_same_scope_alone(
    content: bytes, scope: list[bytes], other: list[bytes]
) -> None:
    text = seal(b"k" * 32, scope, content)
    assert unseal(b"k" * 32, scope, text) == content
    if other != scope:
        assert unseal(b"k" * 32, other, text) is None
    assert unseal(b"j" * 32, scope, text) is None


@pytest.mark.promise("M60")
def test_a_list_of_tasks_has_those_of_its_owner_under_their_ids() -> None:
    tasks = [
        {"taskId": "a", "ttl": 1.0, OWNER: "mine"},
        {"taskId": "b", OWNER: "others"},
        {"taskId": "c", OWNER: ""},
        {"taskId": "d"},
        {"taskId": 7, OWNER: "mine"},
    ]
    listed = raw({"tasks": tasks, "nextCursor": "n"})
    mine = codec.value(in_list(listed, shout, "mine"))
    assert mine == {"tasks": [{"taskId": "A", "ttl": 1.0}], "nextCursor": "n"}
    every = codec.value(in_list(listed, shout, ""))
    assert [one["taskId"] for one in every["tasks"]] == ["A", "B", "C", "D"]
    assert codec.value(in_list(b'{"tasks":"all"}', shout, "mine")) == {"tasks": []}


@pytest.mark.promise("M24")
@pytest.mark.parametrize(
    ("method", "body", "expected"),
    [
        (
            "tools/call",
            b'{"resultType":"task","taskId":"a","ttlMs": 1.0,"x":{"taskId":"a"}}',
            b'{"resultType":"task","taskId":"A","ttlMs":1.0,"x":{"taskId":"a"}}',
        ),
        ("tools/call", b'{"task":{"taskId":"a","n": 1}}', b'{"task":{"taskId":"A","n":1}}'),
        ("tools/call", b'{"content":[],"taskId":"a"}', None),
        ("tools/call", b'{"content":["taskId"],"task":7}', None),
        ("tasks/get", b'{"taskId":"a","x":{"taskId":"a"}}', b'{"taskId":"A","x":{"taskId":"a"}}'),
        ("tasks/cancel", b'{"taskId":"a"}', b'{"taskId":"A"}'),
        ("tasks/update", b'{"taskId":7}', None),
        ("tasks/update", b"{}", None),
        ("tasks/get", b'["taskId"]', None),
        ("tasks/result", b'{"taskId":"a","content":[]}', None),
    ],
)  # fmt: skip
def test_ids_in_results_are_exposed_where_they_mean_a_task(
    method: str, body: bytes, expected: bytes | None
) -> None:
    assert in_result(method, body, shout) == (expected or body)


@pytest.mark.promise("M24")
@pytest.mark.parametrize("method", ["tools/call", "tasks/result"])
def test_what_belongs_to_a_task_names_it_as_the_client_knows_it(method: str) -> None:
    body = raw({"content": [], "_meta": {"x": 1.0, RELATED: {"taskId": "a", "y": 2.0}}})
    found = codec.value(in_result(method, body, shout))
    assert found["_meta"] == {"x": 1.0, RELATED: {"taskId": "A", "y": 2.0}}


def test_a_result_says_which_task_it_stands_for() -> None:
    assert read_task_id(b'{"resultType":"task","taskId":"a"}') == "a"
    assert read_task_id(b'{"task":{"taskId":"a"}}') == "a"
    assert read_task_id(b'{"taskId":"a"}') is None
    assert read_task_id(b'{"content":[]}') is None
    assert read_task_id(b'["taskId"]') is None


@pytest.mark.promise("M24")
def test_what_comes_before_the_answer_names_the_task_too() -> None:
    def refuse(question: Question, body: bytes, failed: bool) -> None:
        raise AssertionError("nobody answers")

    inner = Caller()
    caller = TaskIdCaller(inner, shout)
    params = raw({"_meta": {RELATED: {"taskId": "a"}}, "n": 1.0})
    expected = {"_meta": {RELATED: {"taskId": "A"}}, "n": 1.0}
    caller.on_progress(b'{"progress":1.0}')
    caller.on_progress(params)
    caller.on_notification("notifications/message", params)
    caller.on_notification("notifications/message", b'{"data":"taskId"}')
    caller.on_question(Question("s", 1, 1, "roots/list", params, refuse))
    assert inner.progress[0] == b'{"progress":1.0}'
    assert codec.value(inner.progress[1]) == expected
    assert codec.value(inner.notices[0][1]) == expected
    assert inner.notices[1][1] == b'{"data":"taskId"}'
    assert codec.value(inner.questions[0].params) == expected


def test_ids_of_tasks_fit_into_a_header() -> None:
    task = ALICE.expose_id("a-server", "t" * 512)
    assert len(task) <= task_ids.ID_BYTES_MAX
    assert task.isascii()
    assert task.isprintable()


def test_an_id_that_is_made_of_no_text_is_nobodys() -> None:
    forged = seal(ALICE.key, ALICE.scope, b"new\0\xed\xa0\x80")  # what no text is in UTF-8
    assert ALICE.find_server(merged("new", "old"), forged) is None
