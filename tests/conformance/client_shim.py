"""The client that the suite tests: a gateway with the suite's server, and who drives it.

The suite sees what the gateway does as a client. Which scenario it plays is in the environment; the
era is that of the client before the gateway, so that both ways through it can be played.
"""

import asyncio
import fcntl
import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
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
[namespaces.{name}]
servers = ["{name}"]
[endpoints.{name}]
namespace = "{name}"
naming = {{ style = "bare" }}
[servers.{name}]
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


@contextmanager
def added(gateway: Gateway, name: str, settings: str) -> Generator[None]:
    """While in this block, the gateway has this server, at an endpoint of its own."""
    change(gateway, name, ENDPOINT.format(name=name) + settings)
    try:
        yield
    finally:
        change(gateway, name, "")


def change(gateway: Gateway, name: str, tables: str) -> None:
    """Replace the part of the configuration that belongs to a server; other shims change theirs."""
    part = gateway.folder / f"{name}.part"
    with (gateway.folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        part.write_text(tables)
        whole = gateway.folder / "new.toml"
        whole.write_text("\n".join(map(Path.read_text, sorted(gateway.folder.glob("*.part")))))
        whole.replace(gateway.config)
        gateway.ask("reload", {"yes": True})


def play(gateway: Gateway, era: str, url: str) -> None:
    scenario = os.environ["MCP_CONFORMANCE_SCENARIO"]
    name = f"subject-{os.getpid()}"
    path = f"/metamcp/{name}/mcp"
    settings = f"url = {json.dumps(url)}\n"
    if scenario.startswith("auth/"):
        with added(gateway, name, settings + client_auth.settings(scenario)):
            client_auth.play(gateway, name, era, path)
        return
    with added(gateway, name, settings):
        gateway.wait(name)
        if scenario == "http-invalid-tool-headers":
            call_everything(gateway.port, path)
        else:
            asyncio.run(drive(f"http://localhost:{gateway.port}{path}", era, scenario))
