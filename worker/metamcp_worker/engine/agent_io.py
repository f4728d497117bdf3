"""Agents under way: their questions to the model and to the front, their time, their progress.

Owns: the order `agent` from its arguments to its answer, the number of agents at once. Never: what
an agent does next and what it answers (`agent`), attempts at a model (`models_io`).

An agent ends with the task that runs it: then a request to the model is cut off, and the front
cancels the calls.
"""

import asyncio
from collections.abc import Callable

from msgspec import Raw

from metamcp_worker.engine import agent, models_io
from metamcp_worker.engine.agent import Agent, AgentEnd, AskFront, AskModel
from metamcp_worker.engine.models import NoAnswer
from metamcp_worker.engine.models_io import FrontHost, ModelClient, Models
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.engine_runs import AgentArguments, EngineOrder, OrderDone

SEARCH_S_MAX = 30.0
"""Seconds for the front to find the tools of an answer without a model."""

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
