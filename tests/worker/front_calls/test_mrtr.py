"""Results that ask for input, and the requests that bring it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, structs

from metamcp_worker.front_calls import mrtr
from metamcp_worker.front_calls.mrtr import InputRequired, StateBinding, WantedInput
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.errors import Code, ProtocolError

ROOTS: dict[str, Any] = {"method": "roots/list", "params": {}}


def asking(**members: object) -> bytes:
    return codec.dump({"resultType": "input_required", **members})


@pytest.mark.promise("M23")
def test_what_a_server_asks_for_is_read_with_its_params_unopened() -> None:
    body = (
        b'{"resultType":"input_required","inputRequests":{"b":{"method":"roots/list"},'
        b'"a":{"method":"elicitation/create","params":{"message":"?", "n":1.0},"x":1}},'
        b'"requestState":"st\\u0061te"}'
    )
    assert mrtr.parse(body) == InputRequired(
        {
            "b": WantedInput("roots/list", b"{}"),
            "a": WantedInput("elicitation/create", b'{"message":"?", "n":1.0}'),
        },
        Raw(b'"st\\u0061te"'),
    )
    assert list((mrtr.parse(body) or InputRequired({})).requests) == ["b", "a"]
    assert mrtr.parse(asking(requestState="s")) == InputRequired({}, Raw(b'"s"'))
    found = mrtr.parse(asking(inputRequests={"r": ROOTS}, requestState=None))
    assert found == InputRequired({"r": WantedInput("roots/list", b"{}")})


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"content":[{"type":"text","text":"input_required"}]}',
        b'{"resultType":"complete","x":"input_required"}',
        b'{"resultType":7,"x":"input_required"}',
    ],
)
def test_any_other_result_asks_for_nothing(body: bytes) -> None:
    assert mrtr.parse(body) is None


@pytest.mark.parametrize(
    "body",
    [
        asking(),
        asking(inputRequests=None, requestState=None),
        asking(inputRequests=[]),
        asking(inputRequests={"a": 7}),
        asking(inputRequests={"a": {"params": {}}}),
        asking(inputRequests={"a": {"method": "roots/list", "params": []}}),
        asking(inputRequests={"x" * (mrtr.KEY_BYTES_MAX + 1): ROOTS}),
        asking(inputRequests={f"k{at}": ROOTS for at in range(mrtr.REQUESTS_MAX + 1)}),
        asking(requestState="x" * mrtr.STATE_BYTES_MAX),
        b'["input_required"]',
    ],
)
def test_a_result_that_asks_so_that_nobody_can_answer_is_malformed(body: bytes) -> None:
    with pytest.raises(codec.Malformed):
        mrtr.parse(body)


@pytest.mark.promise("M23")
def test_a_retry_has_the_same_params_with_the_answers_and_the_state_of_this_round() -> None:
    params = {"name": Raw(b'"t"'), "arguments": Raw(b'{"n":1.0}')}
    first = mrtr.retry(params, {"a": b'{"action":"accept"}'}, Raw(b'"\\u0061"'))
    assert codec.dump(first) == (
        b'{"name":"t","arguments":{"n":1.0},"inputResponses":{"a":{"action":"accept"}},'
        b'"requestState":"\\u0061"}'
    )
    assert mrtr.retry(first, {}, None) == params
    assert mrtr.original(first) == params
    assert codec.dump(mrtr.retry(first, {}, Raw(b"7"))["requestState"]) == b"7"


def test_questions_become_those_of_this_era() -> None:
    link = WantedInput(
        mrtr.ELICIT, b'{"mode":"url","elicitationId":"e","message":"m","url":"https://a/?b=1.0"}'
    )
    form = WantedInput(mrtr.ELICIT, b'{"message":"m", "requestedSchema":{"x-n":1.0}}')
    named = WantedInput(mrtr.ELICIT, b'{"mode":"form","elicitationId":"kept"}')
    nested = WantedInput(mrtr.ELICIT, b'{"mode":"url","x":{"elicitationId":"kept"}}')
    assert mrtr.result({"k1": link, "k2": form}, "s") == (
        b'{"resultType":"input_required","inputRequests":{'
        b'"k1":{"method":"elicitation/create","params":'
        b'{"mode":"url","message":"m","url":"https://a/?b=1.0"}},'
        b'"k2":{"method":"elicitation/create","params":'
        b'{"message":"m", "requestedSchema":{"x-n":1.0}}}},"requestState":"s"}'
    )
    for kept in (named, nested):
        assert kept.params in mrtr.result({"k": kept}, "")
    assert b"requestState" not in mrtr.result({"k": form}, "")


def test_an_error_that_demands_visits_is_read_as_questions() -> None:
    visit = {"mode": "url", "elicitationId": "e", "url": "https://a", "message": "m"}

    def links(**data: object) -> dict[str, WantedInput]:
        return mrtr.links(codec.dump({"code": -32042, "message": "", "data": data}))

    assert links(elicitations=[visit, visit]) == {
        "k1": WantedInput(mrtr.ELICIT, codec.dump(visit)),
        "k2": WantedInput(mrtr.ELICIT, codec.dump(visit)),
    }
    assert links() == links(elicitations=[{"mode": "form"}]) == links(elicitations=7) == {}
    assert links(elicitations=[visit] * (mrtr.REQUESTS_MAX + 1)) == {}
    assert mrtr.links(b"7") == {}


KEY = bytes(32)
BOUND = StateBinding("key:ann", "dev", "tools/call", "git", b"digest")


@pytest.mark.promise("M60")
@given(st.text())
def test_a_servers_state_comes_back_as_it_was(state: str) -> None:
    raw = codec.dump(state)
    body = b'{"resultType":"input_required","requestState":%b,"n":1.0}' % raw
    found = codec.level(mrtr.seal_state(KEY, BOUND, body))
    assert bytes(found["n"]) == b"1.0"
    assert bytes(found["requestState"]) != raw
    assert bytes(mrtr.unseal_state(KEY, BOUND, found["requestState"])) == raw


@pytest.mark.promise("M60")
@pytest.mark.parametrize(
    "other",
    [
        structs.replace(BOUND, principal="key:bob"),
        structs.replace(BOUND, endpoint="far"),
        structs.replace(BOUND, method="prompts/get"),
        structs.replace(BOUND, server="time"),
        structs.replace(BOUND, digest=b"another"),
    ],
)
def test_a_state_is_of_use_to_its_client_for_its_request_alone(other: StateBinding) -> None:
    body = b'{"resultType":"input_required","requestState":"s"}'
    state = codec.level(mrtr.seal_state(KEY, BOUND, body))["requestState"]
    refusals: list[str] = []
    for bound, raw in ((other, state), (BOUND, Raw(b'"s"')), (BOUND, Raw(b"7"))):
        with pytest.raises(ProtocolError) as refusal:
            mrtr.unseal_state(KEY, bound, raw)
        assert refusal.value.code == Code.INVALID_PARAMS
        refusals.append(refusal.value.message)
    assert len(set(refusals)) == 1


@pytest.mark.parametrize(
    "body",
    [
        b'{"resultType":"input_required","inputRequests":{ }}',
        b'{"resultType":"input_required","requestState":null}',
        b'{"content":["input_required"],"requestState":"s"}',
        b'["input_required"]',
    ],
)
def test_a_result_without_a_state_passes_as_it_is(body: bytes) -> None:
    assert mrtr.seal_state(KEY, BOUND, body) == body
