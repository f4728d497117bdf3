"""Clients that never list again, as many do, use all that they bring into view."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients import programs
from tests.live.gateway import Gateway
from tests.live.viewed import FIND, SETS, WHOLE, endpoint, named

pytestmark = pytest.mark.live

SDKS = [("v1", "legacy"), ("v2", "legacy"), ("v2", "modern")]
TOOLS = {"git": ["status", "commit"], "docker": ["ps"]}
NAMES = [f"{server}__{tool}" for server, tools in TOOLS.items() for tool in tools]
PAIRS = [name.replace("__", ".") for name in NAMES]
#: What is listed at first, and what brings the tools into view.
WAYS: dict[str, tuple[list[str], list[tuple[str, dict[str, Any]]]]] = {
    "toolset": (
        SETS, [("build-toolset", {"name": "dev", "tools": PAIRS, "autoEquip": True})],
    ),
    "servers": (WHOLE, [("gateway_activate", {"name": name}) for name in TOOLS]),
    "search": (FIND, [("load_tool", {"name": NAMES})]),
}  # fmt: skip
#: What takes them out again, for the next client.
BACK: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "toolset": [("delete-toolset", {"name": "dev", "confirm": True})],
    "servers": [("gateway_deactivate", {"name": name}) for name in TOOLS],
    "search": [("unload_tool", {"name": NAMES})],
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    if why := programs.missing():
        pytest.skip(why)
    extra = "".join(endpoint(name, exposure=f'"{name}"') for name in WAYS)
    with Gateway({name: named(*tools) for name, tools in TOOLS.items()}, extra=extra) as running:
        yield running


@pytest.mark.promise("M37")
@pytest.mark.parametrize(("sdk", "era"), SDKS)
@pytest.mark.parametrize("exposure", list(WAYS))
def test_a_client_that_never_lists_again_calls_every_tool_that_it_brought_into_view(
    gateway: Gateway, exposure: str, sdk: str, era: str
) -> None:
    at_first, steps = WAYS[exposure]
    given = {"query": "typescript"}
    calls = [*steps, *((name, given) for name in NAMES), *BACK[exposure]]
    wanted = {
        "sdk": sdk,
        "era": era,
        "url": f"http://127.0.0.1:{gateway.port}/metamcp/{exposure}/mcp",
        "calls": calls,
    }
    program = programs.HERE / "heedless.mjs"
    seen = json.loads(programs.node(program, json.dumps(wanted)))
    assert seen["listed"] == at_first
    assert seen["sent"].count("tools/list") == 1
    assert not [one for one in seen["answers"] if one["failed"]]
    answers = seen["answers"][len(steps) : len(steps) + len(NAMES)]
    assert [json.loads(one["text"]) for one in answers] == [
        {"name": pair.partition(".")[2], "arguments": given} for pair in PAIRS
    ]
