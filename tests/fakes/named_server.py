"""A server of the handshake era with tools of any names, and all that a definition has.

    python tests/fakes/named_server.py [--gate FILE] 'commit=Record changes.' search-repositories

Each tool tells what reached it; one that is called `crash` ends the server. With `--gate` it
answers nothing before there is such a file. It needs nothing but the standard library.
"""

import argparse
import json
import os
import sys
import time
from typing import Any

Json = dict[str, Any]

LOOK_S = 0.005
CRASH = 3
INFO = {"name": "named", "version": "1"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gate", default="", metavar="FILE")
    parser.add_argument("tools", nargs="*", metavar="NAME[=DESCRIPTION]")
    options = parser.parse_args()
    while options.gate and not os.path.exists(options.gate):
        time.sleep(LOOK_S)
    split = (one.partition("=") for one in options.tools)
    tools = {name: definition(name, about or f"Does {name}.") for name, _, about in split}
    for line in sys.stdin.buffer:
        message: Json = json.loads(line)
        if "method" in message and "id" in message:
            found = handled(message["method"], message.get("params", {}), tools)
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **found}) + "\n")
            sys.stdout.flush()


def definition(name: str, about: str) -> Json:
    """With every member that the protocol knows, and some that it does not."""
    return {
        "name": name,
        "title": f"The {name}",
        "description": about,
        "inputSchema": {
            "type": "object",
            "properties": {"query": {"type": "string", "x-widget": "text"}},
            "x-schema": [1, 2.5, None],
        },
        "outputSchema": {
            "type": "object",
            "properties": {"name": {"type": "string"}, "arguments": {"type": "object"}},
            "required": ["name", "arguments"],
        },
        "annotations": {"title": "Shown so", "readOnlyHint": False, "openWorldHint": True},
        "icons": [{"src": "https://example.com/icon.png", "sizes": ["48x48"]}],
        "_meta": {"example.com/vendor": {"kept": 1.0}},
        "x-tool": {"kept": True},
    }


def handled(method: str, params: Json, tools: dict[str, Json]) -> Json:
    """The result of a request, or its error."""
    match method:
        case "initialize":
            return {"result": {
                "protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": INFO,
            }}  # fmt: skip
        case "ping":
            return {"result": {}}
        case "tools/list":
            return {"result": {"tools": list(tools.values())}}
        case "tools/call" if params["name"] in tools:
            return {"result": called(params)}
        case _:
            return {"error": {"code": -32601, "message": f"unknown: {method}"}}


def called(params: Json) -> Json:
    """What reached this tool, and whom."""
    if params["name"] == "crash":
        os.write(2, b"crashing\n")
        os._exit(CRASH)
    told = {"name": params["name"], "arguments": params.get("arguments", {})}
    return {
        "content": [{"type": "text", "text": json.dumps(told)}],
        "structuredContent": told,
        "isError": False,
        "_meta": {"example.com/pid": os.getpid()},
    }


if __name__ == "__main__":
    main()
