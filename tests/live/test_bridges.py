"""Questions of servers in every combination of eras: several at once, one after the other, with a
link instead of a form; what is refused, and what becomes of answers that fit nothing."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.envelope import Envelope
from tests.live.cells import ABLE, Asked, called, cells, client, servers, text
from tests.live.gateway import Gateway
from tests.live.raw import MODERN, Raw

pytestmark = pytest.mark.live

Answering = Callable[[str, dict[str, Any]], dict[str, Any]]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway(servers()) as running:
        yield running


def accept(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Every form is filled in with its own message."""
    assert method == "elicitation/create"
    return {"action": "accept", "content": {"name": params["message"]}}


def converse(asking: Raw, params: bytes, answer: Answering = accept) -> Envelope:
    """The last answer to a call, when every question in between was answered."""
    return (_rounds if asking.era == MODERN else _dialogue)(asking, params, answer)


def _dialogue(asking: Raw, params: bytes, answer: Answering) -> Envelope:
    """As a client of the handshake era: questions are requests on the stream of the call."""
    with asking.ask("tools/call", params) as stream:
        while True:
            message = stream.next()
            if message.method is None:
                return message
            if message.id:
                asked = answer(message.method, codec.value(message.params))
                asking.reply(bytes(message.id), codec.dump(asked))


def _rounds(asking: Raw, params: bytes, answer: Answering) -> Envelope:
    """As a modern client: questions are a result, and answers another call."""
    given: dict[str, Any] = codec.value(params)
    while True:
        message = asking.answer("tools/call", codec.dump(given))
        result: dict[str, Any] = codec.value(message.result) if message.result else {}
        if result.get("resultType") != "input_required":
            return message
        wanted: dict[str, dict[str, Any]] = result.get("inputRequests", {})
        given["inputResponses"] = {
            key: answer(one["method"], one["params"]) for key, one in wanted.items()
        }
        given.pop("requestState", None)
        if "requestState" in result:
            given["requestState"] = result["requestState"]


def words(message: Envelope) -> Any:
    assert message.result, bytes(message.error)
    return codec.value(message.result)["content"][0]["text"]


@pytest.mark.promise("M23")
@cells
def test_questions_one_after_the_other_are_all_answered(gateway: Gateway, cell: str) -> None:
    asking = client(gateway, cell, ABLE)
    assert words(converse(asking, called(cell, "ask_rounds", n=3))) == "3 rounds"


@pytest.mark.promise("M23")
@cells
def test_questions_at_once_get_each_their_own_answer(gateway: Gateway, cell: str) -> None:
    asking = client(gateway, cell, ABLE)
    found = json.loads(words(converse(asking, called(cell, "ask_many", n=3))))
    assert [one["content"]["name"] for one in found] == [f"Question {n}" for n in range(3)]


@pytest.mark.promise("M23")
@pytest.mark.parametrize("action", ["decline", "cancel"])
@cells
def test_a_refusal_of_the_user_is_an_answer_too(gateway: Gateway, cell: str, action: str) -> None:
    asking = client(gateway, cell, ABLE)
    message = converse(asking, called(cell, "elicit"), lambda _, __: {"action": action})
    assert json.loads(words(message)) == {"action": action}


@pytest.mark.promise("M23")
@cells
def test_a_link_reaches_the_client_in_the_words_of_its_era(gateway: Gateway, cell: str) -> None:
    seen: list[dict[str, Any]] = []

    def visit(method: str, params: dict[str, Any]) -> dict[str, Any]:
        seen.append(params)
        return {"action": "accept"}

    asking = client(gateway, cell, ABLE)
    message = converse(asking, called(cell, "elicit", mode="url"), visit)
    assert json.loads(words(message)) == {"action": "accept"}
    (params,) = seen
    assert (params["mode"], params["url"]) == ("url", "https://example.com/in")
    assert ("elicitationId" in params) is (asking.era != MODERN)


@pytest.mark.promise("M23")
@cells
def test_a_client_without_links_is_asked_for_none(gateway: Gateway, cell: str) -> None:
    asking = client(gateway, cell, {"elicitation": {"form": {}}})
    seen: list[str] = []

    def never(method: str, params: dict[str, Any]) -> dict[str, Any]:
        seen.append(method)
        return {"action": "cancel"}

    answer = converse(asking, called(cell, "elicit", mode="url"), never)
    if cell == "M->M":  # what passes there passes as it is: the server knows what was declared
        assert seen == ["elicitation/create"]
    else:
        assert seen == []
        assert bytes(answer.error or answer.result)


@pytest.mark.promise("M23")
def test_an_error_of_the_client_ends_the_call_where_no_answer_can_carry_it(
    gateway: Gateway,
) -> None:
    asking = client(gateway, "L->M", ABLE)
    with asking.ask("tools/call", called("L->M", "elicit")) as stream:
        question = bytes(stream.next().id)
        asking.fail(question, b'{"code":-31000,"message":"no","x":1.0}')
        _, answer = stream.until(b"1")
    assert bytes(answer.error) == b'{"code":-31000,"message":"no","x":1.0}'


@pytest.mark.promise("M98")
def test_a_state_that_was_touched_opens_nothing(gateway: Gateway) -> None:
    asking = client(gateway, "M->L", ABLE)
    asked = Asked(asking, called("M->L", "elicit"))
    asked.question()
    state = asked.state
    broken = state[:-2] + ("AA" if state[-2:] != "AA" else "BB")
    params = {
        **codec.value(called("M->L", "elicit")),
        "inputResponses": {asked.key: {"action": "accept", "content": {"name": "x"}}},
        "requestState": broken,
    }
    refused = asking.answer("tools/call", codec.dump(params))
    assert codec.value(refused.error)["code"] == -32602
    # The state that was not touched still does. An open call would be in the way of others.
    answer = {"action": "accept", "content": {"name": "Ada"}}
    assert json.loads(asked.answer(answer)["content"][0]["text"]) == answer


@pytest.mark.promise("M23")
@pytest.mark.parametrize("cell", ["L->L", "M->M", "L->M"])  # the fourth is parked, and waits
def test_a_call_that_is_given_up_in_the_middle_of_a_question_is_in_nobodys_way(
    gateway: Gateway, cell: str
) -> None:
    asking = client(gateway, cell, ABLE)
    asked = Asked(asking, called(cell, "elicit"), b'"given up"')
    asked.question()
    if asking.era != MODERN:
        asking.tell("notifications/cancelled", b'{"requestId":"given up"}')
    asked.close()
    again = client(gateway, cell, ABLE)
    assert json.loads(words(converse(again, called(cell, "elicit"))))["action"] == "accept"
    assert text(again, cell, "echo", text="next") == "next"
