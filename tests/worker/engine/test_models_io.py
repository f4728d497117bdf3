"""A model over real HTTP: attempts, limits of time, what is told of a failure; the scripted model
is one that the SDKs of both providers take."""

import asyncio
import json
import logging
import time
from typing import TYPE_CHECKING, Any, cast

import pytest

from metamcp_worker.engine import models
from metamcp_worker.engine.models import ModelAnswer, ModelTool, NoAnswer, Prompt
from metamcp_worker.engine.models_io import HttpModel
from metamcp_worker.ipc.engine_runs import AiSettings
from tests.worker.engine.model_server import (
    KEY,
    Fails,
    Line,
    ModelServer,
    Says,
    Sends,
    Waits,
    call,
)

# Three tests need the SDKs, and each lane that collects these tests would load them for 3 s.
if TYPE_CHECKING:
    import anthropic
    import openai

pytestmark = [pytest.mark.process, pytest.mark.promise("M49")]

BOTH = pytest.mark.parametrize("provider", ["openai", "anthropic"])
FIND = ModelTool("find", "Find.", {"type": "object", "properties": {"q": {"type": "string"}}})
PROMPT = models.build_first_prompt("be brief", "find x", 100, [FIND])
SOON = {"Retry-After": "0"}
BUSY: list[Line] = [call("find", q="x"), Fails(429, headers=SOON), Says("y")]


def settings(url: str, provider: Any, key: str = KEY) -> AiSettings:
    return AiSettings(provider=provider, url=url, model="small", key=key)


def completion(client: "openai.OpenAI", body: dict[str, Any]) -> Any:
    return cast(Any, client.chat.completions.create)(**body)


def message(client: "anthropic.Anthropic", body: dict[str, Any]) -> Any:
    return cast(Any, client.messages.create)(**body)


def asked(of: AiSettings, within_s: float = 20.0, prompt: Prompt = PROMPT) -> ModelAnswer:
    async def main() -> ModelAnswer:
        model = HttpModel(of)
        try:
            return await model.complete(prompt, asyncio.get_running_loop().time() + within_s)
        finally:
            await model.close()

    return asyncio.run(main())


@BOTH
def test_a_model_calls_a_tool(provider: str) -> None:
    with ModelServer([call("find", q="x")]) as server:
        found = asked(settings(server.base, provider))
    assert [(one.name, bytes(one.arguments).replace(b" ", b"")) for one in found.turn.uses] == [
        ("find", b'{"q":"x"}')
    ]
    assert found.tokens == 110
    assert server.asked[0]["model"] == "small"


@BOTH
@pytest.mark.parametrize(
    "first",
    [Fails(429, headers=SOON), Fails(500, headers=SOON), Fails(529, headers=SOON), Sends(b"<p>")],
    ids=["429", "500", "529", "not JSON"],
)
def test_a_failure_that_may_pass_is_followed_by_another_attempt(provider: str, first: Line) -> None:
    with ModelServer([first, Says("x")]) as server:
        assert asked(settings(server.base, provider)).turn.text == "x"
        assert len(server.asked) == 2


def test_attempts_end_and_the_last_reason_is_told() -> None:
    with ModelServer([Fails(429, "slow down", SOON)]) as server:
        with pytest.raises(NoAnswer) as told:
            asked(settings(server.base, "openai"))
        assert str(told.value) == (
            f"The model 'small' at {server.base} gave no answer (tried 4 times): it answers with"
            " status 429, too many requests (slow down)."
        )
        assert len(server.asked) == models.TRIES_MAX


def test_no_attempt_is_made_after_the_time_that_the_caller_has() -> None:
    with ModelServer([Fails(429, headers={"Retry-After": "60"})]) as server:
        began = time.monotonic()
        with pytest.raises(NoAnswer, match="the next attempt would be in 60 s"):
            asked(settings(server.base, "openai"), within_s=5)
        assert time.monotonic() - began < 4


@BOTH
def test_a_model_that_does_not_answer_is_left_at_the_limit_of_time(provider: str) -> None:
    with ModelServer([Waits()]) as server:
        with pytest.raises(NoAnswer, match="it gave no answer in time"):
            asked(settings(server.base, provider), within_s=0.3)
        assert server.left.wait(10)


@BOTH
def test_a_wrong_key_is_told_at_once_and_is_in_no_message(
    provider: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = "sk-another-key-0123456789"
    with ModelServer([Says("x")]) as server:
        with pytest.raises(NoAnswer, match=r"does \[ai\] key have the right key") as told:
            asked(settings(server.base, provider, wrong))
        assert server.asked == []
    for text in (str(told.value), caplog.text):
        assert wrong not in text
        assert KEY not in text


def test_no_server_and_a_url_that_is_none_are_told() -> None:
    with ModelServer([]) as server:
        gone = server.base
    with pytest.raises(NoAnswer, match="cannot be reached"):
        asked(settings(gone, "openai"), within_s=0.9)
    with pytest.raises(NoAnswer, match=r"\[ai\] url or key is wrong"):
        asked(settings("ftp://h", "openai"))


def test_an_answer_above_the_limit_of_bytes_is_not_read() -> None:
    large = Sends(b" " * (models.ANSWER_BYTES_MAX + 1))
    with (
        ModelServer([large]) as server,
        pytest.raises(NoAnswer, match=str(models.ANSWER_BYTES_MAX)),
    ):
        asked(settings(server.base, "openai"))


def test_a_server_for_newer_models_gets_the_limit_by_its_newer_name() -> None:
    def script(body: dict[str, Any]) -> Line:
        if "max_tokens" in body:
            return Fails(400, "'max_tokens' is not supported: use 'max_completion_tokens'")
        return Says("x")

    with ModelServer(script) as server:
        assert asked(settings(server.base, "openai")).turn.text == "x"


@BOTH
def test_a_whole_conversation_is_one_that_the_endpoint_takes(provider: str) -> None:
    with ModelServer([Says("so", [("find", {"q": "x"})]), Says("y")]) as server:
        of = settings(server.base, provider)
        turn = asked(of).turn
        outcome = models.ToolOutcome(turn.uses[0].id, "find", "nothing", failed=True)
        then = models.went_on(PROMPT, turn, models.OutcomeTurn((outcome,)))
        assert asked(of, prompt=then).turn.text == "y"


def test_the_sdk_of_openai_reads_the_scripted_model() -> None:
    import openai

    with (
        ModelServer(BUSY) as server,
        openai.OpenAI(base_url=f"{server.base}/v1", api_key=KEY) as client,
    ):
        body = json.loads(models.request(settings("", "openai"), PROMPT))
        first = completion(client, body)
        calls = first.choices[0].message.tool_calls
        assert calls[0].function.name == "find"
        assert (first.choices[0].finish_reason, first.usage and first.usage.total_tokens) == (
            "tool_calls", 110,
        )  # fmt: skip
        assert completion(client, body).choices[0].message.content == "y"
        with pytest.raises(openai.AuthenticationError):
            completion(client.with_options(api_key="other"), body)


def test_the_sdk_of_anthropic_reads_the_scripted_model() -> None:
    import anthropic

    with (
        ModelServer(BUSY) as server,
        anthropic.Anthropic(base_url=server.base, api_key=KEY) as client,
    ):
        body = json.loads(models.request(settings("", "anthropic"), PROMPT))
        first = message(client, body)
        use = first.content[0]
        assert use.type == "tool_use"
        assert (use.name, use.input, first.stop_reason) == ("find", {"q": "x"}, "tool_use")
        second = message(client, body).content[0]
        assert second.type == "text"
        assert second.text == "y"
        with pytest.raises(anthropic.AuthenticationError):
            message(client.with_options(api_key="other"), body)


@BOTH
def test_the_answers_are_read_as_the_sdk_of_the_provider_sends_them(provider: str) -> None:
    """A conversation that the SDKs make has the same bytes as ours, apart from their order."""
    import anthropic
    import openai

    with ModelServer([Says("x")]) as server:
        body = json.loads(models.request(settings("", cast(Any, provider)), PROMPT))
        if provider == "openai":
            with openai.OpenAI(base_url=f"{server.base}/v1", api_key=KEY) as client:
                completion(client, body)
        else:
            with anthropic.Anthropic(base_url=server.base, api_key=KEY) as other:
                message(other, body)
        asked(settings(server.base, provider))
        assert server.asked[0] == server.asked[1]
        assert {"x-api-key", "authorization"} & server.headers[1].keys() == {
            "openai": {"authorization"}, "anthropic": {"x-api-key"},
        }[provider]  # fmt: skip
