"""What models are asked and what they answer, in the words of their APIs."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from metamcp_worker.engine import models
from metamcp_worker.engine.models import (
    BadAnswer,
    ModelAnswer,
    ModelTool,
    ModelTurn,
    OutcomeTurn,
    Prompt,
    ToolOutcome,
    ToolUse,
    UserTurn,
)
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.engine_runs import AiSettings
from tests.worker.engine import model_server
from tests.worker.engine.model_server import Says

pytestmark = pytest.mark.promise("M49")

KEY = "sk-secret-0123456789abcdef"
OPENAI = AiSettings(provider="openai", url="http://h/v1", model="m", key=KEY)
ANTHROPIC = AiSettings(provider="anthropic", url="https://h", model="m", key=KEY)
BOTH = pytest.mark.parametrize("settings", [OPENAI, ANTHROPIC], ids=lambda one: one.provider)
TOOL = ModelTool("find", "Find.", {"type": "object", "properties": {}})
TALK = Prompt(
    "be brief",
    (
        UserTurn("find a and b"),
        ModelTurn("", (ToolUse("1", "find", Raw(b'{"q":"a"}')), ToolUse("2", "find"))),
        OutcomeTurn((ToolOutcome("1", "find", "a!"), ToolOutcome("2", "find", "", failed=True))),
        ModelTurn(),
        UserTurn("go on"),
    ),
    (TOOL,),
    50,
)


def wrong(settings: AiSettings, body: dict[str, Any]) -> str:
    shapes = {"openai": model_server.wrong_openai, "anthropic": model_server.wrong_anthropic}
    return shapes[settings.provider](body)


def said(settings: AiSettings, line: Says) -> bytes:
    shapes = {"openai": model_server.as_openai, "anthropic": model_server.as_anthropic}
    return codec.dump(shapes[settings.provider]({"model": "m"}, line, 1))


@pytest.mark.parametrize(
    ("provider", "url", "whole"),
    [
        ("openai", "http://h:1", "http://h:1/v1/chat/completions"),
        ("openai", "http://h:1/v1/", "http://h:1/v1/chat/completions"),
        ("openai", "http://h/api/openai", "http://h/api/openai/chat/completions"),
        ("openai", "http://h/x/chat/completions", "http://h/x/chat/completions"),
        ("anthropic", "https://api.anthropic.com", "https://api.anthropic.com/v1/messages"),
        ("anthropic", "http://h/proxy", "http://h/proxy/v1/messages"),
        ("anthropic", "http://h/v1", "http://h/v1/messages"),
        ("anthropic", "http://h/v1/messages", "http://h/v1/messages"),
    ],
)
def test_a_base_or_a_whole_url_leads_to_the_endpoint(provider: Any, url: str, whole: str) -> None:
    assert models.endpoint(AiSettings(provider=provider, url=url, model="m")) == whole


@BOTH
def test_a_conversation_is_one_that_the_endpoint_takes(settings: AiSettings) -> None:
    body = codec.value(models.request(settings, TALK))
    assert wrong(settings, body) == ""
    assert (body["model"], body["max_tokens"]) == ("m", 50)
    assert "find" in codec.dump(body["tools"]).decode()


def test_the_limit_of_tokens_has_its_newer_name_when_the_endpoint_wants_it() -> None:
    refusal = b'{"error":{"message":"Use \'max_completion_tokens\' instead."}}'
    assert models.wants_completion(400, refusal)
    body = codec.value(models.request(OPENAI, TALK, completion=True))
    assert ("max_tokens" in body, body["max_completion_tokens"]) == (False, 50)


@BOTH
def test_words_and_calls_of_an_answer_are_read_with_their_tokens(settings: AiSettings) -> None:
    line = Says("so", [("find", {"q": "x"}), ("find", "not an object")], tokens=(7, 3))
    found = models.answer(settings, TALK, said(settings, line))
    first, second = found.turn.uses
    assert (found.turn.text, found.tokens, found.stop) == ("so", 10, "")
    assert (first.name, codec.value(first.arguments), first.fault) == ("find", {"q": "x"}, "")
    assert second.fault.startswith("the arguments are not a JSON object")
    assert bytes(second.arguments) == b"{}"


@BOTH
def test_an_endpoint_that_does_not_count_is_estimated(settings: AiSettings) -> None:
    found = models.answer(settings, TALK, said(settings, Says("12345678", tokens=(0, 0))))
    assert found.input_tokens == models.estimate(TALK) > 0
    assert found.output_tokens > 0


@BOTH
@pytest.mark.parametrize("stop", ["length", "refused"])
def test_an_answer_that_is_cut_or_a_refusal_says_so(settings: AiSettings, stop: str) -> None:
    assert models.answer(settings, TALK, said(settings, Says("no", stop=stop))).stop == stop


@BOTH
@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"choices":[]}', b'{"content":7}'])
def test_an_answer_of_another_shape_is_bad(settings: AiSettings, body: bytes) -> None:
    with pytest.raises(BadAnswer):
        models.answer(settings, TALK, body)


@BOTH
@pytest.mark.parametrize(
    ("status", "again", "words"),
    [
        (400, False, "status 400 (too *** long)"),
        (401, False, "does [ai] key have the right key?"),
        (404, False, "is [ai] url or [ai] model wrong? (too *** long)"),
        (429, True, "too many requests"),
        (503, True, "status 503"),
    ],
)
def test_a_refused_request_is_told_without_the_key(
    settings: AiSettings, status: int, again: bool, words: str
) -> None:
    body = codec.dump({"error": {"message": f"too {KEY}\n long"}})
    found = models.refusal(settings, status, body)
    assert found.again == again
    assert words in found.why
    assert KEY not in found.why


@pytest.mark.parametrize(
    ("header", "attempt", "pause"), [("7", 0, 7.0), ("0.5", 2, 0.5), ("", 0, 1.0), ("Wed", 1, 2.0)]
)
def test_the_next_attempt_is_when_the_endpoint_says_or_later_each_time(
    header: str, attempt: int, pause: float
) -> None:
    assert models.pause_s(header, attempt) == pause


def test_a_client_gets_the_tools_as_words_and_its_model_calls_with_an_object() -> None:
    params = codec.value(models.build_sampling_params(TALK))
    assert "find: Find." in params["systemPrompt"]
    assert [one["role"] for one in params["messages"]] == [
        "user", "assistant", "user", "assistant", "user",
    ]  # fmt: skip
    assert "find failed:" in params["messages"][2]["content"]["text"]
    text = 'Sure:\n```json\n{"tool": "find", "arguments": {"q": "x"}}\n```'
    result = codec.dump({"role": "assistant", "content": {"type": "text", "text": text}})
    found = models.parse_sampling(TALK, result)
    assert [(one.name, codec.value(one.arguments)) for one in found.turn.uses] == [
        ("find", {"q": "x"})
    ]
    assert found.tokens > 0


@pytest.mark.parametrize("result", [b"{}", b"7", b'{"content":{"type":"image"}}'])
def test_a_client_that_answers_without_text_is_bad(result: bytes) -> None:
    with pytest.raises(BadAnswer):
        models.parse_sampling(TALK, result)


def test_objects_in_words_are_found_in_a_bounded_time() -> None:
    assert list(models.objects('a {b} {"c": {"d": 1}} {"e": 2}')) == [{"c": {"d": 1}}, {"e": 2}]
    assert list(models.objects('{"a":' * 50_000)) == []


def test_tokens_cost_what_the_prices_say() -> None:
    priced = AiSettings(provider="openai", url="", model="", input_price=2.0, output_price=10.0)
    assert models.cost(priced, 1_000_000, 100_000) == 3.0
    assert models.cost(OPENAI, 5, 5) == 0.0
    assert ModelAnswer(ModelTurn(), "", 2, 3).tokens == 5


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(
            ["choices", "message", "tool_calls", "function", "name", "arguments", "content",
             "usage", "type", "text", "input", "id", "error", "stop_reason"]
        ), inner, max_size=4,
    ),
)  # fmt: skip


@BOTH
@given(body=JSON.map(codec.dump) | st.binary(max_size=40), status=st.integers(100, 599))
def test_no_answer_of_an_endpoint_raises_another_error(
    settings: AiSettings, body: bytes, status: int
) -> None:
    for provider in ("own", settings.provider):
        with suppress(BadAnswer):
            own = provider == "own"
            found = (
                models.parse_sampling(TALK, body) if own else models.answer(settings, TALK, body)
            )
            assert models.request(settings, models.went_on(TALK, found.turn))
    assert models.refusal(settings, status, body).why
