"""Models: what they are asked and what they answer, in the words of three APIs.

Owns: conversations and their tools, requests and answers of OpenAI-compatible endpoints, of
Anthropic's and of `sampling/createMessage`, what a refused request means, prices. Never: HTTP, the
client that lends its model (`models_io`), what a conversation is about (`agent`, `suggestion`).

Sources: OpenAI's "Create chat completion" (/v1/chat/completions), Anthropic's "Messages"
(/v1/messages, version 2023-06-01), sampling of MCP 2025-06-18. Sampling has tools in newer
revisions and few clients have those, so tools are words there: the model answers with an object.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal
from urllib.parse import urlsplit

from msgspec import Raw, Struct

from metamcp_worker.ipc import codec
from metamcp_worker.ipc.codec import is_list, is_table
from metamcp_worker.ipc.engine_runs import AiSettings
from metamcp_worker.ipc.errors import MetaMCPError

ANSWER_BYTES_MAX = 8 * 1024 * 1024
"""Maximum bytes of an answer of an endpoint."""
USES_MAX = 16
"""Maximum calls of tools in one answer; the others are left out."""
TOLD_CHARACTERS_MAX = 300
"""Maximum characters of an endpoint's own words in a sentence."""
CHARACTERS_PER_TOKEN = 4
"""Characters of a token in the estimate for endpoints that do not count."""
STARTS_MAX = 64
"""Maximum braces in the words of a model at which an object is looked for."""
BACKOFF_S = (1.0, 2.0, 4.0)
"""Seconds before each further attempt, unless the endpoint says how long."""
TRIES_MAX = len(BACKOFF_S) + 1
"""Maximum attempts to get one answer."""
ANTHROPIC_VERSION = "2023-06-01"

_PATHS = {"openai": "/chat/completions", "anthropic": "/messages"}
_EMPTY = "(empty)"
_BY_WORDS = (
    'Answer with one JSON object and nothing else: {"tool": NAME, "arguments": {…}}. Tools:\n'
)
_TAGS = re.compile(r"^v[0-9]+$")

Stop = Literal["", "length", "refused"]


class NoAnswer(MetaMCPError):
    """Failure to get an answer. The text is a sentence. `lost`: a process of the gateway ended."""

    def __init__(self, text: str, *, lost: bool = False) -> None:
        super().__init__(text)
        self.lost = lost


class BadAnswer(MetaMCPError):
    """Answer that is none of its API. The text is the reason, the end of a sentence."""


class ModelTool(Struct, frozen=True):
    """Tool that a model may call. `schema`: of its arguments, an object."""

    name: str
    description: str
    schema: Mapping[str, object]


class ToolUse(Struct, frozen=True):
    """Call of a tool by a model. `arguments`: raw, an object; empty if `fault` says what is wrong
    with those that the model sent."""

    id: str
    name: str
    arguments: Raw = Raw(b"{}")
    fault: str = ""


class UserTurn(Struct, frozen=True, tag="user"):
    """Words to a model."""

    text: str


class ModelTurn(Struct, frozen=True, tag="model"):
    """Words and calls of a model."""

    text: str = ""
    uses: tuple[ToolUse, ...] = ()


class ToolOutcome(Struct, frozen=True):
    """Answer to a call of a model. `use`: its id."""

    use: str
    name: str
    text: str
    failed: bool = False


class OutcomeTurn(Struct, frozen=True, tag="outcomes"):
    """Answers to all calls of the turn before."""

    outcomes: tuple[ToolOutcome, ...]


Turn = UserTurn | ModelTurn | OutcomeTurn


class Prompt(Struct, frozen=True):
    """Conversation so far, to which a model says the next turn."""

    system: str
    turns: tuple[Turn, ...]
    tools: tuple[ModelTool, ...] = ()
    tokens_max: int = 4096


class ModelAnswer(Struct, frozen=True):
    """Turn of a model. `stop`: why it is incomplete; `input_tokens`, `output_tokens`: as the
    endpoint counts, else estimated."""

    turn: ModelTurn
    stop: Stop = ""
    input_tokens: int = 0
    output_tokens: int = 0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens


def estimate(prompt: Prompt) -> int:
    """Return about how many tokens a prompt has."""
    return len(codec.dump(prompt)) // CHARACTERS_PER_TOKEN


def cost(settings: AiSettings | None, input_tokens: int, output_tokens: int) -> float:
    """Return the price of these tokens, 0 without prices."""
    if settings is None:
        return 0.0
    price = input_tokens * settings.input_price + output_tokens * settings.output_price
    return price / 1_000_000


def endpoint(settings: AiSettings) -> str:
    """Return the whole URL of the requests. `url` may be the base, with or without its version."""
    url = settings.url.rstrip("/")
    path = _PATHS[settings.provider]
    if url.endswith(path):
        return url
    last = urlsplit(url).path.rpartition("/")[2]
    bare = settings.provider == "anthropic" or not urlsplit(url).path
    return url + path if _TAGS.match(last) or not bare else f"{url}/v1{path}"


def headers(settings: AiSettings) -> dict[str, str]:
    fields = {"Content-Type": "application/json", "Accept": "application/json"}
    if settings.provider == "anthropic":
        fields["anthropic-version"] = ANTHROPIC_VERSION
    if settings.key and settings.provider == "anthropic":
        fields["x-api-key"] = settings.key
    elif settings.key:
        fields["Authorization"] = f"Bearer {settings.key}"
    return fields


def request(settings: AiSettings, prompt: Prompt, *, completion: bool = False) -> bytes:
    """Return the body of a request. `completion`: the limit of tokens has OpenAI's newer name,
    which its newer models want and many compatible endpoints do not know."""
    if settings.provider == "anthropic":
        return codec.dump(_anthropic(settings, prompt))
    messages: list[object] = [{"role": "system", "content": prompt.system}]
    for turn in prompt.turns:
        messages += _openai_messages(turn)
    limit = "max_completion_tokens" if completion else "max_tokens"
    body: dict[str, object] = {
        "model": settings.model, "messages": messages, limit: prompt.tokens_max,
    }  # fmt: skip
    if prompt.tools:
        body["tools"] = [
            {"type": "function", "function": {
                "name": tool.name, "description": tool.description, "parameters": tool.schema,
            }}
            for tool in prompt.tools
        ]  # fmt: skip
    return codec.dump(body)


def wants_completion(status: int, body: bytes) -> bool:
    """Whether an endpoint refused a request because of the name of the limit of tokens."""
    return status == 400 and b"max_completion_tokens" in body


def _openai_messages(turn: Turn) -> list[object]:
    if isinstance(turn, UserTurn):
        return [{"role": "user", "content": turn.text}]
    if isinstance(turn, OutcomeTurn):
        return [
            {"role": "tool", "tool_call_id": outcome.use, "content": outcome.text}
            for outcome in turn.outcomes
        ]
    message: dict[str, object] = {"role": "assistant", "content": turn.text or None}
    if turn.uses:
        message["tool_calls"] = [
            {"id": use.id, "type": "function", "function": {
                "name": use.name, "arguments": bytes(use.arguments).decode("utf-8", "replace"),
            }}
            for use in turn.uses
        ]  # fmt: skip
    elif not turn.text:
        message["content"] = _EMPTY
    return [message]


def _anthropic(settings: AiSettings, prompt: Prompt) -> dict[str, object]:
    body: dict[str, object] = {
        "model": settings.model,
        "max_tokens": prompt.tokens_max,
        "system": prompt.system,
        "messages": [_anthropic_message(turn) for turn in prompt.turns],
    }
    if prompt.tools:
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
            for tool in prompt.tools
        ]
    return body


def _anthropic_message(turn: Turn) -> object:
    parts: list[object]
    if isinstance(turn, UserTurn):
        return {"role": "user", "content": turn.text}
    if isinstance(turn, OutcomeTurn):
        parts = [
            {"type": "tool_result", "tool_use_id": outcome.use, "content": outcome.text or _EMPTY,
             "is_error": outcome.failed}
            for outcome in turn.outcomes
        ]  # fmt: skip
        return {"role": "user", "content": parts}
    text = turn.text.strip() or ("" if turn.uses else _EMPTY)
    parts = [{"type": "text", "text": text}] if text else []
    parts += [
        {"type": "tool_use", "id": use.id, "name": use.name, "input": use.arguments}
        for use in turn.uses
    ]
    return {"role": "assistant", "content": parts}


class _Function(Struct, frozen=True):
    name: str
    arguments: Raw = Raw(b'"{}"')


class _OpenAiCall(Struct, frozen=True):
    function: _Function
    id: str | None = None


class _OpenAiMessage(Struct, frozen=True):
    content: str | None = None
    tool_calls: list[_OpenAiCall] | None = None
    refusal: str | None = None


class _OpenAiChoice(Struct, frozen=True):
    message: _OpenAiMessage
    finish_reason: str | None = None


class _OpenAiUsage(Struct, frozen=True):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _OpenAiAnswer(Struct, frozen=True):
    choices: list[_OpenAiChoice]
    usage: _OpenAiUsage | None = None


class _AnthropicPart(Struct, frozen=True):
    type: str
    text: str = ""
    id: str = ""
    name: str = ""
    input: Raw = Raw(b"{}")


class _AnthropicUsage(Struct, frozen=True):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None


class _AnthropicAnswer(Struct, frozen=True):
    content: list[_AnthropicPart]
    stop_reason: str | None = None
    usage: _AnthropicUsage | None = None


def answer(settings: AiSettings, prompt: Prompt, body: bytes) -> ModelAnswer:
    """Read the answer to a prompt. Raises BadAnswer."""
    try:
        if settings.provider == "anthropic":
            model_answer = _read_anthropic(codec.decode_as(_AnthropicAnswer, body))
        else:
            model_answer = _read_openai(codec.decode_as(_OpenAiAnswer, body))
    except codec.Malformed as error:
        raise BadAnswer(f"its answer is none of the API of {settings.provider}: {error}") from None
    return model_answer if model_answer.tokens > 0 else _with_estimates(prompt, model_answer)


def _with_estimates(prompt: Prompt, model_answer: ModelAnswer) -> ModelAnswer:
    output_tokens = len(codec.dump(model_answer.turn)) // CHARACTERS_PER_TOKEN
    return ModelAnswer(model_answer.turn, model_answer.stop, estimate(prompt), output_tokens)


def _read_openai(reply: _OpenAiAnswer) -> ModelAnswer:
    if not reply.choices:
        raise BadAnswer("its answer has no choices")
    choice = reply.choices[0]
    uses: list[ToolUse] = []
    for number, call in enumerate((choice.message.tool_calls or [])[:USES_MAX]):
        sent = codec.text(call.function.arguments)
        raw = bytes(call.function.arguments) if sent is None else sent.encode() or b"{}"
        uses.append(_use(call.id or f"call_{number}", call.function.name, raw))
    stops: dict[str | None, Stop] = {"length": "length", "content_filter": "refused"}
    stop = "refused" if choice.message.refusal else stops.get(choice.finish_reason, "")
    turn = ModelTurn(choice.message.content or choice.message.refusal or "", tuple(uses))
    usage = reply.usage or _OpenAiUsage()
    return ModelAnswer(turn, stop, max(0, usage.prompt_tokens), max(0, usage.completion_tokens))


def _read_anthropic(reply: _AnthropicAnswer) -> ModelAnswer:
    text = "".join(block.text for block in reply.content if block.type == "text")
    calls = [block for block in reply.content if block.type == "tool_use"][:USES_MAX]
    uses = tuple(
        _use(call.id or f"call_{number}", call.name, bytes(call.input))
        for number, call in enumerate(calls)
    )
    stops: dict[str | None, Stop] = {"max_tokens": "length", "refusal": "refused"}
    usage = reply.usage or _AnthropicUsage()
    read = (usage.cache_creation_input_tokens or 0) + (usage.cache_read_input_tokens or 0)
    return ModelAnswer(
        ModelTurn(text, uses), stops.get(reply.stop_reason, ""),
        max(0, usage.input_tokens + read), max(0, usage.output_tokens),
    )  # fmt: skip


def _use(id: str, name: str, arguments: bytes) -> ToolUse:  # noqa: A002 - the APIs' own name
    try:
        codec.level(arguments)
    except codec.Malformed as error:
        return ToolUse(id, name, fault=f"the arguments are not a JSON object: {error}")
    return ToolUse(id, name, Raw(arguments))


class Refusal(Struct, frozen=True):
    """Failed request. `why`: the end of a sentence; `again`: whether another attempt may help."""

    why: str
    again: bool = False


def refusal(settings: AiSettings, status: int, body: bytes) -> Refusal:
    """Return what a status other than 200 means. The endpoint's own words are passed on, but not
    about credentials, which they may repeat."""
    text = f"it answers with status {status}"
    if status in (401, 403):
        return Refusal(f"{text}; does [ai] key have the right key?")
    if status == 404:
        return Refusal(f"{text}; is [ai] url or [ai] model wrong?{_words(settings, body)}")
    if status == 429:
        return Refusal(f"{text}, too many requests{_words(settings, body)}", again=True)
    return Refusal(f"{text}{_words(settings, body)}", again=status in (408, 409) or status >= 500)


def _words(settings: AiSettings, body: bytes) -> str:
    """Return the words of an endpoint about an error, without the key."""
    try:
        value = codec.value(body)
    except codec.Malformed:
        return ""
    error = value.get("error") if is_table(value) else None
    text = error.get("message") if is_table(error) else error
    if not isinstance(text, str):
        return ""
    if settings.key:
        text = text.replace(settings.key, "***")
    line = " ".join(text.split())
    return f" ({line[:TOLD_CHARACTERS_MAX]})" if line else ""


def pause_s(retry_after: str, attempt: int) -> float:
    """Return the seconds before the next attempt. `retry_after`: the header; seconds are read,
    dates are not; `attempt`: number of the one that failed, from 0."""
    own = BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)]
    text = retry_after.strip()
    return max(float(text), 0.0) if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", text) else own


# Sampling


def build_sampling_params(prompt: Prompt) -> Raw:
    """Return the params of `sampling/createMessage` for a prompt."""
    system = prompt.system
    if prompt.tools:
        tools = (
            f"{tool.name}: {tool.description} Arguments: {codec.dump(tool.schema).decode()}"
            for tool in prompt.tools
        )
        system = f"{system}\n\n{_BY_WORDS}" + "\n".join(tools)
    messages = [
        {"role": "assistant" if isinstance(turn, ModelTurn) else "user",
         "content": {"type": "text", "text": _as_words(turn)}}
        for turn in prompt.turns
    ]  # fmt: skip
    body = {"messages": messages, "systemPrompt": system, "maxTokens": prompt.tokens_max}
    return Raw(codec.dump(body))


def _as_words(turn: Turn) -> str:
    if isinstance(turn, UserTurn):
        return turn.text
    if isinstance(turn, OutcomeTurn):
        return "\n\n".join(
            f"{outcome.name} {'failed' if outcome.failed else 'answers'}:\n{outcome.text}"
            for outcome in turn.outcomes
        )
    calls = (codec.dump({"tool": use.name, "arguments": use.arguments}) for use in turn.uses)
    text = "\n".join(call.decode("utf-8", "replace") for call in calls)
    return text or turn.text or _EMPTY


def parse_sampling(prompt: Prompt, result: bytes | Raw) -> ModelAnswer:
    """Read a result of `sampling/createMessage`. Raises BadAnswer."""
    try:
        value = codec.value(result)
    except codec.Malformed as error:
        raise BadAnswer(f"its answer cannot be read: {error}") from None
    content = value.get("content") if is_table(value) else None
    parts = content if is_list(content) else [content]
    texts = [
        block.get("text") for block in parts if is_table(block) and block.get("type") == "text"
    ]
    if not texts:
        raise BadAnswer("its answer has no text")
    text = "\n".join(block_text for block_text in texts if isinstance(block_text, str))
    stop: Stop = "length" if is_table(value) and value.get("stopReason") == "maxTokens" else ""
    turn = ModelTurn(text)
    if prompt.tools:
        turn = ModelTurn(text, _use_in(text, len(prompt.turns)))
    return _with_estimates(prompt, ModelAnswer(turn, stop))


def _use_in(text: str, number: int) -> tuple[ToolUse, ...]:
    """Return the call that a model wrote as words, if there is one."""
    for value in objects(text):
        name, arguments = value.get("tool"), value.get("arguments", {})
        if isinstance(name, str):
            return (_use(f"call_{number}", name, codec.dump(arguments)),)
    return ()


# JSON in words


def objects(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in the words of a model, outermost ones, from the first on."""
    decoder = json.JSONDecoder()
    start = text.find("{")
    for _ in range(STARTS_MAX):
        if start < 0:
            return
        try:
            value, end = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            end = start + 1
        else:
            if is_table(value):
                yield value
        start = text.find("{", end)


def build_first_prompt(
    system: str, text: str, tokens_max: int, tools: Sequence[ModelTool] = ()
) -> Prompt:
    """Return the first prompt of a conversation."""
    return Prompt(system, (UserTurn(text),), tuple(tools), tokens_max)


def went_on(prompt: Prompt, *turns: Turn) -> Prompt:
    """Return a prompt with further turns."""
    return Prompt(prompt.system, (*prompt.turns, *turns), prompt.tools, prompt.tokens_max)
