"""The server behind every row: a stdio MCP server that costs next to nothing itself.

    python benchmarks/child.py [--tools N]

Tools: `echo` gives its text back, `blob` with `kib` KiB behind it, `sleep` after `ms` milliseconds
(others are answered meanwhile), `progress` after one notification of progress, `stamps` with the
moments at which it was read and answered; and N more, as large as real ones are, that echo as well.
Speaks the revisions with a handshake; everything else it refuses.
"""

import heapq
import os
import select
import sys
import time
from typing import Any

import msgspec

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
SAID = {
    "echo": "Give the text back",
    "blob": "Give the text and kib KiB back",
    "sleep": "Give the text back after ms milliseconds",
    "progress": "Give the text back after a word of progress",
    "stamps": "Give the text back with the moments of reading and writing",
}
TOOLS: list[dict[str, Any]] = [
    {"name": name, "description": said, "inputSchema": SCHEMA} for name, said in SAID.items()
]
REVISIONS = {"2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"}
HELLO: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "bench", "version": "1"},
}
READ_BYTES = 1 << 18
decode = msgspec.json.Decoder().decode
encode = msgspec.json.Encoder().encode
due: list[tuple[float, int, bytes]] = []
"""Answers of sleepers: when, which, and the line."""
blobs: dict[int, bytes] = {}
"""By their KiB, and never encoded again: a large result is to cost what its bytes cost."""


def large_tool(number: int) -> dict[str, Any]:
    """A definition of about 1 KB."""
    text = {"type": "string", "description": "Text that comes back"}
    state = {"type": "string", "enum": ["open", "closed", "all"]}
    return {
        "name": f"t{number:03}",
        "title": f"Generated tool {number}",
        "description": f"Search the records of collection {number}. Gives the rows that match,"
        " ordered by relevance; supports paging, filters and a choice of the fields of each row.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "text": text,
                "limit": {"type": "integer", "minimum": 1, "maximum": 500, "default": 20},
                "cursor": {"type": "string", "description": "Opaque position of the next page"},
                "order": {"type": "string", "enum": ["relevance", "newest", "oldest"]},
                "fields": {"type": "array", "items": {"type": "string"}},
                "filter": {"type": "object", "properties": {"owner": text, "state": state}},
            },
            "required": ["text"],
        },
        "annotations": {"readOnlyHint": True, "openWorldHint": False},
    }


def content(text: str) -> dict[str, Any]:
    return {"result": {"content": [{"type": "text", "text": text}], "isError": False}}


def line(message: dict[str, Any]) -> bytes:
    return encode({"jsonrpc": "2.0", **message}) + b"\n"


def called(number: Any, params: dict[str, Any], read_s: float) -> bytes:
    """The answer of one call; nothing for a sleeper, whose answer is due later."""
    tool, arguments = params["name"], params["arguments"]
    text = arguments["text"]
    if tool == "sleep":
        answer = line({"id": number, **content(text)})
        heapq.heappush(due, (read_s + arguments["ms"] / 1000, number, answer))
        return b""
    if tool == "blob":
        kib = arguments["kib"]
        more = blobs.get(kib) or blobs.setdefault(kib, b"x" * (kib * 1024))
        start, mark, end = line({"id": number, **content(f"{text}|")}).partition(b"|")
        return b"".join((start, mark, more, end))
    if tool == "progress":
        token = params["_meta"]["progressToken"]
        told = {"progressToken": token, "progress": 1, "total": 2}
        return line({"method": "notifications/progress", "params": told}) + line(
            {"id": number, **content(text)}
        )
    if tool == "stamps":
        text = f"{text} {read_s:.7f} {time.perf_counter():.7f}"
    return line({"id": number, **content(text)})


def answer(message: dict[str, Any], read_s: float) -> bytes:
    method, number = message["method"], message["id"]
    if method == "tools/call":
        return called(number, message["params"], read_s)
    if method == "initialize":
        asked = message["params"]["protocolVersion"]
        spoken = asked if asked in REVISIONS else HELLO["protocolVersion"]
        return line({"id": number, "result": {**HELLO, "protocolVersion": spoken}})
    if method == "tools/list":
        return line({"id": number, "result": {"tools": TOOLS}})
    if method == "ping":
        return line({"id": number, "result": {}})
    return line({"id": number, "error": {"code": -32601, "message": "Method not found"}})


def write(out: bytes) -> None:
    view = memoryview(out)
    while view:
        view = view[os.write(1, view) :]


def wake_sleepers() -> None:
    """Until there is something to read."""
    while due:
        wait_s = max(0.0, due[0][0] - time.perf_counter())
        if select.select([0], [], [], wait_s)[0]:
            return
        while due and due[0][0] <= time.perf_counter():
            write(heapq.heappop(due)[2])


def main() -> None:
    if sys.argv[1:2] == ["--tools"]:
        TOOLS.extend(map(large_tool, range(int(sys.argv[2]))))
    rest = b""
    while True:
        if due:
            wake_sleepers()
        data = os.read(0, READ_BYTES)
        if not data:
            return
        read_s = time.perf_counter()
        *lines, rest = (rest + data).split(b"\n")
        out: list[bytes] = []
        for each in lines:
            message = decode(each)
            if "id" in message and "method" in message:
                out.append(answer(message, read_s))
        write(b"".join(out))


if __name__ == "__main__":
    main()
