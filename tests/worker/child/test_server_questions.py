"""Questions of a server: who is asked, and that each is answered once, whatever happens."""

import json
from typing import Any

import pytest

from metamcp_worker.child.actions import CancelRequest, CountOnce, ReplyToFront, WriteToServer
from metamcp_worker.child.server_calls import LINGER_S_MAX
from metamcp_worker.child.server_questions import (
    ASKING_S_MAX,
    QUESTION_S_MAX,
    QUESTIONS_MAX,
    ROOTS_TRIAL_S,
)
from metamcp_worker.ipc import frames
from metamcp_worker.ipc.errors import Code
from metamcp_worker.ipc.frames import Error, QuestionFrame, Result, WithdrawQuestion
from tests.worker.child.talk import (
    Talk,
    error_of,
    question_of,
    ready_legacy,
    ready_modern,
)

METHODS = ["elicitation/create", "sampling/createMessage", "roots/list", "example.com/own"]
REFUSED: list[Any] = [CountOnce("unroutable_request")]
CONTESTED: list[Any] = [*REFUSED, CountOnce("contested_request")]


def refusal(talk: Talk, number: object) -> int:
    """The code of the only answer that the server got to its request."""
    (found,) = talk.answered(number)
    code: int = found["error"]["code"]
    return code


@pytest.mark.promise("M23")
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("raw", ['"s1"', '"\\u0061"', "7", "-3"])
def test_a_question_goes_to_the_only_caller_and_its_answer_back_byte_for_byte(
    method: str, raw: str
) -> None:
    talk = ready_legacy()
    talk.call(4, 70, peer=9)
    params = '{ "message":"Name?", "x":1.0e1 , "_meta":{"a":[ ]}}'
    line = f'{{"jsonrpc":"2.0","id":{raw},"method":"{method}","params":{params}}}'
    passed_on = [*talk.says(line.encode()), *talk.tick(ROOTS_TRIAL_S)]
    assert ReplyToFront(4, QuestionFrame(70, 1, method, params.encode())) in passed_on
    body = b'{"action" : "accept","content":{"n":1.50}}'
    (write,) = talk.session.reply(4, frames.ReplyFrame(1, body), talk.now)
    assert write == WriteToServer(b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (raw.encode(), body))
    assert talk.answers("tools/call", {}) == [ReplyToFront(4, Result(70, b"{}"))]


def test_an_error_of_a_client_reaches_the_server_as_it_is() -> None:
    talk = ready_legacy()
    talk.call(1, 1)
    talk.asks("s")
    error = b'{"code":-1,"message":"User rejected", "x":[1.0]}'
    (write,) = talk.session.reply(1, frames.ReplyFrame(1, error, failed=True), talk.now)
    assert write == WriteToServer(b'{"jsonrpc":"2.0","id":"s","error":%b}\n' % error)


def test_without_a_call_in_flight_nobody_is_asked() -> None:
    talk = ready_legacy()
    assert talk.asks("s") == REFUSED
    assert refusal(talk, "s") == Code.INTERNAL_ERROR


def test_two_calls_of_one_session_are_one_caller_and_the_newest_is_asked() -> None:
    talk = ready_legacy()
    talk.call(1, 5, peer=3)
    talk.call(1, 6, peer=3)
    assert question_of(talk.asks("s")).id == 6


@pytest.mark.parametrize(
    ("one", "other"),
    [((1, 3), (1, 4)), ((1, 3), (2, 3)), ((1, 0), (1, 0)), ((1, 3), (1, 0))],
)
def test_two_callers_cannot_be_told_apart_so_nobody_is_asked(
    one: tuple[int, int], other: tuple[int, int]
) -> None:
    talk = ready_legacy()
    talk.call(one[0], 5, peer=one[1])
    talk.call(other[0], 6, peer=other[1])
    for stream in (None, b""):
        assert talk.asks(f"s{stream!r}", stream=stream) == CONTESTED
    talk.says({"jsonrpc": "2.0", "id": talk.calls()[0]["id"], "result": {}})
    assert question_of(talk.asks("again")).id == 6


def test_a_call_that_waits_for_its_own_client_keeps_no_later_caller_from_being_asked() -> None:
    talk = ready_legacy()
    talk.call(1, 5, peer=3)
    assert question_of(talk.asks("first")).id == 5
    talk.call(1, 6, peer=4)
    assert question_of(talk.asks("second")).id == 6
    talk.call(2, 7, peer=1)
    assert question_of(talk.asks("third")).id == 7
    talk.replies(1, 1, b"{}")
    assert talk.asks("whose") == CONTESTED


def test_a_call_that_was_there_before_another_was_asked_may_have_caused_what_is_asked_next() -> (
    None
):
    talk = ready_legacy()
    talk.call(1, 4, peer=4)
    assert question_of(talk.asks("hers")).id == 4
    talk.call(1, 5, peer=3)
    talk.replies(1, 1, b"{}")
    talk.says({"jsonrpc": "2.0", "id": talk.calls()[0]["id"], "result": {}})
    assert question_of(talk.asks("his")).id == 5
    talk.call(1, 6, peer=4)
    assert question_of(talk.asks("hers again")).id == 6
    assert question_of(talk.asks("and again")).id == 6


def test_a_stream_of_its_own_says_whose_question_it_is() -> None:
    talk = ready_legacy()
    for front in (1, 2, 3):
        talk.call(front, front * 10)
    _, second, third = talk.keys()
    found = talk.asks(5, stream=second, via=7)
    assert found == [ReplyToFront(2, QuestionFrame(20, 1, "elicitation/create", b"{}"))]
    talk.replies(2, 1, b"{}")
    assert talk.vias[-1] == 7
    talk.says({"jsonrpc": "2.0", "id": int(third), "result": {}})
    assert talk.asks(6, stream=third) == REFUSED


@pytest.mark.promise("M23")
@pytest.mark.parametrize("how", ["cancelled", "expired", "front gone"])
def test_a_call_that_was_given_up_still_keeps_its_question_from_others(how: str) -> None:
    talk = ready_legacy(timeout_s=20.0)
    talk.call(1, 1, deadline_ms=1000)
    if how == "cancelled":
        talk.cancel(1, 1)
    elif how == "expired":
        talk.tick(1.0)
    else:
        talk.note(talk.session.front_gone(1, talk.now))
    talk.call(2, 2, deadline_ms=1_000_000)
    assert talk.asks("late") == CONTESTED
    talk.tick(1.0)
    assert question_of(talk.asks("later")).id == 2


def test_a_call_that_was_given_up_lingers_until_it_is_answered_after_all() -> None:
    talk = ready_legacy(timeout_s=1000.0)
    talk.call(1, 1)
    talk.cancel(1, 1)
    talk.call(2, 2)
    talk.tick(LINGER_S_MAX - 1)
    assert talk.asks("a") == CONTESTED
    talk.says({"jsonrpc": "2.0", "id": talk.calls()[0]["id"], "result": {}})
    assert question_of(talk.asks("b")).id == 2


def test_given_up_calls_of_the_same_session_do_not_count() -> None:
    talk = ready_legacy()
    talk.call(1, 1, peer=8)
    talk.cancel(1, 1)
    talk.call(1, 2, peer=8)
    assert question_of(talk.asks("s")).id == 2


def test_a_crowd_of_given_up_calls_is_not_forgotten_one_by_one() -> None:
    talk = ready_legacy(timeout_s=30.0)
    for number in range(2000):
        talk.call(1, number)
        talk.cancel(1, number)
    talk.call(2, 1, deadline_ms=1_000_000)
    assert talk.asks("s") == CONTESTED
    talk.tick(30.0)
    assert question_of(talk.asks("t")).id == 1


@pytest.mark.parametrize("how", ["result", "error", "broken", "lost"])
def test_a_call_that_ends_takes_its_questions_back_before_it_is_answered(how: str) -> None:
    talk = ready_legacy()
    talk.call(1, 1)
    talk.asks("a")
    talk.asks(2)
    key = talk.keys()[0]
    if how == "result":
        found = talk.answers("tools/call", {})
    elif how == "error":
        found = talk.refuses("tools/call", 5)
    elif how == "broken":
        found = talk.says(b'{"jsonrpc":"2.0","id":%b,"result":{"a":\xff}}' % key)
    else:
        found = talk.note(talk.session.on_request_failed(key, b'{"code":1}', talk.now))
    sent = [one.frame for one in found if isinstance(one, ReplyToFront)]
    assert sent[:2] == [WithdrawQuestion(1), WithdrawQuestion(2)]
    assert isinstance(sent[2], Result | Error)
    assert [refusal(talk, number) for number in ("a", 2)] == [Code.INTERNAL_ERROR] * 2
    assert talk.note(talk.session.reply(1, frames.ReplyFrame(1, b"{}"), talk.now)) == [
        CountOnce("late_reply")
    ]
    assert len(talk.answered("a")) == 1


@pytest.mark.parametrize("how", ["cancelled", "front gone"])
def test_a_front_that_gave_up_a_call_hears_no_more_of_its_questions(how: str) -> None:
    talk = ready_legacy()
    talk.call(1, 1)
    talk.asks("s")
    if how == "cancelled":
        actions = talk.session.cancel(1, frames.Cancel(1), talk.now)
    else:
        actions = talk.session.front_gone(1, talk.now)
    # The server hears of the end of the call first, so that it does not take the refusal for one.
    assert [type(one) for one in actions] == [CancelRequest, WriteToServer]
    talk.note(actions)
    assert refusal(talk, "s") == Code.INTERNAL_ERROR


def test_a_call_whose_time_is_up_takes_its_questions_along() -> None:
    talk = ready_legacy()
    talk.call(1, 1)
    talk.asks("s")
    talk.now += ASKING_S_MAX + 61
    found = [one.frame for one in talk.tick() if isinstance(one, ReplyToFront)]
    assert found[0] == WithdrawQuestion(1)
    assert refusal(talk, "s") == Code.TIMED_OUT


def test_the_server_takes_a_question_back() -> None:
    talk = ready_legacy()
    talk.call(1, 1)
    talk.asks("s")
    for other in ("t", 1, None, ["s"]):
        assert talk.tells("notifications/cancelled", requestId=other) == []
    assert talk.says(b'{"jsonrpc":"2.0","method":"notifications/cancelled"}') == []
    assert talk.tells("notifications/cancelled", requestId="s") == [
        ReplyToFront(1, WithdrawQuestion(1))
    ]
    assert talk.answered("s") == []
    assert talk.note(talk.session.reply(1, frames.ReplyFrame(1, b"{}"), talk.now)) == [
        CountOnce("late_reply")
    ]
    assert talk.answers("tools/call", {}) == [ReplyToFront(1, Result(1, b"{}"))]


def test_time_does_not_run_while_a_question_is_open_and_runs_anew_after_it() -> None:
    talk = ready_legacy(timeout_s=60.0)
    talk.call(1, 1)
    talk.tick(50)
    talk.asks("a")
    talk.asks("b")
    talk.tick(QUESTION_S_MAX - 100)
    talk.replies(1, 1, b"{}")
    talk.tick(90)
    talk.replies(1, 2, b"{}")
    assert talk.tick(59) == []
    assert error_of(talk.tick(1))["code"] == Code.TIMED_OUT


def test_a_question_that_nobody_answers_is_refused_in_time_and_the_call_goes_on() -> None:
    talk = ready_legacy(timeout_s=60.0)
    talk.call(1, 1)
    talk.asks("s")
    assert talk.tick(QUESTION_S_MAX - 1) == []
    assert talk.tick(1) == [ReplyToFront(1, WithdrawQuestion(1))]
    assert refusal(talk, "s") == Code.TIMED_OUT
    assert talk.tick(59) == []
    assert talk.answers("tools/call", {}) == [ReplyToFront(1, Result(1, b"{}"))]


def test_a_server_that_asks_without_end_keeps_its_call_for_a_bounded_time() -> None:
    talk = ready_legacy(timeout_s=60.0)
    talk.call(1, 1)
    last = int(ASKING_S_MAX / 50) + 5
    for number in range(last + 1):
        talk.asks(number)
        if talk.session.in_flight:
            talk.note(talk.session.reply(1, frames.ReplyFrame(number + 1, b"{}"), talk.now))
        talk.tick(50)
    assert talk.session.in_flight == 0
    assert refusal(talk, last) == Code.INTERNAL_ERROR


def test_a_question_keeps_the_place_of_its_call() -> None:
    talk = ready_legacy(concurrency=1)
    talk.call(1, 1)
    talk.asks("s")
    talk.call(2, 2)
    assert (len(talk.calls()), talk.session.queue_length) == (1, 1)


def test_questions_are_bounded() -> None:
    talk = ready_legacy()
    talk.call(1, 1)
    for number in range(QUESTIONS_MAX):
        assert len(talk.asks(number)) == 1
    assert talk.asks("more") == []
    assert refusal(talk, "more") == Code.OVERLOADED
    talk.replies(1, 1, b"{}")
    assert question_of(talk.asks("room")).question == QUESTIONS_MAX + 1


def test_what_is_no_request_is_not_passed_on() -> None:
    talk = ready_legacy()
    talk.call(1, 1)
    for number in (None, 1.5, True, "x" * 300):
        assert talk.asks(number) == [CountOnce("broken_request")]
    talk.asks("s")
    assert talk.asks("s") == [CountOnce("broken_request")]
    assert talk.asks("m", method="x" * 300) == []
    assert refusal(talk, "m") == Code.METHOD_NOT_FOUND


def test_a_question_that_cannot_be_delivered_is_refused() -> None:
    talk = ready_legacy()
    talk.call(1, 1)
    talk.asks("s")
    assert talk.note(talk.session.refuse_question(1, talk.now)) == []
    assert refusal(talk, "s") == Code.OVERLOADED
    assert talk.session.refuse_question(1, talk.now) == []


def test_a_front_cannot_answer_what_another_was_asked() -> None:
    talk = ready_legacy()
    talk.call(1, 1)
    talk.asks("s")
    for front, question in ((2, 1), (1, 2), (1, 0)):
        found = talk.note(talk.session.reply(front, frames.ReplyFrame(question, b"{}"), talk.now))
        assert found == [CountOnce("late_reply")]
    assert talk.answered("s") == []


def test_a_ping_is_answered_with_the_id_it_has_in_both_eras_and_at_any_time() -> None:
    for talk in (Talk(), ready_legacy(), ready_modern()):
        for raw in (b"5", b'"a\\u0041"', b"-1"):
            line = b'{"jsonrpc":"2.0","method":"ping","id":%b}' % raw
            answer = b'{"jsonrpc":"2.0","id":%b,"result":{}}\n' % raw
            assert talk.session.receive(line, 0.0, None, 3) == [WriteToServer(answer, 3)]


@pytest.mark.parametrize("method", METHODS)
def test_a_modern_server_has_no_requests_to_send(method: str) -> None:
    talk = ready_modern()
    talk.call(1, 1)
    assert talk.asks("s", method) == REFUSED
    assert refusal(talk, "s") == Code.METHOD_NOT_FOUND


def test_a_lost_connection_takes_the_questions_along() -> None:
    talk = ready_legacy()
    talk.call(1, 1)
    talk.asks("s")
    found = talk.note(talk.session.fail_calls(Code.TOO_LARGE, "was ended"))
    sent = [one.frame for one in found if isinstance(one, ReplyToFront)]
    assert sent[0] == WithdrawQuestion(1)
    assert json.loads(getattr(sent[1], "body", b""))["code"] == Code.TOO_LARGE
    assert talk.asks("t") == []


def test_progress_of_a_client_with_a_question_reaches_the_server_under_its_token() -> None:
    talk = ready_legacy()
    talk.call(1, 1)
    params = {"_meta": {"progressToken": "p1"}}
    line = {"jsonrpc": "2.0", "id": 1, "method": "sampling/createMessage", "params": params}
    talk.says(line, via=5)
    body = b'{"progressToken":"p1","progress":1.50}'
    assert talk.tell(1, "notifications/progress", body) == []
    assert talk.wrote[-1]["params"] == json.loads(body)
    assert talk.vias[-1] == 5
    for front, other in ((2, body), (1, b'{"progressToken":"p2"}'), (1, b"{}"), (1, b"[]")):
        found = talk.tell(front, "notifications/progress", other)
        assert found == [CountOnce("untold_notification")]
