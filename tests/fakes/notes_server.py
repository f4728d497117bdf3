"""The server of the examples in docs/code-mode.md: notes that are listed and read."""

import json
import sys
from typing import Any

Json = dict[str, Any]

NOTES = {"monday": "buy milk", "tuesday": "no milk left", "friday": "call Ann"}
NAME: Json = {"name": {"type": "string", "description": "As list_notes tells it."}}
TOOLS: list[Json] = [
    {
        "name": "list_notes",
        "description": "Return the names of all notes.",
        "inputSchema": {"type": "object"},
        "outputSchema": {
            "type": "object",
            "properties": {"result": {"type": "array", "items": {"type": "string"}}},
            "required": ["result"],
        },
        "annotations": {"readOnlyHint": True},
    },
    {
        "name": "read_note",
        "description": "Return the text of a note.",
        "inputSchema": {"type": "object", "properties": NAME, "required": ["name"]},
        "annotations": {"readOnlyHint": True},
    },
]


def main() -> None:
    for line in sys.stdin.buffer:
        message: Json = json.loads(line)
        if "method" in message and "id" in message:
            found = handled(message["method"], message.get("params", {}))
            sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **found}) + "\n")
            sys.stdout.flush()


def handled(method: str, params: Json) -> Json:
    """The result of a request, or its error."""
    match method:
        case "initialize":
            return {"result": {
                "protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                "serverInfo": {"name": "notes", "version": "1"},
            }}  # fmt: skip
        case "ping":
            return {"result": {}}
        case "tools/list":
            return {"result": {"tools": TOOLS}}
        case "tools/call" if params["name"] == "list_notes":
            return {"result": {**text(" ".join(NOTES)), "structuredContent": {"result": [*NOTES]}}}
        case "tools/call":
            name = params["arguments"]["name"]
            if name in NOTES:
                return {"result": text(NOTES[name])}
            return {"result": {**text(f"there is no note {name}"), "isError": True}}
        case _:
            return {"error": {"code": -32601, "message": f"unknown: {method}"}}


def text(said: str) -> Json:
    return {"content": [{"type": "text", "text": said}]}


if __name__ == "__main__":
    main()
