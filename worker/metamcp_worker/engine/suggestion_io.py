"""Suggestions under way: the tools that a front sends, and the model that writes a definition.

Owns: the order `suggest` from its arguments to its answer. Never: rules, prompts and definitions
(`suggestion`), attempts at a model (`models_io`).
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Raw

from metamcp_worker.engine import agent, models_io, suggestion
from metamcp_worker.engine.agent_io import Tell
from metamcp_worker.engine.models import NoAnswer
from metamcp_worker.engine.models_io import FrontHost, ModelClient, Models
from metamcp_worker.engine.suggestion import Suggestion, ToolRoutes
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.engine_runs import EngineOrder, OrderDone, SuggestionArguments

FRONT_S_MAX = 30.0
"""Seconds for the front to send tools."""


async def suggest(
    order: EngineOrder, host: FrontHost, tell: Tell, models: Models, rules: Sequence[Raw]
) -> OrderDone:
    """Carry out the order `suggest`."""
    try:
        arguments = codec.decode_as(SuggestionArguments, order.params)
    except codec.Malformed as error:
        text = f"The arguments of suggest_workflow are wrong: {error}."
        return OrderDone(id=order.id, text=text, failed=True)
    try:
        async with asyncio.timeout(FRONT_S_MAX):
            everything = await _tools(order, host, "")
            best = await _tools(order, host, arguments.task)
            details = await _details(order, host, best[: suggestion.TYPES_MAX])
    except TimeoutError:
        text = f"The front told no tools within {FRONT_S_MAX:g} s; try again."
        return OrderDone(id=order.id, text=text, failed=True)
    except NoAnswer as error:
        return OrderDone(id=order.id, text=str(error), failed=True)
    catalogue = ToolRoutes([*everything, *best])
    suggested = suggestion.by_rule(arguments.task, rules, catalogue)
    notes = suggested.notes
    if not suggested.workflow or arguments.refine:
        model = models.of(order, host)
        if order.progress and model is not None:
            tell(1, 2, "the model writes a workflow")
        try:
            if model is None:
                raise NoAnswer(f"No model is configured that could write one. {models_io.HOW}")
            draft = suggested.workflow or None
            made = await _by_model(arguments, model, best, details, draft, catalogue)
            return Suggestion(made, "model", notes=notes).to_done(order.id)
        except NoAnswer as error:
            notes = (*notes, str(error))
    if suggested.workflow:
        return Suggestion(suggested.workflow, "rule", suggested.by, notes).to_done(order.id)
    return _by_tools(order, arguments, best, details, catalogue, notes)


async def _tools(order: EngineOrder, host: FrontHost, query: str) -> list[Mapping[str, str]]:
    """Return the tools that fit a query, all for an empty one. Raises NoAnswer."""
    done = await host.ask(order.owner, "tools", name=query, order=order.id)
    if done.trouble:
        raise NoAnswer(f"No tools were found: {done.error}")
    return agent.tools(done.result)


async def _details(
    order: EngineOrder, host: FrontHost, tools: Sequence[Mapping[str, str]]
) -> list[Raw]:
    answers = [
        await host.ask(order.owner, "describe", name=tool["name"], order=order.id) for tool in tools
    ]
    return [Raw(b"{}") if done.trouble else done.result for done in answers]


async def _by_model(
    arguments: SuggestionArguments,
    model: ModelClient,
    best: Sequence[Mapping[str, str]],
    details: Sequence[Raw],
    draft: Mapping[str, Any] | None,
    catalogue: ToolRoutes,
) -> dict[str, Any]:
    """Return what a model suggests. Raises NoAnswer."""
    settings = model.settings
    prompt = suggestion.prompt(arguments, best, details, draft, settings.answer_tokens_max)
    until = asyncio.get_running_loop().time() + settings.timeout_ms / 1000
    fault = partial(suggestion.fault, catalogue=catalogue)
    made = await models_io.ask_for_json(model, prompt, until, fault)
    return suggestion.adapt_draft(made, catalogue)[0]


def _by_tools(
    order: EngineOrder,
    arguments: SuggestionArguments,
    best: Sequence[Mapping[str, str]],
    details: Sequence[Raw],
    catalogue: ToolRoutes,
    notes: Sequence[str],
) -> OrderDone:
    if not suggestion.distinct(best, details):
        text = " ".join(("No rule matches, and no tool fits the task.", *notes))
        return OrderDone(id=order.id, text=text, failed=True)
    made, problems = suggestion.adapt_draft(
        suggestion.sequence(arguments.task, best, details), catalogue
    )
    if problems:
        text = " ".join((f"No workflow was found: {'; '.join(problems)}.", *notes))
        return OrderDone(id=order.id, text=text, failed=True)
    return Suggestion(made, "tools", notes=tuple(notes)).to_done(order.id)
