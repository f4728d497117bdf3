"""A server of the handshake era that tells its secret: on stderr, and to who asks for it.

    API_TOKEN=… python tests/fakes/indiscreet_server.py

`look` only reads, `tell` gives the secret away, `count` gives another answer each time, `think`
never gives one.
"""

import json
import os
import sys
from typing import Any

Json = dict[str, Any]

TOOLS: dict[str, Json] = {
    "look": {"readOnlyHint": True},
    "tell": {"readOnlyHint": True},
    "count": {},
    "think": {},
}
SECRET = os.environ.get("API_TOKEN", "none")


def handle(message: Json, number: int) -> Json:
    """The result of a request, or its error, or neither."""
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        return {"result": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "indiscreet", "version": "1"},
        }}  # fmt: skip
    if method == "ping":
        return {"result": {}}
    if method == "tools/list":
        tools = [
            {"name": name, "inputSchema": {"type": "object"}, "annotations": hints}
            for name, hints in TOOLS.items()
        ]
        return {"result": {"tools": tools}}
    if method == "tools/call" and params.get("name") == "think":
        return {}
    if method == "tools/call" and params.get("name") in TOOLS:
        found = {"look": str(params.get("arguments")), "tell": SECRET, "count": str(number)}
        text = found[params["name"]]
        return {"result": {"content": [{"type": "text", "text": text}]}}
    return {"error": {"code": -32601, "message": f"unknown: {method}"}}


def main() -> None:
    sys.stderr.write(f"started with the token {SECRET}\n")
    for number, raw in enumerate(sys.stdin.buffer):
        message: Json = json.loads(raw)
        if "method" in message and "id" in message and (found := handle(message, number)):
            answer = {"jsonrpc": "2.0", "id": message["id"], **found}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    sys.exit(f"going with the token {SECRET}")


if __name__ == "__main__":
    main()
