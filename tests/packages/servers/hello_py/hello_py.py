"""An MCP server with one tool, for uvx."""

import json
import platform
import sys
from typing import Any


def result(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        version = params["protocolVersion"]
        info = {"name": "hello-py", "version": "1.0.0"}
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [{"name": "hello", "inputSchema": {"type": "object"}}]}
    if method == "tools/call":
        text = f"hello from python {platform.python_version()}"
        return {"content": [{"type": "text", "text": text}]}
    return {} if method == "ping" else None


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        found = result(message["method"], message.get("params") or {})
        unknown = {"error": {"code": -32601, "message": "unknown method"}}
        answer = unknown if found is None else {"result": found}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}) + "\n")
        sys.stdout.flush()
