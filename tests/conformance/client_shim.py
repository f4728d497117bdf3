"""The client that the suite tests: a gateway whose only server is the suite's, and who drives it.

The suite sees what the gateway does as a client. Which scenario it plays is in the environment; the
era is that of the client before the gateway, so that both ways through it can be played.
"""

import asyncio
import json
import os
from typing import Any

import mcp_types as types
from mcp.client.client import Client
from mcp.client.context import ClientRequestContext

from tests.conformance import client_auth
from tests.conformance.cells import MODERN
from tests.live import client as raw
from tests.live.gateway import Gateway

#: Within the suite's own limit for a scenario.
DRIVE_S_MAX = 60

ENDPOINT = """
[namespaces.subject]
servers = ["subject"]
[endpoints.subject]
namespace = "subject"
naming = { style = "bare" }
[servers.subject]
"""

#: The calls of a scenario, where its name does not say all.
CALLS: dict[str, list[tuple[str, dict[str, Any] | None]]] = {
    "tools_call": [("add_numbers", {"a": 5, "b": 3})],
    "request-metadata": [("add_numbers", {"a": 5, "b": 3})],
    "sse-retry": [("test_reconnection", {})],
    "elicitation-sep1034-client-defaults": [("test_client_elicitation_defaults", {})],
    "sep-2322-client-request-state": [
        ("test_mrtr_echo_state", {}),
        ("test_mrtr_unrelated", {}),
        ("test_mrtr_no_state", {}),
        ("test_mrtr_no_result_type", {}),
    ],
    "http-standard-headers": [("test_headers", {}), ("my-hyphenated-tool", {})],
}


async def accept(
    context: ClientRequestContext, params: types.ElicitRequestParams
) -> types.ElicitResult | types.ErrorData:
    """A form as its author would fill it in: with the defaults, and a yes to every question."""
    if not isinstance(params, types.ElicitRequestFormParams):
        return types.ElicitResult(action="cancel")
    content: dict[str, Any] = {}
    for name, schema in params.requested_schema.get("properties", {}).items():
        if "default" in schema:
            content[name] = schema["default"]
        elif schema.get("type") == "boolean":
            content[name] = True
    return types.ElicitResult(action="accept", content=content)


async def sample(
    context: ClientRequestContext, params: types.CreateMessageRequestParams
) -> types.CreateMessageResult | types.ErrorData:
    words = types.TextContent(type="text", text="Hello")
    return types.CreateMessageResult(role="assistant", content=words, model="none")


async def roots(context: ClientRequestContext) -> types.ListRootsResult | types.ErrorData:
    return types.ListRootsResult(roots=[])


async def drive(url: str, era: str, scenario: str) -> None:
    client = Client(
        url,
        mode="legacy" if era == "legacy" else MODERN,
        elicitation_callback=accept,
        sampling_callback=sample,
        list_roots_callback=roots,
    )
    async with asyncio.timeout(DRIVE_S_MAX), client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        calls = CALLS.get(scenario, [])
        if scenario == "json-schema-2020-12-preservation":
            schema = tools["json_schema_2020_12_tool"].input_schema
            calls = [("json_schema_echo", {"schema": schema})]
        if scenario == "http-custom-headers":
            given: dict[str, Any] = json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])
            calls = [(call["name"], call.get("arguments")) for call in given["toolCalls"]]
        for name, arguments in calls:
            if name in tools:
                await client.call_tool(name, arguments)
        if scenario == "http-standard-headers":
            for resource in (await client.list_resources()).resources:
                await client.read_resource(resource.uri)
            for prompt in (await client.list_prompts()).prompts:
                await client.get_prompt(prompt.name)


def call_everything(port: int, path: str) -> None:
    """Calls whatever the gateway shows: it may show no tool that cannot be called over HTTP.

    By hand, because the SDK's client would leave such a tool out itself.
    """
    client = raw.Client(port, path=path)
    for tool in client.request("tools/list")["result"]["tools"]:
        properties: dict[str, Any] = tool["inputSchema"].get("properties", {})
        arguments = dict.fromkeys(properties, "x")
        client.request("tools/call", {"name": tool["name"], "arguments": arguments})
    client.close()


def play(era: str, url: str) -> None:
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    path = "/metamcp/subject/mcp"
    table = f"{ENDPOINT}url = {json.dumps(url)}\n"
    if scenario.startswith("auth/"):
        table += client_auth.settings(scenario)
        with Gateway({}, extra=table, wait=False) as gateway:
            client_auth.play(gateway, era, path)
        return
    with Gateway({}, extra=table) as gateway:
        if scenario == "http-invalid-tool-headers":
            call_everything(gateway.port, path)
        else:
            asyncio.run(drive(f"http://localhost:{gateway.port}{path}", era, scenario))
