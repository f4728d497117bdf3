"""Orders that a model carries out: an agent, and the suggestion of a workflow.

Owns: each order from its arguments to its answer, its time, its progress, its questions to the
model and to the front. Never: what an agent does next (`agent`), rules, prompts and definitions
(`suggestion`), attempts at a model (`models_io`).

An agent ends with the task that runs it: then a request to the model is cut off, and the front
cancels the calls.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Raw

from metamcp_worker.engine import agent, models_io, suggestion
from metamcp_worker.engine.agent import Agent, AgentEnd, AskFront, AskModel
from metamcp_worker.engine.models import NoAnswer
from metamcp_worker.engine.models_io import FrontHost, ModelClient, Models
from metamcp_worker.engine.suggestion import Suggestion, ToolRoutes
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.engine_runs import (
    AgentArguments,
    EngineOrder,
    OrderDone,
    SuggestionArguments,
)

SEARCH_S_MAX = 30.0
"""Seconds for the front to find the tools of an answer without a model."""
FRONT_S_MAX = 30.0
"""Seconds for the front to send the tools of a suggestion."""

Tell = Callable[[float, float, str], None]
"""Takes progress, total and a message."""


async def run_agent(order: EngineOrder, host: FrontHost, tell: Tell, models: Models) -> OrderDone:
    """Carry out the order `agent`."""
    try:
        arguments = codec.decode_as(AgentArguments, order.params)
    except codec.Malformed as error:
        return OrderDone(
            id=order.id, text=f"The arguments of run_agent are wrong: {error}.", failed=True
        )
    model = models.of(order, host)
    if model is None:
        return await _without_model(order, host, arguments.task)
    machine = Agent(arguments, model.settings)
    until = asyncio.get_running_loop().time() + machine.timeout_s
    try:
        async with asyncio.timeout_at(until):
            await _carry_out(machine, order, host, tell, model, until)
    except TimeoutError:
        machine.on_timeout()
    end = machine.next()
    assert isinstance(end, AgentEnd)
    return end.to_done(order.id)


async def _carry_out(
    machine: Agent,
    order: EngineOrder,
    host: FrontHost,
    tell: Tell,
    model: ModelClient,
    until: float,
) -> None:
    steps_told = 0
    while True:
        action = machine.next()
        if order.progress and machine.steps > steps_told:
            steps_told = machine.steps
            tell(machine.steps, machine.steps_max, machine.doing)
        match action:
            case AskModel(prompt=prompt):
                try:
                    machine.on_model_answer(await model.complete(prompt, until))
                except NoAnswer as error:
                    machine.on_model_error(str(error))
            case AskFront(kind=kind, name=name, arguments=arguments):
                machine.on_front_answer(
                    await host.ask(
                        order.owner,
                        kind,
                        name=name,
                        arguments=bytes(arguments),
                        order=order.id,
                        consent=model.settings.consent,
                    )
                )
            case AgentEnd():
                return


async def _without_model(order: EngineOrder, host: FrontHost, task: str) -> OrderDone:
    """Return the best tools for a task, and a program to begin with."""
    how = models_io.HOW
    try:
        async with asyncio.timeout(SEARCH_S_MAX):
            answer = await host.ask(order.owner, "tools", name=task, order=order.id)
            if answer.trouble:
                text = f"No tools were found: {answer.error} {how}"
                return OrderDone(id=order.id, text=text, failed=True)
            best = agent.tools(answer.result)[: agent.SKELETON_TOOLS_MAX]
            details: list[Raw] = []
            for hit in best:
                done = await host.ask(order.owner, "describe", name=hit["name"], order=order.id)
                details.append(Raw(b"{}") if done.trouble else done.result)
    except TimeoutError:
        text = f"The front found no tools within {SEARCH_S_MAX:g} s. {how}"
        return OrderDone(id=order.id, text=text, failed=True)
    return agent.skeleton(order.id, task, best, details, how)


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
            everything = await _find_tools(order, host, "")
            best = await _find_tools(order, host, arguments.task)
            details = await _describe_tools(order, host, best[: suggestion.TYPES_MAX])
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
            made = await _suggest_by_model(arguments, model, best, details, draft, catalogue)
            return Suggestion(made, "model", notes=notes).to_done(order.id)
        except NoAnswer as error:
            notes = (*notes, str(error))
    if suggested.workflow:
        return Suggestion(suggested.workflow, "rule", suggested.by, notes).to_done(order.id)
    return _suggest_by_tools(order, arguments, best, details, catalogue, notes)


async def _find_tools(order: EngineOrder, host: FrontHost, query: str) -> list[Mapping[str, str]]:
    """Return the tools that fit a query, all for an empty one. Raises NoAnswer."""
    done = await host.ask(order.owner, "tools", name=query, order=order.id)
    if done.trouble:
        raise NoAnswer(f"No tools were found: {done.error}")
    return agent.tools(done.result)


async def _describe_tools(
    order: EngineOrder, host: FrontHost, tools: Sequence[Mapping[str, str]]
) -> list[Raw]:
    answers = [
        await host.ask(order.owner, "describe", name=tool["name"], order=order.id) for tool in tools
    ]
    return [Raw(b"{}") if done.trouble else done.result for done in answers]


async def _suggest_by_model(
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


def _suggest_by_tools(
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
