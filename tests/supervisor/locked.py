"""Tools and locks for the tests of `metamcp.lock`."""

import json
from typing import Any

from metamcp_supervisor.approval import lock_drift
from metamcp_supervisor.approval.lock import Lock, LockedServer

STRING = {"type": "string"}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"path": STRING}}
BREAKING: dict[str, Any] = {**SCHEMA, "required": ["path"]}
ADDITIVE: dict[str, Any] = {"type": "object", "properties": {"path": STRING, "all": STRING}}


def tool(name: str = "read", **members: Any) -> bytes:
    return json.dumps({"name": name, "inputSchema": SCHEMA, **members}).encode()


def approved(*tools: bytes, name: str = "mcp-files", version: str = "1.2") -> LockedServer:
    return LockedServer(name, version, dict(map(lock_drift.build_locked_tool, tools)))


def lock(**servers: LockedServer) -> Lock:
    return Lock(servers)
