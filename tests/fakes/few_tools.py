"""What scripts share that are servers of the handshake era with a few tools.

One call at a time, and nothing but the standard library.
"""

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

Json = dict[str, Any]

Call = Callable[[str, Json, int], str | None]
"""The text of a tool's answer, from its name, its arguments and the number of the message; None:
there is no answer."""


def serve(server: str, tools: Mapping[str, Json], call: Call) -> None:
    """Answer until the input ends. `tools`: the hints of each."""
    for number, raw in enumerate(sys.stdin.buffer):
        message: Json = json.loads(raw)
        if "method" in message and "id" in message:
            found = _handled(message, number, server, tools, call)
            if found is not None:
                answer = {"jsonrpc": "2.0", "id": message["id"], **found}
                sys.stdout.write(json.dumps(answer) + "\n")
                sys.stdout.flush()


def _handled(
    message: Json, number: int, server: str, tools: Mapping[str, Json], call: Call
) -> Json | None:
    """The result of a request, or its error, or neither."""
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        return {"result": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": server, "version": "1"},
        }}  # fmt: skip
    if method == "ping":
        return {"result": {}}
    if method == "tools/list":
        listed = [
            {"name": name, "inputSchema": {"type": "object"}, "annotations": hints}
            for name, hints in tools.items()
        ]
        return {"result": {"tools": listed}}
    if method == "tools/call" and params.get("name") in tools:
        text = call(params["name"], params.get("arguments") or {}, number)
        return None if text is None else {"result": {"content": [{"type": "text", "text": text}]}}
    return {"error": {"code": -32601, "message": f"unknown: {method}"}}
