"""An MCP server on stdio that says exactly what it is told to say, byte for byte, in one era.

    python tests/fakes/odd_server.py SCRIPT.json

The script is one object: "era" ("legacy" or "modern"), "capabilities" (raw JSON in a string), and
"answers": by method, or by method and name, uri or task ("tools/call odd"), an object with a
"result" or an "error" (raw JSON in a string), or a list of such, one for each request and the last
for all that follow; null is no answer. A result "PARAMS" is the parameters of the request as they
came.
"""

import json
import sys
from pathlib import Path
from typing import Any, cast

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
UNKNOWN = '{"code":-32601,"message":"not in the script","x-error": {"n":1.0}}'


def main() -> None:
    script: dict[str, Any] = json.loads(Path(sys.argv[1]).read_text())
    for line in sys.stdin.buffer:
        message: dict[str, Any] = json.loads(line)
        if "id" in message and "method" in message:
            answer(script, message, line.decode())


def answer(script: dict[str, Any], message: dict[str, Any], line: str) -> None:
    number = json.dumps(message["id"])
    method, params = message["method"], message.get("params", {})
    found = opening(script, method) or scripted(script["answers"], method, params)
    if found is None:
        return
    if "error" in found:
        say(f'{{"jsonrpc":"2.0","id":{number},"error":{found["error"]}}}')
    else:
        result = found["result"]
        if result == "PARAMS":
            start = line.index('"params":') + len('"params":')
            end = json.JSONDecoder().raw_decode(line, start)[1]
            result = f'{{"params":{line[start:end]}}}'
        say(f'{{"jsonrpc":"2.0","id":{number},"result":{result}}}')


def opening(script: dict[str, Any], method: str) -> dict[str, str] | None:
    """The first words, in the era of the script."""
    modern = script["era"] == "modern"
    capabilities = script["capabilities"]
    if method == "server/discover" and modern:
        head = f'{{"supportedVersions":["{MODERN}"],"resultType":"complete","ttlMs":7,'
        return {"result": f'{head}"cacheScope":"public","capabilities":{capabilities}}}'}
    if method == "initialize" and not modern:
        head = f'{{"protocolVersion":"{LEGACY}","serverInfo":{{"name":"odd","version":"1"}},'
        return {"result": f'{head}"capabilities":{capabilities}}}'}
    return None


def scripted(answers: dict[str, Any], method: str, params: dict[str, Any]) -> dict[str, str] | None:
    subject = params.get("name", params.get("uri", params.get("taskId")))
    found = answers.get(f"{method} {subject}") or answers.get(method, {"error": UNKNOWN})
    turns = cast(list[dict[str, str] | None], found if isinstance(found, list) else [found])
    return turns.pop(0) if len(turns) > 1 else turns[0]


def say(line: str) -> None:
    sys.stdout.buffer.write(line.encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
