"""Models over HTTP and at clients: requests, attempts, and answers with a schema.

Owns: connections to the endpoint of `[ai]`, further attempts, the client that lends its model,
asking again for JSON that fits. Never: what requests and answers are (`models`), what a
conversation is about (`model_orders`), where the key comes from.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec import Raw

from metamcp_worker.engine import models
from metamcp_worker.engine.models import (
    BadAnswer,
    ModelAnswer,
    ModelTurn,
    NoAnswer,
    Prompt,
    UserTurn,
)
from metamcp_worker.http.fetch import ConnectionBroken, FetchLimits, Origin, TlsFailed, Unreachable
from metamcp_worker.ipc import codec, parameters
from metamcp_worker.ipc.engine_runs import AiSettings, EngineOrder, HostDone, Kind, RunOwner
from metamcp_worker.ipc.errors import TooLarge

ATTEMPT_S_MAX = 120.0
"""Seconds of one attempt; a long answer of a slow model takes a minute."""
REQUESTS_MAX = 16
"""Maximum requests at once; more wait for their turn."""
ERROR_BYTES_MAX = 64 * 1024
"""Maximum bytes that are read of an answer with another status than 200."""
JSON_TRIES_MAX = 3
"""Maximum answers of a model that are asked for until one fits."""
HOW = (
    "To switch a model on, write a table [ai] with provider, url, model and key into the"
    " configuration, or use a client that lends its own model (sampling)."
)
"""Sentence for users without a model."""


class FrontHost(Protocol):
    """Way to the front of a client; see `host`."""

    async def ask(
        self,
        owner: RunOwner,
        kind: Kind,
        *,
        name: str = "",
        arguments: bytes = b"{}",
        order: int = 0,
        consent: bool = False,
    ) -> HostDone:
        """Return what came of a `HostAsk` with these fields."""
        ...


class ModelClient(Protocol):
    """Model that can be asked. `settings`: with its limits and prices."""

    settings: AiSettings

    async def complete(self, prompt: Prompt, until: float) -> ModelAnswer:
        """Return the next turn. `until`: time of the loop. Raises NoAnswer."""
        ...


class Models:
    """Models of this process. `configure` comes before use, and again with other settings."""

    def __init__(self) -> None:
        self._settings: AiSettings | None = None
        self._endpoint: HttpModel | None = None

    def configure(self, settings: AiSettings | None) -> None:
        """Use this endpoint; None: there is none. Answers under way come from the one before."""
        if settings != self._settings:
            self._settings = settings
            self._endpoint = None if settings is None else HttpModel(settings)

    def of(self, order: EngineOrder, host: FrontHost) -> ModelClient | None:
        """Return the model for an order: of `[ai]`, else of its client, else None."""
        return self.lent(order.owner, order.id, host, samples=order.samples)

    def lent(
        self, owner: RunOwner, order: int, host: FrontHost, *, samples: bool
    ) -> ModelClient | None:
        if self._endpoint is not None:
            return self._endpoint
        return SampledModel(owner, order, host) if samples and order else None

    async def close(self) -> None:
        if self._endpoint is not None:
            await self._endpoint.close()


class HttpModel:
    """Model behind the endpoint of `[ai]`."""

    def __init__(self, settings: AiSettings) -> None:
        self.settings = settings
        self._origin: Origin | None = None
        self._turns = asyncio.Semaphore(REQUESTS_MAX)
        self._completion = False

    async def complete(self, prompt: Prompt, until: float) -> ModelAnswer:
        reason = ""
        for attempt in range(models.TRIES_MAX):
            try:
                async with asyncio.timeout_at(until), self._turns:
                    async with asyncio.timeout(ATTEMPT_S_MAX):
                        result = await self._attempt(prompt, attempt)
            except TimeoutError:
                result = _RetryReason("it gave no answer in time", models.pause_s("", attempt))
            except (TlsFailed, TooLarge) as error:
                raise self._make_error(str(error), attempt) from None
            except (Unreachable, ConnectionBroken) as error:
                result = _RetryReason(str(error), models.pause_s("", attempt))
            if isinstance(result, ModelAnswer):
                return result
            reason = result.why
            remaining_s = until - asyncio.get_running_loop().time()
            if remaining_s <= result.pause_s:
                late = f"; the next attempt would be in {result.pause_s:g} s, after the time limit"
                raise self._make_error(reason + (late if remaining_s > 0 else ""), attempt)
            if attempt + 1 < models.TRIES_MAX:
                await asyncio.sleep(result.pause_s)
        raise self._make_error(reason, models.TRIES_MAX - 1)

    async def close(self) -> None:
        if self._origin is not None:
            await self._origin.close()

    async def _attempt(self, prompt: Prompt, attempt: int) -> "ModelAnswer | _RetryReason":
        """Return the answer, or why another attempt should follow. Raises NoAnswer, Unreachable,
        Broken and TooLarge."""
        origin = self._open_origin()
        body = models.request(self.settings, prompt, completion=self._completion)
        async with await origin.send("POST", {}, body, answer_s=ATTEMPT_S_MAX) as response:
            if response.status == 200:
                limit = models.ANSWER_BYTES_MAX
                data = await response.read(wait_s=ATTEMPT_S_MAX, limit_bytes=limit)
                try:
                    return models.answer(self.settings, prompt, data)
                except BadAnswer as error:
                    return _RetryReason(str(error), models.pause_s("", attempt))
            data = await response.read(wait_s=ATTEMPT_S_MAX, limit_bytes=ERROR_BYTES_MAX)
            if models.wants_completion(response.status, data) and not self._completion:
                self._completion = True
                return _RetryReason("it wants max_completion_tokens", 0.0)
            refusal = models.refusal(self.settings, response.status, data)
            if not refusal.again:
                raise self._make_error(refusal.why, attempt)
            return _RetryReason(
                refusal.why, models.pause_s(response.header("retry-after"), attempt)
            )

    def _open_origin(self) -> Origin:
        """Return the connection. Raises NoAnswer for a URL or key that cannot be used."""
        if self._origin is None:
            # A connection is closed after its answer: steps are seconds apart, and an endpoint
            # that other settings replace leaves none.
            limits = FetchLimits(requests_max=2 * REQUESTS_MAX, idle_connections_max=0)
            url, headers = models.endpoint(self.settings), models.headers(self.settings)
            try:
                self._origin = Origin(url, headers=headers, limits=limits)
            except (Unreachable, UnicodeEncodeError):
                raise NoAnswer("The model cannot be asked: [ai] url or key is wrong.") from None
        return self._origin

    def _make_error(self, reason: str, attempt: int) -> NoAnswer:
        tries = f" (tried {attempt + 1} times)" if attempt else ""
        name = f"The model {self.settings.model!r} at {self._origin or 'its endpoint'}"
        return NoAnswer(f"{name} gave no answer{tries}: {reason}.")


class _RetryReason:
    """Reason for another attempt, after `pause_s`."""

    def __init__(self, reason: str, pause_s: float) -> None:
        self.why = reason
        self.pause_s = pause_s


class SampledModel:
    """Model that a client lends by sampling."""

    settings = AiSettings(provider="openai", url="", model="")

    def __init__(self, owner: RunOwner, order: int, host: FrontHost) -> None:
        self._owner = owner
        self._order = order
        self._host = host

    async def complete(self, prompt: Prompt, until: float) -> ModelAnswer:
        params = bytes(models.build_sampling_params(prompt))
        try:
            async with asyncio.timeout_at(until):
                done = await self._host.ask(
                    self._owner, "sample", arguments=params, order=self._order
                )
        except TimeoutError:
            raise NoAnswer("The client's model gave no answer in time.") from None
        if done.trouble:
            raise NoAnswer(f"The client's model gave no answer: {done.error}", lost=done.lost)
        try:
            return models.parse_sampling(prompt, done.result)
        except BadAnswer as error:
            raise NoAnswer(f"The client's model cannot be used: {error}.") from None


async def ask_for_json(
    model: ModelClient, prompt: Prompt, until: float, fault: Callable[[dict[str, object]], str]
) -> dict[str, object]:
    """Ask until the model answers with a JSON object that has no fault. `fault`: returns a sentence
    or an empty string. Raises NoAnswer."""
    problem = ""
    for _ in range(JSON_TRIES_MAX):
        answer = await model.complete(prompt, until)
        value = next(models.objects(answer.turn.text), None)
        if answer.stop == "length":
            problem = f"the answer has more than {prompt.tokens_max} tokens and was cut"
        elif value is None:
            problem = "the answer has no JSON object"
        else:
            problem = fault(value)
        if value is not None and not problem:
            return value
        again = (
            f"This cannot be used: {problem}. Answer with the mended JSON object and nothing else."
        )
        prompt = models.went_on(prompt, ModelTurn(answer.turn.text), UserTurn(again))
    raise NoAnswer(
        f"The model gave no answer that can be used, in {JSON_TRIES_MAX} tries: {problem}."
    )


async def complete(
    prompt: str,
    schema: Raw | None,
    owner: RunOwner,
    order: int,
    host: FrontHost,
    models_: Models,
    *,
    samples: bool = False,
    timeout_ms: int = 0,
) -> Raw:
    """Return the answer of a model as JSON: a string without a schema, else an object that fits.
    `order`: its client may lend its model, if `samples`. Raises NoAnswer."""
    model = models_.lent(owner, order, host, samples=samples)
    if model is None:
        raise NoAnswer(f"This step needs a model, and none is configured. {HOW}")
    settings = model.settings
    within_ms = min(timeout_ms or settings.timeout_ms, settings.timeout_ms)
    until = asyncio.get_running_loop().time() + within_ms / 1000
    tokens = settings.answer_tokens_max
    if schema is None:
        system = "Answer the request, and say nothing else."
        answer = await model.complete(models.build_first_prompt(system, prompt, tokens), until)
        if answer.stop or not answer.turn.text:
            reasons = {"length": f"it has more than {tokens} tokens", "refused": "it is a refusal"}
            raise NoAnswer(
                f"The model's answer cannot be used: {reasons.get(answer.stop, 'empty')}."
            )
        return Raw(codec.dump(answer.turn.text))
    text = bytes(schema).decode("utf-8", "replace")
    system = f"Answer the request with a JSON object that fits this JSON Schema:\n{text}"

    def fault(value: dict[str, object]) -> str:
        message = parameters.wrong(text, Raw(codec.dump(value)))
        return message.replace("(parameters: ", "(schema: ").replace("args", "answer", 1)

    return Raw(
        codec.dump(
            await ask_for_json(
                model, models.build_first_prompt(system, prompt, tokens), until, fault
            )
        )
    )
