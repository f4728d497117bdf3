"""A server of the handshake era that writes down every call before it does anything.

    python tests/fakes/journal_server.py JOURNAL

A call with `gate` is answered when the file of that name is there. One call at a time, and nothing
but the standard library.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

Json = dict[str, Any]

#: What each tool says of being called twice.
TOOLS: dict[str, Json] = {
    "look": {"readOnlyHint": True},
    "put": {"idempotentHint": True},
    "pay": {},
}
LOOK_S = 0.005


def handle(message: Json, journal: Path) -> Json:
    """The result of a request, or its error."""
    method, params = message["method"], message.get("params", {})
    if method == "initialize":
        return {"result": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "journal", "version": "1"},
        }}  # fmt: skip
    if method == "ping":
        return {"result": {}}
    if method == "tools/list":
        tools = [
            {"name": name, "inputSchema": {"type": "object"}, "annotations": hints}
            for name, hints in TOOLS.items()
        ]
        return {"result": {"tools": tools}}
    if method == "tools/call" and params.get("name") in TOOLS:
        return {"result": call(params["name"], params.get("arguments") or {}, journal)}
    return {"error": {"code": -32601, "message": f"unknown: {method}"}}


def call(name: str, arguments: Json, journal: Path) -> Json:
    line = f"{name} {arguments.get('text', '')}"
    with journal.open("a") as file:
        file.write(f"{line}\n")
    gate = arguments.get("gate")
    while gate is not None and not os.path.exists(gate):
        time.sleep(LOOK_S)
    return {"content": [{"type": "text", "text": line}]}


def main() -> None:
    journal = Path(sys.argv[1])
    for raw in sys.stdin.buffer:
        message: Json = json.loads(raw)
        if "method" in message and "id" in message:
            answer = {"jsonrpc": "2.0", "id": message["id"], **handle(message, journal)}
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
