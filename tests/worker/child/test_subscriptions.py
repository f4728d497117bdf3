"""Subscriptions at a legacy server: it hears of the first and of the last one, whatever happens."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metamcp_worker.child.actions import CountOnce, ReplyToFront
from metamcp_worker.child.subscriptions import URI_BYTES_MAX, URIS_MAX
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import Error, Result
from tests.examples import examples
from tests.worker.child.talk import Json, Talk, error_of, legacy, ready_legacy

ON, OFF = "resources/subscribe", "resources/unsubscribe"
A = "file:///a"


def watch(talk: Talk, front: int, call: int, uri: object = A, method: str = ON) -> list[Any]:
    params = json.dumps({"uri": uri}).encode()
    return talk.call(front, call, method=method, params=params)


def relayed(talk: Talk) -> list[str]:
    """What the server was told of resources, in order."""
    return [
        one["method"].removeprefix("resources/")
        for one in talk.wrote
        if one.get("method") in {ON, OFF}
    ]


def done(front: int, call: int, result: bytes = b"{}") -> ReplyToFront:
    return ReplyToFront(front, Result(call, result))


@pytest.mark.promise("M21")
def test_only_the_first_and_the_last_reach_the_server() -> None:
    talk = ready_legacy()
    assert watch(talk, 1, 1) == []
    assert talk.asked(ON)["params"] == {"uri": A}
    assert talk.answers(ON, {"x": 1}) == [done(1, 1, b'{"x": 1}')]
    assert watch(talk, 1, 2) == [done(1, 2)]
    assert watch(talk, 2, 1) == [done(2, 1)]
    assert watch(talk, 1, 3, method=OFF) == [done(1, 3)]
    assert watch(talk, 2, 2, method=OFF) == [done(2, 2)]
    assert watch(talk, 2, 3, method=OFF) == [done(2, 3)]
    assert relayed(talk) == ["subscribe"]
    assert watch(talk, 1, 4, method=OFF) == []
    assert talk.answers(OFF, {"y": 1}) == [done(1, 4, b'{"y": 1}')]
    assert relayed(talk) == ["subscribe", "unsubscribe"]


def test_who_comes_while_the_server_is_asked_gets_its_answer_too() -> None:
    talk = ready_legacy()
    for call in (1, 2, 3):
        assert watch(talk, call, call) == []
    assert talk.session.in_flight == 3
    assert talk.answers(ON, {}) == [done(1, 1), done(2, 2), done(3, 3)]
    assert relayed(talk) == ["subscribe"]
    assert talk.session.in_flight == 0


def test_a_refusal_is_for_all_who_waited_and_the_next_one_asks_again() -> None:
    talk = ready_legacy()
    watch(talk, 1, 1)
    watch(talk, 2, 2)
    error = b'{"code": -32002, "x": 1.50}'
    number = talk.asked(ON)["id"]
    found = talk.says(b'{"jsonrpc":"2.0","id":%d,"error":%b}' % (number, error))
    assert found == [ReplyToFront(1, Error(1, error)), ReplyToFront(2, Error(2, error))]
    assert watch(talk, 1, 3) == []
    assert relayed(talk) == ["subscribe", "subscribe"]


def test_a_subscribe_behind_an_unsubscribe_waits_for_it() -> None:
    talk = ready_legacy()
    watch(talk, 1, 1)
    talk.answers(ON, {})
    watch(talk, 1, 2, method=OFF)
    assert watch(talk, 2, 1) == []
    assert relayed(talk) == ["subscribe", "unsubscribe"]
    assert talk.answers(OFF, {}) == [done(1, 2)]
    assert relayed(talk)[2:] == ["subscribe"]
    assert talk.answers(ON, {}) == [done(2, 1)]


def test_a_front_that_leaves_watches_nothing_any_more() -> None:
    talk = ready_legacy()
    for uri in ("a://1", "a://2"):
        watch(talk, 1, 1, uri)
        talk.answers(ON, {})
    watch(talk, 2, 1, "a://2")
    talk.note(talk.session.front_gone(1, talk.now))
    assert relayed(talk)[2:] == ["unsubscribe"]
    assert talk.asked(OFF)["params"] == {"uri": "a://1"}
    assert talk.answers(OFF, {}) == []


@pytest.mark.parametrize("how", ["cancelled", "front gone", "too late"])
def test_who_does_not_wait_for_the_answer_does_not_watch(how: str) -> None:
    talk = ready_legacy(timeout_s=60.0)
    talk.call(1, 1, method=ON, params=b'{"uri":"file:///a"}', deadline_ms=1000)
    if how == "cancelled":
        assert talk.cancel(1, 1) == []
    elif how == "front gone":
        assert talk.note(talk.session.front_gone(1, talk.now)) == []
    else:
        assert error_of(talk.tick(1))["code"] == Code.TIMED_OUT
    assert talk.answers(ON, {}) == []
    assert relayed(talk) == ["subscribe", "unsubscribe"]


def test_a_server_that_says_nothing_is_given_up_and_asked_again() -> None:
    talk = ready_legacy(timeout_s=10.0)
    watch(talk, 1, 1)
    assert error_of(talk.tick(10))["code"] == Code.TIMED_OUT
    assert talk.wrote[-1]["method"] == "notifications/cancelled"
    assert talk.answers(ON, {}) == [CountOnce("late_reply")]
    watch(talk, 1, 2)
    assert talk.answers(ON, {}) == [done(1, 2)]


@pytest.mark.parametrize("uri", ["", None, 3, "a://" + "x" * URI_BYTES_MAX])
def test_what_names_no_resource_is_refused(uri: object) -> None:
    talk = ready_legacy()
    assert error_of(watch(talk, 1, 1, uri))["code"] == Code.INVALID_PARAMS
    assert error_of(talk.call(1, 2, method=ON, params=b"[]"))["code"] == Code.INVALID_PARAMS
    assert relayed(talk) == []


def test_subscriptions_are_bounded() -> None:
    talk = ready_legacy(queue=5)
    for number in range(URIS_MAX):
        watch(talk, 1, 1, f"a://{number}")
        talk.answers(ON, {})
    assert error_of(watch(talk, 1, 1, "a://more"))["code"] == Code.OVERLOADED
    watch(talk, 1, 1, "a://0", OFF)
    talk.answers(OFF, {})
    assert watch(talk, 1, 1, "a://more") == []
    for number in range(4):
        watch(talk, 1, number, "a://more")
    assert error_of(watch(talk, 1, 9, "a://more"))["code"] == Code.OVERLOADED


def test_those_who_subscribe_before_the_server_is_ready_wait_for_it() -> None:
    talk = Talk(era="legacy-first")
    assert watch(talk, 1, 1) == []
    talk.answers("initialize", legacy({}))
    assert relayed(talk) == ["subscribe"]


def test_a_lost_connection_answers_those_who_wait() -> None:
    talk = ready_legacy()
    watch(talk, 1, 1)
    found = talk.note(talk.session.fail_calls(Code.TOO_LARGE, "was ended"))
    assert error_of(found)["code"] == Code.TOO_LARGE


STEPS = st.one_of(
    st.tuples(st.sampled_from(["on", "off"]), st.sampled_from([1, 2]), st.sampled_from("ab")),
    st.tuples(st.sampled_from(["ok", "refuse", "tick"]), st.just(0), st.just("")),
    st.tuples(st.sampled_from(["gone", "cancel"]), st.sampled_from([1, 2]), st.just("")),
)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_server_and_clients_agree_in_the_end(steps: list[tuple[str, int, str]]) -> None:
    """Each call is answered once at most; when all is said, the server has exactly what is held."""
    talk = ready_legacy()
    server: dict[str, bool] = {}
    held: dict[tuple[int, str], int] = {}
    waiting: dict[int, tuple[int, str, str]] = {}
    calls = 0

    def note(found: list[Any]) -> None:
        for reply in (one for one in found if isinstance(one, ReplyToFront)):
            front, what, uri = waiting.pop(getattr(reply.frame, "id", 0))
            change = 1 if what == ON and isinstance(reply.frame, Result) else 0
            held[front, uri] = held.get((front, uri), 0) + change

    def open_requests() -> list[Json]:
        return [one for one in talk.wrote if one.get("method") in {ON, OFF} and "seen" not in one]

    def settle(*, refused: bool = False) -> None:
        for request in open_requests()[:1]:
            request["seen"] = True
            uri, number = request["params"]["uri"], request["id"]
            assert server.get(uri, False) == (request["method"] == OFF)
            server[uri] = request["method"] == ON and not refused
            outcome: Json = {"error": {"code": 1}} if refused else {"result": {}}
            note(talk.says({"jsonrpc": "2.0", "id": number, **outcome}))

    for what, front, uri in steps:
        if what in {"on", "off"}:
            calls += 1
            waiting[calls] = (front, ON if what == "on" else OFF, uri)
            if what == "off" and held.get((front, uri)):
                held[front, uri] -= 1
            note(watch(talk, front, calls, uri, waiting[calls][1]))
        elif what in {"ok", "refuse"}:
            settle(refused=what == "refuse")
        elif what == "tick":
            note(talk.tick(1))
        else:
            mine = [number for number, one in waiting.items() if one[0] == front]
            for number in mine if what == "gone" else mine[:1]:
                del waiting[number]
            if what == "gone":
                held = {key: count for key, count in held.items() if key[0] != front}
                note(talk.note(talk.session.front_gone(front, talk.now)))
            elif mine:
                note(talk.cancel(front, mine[0]))
    while open_requests():
        settle()
    assert not waiting
    wanted = {uri for (_, uri), count in held.items() if count}
    assert {uri for uri, on in server.items() if on} == wanted
