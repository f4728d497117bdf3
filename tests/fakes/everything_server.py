"""The fixture as a server of the SDK: which handler answers which method.

It owns the lists and the routing of names. How it is reached is `everything_serving`'s.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.abc
import mcp_types as types
from mcp.server import NotificationOptions, Server
from mcp.server.caching import CacheHint
from mcp.server.lowlevel.server import RequestHandler
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPError

from tests.fakes import everything_content as content
from tests.fakes.everything_calls import (
    LOG_LEVELS,
    Context,
    World,
    acted,
    answered,
    modern,
    session_of,
)
from tests.fakes.everything_steps import PROMPT, PUSHING, STEPS, Json, text
from tests.fakes.everything_tasks import TOOLS as TASK_TOOLS
from tests.fakes.everything_tasks import Tasks

#: What servers of the handshake era say; later ones say that the parameters are invalid.
RESOURCE_NOT_FOUND = -32002

NAME = "everything"
WORDS = ("paris", "park", "party", "test", "testing")

LISTED = CacheHint(ttl_ms=60_000, scope="public")
READ = CacheHint(ttl_ms=1_000, scope="private")


class Everything(Server[anyio.abc.TaskGroup]):
    """Announces what it does in the handshake too: the SDK declares no change there by itself."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        changes = NotificationOptions(True, True, True)
        return super().create_initialization_options(changes, experimental_capabilities, {})


@asynccontextmanager
async def lifespan(_: Server[anyio.abc.TaskGroup]) -> AsyncGenerator[anyio.abc.TaskGroup]:
    """Where tasks run, longer than the request that made them."""
    async with anyio.create_task_group() as group:
        yield group
        group.cancel_scope.cancel()


def complete(handler: Callable[[Context, Any], Awaitable[Json]]) -> RequestHandler[Any, Any]:
    """The handler, whose results say that they are complete where that has to be said."""

    async def serve(ctx: Context, params: Any) -> Json:
        result = await handler(ctx, params)
        return {"resultType": "complete", **result} if modern(ctx) else result

    return serve


class Handlers:
    """`push`: it asks by requests only, where servers of the first era do."""

    def __init__(self, *, push: bool) -> None:
        self.push = push
        self.world = World()
        self.tasks = Tasks()

    def server(self) -> Everything:
        server = Everything(
            NAME,
            version="1.0.0",
            instructions="Every feature once.",
            lifespan=lifespan,
            cache_hints={
                "tools/list": LISTED,
                "prompts/list": LISTED,
                "resources/list": LISTED,
                "resources/templates/list": LISTED,
                "resources/read": READ,
            },
            get_tool_input_schema=self.schema,
            on_subscriptions_listen=ListenHandler(self.world.bus),
        )
        pages = types.PaginatedRequestParams
        for method, params, handler in (
            ("tools/list", pages, self.list_tools),
            ("tools/call", types.CallToolRequestParams, self.call),
            ("prompts/list", pages, self.list_prompts),
            ("prompts/get", types.GetPromptRequestParams, self.get_prompt),
            ("resources/list", pages, self.list_resources),
            ("resources/templates/list", pages, self.list_templates),
            ("resources/read", types.ReadResourceRequestParams, self.read),
            ("resources/subscribe", types.SubscribeRequestParams, self.subscribe),
            ("resources/unsubscribe", types.UnsubscribeRequestParams, self.unsubscribe),
            ("completion/complete", types.CompleteRequestParams, self.complete),
            ("logging/setLevel", types.SetLevelRequestParams, self.level),
        ):
            server.add_request_handler(method, params, complete(handler))
        self.tasks.register(server)
        # Without tracing, which is on by default; with sealed states, which are not.
        server.middleware = [
            RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=NAME)
        ]
        return server

    # --- tools --------------------------------------------------------------------------------

    def tools(self) -> list[Json]:
        dynamic = [content.DYNAMIC_TOOL] if self.world.dynamic_tool else []
        return [*content.TOOLS, *dynamic]

    def schema(self, name: str) -> Json | None:
        return next((tool["inputSchema"] for tool in self.tools() if tool["name"] == name), None)

    async def list_tools(self, ctx: Context, params: types.PaginatedRequestParams) -> Json:
        return {"tools": self.tools()}

    async def call(self, ctx: Context, params: types.CallToolRequestParams) -> Json:
        name, arguments = params.name, params.arguments or {}
        if self.schema(name) is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown tool: {name}")
        if name in content.STILL:
            return content.STILL[name]
        if name in TASK_TOOLS:
            return await self.tasks.call(ctx, name, arguments)
        if name in PUSHING and self.push and modern(ctx):
            return text("This client cannot be asked by a request.", error=True)
        if name in STEPS:
            return await answered(ctx, STEPS[name], arguments)
        result = await acted(ctx, self.world, name, arguments)
        assert result is not None, f"{name} is listed and does nothing"
        return result

    # --- prompts ------------------------------------------------------------------------------

    async def list_prompts(self, ctx: Context, params: types.PaginatedRequestParams) -> Json:
        dynamic = [content.DYNAMIC_PROMPT] if self.world.dynamic_prompt else []
        return {"prompts": [*content.PROMPTS, *dynamic]}

    async def get_prompt(self, ctx: Context, params: types.GetPromptRequestParams) -> Json:
        arguments = dict(params.arguments or {})
        if params.name == PROMPT:
            return await answered(ctx, STEPS[PROMPT], arguments)
        found = content.prompt(params.name, arguments)
        if found is None:
            raise MCPError(types.INVALID_PARAMS, f"Unknown prompt: {params.name}")
        return found

    async def complete(self, ctx: Context, params: types.CompleteRequestParams) -> Json:
        values = [word for word in WORDS if word.startswith(params.argument.value)]
        return {"completion": {"values": values, "total": len(values), "hasMore": False}}

    # --- resources ----------------------------------------------------------------------------

    async def list_resources(self, ctx: Context, params: types.PaginatedRequestParams) -> Json:
        return {"resources": content.RESOURCES}

    async def list_templates(self, ctx: Context, params: types.PaginatedRequestParams) -> Json:
        return {"resourceTemplates": content.TEMPLATES}

    async def read(self, ctx: Context, params: types.ReadResourceRequestParams) -> Json:
        found = content.resource(params.uri, self.world.watched)
        if found is None:
            code = types.INVALID_PARAMS if modern(ctx) else RESOURCE_NOT_FOUND
            raise MCPError(code, "Resource not found", {"uri": params.uri})
        return {"contents": [found]}

    async def subscribe(self, ctx: Context, params: types.SubscribeRequestParams) -> Json:
        self.world.subscribed[session_of(ctx), params.uri] = ctx.session
        return {}

    async def unsubscribe(self, ctx: Context, params: types.UnsubscribeRequestParams) -> Json:
        self.world.subscribed.pop((session_of(ctx), params.uri), None)
        return {}

    async def level(self, ctx: Context, params: types.SetLevelRequestParams) -> Json:
        assert params.level in LOG_LEVELS
        self.world.levels[session_of(ctx)] = params.level
        return {}
