"""A client of the first Python SDK that reads every list once and prints what is in it. It calls
the tools whose names have CALL in them.

.venv/bin/python lists.py URL [CALL]
"""

import asyncio
import importlib
import json
import sys
from typing import Any

# Another generation of the package than the one that this project is checked with.
mcp: Any = importlib.import_module("mcp")
http: Any = importlib.import_module("mcp.client.streamable_http")


async def main(url: str, call: str = "") -> None:
    async with (
        http.streamable_http_client(url) as (read, write, _),
        mcp.ClientSession(read, write) as client,
    ):
        await client.initialize()
        templates = (await client.list_resource_templates()).resourceTemplates
        found = {
            "tools": [one.name for one in (await client.list_tools()).tools],
            "prompts": [one.name for one in (await client.list_prompts()).prompts],
            "resources": [str(one.uri) for one in (await client.list_resources()).resources],
            "resourceTemplates": [one.uriTemplate for one in templates],
        }
        called = [name for name in found["tools"] if call and call in name]
        results = [await client.call_tool(name, {}) for name in called]
    found["called"] = [
        name for name, one in zip(called, results, strict=True) if one.structuredContent
    ]
    sys.stdout.write(json.dumps(found))


asyncio.run(main(*sys.argv[1:]))
