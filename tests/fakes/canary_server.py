"""A server of the handshake era that tells what it was given: its secrets on stderr, and what a
caller wants to have in results, errors and questions.

    python tests/fakes/canary_server.py WORDS

WORDS: a JSON file with `result` and `error`, the texts of a result and of an error.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

Json = dict[str, Any]
WORDS: Json = json.loads(Path(sys.argv[1]).read_text())
MINE = ("API_TOKEN", "NOTE", "OTHER", "MORE", "DATABASE_URL", "LAST", "OF_KEYRING")
TOOLS = ("use", "fail", "ask", "crash", "tell")
FORM = {"type": "object", "properties": {"answer": {"type": "string"}}}


def say(**members: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **members}) + "\n")
    sys.stdout.flush()


def tell() -> None:
    """Everything that is secret, as careless programs log it."""
    for name in MINE:
        value = os.environ.get(name, "")
        sys.stderr.write(f"{name} is {value}\n{json.dumps({'x': [value]})}\n")
    sys.stderr.write(f"password of {os.environ.get('DATABASE_URL', '')[11:].partition('@')[0]}\n")
    sys.stderr.flush()


def call(number: Any, name: str) -> None:
    if name == "use":
        say(id=number, result={"content": [{"type": "text", "text": WORDS["result"]}]})
    elif name == "fail":
        say(id=number, error={"code": -32050, "message": WORDS["error"], "data": WORDS["error"]})
    elif name == "ask":
        params = {"message": "Which one?", "requestedSchema": FORM}
        say(id=f"ask-{number}", method="elicitation/create", params=params)
    elif name == "tell":
        tell()
        say(id=number, result={"content": []})
    elif name == "crash":
        tell()
        os.abort()


def handled(method: str, params: Json) -> Json:
    if method == "initialize":
        return {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}, "prompts": {}},
            "serverInfo": {"name": "canary", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
    if method == "prompts/list":
        return {"prompts": [{"name": "p", "arguments": [{"name": "a"}]}]}
    if method == "prompts/get":
        text = {"type": "text", "text": "fine"}
        return {"messages": [{"role": "user", "content": text}]}
    return {}


def main() -> None:
    tell()
    for raw in sys.stdin.buffer:
        message: Json = json.loads(raw)
        number, method = message.get("id"), message.get("method", "")
        if method == "tools/call":
            call(number, message["params"]["name"])
        elif str(number).startswith("ask-"):  # the answer of a person
            number = int(str(number).removeprefix("ask-"))
            say(id=number, result={"content": [{"type": "text", "text": "thanks"}]})
        elif number is not None:
            say(id=number, result=handled(method, message.get("params", {})))


if __name__ == "__main__":
    main()
