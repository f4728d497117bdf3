"""A server that runs the programs that it is told to, as many public servers do.

    python tests/fakes/shell_server.py

Its tool `sh` returns what a command of a shell prints, and its exit code as an error. Nothing but
the standard library is needed.
"""

import json
import subprocess
import sys
from typing import Any

Json = dict[str, Any]
RUN_S_MAX = 30
TOOL: Json = {"name": "sh", "inputSchema": {"type": "object"}}


def answer(method: str, params: Json) -> Json:
    if method == "initialize":
        info: Json = {
            "serverInfo": {"name": "shell", "version": "1"},
            "capabilities": {"tools": {}},
        }
        return {"protocolVersion": params["protocolVersion"], **info}
    if method == "tools/list":
        return {"tools": [TOOL]}
    done = subprocess.run(
        ["/bin/sh", "-c", params["arguments"]["command"]],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=RUN_S_MAX, check=False,
    )  # fmt: skip
    text = f"{done.stdout}{done.stderr}"
    return {"content": [{"type": "text", "text": text}], "isError": done.returncode != 0}


for line in sys.stdin:
    message: Json = json.loads(line)
    if "id" in message:
        known = message["method"] in ("initialize", "tools/list", "tools/call")
        result = answer(message["method"], message.get("params", {})) if known else None
        failed = {"code": -32601, "message": "unknown"}
        found = {"result": result} if known else {"error": failed}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **found}) + "\n")
        sys.stdout.flush()
