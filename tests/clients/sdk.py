"""The official Python client doing everything once, as `client.mjs` does it for TypeScript."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
from mcp.client.client import Client
from mcp.client.context import ClientRequestContext
from mcp.client.sse import sse_client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError

from tests.clients.expected import Seen
from tests.clients.places import Place
from tests.live.client import MODERN
from tests.live.gateway import ROOT

WATCHED = "test://watched-resource"
RUN_S_MAX = 45
VALUES = {"string": "Ada", "boolean": True, "integer": 7, "number": 7.5}


class Person:
    """Who answers what servers ask, and hears what they tell."""

    def __init__(self) -> None:
        self.seen: Seen = {"asked": [], "logged": [], "progress": [], "updated": [], "changed": 0}
        self.news = asyncio.Event()

    async def fill(
        self, context: ClientRequestContext, params: types.ElicitRequestParams
    ) -> types.ElicitResult:
        self.seen["asked"].append([params.mode, params.message])
        if not isinstance(params, types.ElicitRequestFormParams):
            return types.ElicitResult(action="accept")
        fields: dict[str, Any] = params.requested_schema.get("properties", {})
        content = {name: one.get("default", VALUES[one["type"]]) for name, one in fields.items()}
        return types.ElicitResult(action="accept", content=content)

    async def write(
        self, context: ClientRequestContext, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult:
        block = params.messages[0].content
        assert isinstance(block, types.TextContent)
        self.seen["asked"].append(["sampling", block.text])
        text = types.TextContent(type="text", text="Paris")
        return types.CreateMessageResult(role="assistant", content=text, model="m")

    async def show(self, context: ClientRequestContext) -> types.ListRootsResult:
        self.seen["asked"].append(["roots", ""])
        return types.ListRootsResult(roots=[types.Root.model_validate({"uri": "file:///work"})])

    async def hear(self, params: types.LoggingMessageNotificationParams) -> None:
        self.seen["logged"].append([params.level, params.data])

    async def told(self, message: object) -> None:
        """Any notification."""
        match message:
            case types.ResourceUpdatedNotification():
                self.seen["updated"].append(str(message.params.uri))
            case types.ToolListChangedNotification():
                self.seen["changed"] += 1
            case _:
                return
        self.news.set()

    async def hears(self, fact: Callable[[], bool]) -> None:
        """Wait for news that make this true."""
        while not fact():
            self.news.clear()
            await self.news.wait()


class Doing:
    """The steps. `place`: where the client is connected to."""

    def __init__(self, client: Client, person: Person, place: Place) -> None:
        self.client, self.person, self.seen = client, person, person.seen
        self.place, self.names = place, place.names
        self.modern = client.protocol_version == MODERN

    def name(self, tool: str, of: str = "main") -> str:
        return f"{self.names[of]}__{tool}"

    async def text(self, tool: str, of: str = "main", **arguments: Any) -> str:
        result = await self.client.call_tool(self.name(tool, of), arguments)
        block = result.content[0]
        assert isinstance(block, types.TextContent)
        return block.text

    async def tools(self) -> list[str]:
        return [one.name for one in (await self.client.list_tools()).tools]

    async def everything(self) -> None:
        await self.lists()
        await self.calls()
        await self.logs()
        await self.cancels()
        await self.reads()
        await self.prompts()
        await self.is_asked()
        await self.watches()

    async def lists(self) -> None:
        client, seen = self.client, self.seen
        seen["version"] = client.protocol_version
        seen["capabilities"] = list(client.server_capabilities.model_dump(exclude_none=True))
        seen["instructions"] = client.instructions
        seen["tools"] = await self.tools()
        seen["prompts"] = [one.name for one in (await client.list_prompts()).prompts]
        seen["resources"] = [str(one.uri) for one in (await client.list_resources()).resources]
        templates = (await client.list_resource_templates()).resource_templates
        seen["templates"] = [one.uri_template for one in templates]

    async def calls(self) -> None:
        client, seen = self.client, self.seen
        seen["text"] = await self.text("test_simple_text")
        mixed = await client.call_tool(self.name("test_multiple_content_types"))
        seen["mixed"] = [block.type for block in mixed.content]
        seen["failed"] = (await client.call_tool(self.name("test_error_handling"))).is_error
        seen["unknown_tool"] = await refusal(client.call_tool(self.name("no_such_tool")))
        seen["region"] = await self.text("test_x_mcp_header", region="Zürich")

        async def progressed(progress: float, total: float | None, message: str | None) -> None:
            seen["progress"].append([progress, total])

        tool = self.name("test_tool_with_progress")
        await client.call_tool(tool, progress_callback=progressed)

    async def logs(self) -> None:
        if not self.modern:  # where the level goes with each request
            params = types.SetLevelRequestParams(level="info")
            request = types.SetLevelRequest(params=params)
            await self.client.session.send_request(request, types.EmptyResult)
        await self.client.call_tool(self.name("test_tool_with_logging"))

    async def cancels(self) -> None:
        async def told() -> int:
            state = json.loads(await self.text("state", "slow"))
            return sum(one["method"] == "notifications/cancelled" for one in state["told"])

        async def begun(progress: float, total: float | None, message: str | None) -> None:
            call.cancel()

        before = await told()
        waiting = self.client.call_tool(self.name("wait", "slow"), progress_callback=begun)
        call = asyncio.create_task(waiting)
        await asyncio.wait([call])
        self.seen["cancelled"] = "cancelled" if call.cancelled() else "answered"
        while await told() == before:
            pass  # until the time for everything is over

    async def reads(self) -> None:
        seen = self.seen
        contents = {
            uri: (await self.client.read_resource(f"test://{uri}")).contents[0]
            for uri in ("static-text", "static-binary", "template/7/data")
        }
        text, blob, item = contents.values()
        assert isinstance(text, types.TextResourceContents)
        assert isinstance(item, types.TextResourceContents)
        seen["read"], seen["blob"] = text.text, blob.mime_type
        seen["item"] = json.loads(item.text)["id"]
        seen["unknown_resource"] = await refusal(self.client.read_resource("test://nothing"))

    async def words(self, prompt: str, **arguments: str) -> str:
        result = await self.client.get_prompt(self.name(prompt), arguments)
        block = result.messages[0].content
        assert isinstance(block, types.TextContent)
        return block.text

    async def prompts(self) -> None:
        seen = self.seen
        seen["prompt"] = await self.words("test_simple_prompt")
        seen["prompt_with"] = await self.words("test_prompt_with_arguments", arg1="a", arg2="b")
        ref = types.PromptReference(type="ref/prompt", name=self.name("test_prompt_with_arguments"))
        found = await self.client.complete(ref, {"name": "arg1", "value": "par"})
        seen["completed"] = found.completion.values
        seen["prompt_asked"] = await self.words("test_input_required_result_prompt")

    async def is_asked(self) -> None:
        seen, more = self.seen, "test_input_required_result_"
        seen["elicited"] = await self.text("test_elicitation", message="Who?")
        seen["defaults"] = await self.text("test_elicitation_sep1034_defaults")
        seen["sampled"] = await self.text("test_sampling", prompt="Capital?")
        seen["roots"] = await self.text(f"{more}list_roots")
        seen["several"] = await self.text(f"{more}multiple_inputs")
        seen["rounds"] = await self.text(f"{more}multi_round")
        seen["visited"] = json.loads(await self.text("elicit", "side", mode="url"))

    async def watches(self) -> None:
        if self.modern:
            listening = self.client.listen(
                tools_list_changed=True, resource_subscriptions=[WATCHED]
            )
            async with listening:
                await self.changes()
            return
        params = types.SubscribeRequestParams(uri=WATCHED)
        await self.client.session.send_request(
            types.SubscribeRequest(params=params), types.EmptyResult
        )
        await self.changes()

    async def changes(self) -> None:
        seen = self.seen
        await self.text("test_update_watched_resource")
        await self.person.hears(lambda: bool(seen["updated"]))
        await self.text("test_trigger_tool_change")
        await self.person.hears(lambda: seen["changed"] == 1)
        seen["gained"] = self.name("test_dynamic_tool") in await self.tools()
        await self.text("test_trigger_tool_change")
        await self.person.hears(lambda: seen["changed"] == 2)


async def refusal(attempt: Awaitable[object]) -> int:
    try:
        await attempt
    except MCPError as error:
        return error.code
    return 0


def python(place: Place, way: str, era: str) -> Seen:
    """What the official client saw. `way`: http, sse or stdio. `era`: legacy, or whatever it finds,
    which is to be the newer one."""

    async def main() -> Seen:
        person = Person()
        server: Any = place.url("mcp" if way == "http" else way)
        if way == "sse":
            server = sse_client(server)
        elif way == "stdio":
            command, *args = place.bridge
            server = StdioServerParameters(
                command=command, args=args, cwd=ROOT, env=dict(os.environ)
            )
        client = Client(
            server,
            mode="legacy" if era == "legacy" else "auto",
            elicitation_callback=person.fill,
            sampling_callback=person.write,
            list_roots_callback=person.show,
            logging_callback=person.hear,
            log_level="info",
            message_handler=person.told,
        )
        async with asyncio.timeout(RUN_S_MAX), client:
            await Doing(client, person, place).everything()
        return person.seen

    return asyncio.run(main())
