"""One listen at a modern server for all clients: changed without a gap, and taken up again."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metamcp_worker.child.actions import CountOnce, ReplyToFront
from metamcp_worker.child.subscriptions import (
    LISTEN_AGAIN_S,
    LISTEN_AGAIN_S_MAX,
    TASK_ID_BYTES_MAX,
    URIS_BYTES_MAX,
    URIS_MAX,
)
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import Result
from tests.examples import examples
from tests.worker.child.talk import Json, Talk, error_of, modern, ready_modern

ON, OFF = "resources/subscribe", "resources/unsubscribe"
LISTEN = "subscriptions/listen"
PREFIX = "io.modelcontextprotocol/"


def watch(talk: Talk, front: int, call: int, uri: object, method: str = ON) -> list[Any]:
    params = json.dumps({"uri": uri}).encode()
    return talk.call(front, call, method=method, params=params)


def listens(talk: Talk) -> list[Json]:
    return [one for one in talk.wrote if one.get("method") == LISTEN]


def dropped(talk: Talk) -> list[int]:
    return [
        one["params"]["requestId"]
        for one in talk.wrote
        if one.get("method") == "notifications/cancelled"
    ]


def wanted(talk: Talk) -> Json:
    """What the last listen asks for."""
    found: Json = listens(talk)[-1]["params"]["notifications"]
    return found


def honour(talk: Talk, listen: Json | None = None, *, but: str = "") -> list[Any]:
    """The server acknowledges a listen, the last one unless said otherwise."""
    listen = listen or listens(talk)[-1]
    what = dict(listen["params"]["notifications"])
    if "resourceSubscriptions" in what:
        uris = what["resourceSubscriptions"]
        what["resourceSubscriptions"] = [uri for uri in uris if uri != but]
    meta = {PREFIX + "subscriptionId": listen["id"]}
    method = "notifications/subscriptions/acknowledged"
    return talk.tells(method, notifications=what, _meta=meta)


def done(front: int, call: int) -> ReplyToFront:
    return ReplyToFront(front, Result(call, b"{}"))


def listening(**spec: Any) -> Talk:
    talk = ready_modern(**spec)
    assert honour(talk) == []
    return talk


@pytest.mark.promise("M21")
def test_a_new_listen_is_acknowledged_before_the_old_one_ends_and_the_call_is_answered() -> None:
    talk = listening()
    (first,) = listens(talk)
    assert watch(talk, 1, 1, "a://1") == []
    assert wanted(talk) == {"toolsListChanged": True, "resourceSubscriptions": ["a://1"]}
    assert dropped(talk) == []
    assert honour(talk) == [done(1, 1)]
    assert dropped(talk) == [first["id"]]
    assert watch(talk, 2, 5, "a://1") == [done(2, 5)]
    assert len(listens(talk)) == 2


def test_what_comes_while_a_listen_is_opened_is_in_the_next_one() -> None:
    talk = listening()
    watch(talk, 1, 1, "a://1")
    for call, uri in enumerate(["a://2", "a://3", "a://1"], 2):
        assert watch(talk, 1, call, uri) == []
    assert honour(talk) == [done(1, 1), done(1, 4)]
    assert wanted(talk)["resourceSubscriptions"] == ["a://1", "a://2", "a://3"]
    assert honour(talk) == [done(1, 2), done(1, 3)]
    assert (len(listens(talk)), len(dropped(talk))) == (3, 2)


def test_the_last_one_who_leaves_makes_the_listen_smaller() -> None:
    talk = listening()
    watch(talk, 1, 1, "a://1")
    honour(talk)
    watch(talk, 2, 1, "a://1")
    assert watch(talk, 1, 2, "a://1", OFF) == [done(1, 2)]
    assert watch(talk, 1, 3, "a://1", OFF) == [done(1, 3)]
    assert len(listens(talk)) == 2
    talk.note(talk.session.front_gone(2, talk.now))
    assert wanted(talk) == {"toolsListChanged": True}
    assert honour(talk) == []
    assert len(dropped(talk)) == 2


def test_a_resource_that_the_server_does_not_tell_of_is_an_error_and_spoils_nothing() -> None:
    talk = listening()
    watch(talk, 1, 1, "a://1")
    watch(talk, 1, 2, "a://2")
    honour(talk)
    found = honour(talk, but="a://2")
    assert error_of(found)["code"] == Code.INVALID_PARAMS
    assert wanted(talk)["resourceSubscriptions"] == ["a://1"]


def test_a_refused_listen_is_told_in_the_servers_words_and_the_old_one_stays() -> None:
    talk = listening()
    watch(talk, 1, 1, "a://1")
    assert error_of(talk.refuses(LISTEN, -32602))["code"] == -32602
    assert dropped(talk) == []
    before = len(talk.wrote)
    talk.tick(LISTEN_AGAIN_S_MAX)
    assert len(talk.wrote) == before


def test_a_server_that_cannot_listen_is_asked_again_only_for_something_else() -> None:
    talk = ready_modern()
    assert talk.refuses(LISTEN, -32601) == []
    for _ in range(10):
        talk.tick(LISTEN_AGAIN_S_MAX)
    assert len(listens(talk)) == 1
    watch(talk, 1, 1, "a://1")
    assert len(listens(talk)) == 2
    assert error_of(talk.refuses(LISTEN, -32601))["code"] == -32601
    talk.tick(LISTEN_AGAIN_S_MAX)
    assert len(listens(talk)) == 2


@pytest.mark.parametrize("how", ["result", "cancelled", "error", "lost"])
def test_an_ended_listen_is_taken_up_again_with_everything(how: str) -> None:
    talk = listening()
    watch(talk, 1, 1, "a://1")
    honour(talk)
    number = listens(talk)[-1]["id"]
    if how == "result":
        talk.answers(LISTEN, {"resultType": "complete"})
    elif how == "cancelled":
        talk.tells("notifications/cancelled", requestId=number)
    elif how == "error":
        talk.refuses(LISTEN, -32603)
    else:
        talk.note(talk.session.on_request_failed(b"%d" % number, b"{}", talk.now))
    talk.tick(LISTEN_AGAIN_S - 1)
    assert len(listens(talk)) == 2
    talk.tick(1)
    assert wanted(talk)["resourceSubscriptions"] == ["a://1"]
    # What it could not announce meanwhile is read.
    assert talk.wrote[-1]["method"] == "tools/list"
    assert honour(talk) == []
    assert dropped(talk) == [listens(talk)[0]["id"]]


def test_a_way_that_is_broken_is_tried_less_and_less_often() -> None:
    talk = listening()
    for _ in range(100):
        number = listens(talk)[-1]["id"]
        talk.note(talk.session.on_request_failed(b"%d" % number, b"{}", talk.now))
        talk.tick(LISTEN_AGAIN_S)
    assert 100 * LISTEN_AGAIN_S / LISTEN_AGAIN_S_MAX <= len(listens(talk)) < 20


def test_a_server_that_never_acknowledges_lets_who_waits_time_out() -> None:
    talk = ready_modern(timeout_s=10.0)
    assert watch(talk, 1, 1, "a://1") == []
    assert error_of(talk.tick(10))["code"] == Code.TIMED_OUT
    assert talk.session.in_flight == 0
    watch(talk, 1, 2, "a://1")
    assert len(listens(talk)) == 2
    assert error_of(talk.tick(10))["code"] == Code.TIMED_OUT
    assert dropped(talk) == [listens(talk)[1]["id"]]
    assert talk.answers(LISTEN, {}) == [CountOnce("late_reply")]


def test_who_does_not_wait_does_not_watch() -> None:
    talk = listening()
    watch(talk, 1, 1, "a://1")
    assert talk.cancel(1, 1) == []
    assert honour(talk) == []
    assert wanted(talk) == {"toolsListChanged": True}


def test_an_acknowledgement_on_its_stream_needs_no_id() -> None:
    talk = listening()
    watch(talk, 1, 1, "a://1")
    method = "notifications/subscriptions/acknowledged"
    for stream, what in ((b"999", {}), (None, {}), (None, {"notifications": 3})):
        assert talk.tells(method, stream, **what) == []
    key = b"%d" % listens(talk)[-1]["id"]
    found = talk.tells(method, key, notifications={"resourceSubscriptions": ["a://1"]})
    assert found == [done(1, 1)]


@pytest.mark.promise("M24")
def test_tasks_that_clients_watch_are_in_the_listen_of_a_client_that_knows_of_tasks() -> None:
    talk = listening()
    ids = ["t1", "x" * (TASK_ID_BYTES_MAX + 1)]
    assert talk.tell(1, "metamcp/tasks", json.dumps({"taskIds": ids}).encode()) == []
    assert wanted(talk)["taskIds"] == ["t1"]
    meta = listens(talk)[-1]["params"]["_meta"]
    capabilities: Json = {"extensions": {PREFIX + "tasks": {}}}
    assert meta[PREFIX + "clientCapabilities"] == capabilities
    honour(talk)
    talk.tell(2, "metamcp/tasks", b'{"taskIds":["t2","t1"]}')
    honour(talk)
    talk.tell(1, "metamcp/tasks", b'{"taskIds":[]}')
    assert wanted(talk)["taskIds"] == ["t1", "t2"]
    for broken in (b"", b"[]", b'{"taskIds":3}'):
        assert talk.tell(2, "metamcp/tasks", broken) == []
    talk.note(talk.session.front_gone(2, talk.now))
    assert "taskIds" not in wanted(talk)


def test_what_is_watched_before_the_server_is_ready_is_in_the_first_listen() -> None:
    talk = Talk()
    talk.tell(1, "metamcp/tasks", b'{"taskIds":["t1"]}')
    watch(talk, 1, 1, "a://1")
    talk.answers("server/discover", modern({}))
    assert wanted(talk) == {"taskIds": ["t1"]}
    honour(talk)
    assert wanted(talk) == {"taskIds": ["t1"], "resourceSubscriptions": ["a://1"]}
    assert honour(talk) == [done(1, 1)]


def test_what_is_said_of_other_requests_ends_no_listen() -> None:
    talk = listening()
    method = "notifications/cancelled"
    assert talk.says(b'{"jsonrpc":"2.0","method":"%b","params":[]}' % method.encode()) == []
    talk.tells("notifications/tools/list_changed")
    assert talk.tells(method, requestId=talk.asked("tools/list")["id"]) == []
    assert talk.answers("tools/list", {"tools": []}) != []
    talk.tick(LISTEN_AGAIN_S_MAX)
    assert len(listens(talk)) == 1


@pytest.mark.parametrize("honoured", [True, False])
def test_who_comes_while_a_refused_listen_is_tried_is_answered_by_the_one_that_stands(
    honoured: bool,
) -> None:
    talk = listening()
    watch(talk, 1, 1, "a://1")
    honour(talk, but="" if honoured else "a://1")
    watch(talk, 1, 2, "a://1", OFF)  # so that nobody watches it
    assert watch(talk, 1, 3, "a://1") == []
    found = talk.says({"jsonrpc": "2.0", "id": listens(talk)[-1]["id"], "error": {"code": 1}})
    if honoured:
        assert done(1, 3) in found
    else:
        assert error_of(found)["code"] == Code.INVALID_PARAMS


def test_a_lost_connection_answers_those_who_wait() -> None:
    talk = listening()
    watch(talk, 1, 1, "a://1")
    found = talk.note(talk.session.fail_calls(Code.TOO_LARGE, "was ended"))
    assert error_of(found)["code"] == Code.TOO_LARGE


def test_where_nothing_is_watched_there_is_no_listen() -> None:
    talk = Talk()
    talk.answers("server/discover", modern({}))
    assert listens(talk) == []
    watch(talk, 1, 1, "a://1")
    honour(talk)
    watch(talk, 1, 2, "a://1", OFF)
    assert dropped(talk) == [listens(talk)[0]["id"]]
    assert len(listens(talk)) == 1


def test_the_size_of_a_listen_is_bounded() -> None:
    talk = listening(queue=URIS_MAX + 10)
    long = "a://" + "x" * 2000
    count = URIS_BYTES_MAX // (len(long) + 4)
    for number in range(count):
        assert watch(talk, 1, number, f"{long}{number:04}") == []
    assert error_of(watch(talk, 1, 9999, f"{long}9999"))["code"] == Code.OVERLOADED
    assert watch(talk, 1, count, f"{long}0000") == []
    assert error_of(watch(talk, 1, 9999, 7))["code"] == Code.INVALID_PARAMS


STEPS = st.one_of(
    st.tuples(st.sampled_from(["on", "off"]), st.sampled_from([1, 2]), st.sampled_from("ab")),
    st.tuples(st.sampled_from(["ack", "refuse", "end", "wait"]), st.just(0), st.just("")),
    st.tuples(st.sampled_from(["gone", "cancel"]), st.sampled_from([1, 2]), st.just("")),
)


class Listener:
    """A server that keeps the listens it was sent, and what clients hold as they know it."""

    def __init__(self) -> None:
        self.talk = listening(timeout_s=1e9)
        self.held: dict[tuple[int, str], int] = {}
        self.waiting: dict[int, tuple[int, str]] = {}
        self.acknowledged: list[int] = [listens(self.talk)[0]["id"]]
        self.ended: set[int] = set()

    def open(self) -> list[Json]:
        gone = {*dropped(self.talk), *self.ended}
        return [one for one in listens(self.talk) if one["id"] not in gone]

    def step(self, what: str) -> None:
        fresh = [one for one in self.open() if one["id"] not in self.acknowledged]
        assert len(fresh) <= 1
        if what == "wait":
            self.note(self.talk.tick(LISTEN_AGAIN_S_MAX))
        elif what == "ack" and fresh:
            self.acknowledged.append(fresh[0]["id"])
            self.note(honour(self.talk, fresh[0]))
        elif what in {"refuse", "end"} and self.open():
            number = (fresh or self.open())[0]["id"] if what == "refuse" else self.open()[0]["id"]
            self.ended.add(number)
            outcome: Json = {"error": {"code": 1}} if what == "refuse" else {"result": {}}
            self.note(self.talk.says({"jsonrpc": "2.0", "id": number, **outcome}))

    def note(self, found: list[Any]) -> None:
        for reply in (one for one in found if isinstance(one, ReplyToFront)):
            key = self.waiting.pop(getattr(reply.frame, "id", 0), None)
            if key is not None and isinstance(reply.frame, Result):
                self.held[key] = self.held.get(key, 0) + 1


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_in_the_end_the_server_is_listened_to_for_what_is_held(
    steps: list[tuple[str, int, str]],
) -> None:
    one = Listener()
    for number, (what, front, uri) in enumerate(steps, 1):
        if what == "on":
            one.waiting[number] = (front, uri)
            one.note(watch(one.talk, front, number, uri))
        elif what == "off":
            one.held[front, uri] = max(0, one.held.get((front, uri), 0) - 1)
            one.note(watch(one.talk, front, number, uri, OFF))
        elif what == "gone":
            one.held = {key: n for key, n in one.held.items() if key[0] != front}
            one.waiting = {call: key for call, key in one.waiting.items() if key[0] != front}
            one.note(one.talk.note(one.talk.session.front_gone(front, one.talk.now)))
        elif what == "cancel":
            mine = [call for call, key in one.waiting.items() if key[0] == front][:1]
            for call in mine:
                del one.waiting[call]
                one.note(one.talk.cancel(front, call))
        else:
            one.step(what)
    for _ in range(5):
        one.step("ack")
        one.step("wait")
    assert not one.waiting
    held = sorted({uri for (_, uri), count in one.held.items() if count})
    (open_one,) = one.open()
    assert open_one["params"]["notifications"].get("resourceSubscriptions", []) == held
