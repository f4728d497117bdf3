"""What tools cost, as the operator of a gateway is told it and as a client has it in context."""

import json
from collections.abc import Mapping
from typing import Any

from metamcp_worker.ipc import builtin_definitions, codec
from tests import programs
from tests.live.gateway import Gateway
from tests.live.raw import MODERN, Raw

TOKENS_PER_TOOL_MAX = 5
"""Blanks between the members of a definition, which the list leaves out where it renames a tool."""


def told(gateway: Gateway, *arguments: str) -> dict[str, Any]:
    """`metamcp tools --tokens` as the operator of this gateway calls it."""
    where = ("--config", str(gateway.config), "--state-dir", str(gateway.folder / "state"))
    done = programs.run([*programs.PROGRAM, "tools", "--tokens", "--json", *arguments, *where])
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def endpoints(gateway: Gateway) -> Mapping[str, dict[str, Any]]:
    return {one["name"]: one for one in told(gateway)["endpoints"]}


def views(gateway: Gateway) -> Mapping[str, dict[str, Any]]:
    whole = json.loads(gateway.ctl("views", "--json"))
    return {one["endpoint"]: one for one in whole["views"] if one["principal"] == "local"}


def definitions(gateway: Gateway, endpoint: str) -> list[bytes]:
    """What a client has in context at this moment, as it came."""
    client = Raw(gateway.port, MODERN, f"/metamcp/{endpoint}/mcp")
    result = codec.level(client.answer("tools/list").result)
    return [bytes(raw) for raw in codec.items(result["tools"])]


def cost(gateway: Gateway, endpoint: str) -> int:
    return builtin_definitions.tokens_of_all(definitions(gateway, endpoint))
