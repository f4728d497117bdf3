"""How the fixture's questions travel, and the tools that act: logs, progress, changes.

A request of 2026-07-28 is answered with the questions and comes again with the answers; a request
of the handshake era stays open while the server sends requests of its own.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import mcp_types as types
from mcp.server import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    PromptsListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from tests.fakes.everything_content import WATCHED
from tests.fakes.everything_steps import CAPABILITY, Ask, Json, Step, Turn, text

Context = ServerRequestContext[Any, Any]

LOG_LEVELS = (
    "debug", "info", "notice", "warning", "error", "critical", "alert", "emergency",
)  # fmt: skip

#: Between two messages of a call, so that they leave in packets of their own.
PAUSE_S = 0.02

#: Longer than the retry interval that the stream announces, so that its client comes back first.
RECONNECT_S = 0.2

#: For the answer to a question: those who are asked here are programs. A call left alone ends
#: with it.
ASK_S_MAX = 3.0

_KINDS: dict[str, tuple[Any, Any]] = {
    "elicitation/create": (types.ElicitRequest, types.ElicitResult),
    "sampling/createMessage": (types.CreateMessageRequest, types.CreateMessageResult),
    "roots/list": (types.ListRootsRequest, types.ListRootsResult),
}


@dataclass
class World:
    """What changes while the fixture runs."""

    bus: InMemorySubscriptionBus = field(default_factory=InMemorySubscriptionBus)
    dynamic_tool: bool = False
    dynamic_prompt: bool = False
    watched: int = 0
    #: Of sessions of the handshake era: the level each has set, and who subscribed to what.
    levels: dict[str, str] = field(default_factory=dict[str, str])
    subscribed: dict[tuple[str, str], ServerSession] = field(
        default_factory=dict[tuple[str, str], ServerSession]
    )


def modern(ctx: Context) -> bool:
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def session_of(ctx: Context) -> str:
    """What tells sessions of the handshake era apart; stdio has only one."""
    return "" if ctx.request is None else ctx.request.headers.get("mcp-session-id", "")


def meta_of(ctx: Context) -> Json:
    found: Json = (ctx.params or {}).get("_meta") or {}
    return found


def capabilities_of(ctx: Context) -> Json:
    declared = ctx.session.client_capabilities
    return declared.model_dump(by_alias=True, mode="json", exclude_none=True) if declared else {}


def missing_capability(*names: str) -> MCPError:
    return MCPError(
        types.MISSING_REQUIRED_CLIENT_CAPABILITY,
        f"The client is asked for {', '.join(names)} and cannot do it",
        {"requiredCapabilities": {name: {} for name in names}},
    )


# --- questions --------------------------------------------------------------------------------


async def answered(ctx: Context, step: Step, arguments: Json) -> Json:
    """The result of a step, or an InputRequiredResult with its questions."""
    turn = Turn(arguments, capabilities_of(ctx))
    if not modern(ctx):
        return await by_request(ctx, step, turn)
    params: Mapping[str, Any] = ctx.params or {}
    given: Json = params.get("inputResponses") or {}
    return by_result(ctx, step, replace(turn, answers=given, state=params.get("requestState")))


def by_result(ctx: Context, step: Step, turn: Turn) -> Json:
    outcome = step(turn)
    if not isinstance(outcome, Ask):
        return outcome
    refuse_undeclared(ctx, outcome)
    state = {} if outcome.state is None else {"requestState": outcome.state}
    return {"resultType": "input_required", "inputRequests": dict(outcome.requests), **state}


async def by_request(ctx: Context, step: Step, turn: Turn) -> Json:
    """Sends all questions of a round at once and waits for all answers."""
    while isinstance(outcome := step(turn), Ask):
        refuse_undeclared(ctx, outcome)
        answers: Json = {}
        async with anyio.create_task_group() as group:
            for key, question in outcome.requests.items():
                group.start_soon(ask, ctx, key, question, answers)
        turn = replace(turn, answers=answers, state=outcome.state)
        refused = outcome.requests.keys() - answers.keys()
        if refused and isinstance(step(turn), Ask):
            methods = {outcome.requests[key]["method"] for key in refused}
            raise missing_capability(*sorted(CAPABILITY[method] for method in methods))
    return outcome


async def ask(ctx: Context, key: str, question: Json, answers: Json) -> None:
    """One request to the client, on the stream of the call; an error leaves no answer."""
    request, result = _KINDS[question["method"]]
    related = ServerMessageMetadata(related_request_id=ctx.request_id)
    try:
        answer = await ctx.session.send_request(
            request.model_validate(question), result, ASK_S_MAX, metadata=related
        )
    except MCPError:
        return
    answers[key] = answer.model_dump(by_alias=True, mode="json", exclude_none=True)


def refuse_undeclared(ctx: Context, asked: Ask) -> None:
    wanted = {CAPABILITY[question["method"]] for question in asked.requests.values()}
    if missing := wanted - capabilities_of(ctx).keys():
        raise missing_capability(*sorted(missing))


# --- tools that act ---------------------------------------------------------------------------


async def log(ctx: Context, world: World, words: str) -> None:
    """A message at level info, if this request (or, before 2026, this session) wants it."""
    if modern(ctx):
        level = meta_of(ctx).get(types.LOG_LEVEL_META_KEY)
    else:
        level = world.levels.get(session_of(ctx), LOG_LEVELS[0])
    if level not in LOG_LEVELS or LOG_LEVELS.index(level) > LOG_LEVELS.index("info"):
        return
    params = types.LoggingMessageNotificationParams(level="info", logger="everything", data=words)
    message = types.LoggingMessageNotification(params=params)
    await ctx.session.send_notification(message, related_request_id=ctx.request_id)


async def acted(ctx: Context, world: World, name: str, arguments: Json) -> Json | None:
    """The result of a tool that does something; None if there is no such tool."""
    match name:
        case "test_tool_with_logging" | "test_logging_tool":
            for words in ("Tool execution started", "Tool processing data", "Tool completed"):
                await log(ctx, world, words)
                await anyio.sleep(PAUSE_S)
            return text("Tool with logging executed successfully")
        case "test_tool_with_progress":
            for done in (0, 50, 100):
                await ctx.session.report_progress(done, 100, f"Completed {done} of 100")
                await anyio.sleep(PAUSE_S)
            token = meta_of(ctx).get("progressToken")
            return text(f"The token was {json.dumps(token)}")
        case "test_reconnection":
            await log(ctx, world, "Before the stream is closed")
            if ctx.close_sse_stream is not None:
                await ctx.close_sse_stream()
                await anyio.sleep(RECONNECT_S)
            await log(ctx, world, "After it")
            return text("Reconnection test completed")
        case "test_x_mcp_header":
            return text(f"region={arguments.get('region')}")
        case "greet":
            return text(f"Hello, {arguments.get('name', 'stranger')}!")
        case _:
            return await changed(ctx, world, name)


async def changed(ctx: Context, world: World, name: str) -> Json | None:
    """Changes a list or a resource, then tells every listener, and the session that called or
    those that subscribed."""
    match name:
        case "test_trigger_tool_change":
            world.dynamic_tool = not world.dynamic_tool
            await world.bus.publish(ToolsListChanged())
            await ctx.session.send_tool_list_changed()
        case "test_trigger_prompt_change":
            world.dynamic_prompt = not world.dynamic_prompt
            await world.bus.publish(PromptsListChanged())
            await ctx.session.send_prompt_list_changed()
        case "test_update_watched_resource":
            world.watched += 1
            await world.bus.publish(ResourceUpdated(uri=WATCHED))
            for (_, uri), session in list(world.subscribed.items()):
                if uri == WATCHED:
                    await session.send_resource_updated(WATCHED)
        case _:
            return None
    return text("Changed")
