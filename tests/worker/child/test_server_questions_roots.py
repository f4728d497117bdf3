"""Servers that ask for the roots of their client, which is known for a process of a single one."""

from typing import Any

import pytest

from metamcp_worker.child.actions import Action, CountOnce, Relisted, ReplyToFront
from metamcp_worker.child.server_questions import ROOTS_TRIAL_S
from metamcp_worker.child.server_session import ROOTS_S
from metamcp_worker.ipc import codec, roots
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import Result
from tests.worker.child.talk import Talk, legacy, question_of, ready_legacy

pytestmark = pytest.mark.promise("M23")

HERE = '{"roots":[{"uri":"file:///here"}]}'
THERE = b'{"roots":[{"uri":"file:///there"}]}'
CALLER = '{"clientCapabilities":{"roots":{"listChanged":true},"x":{}},"clientInfo":{"name":"a"}}'


def told(talk: Talk, number: object) -> Any:
    (found,) = talk.answered(number)
    return found["result"]


def test_before_any_client_is_there_there_are_no_roots_and_nothing_is_wrong() -> None:
    talk = Talk(era="legacy")
    talk.answers("initialize", legacy())
    assert talk.asks("s", roots.METHOD) == []
    assert told(talk, "s") == {"roots": []}


def test_that_it_asks_is_part_of_what_it_offers() -> None:
    talk = ready_legacy()
    assert not talk.last_catalogue().catalogue.asksRoots
    (news,) = talk.asks("s", roots.METHOD)
    assert isinstance(news, Relisted)
    assert news.catalogue.asksRoots
    assert talk.asks("t", roots.METHOD) == []
    assert ready_legacy(asks_roots="ahead").last_catalogue().catalogue.asksRoots == "ahead"


def heard(talk: Talk) -> int:
    """How often the server heard that the roots have changed."""
    return sum(one.get("method") == roots.CHANGED for one in talk.wrote)


def when(actions: list[Action]) -> list[str]:
    """What the actions say of when the server asks."""
    return [one.catalogue.asksRoots for one in actions if isinstance(one, Relisted)]


def test_a_server_that_asks_again_when_roots_change_keeps_them_and_gets_those_of_no_caller() -> (
    None
):
    talk = ready_legacy()
    talk.call(1, 5)
    assert when(talk.asks("s", roots.METHOD, via=3)) == ["in calls"]
    assert (heard(talk), talk.vias[-1], talk.answered("s")) == (1, 3, [])
    news = talk.asks("t", roots.METHOD)
    assert when(news) == ["ahead"]
    assert not any(isinstance(one, ReplyToFront) for one in news)
    assert [told(talk, number) for number in ("s", "t")] == [{"roots": []}] * 2
    assert talk.asks("u", roots.METHOD) == []
    assert told(talk, "u") == {"roots": []}
    assert heard(talk) == 1
    assert talk.answers("tools/call", {}) == [ReplyToFront(1, Result(5, b"{}"))]


def test_a_server_that_does_not_ask_again_gets_the_roots_of_each_caller_and_waits_once() -> None:
    talk = ready_legacy()
    talk.call(1, 5)
    talk.asks("s", roots.METHOD)
    assert talk.tick(ROOTS_TRIAL_S - 0.01) == []
    assert question_of(talk.tick(0.01)).id == 5
    talk.replies(1, 1, THERE)
    assert told(talk, "s") == codec.value(THERE)
    talk.answers("tools/call", {})
    talk.call(2, 6)
    assert question_of(talk.asks("t", roots.METHOD)).id == 6
    assert heard(talk) == 1


def test_questions_of_several_calls_are_not_taken_for_questions_that_come_again() -> None:
    talk = ready_legacy()
    for call in (5, 6):
        talk.call(1, call, peer=7)
    for number in ("s", "t"):
        assert not any(isinstance(one, ReplyToFront) for one in talk.asks(number, roots.METHOD))
    assert heard(talk) == 2
    assert len(talk.tick(ROOTS_TRIAL_S)) == 2
    for question, number in ((1, "s"), (2, "t")):
        talk.replies(1, question, THERE)
        assert told(talk, number) == codec.value(THERE)
    talk.asks("u", roots.METHOD)
    assert heard(talk) == 4, "that was not certain, so it is tried again"


def test_in_doubt_a_server_hears_of_roots_once_more_as_soon_as_it_has_no_calls() -> None:
    talk = ready_legacy()
    for call in (5, 6):
        talk.call(1, call, peer=7)
    for number in ("s", "t"):
        talk.asks(number, roots.METHOD)
    talk.tick(ROOTS_TRIAL_S)
    talk.replies(1, 1, THERE)
    calls = talk.keys()
    for key in calls:
        talk.tick()
        assert heard(talk) == 2
        talk.says(b'{"jsonrpc":"2.0","id":%b,"result":{}}' % key)
    for _ in range(2):
        talk.tick()
        assert heard(talk) == 3
    assert CountOnce("lent_roots") in talk.asks("u", roots.METHOD)


def test_a_call_that_begins_in_the_trial_is_not_taken_for_one_that_asks() -> None:
    talk = ready_legacy()
    talk.call(1, 5)
    talk.asks("s", roots.METHOD)
    talk.call(2, 6)
    talk.asks("t", roots.METHOD)
    assert (heard(talk), talk.answered("s")) == (2, [])
    assert when(talk.asks("u", roots.METHOD)) == ["ahead"]
    assert [told(talk, number) for number in "stu"] == [{"roots": []}] * 3


@pytest.mark.parametrize("peers", [(7, 7, 7), (7, 8, 9)])
def test_a_server_with_several_calls_keeps_roots_if_it_asks_more_often_than_it_has_calls(
    peers: tuple[int, ...],
) -> None:
    talk = ready_legacy()
    for call, peer in enumerate(peers):
        talk.call(1, call, peer=peer)
    for number in ("a", "b", "c"):
        talk.asks(number, roots.METHOD)
        assert talk.answered(number) == []
    assert when(talk.asks("d", roots.METHOD)) == ["ahead"]
    assert [told(talk, number) for number in "abcd"] == [{"roots": []}] * 4
    assert talk.tick(ROOTS_TRIAL_S) == []


def test_what_several_clients_may_have_caused_is_refused_if_the_server_keeps_no_roots() -> None:
    talk = ready_legacy()
    talk.call(1, 5)
    talk.call(2, 6)
    talk.asks("s", roots.METHOD)
    assert CountOnce("contested_request") in talk.tick(ROOTS_TRIAL_S)
    assert talk.answered("s")[0]["error"]["code"] == Code.INTERNAL_ERROR


@pytest.mark.parametrize("cancelled", [False, True])
def test_a_call_that_ends_in_the_trial_takes_its_question_along(cancelled: bool) -> None:
    talk = ready_legacy()
    talk.call(1, 5)
    talk.asks("s", roots.METHOD)
    if cancelled:
        talk.cancel(1, 5)
    else:
        talk.answers("tools/call", {})
    assert talk.answered("s")[0]["error"]["code"] == Code.INTERNAL_ERROR
    talk.call(2, 6)
    assert talk.asks("t", roots.METHOD) == []
    assert talk.answered("t") == [], "there is only this one question for that call"
    talk.tick(ROOTS_TRIAL_S)
    assert len(talk.answered("s")) == 1


def test_a_call_that_begins_in_the_trial_changes_nothing_about_whom_to_ask() -> None:
    talk = ready_legacy()
    talk.call(1, 5)
    talk.asks("s", roots.METHOD)
    talk.call(2, 6)
    assert question_of(talk.tick(ROOTS_TRIAL_S)).id == 5


def test_a_process_that_was_lent_roots_and_asks_without_a_call_later_says_so() -> None:
    talk = ready_legacy()
    talk.call(1, 5)
    talk.asks("s", roots.METHOD)
    talk.tick(ROOTS_TRIAL_S)
    talk.replies(1, 1, THERE)
    talk.answers("tools/call", {"content": []})
    news, count = talk.asks("u", roots.METHOD)
    assert when([news]) == ["ahead"]
    assert count == CountOnce("lent_roots")
    assert told(talk, "u") == {"roots": []}
    assert talk.asks("v", roots.METHOD) == []


def test_a_client_without_roots_lends_none() -> None:
    talk = ready_legacy()
    talk.call(1, 5)
    talk.asks("s", roots.METHOD)
    talk.tick(ROOTS_TRIAL_S)
    talk.replies(1, 1, roots.NONE)
    talk.answers("tools/call", {"content": []})
    assert CountOnce("lent_roots") not in talk.asks("t", roots.METHOD)


def test_a_server_that_is_known_to_keep_roots_is_not_tried() -> None:
    talk = ready_legacy(asks_roots="ahead")
    talk.call(1, 5)
    assert talk.asks("s", roots.METHOD) == []
    assert told(talk, "s") == {"roots": []}
    assert heard(talk) == 0


def test_a_process_of_one_client_asks_that_client_until_its_roots_are_known() -> None:
    talk = ready_legacy(caller=CALLER)
    talk.call(1, 5)
    assert question_of(talk.asks("s", roots.METHOD)).id == 5
    talk.replies(1, 1, THERE)
    assert told(talk, "s") == codec.value(THERE)


def test_a_process_of_one_client_knows_its_roots_and_what_it_can_do() -> None:
    talk = Talk(era="legacy", caller=CALLER, roots=HERE)
    assert talk.asked("initialize")["params"]["capabilities"] == {"roots": {"listChanged": True}}
    talk.answers("initialize", legacy())
    talk.asks("s", roots.METHOD)
    assert told(talk, "s") == codec.value(HERE.encode())


def test_a_call_waits_until_the_server_had_time_for_the_roots() -> None:
    talk = Talk(era="legacy", caller=CALLER, roots=HERE)
    talk.answers("initialize", legacy())
    talk.asks("s", roots.METHOD)
    talk.answers("tools/list", {"tools": []})
    talk.call(1, 5)
    assert not talk.calls()
    talk.tick(ROOTS_S)
    assert len(talk.calls()) == 1


def test_other_roots_are_told_once_and_asked_for_anew() -> None:
    talk = ready_legacy(caller=CALLER, roots=HERE)
    talk.tell(1, roots.TOLD, HERE.encode())
    talk.tell(1, roots.TOLD, THERE)
    talk.tell(2, roots.TOLD, THERE)
    assert [one.get("method") for one in talk.wrote].count(roots.CHANGED) == 1
    talk.asks("s", roots.METHOD)
    assert told(talk, "s") == codec.value(THERE)
