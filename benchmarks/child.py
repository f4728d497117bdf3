"""The server behind every row: a stdio MCP server that costs next to nothing itself.

One tool, `echo`: its text comes back. Speaks 2025-11-25; everything else it refuses.
"""

import os
from typing import Any

import msgspec

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS = [{"name": "echo", "description": "Give the text back", "inputSchema": SCHEMA}]
HELLO: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "bench", "version": "1"},
}
decode = msgspec.json.Decoder().decode
encode = msgspec.json.Encoder().encode


def answer(message: dict[str, Any]) -> dict[str, Any]:
    method = message["method"]
    if method == "tools/call":
        text = message["params"]["arguments"]["text"]
        return {"result": {"content": [{"type": "text", "text": text}], "isError": False}}
    if method == "initialize":
        return {"result": HELLO}
    if method == "tools/list":
        return {"result": {"tools": TOOLS}}
    return {"error": {"code": -32601, "message": "Method not found"}}


def main() -> None:
    rest = b""
    while data := os.read(0, 1 << 18):
        *lines, rest = (rest + data).split(b"\n")
        out = bytearray()
        for line in lines:
            message = decode(line)
            if "id" in message:
                out += encode({"jsonrpc": "2.0", "id": message["id"], **answer(message)}) + b"\n"
        view = memoryview(out)
        while view:
            view = view[os.write(1, view) :]


if __name__ == "__main__":
    main()
