"""What the examples of views share: servers with tools of given names, and clients that look.

`talk` is the official client in one era; `called` and `Raw` see every byte; `listeners` hear what
is told to everybody, in both eras.
"""

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator, Generator, Iterable
from typing import Any

import pytest
from mcp.client.client import Client as Sdk
from mcp_types import CallToolResult, TextContent

from metamcp_worker.ipc import codec
from tests.live.gateway import ROOT, Gateway
from tests.live.raw import LEGACY, MODERN, Raw, Stream

CHANGED = "notifications/tools/list_changed"
SETS = [
    "discover-all-tools", "build-toolset", "equip-toolset", "unequip-toolset",
    "get-active-toolset", "list-saved-toolsets", "delete-toolset",
]  # fmt: skip
WHOLE = ["gateway_activate", "gateway_deactivate", "gateway_status"]
FIND = [
    "search_tools", "load_tool", "unload_tool", "load_tool_set", "save_tool_set",
    "list_loaded_tools", "describe_tool", "call_tool",
]  # fmt: skip
eras = pytest.mark.parametrize("mode", ["legacy", MODERN])
RUN_S_MAX = 60
"""All steps of one client, which take a second or two on a quiet machine."""


def named(*tools: str, **more: Any) -> dict[str, Any]:
    """A configuration entry: a server with tools of these names."""
    program = str(ROOT / "tests" / "fakes" / "named_server.py")
    return {"command": [sys.executable, program, *tools], **more}


def endpoint(name: str, **keys: Any) -> str:
    """A part of the configuration, on the default namespace, with views that sessions share."""
    keys = {"view_scope": '"principal"', **keys}
    lines = [f"{key} = {value}" for key, value in keys.items()]
    return "\n".join([f"[endpoints.{name}]", 'namespace = "default"', *lines, ""])


@contextlib.asynccontextmanager
async def opened_client(gateway: Gateway, mode: str, path: str = "/mcp") -> AsyncGenerator[Sdk]:
    """One session of the official client."""
    where = f"http://127.0.0.1:{gateway.port}{path}"
    async with asyncio.timeout(RUN_S_MAX), Sdk(where, mode=mode) as client:
        yield client


def said(result: CallToolResult) -> str:
    block = result.content[0]
    assert isinstance(block, TextContent)
    return block.text


async def done(client: Sdk, tool: str, /, **arguments: Any) -> Any:
    """What a built-in tool tells as JSON, and it may not fail."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, said(result)
    return result.structured_content


async def refused(client: Sdk, tool: str, /, **arguments: Any) -> str:
    """Why it failed."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, said(result)
    return said(result)


async def names(client: Sdk) -> list[str]:
    return [tool.name for tool in (await client.list_tools()).tools]


def called(client: Raw, tool: str, /, **arguments: object) -> dict[str, Any]:
    """The decoded result."""
    asked = codec.dump({"name": tool, "arguments": arguments})
    found: dict[str, Any] = client.result("tools/call", asked)
    return found


def tools_of(names: Iterable[str]) -> list[dict[str, str]]:
    """As the file of a tool set has them."""
    return [{"namespacedName": name} for name in names]


def pids(gateway: Gateway) -> dict[str, int]:
    """The process of each server."""
    found: list[dict[str, Any]] = gateway.status()["servers"]
    return {one["name"]: one["pid"] for one in found}


@contextlib.contextmanager
def listeners(gateway: Gateway, path: str = "/mcp") -> Generator[tuple[Stream, Stream]]:
    """One of each era, on the same endpoint."""
    legacy, modern = Raw(gateway.port, LEGACY, path), Raw(gateway.port, MODERN, path)
    with legacy.listen() as one, modern.listen(toolsListChanged=True) as other:
        yield one, other


def heard(streams: tuple[Stream, Stream]) -> None:
    """Both are told that the list of tools is another one."""
    assert [stream.next().method for stream in streams] == [CHANGED, CHANGED]
