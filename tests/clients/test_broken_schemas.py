"""Twelve servers with schemas that some client cannot compile: clients of all SDKs list and call
every tool."""

import json
from collections.abc import Generator
from contextlib import closing
from typing import Any

import pytest

from tests.broken_schemas import BROKEN, MODERN_ONLY, SOUND, of
from tests.clients import programs
from tests.clients.test_malformed_definitions import CLIENTS, ERAS, ODD, run, seen, url
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import Gateway

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

SERVERS = 12
ARGUED = {
    "array without items": of({"type": "array"}),
    "type str": BROKEN["type str"],
    "required true": BROKEN["required true"],
    "pattern": BROKEN["pattern ["],
    "ref nowhere": BROKEN["ref nowhere"],
    "union at the top": {"type": "object", "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
}
RESULTS = {**BROKEN, **MODERN_ONLY}
del RESULTS["of a list"]  # the result of all of them is an object


def tools(number: int) -> list[dict[str, Any]]:
    """Every twelfth tool of those with a broken schema, and one in order."""
    plain = {"type": "object"}
    results = [
        {"name": f"out_{at}", "inputSchema": plain, "outputSchema": schema}
        for at, schema in enumerate(RESULTS.values())
    ]
    argued = [
        {"name": f"in_{at}", "inputSchema": schema} for at, schema in enumerate(ARGUED.values())
    ]
    sound = [
        {"name": f"sound_{at}", "inputSchema": plain, "outputSchema": schema}
        for at, schema in enumerate(SOUND.values())
    ]
    good = {"name": "good_out", "inputSchema": plain, "outputSchema": of({"type": "string"})}
    return [*(results + argued + sound)[number::SERVERS], good]


NAMES = sorted(f"s{at}__{tool['name']}" for at in range(SERVERS) for tool in tools(at))
CALLED = [name for name in NAMES if "out" in name]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Generator[Gateway]:
    """Servers of both eras in turn, at an endpoint as they are and at a safe one."""
    folder, servers = tmp_path_factory.mktemp("scripts"), dict[str, dict[str, Any]]()
    answer: dict[str, Any] = {
        "content": [],
        "structuredContent": {"x": "a"},
        "resultType": "complete",
    }
    more = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
    empty = {"prompts": "prompts/list", "resources": "resources/list",
             "resourceTemplates": "resources/templates/list"}  # fmt: skip
    for at in range(SERVERS):
        answers = {method: {"result": json.dumps({kind: [], **more})}
                   for kind, method in empty.items()}  # fmt: skip
        answers["tools/list"] = {"result": json.dumps({"tools": tools(at), **more})}
        answers["tools/call"] = {"result": json.dumps(answer)}
        capabilities = '{"tools":{},"prompts":{},"resources":{}}'
        script = {"era": ERAS[at % 2], "capabilities": capabilities, "answers": answers}
        path = folder / f"{at}.json"
        path.write_text(json.dumps(script))
        servers[f"s{at}"] = {"command": [*ODD, str(path)]}
    extra = '[endpoints.default]\nnamespace = "default"\n'
    extra += '[endpoints.safe]\nnamespace = "default"\nschemas = "safe"\n'
    with Gateway(servers, extra=extra) as found:
        yield found


@pytest.mark.promise("M29", "M15")
@pytest.mark.parametrize("endpoint", ["default", "safe"])
@pytest.mark.parametrize("client", CLIENTS, ids="-".join)
def test_every_sdk_lists_and_calls_every_tool_beside_servers_with_broken_schemas(
    gateway: Gateway, client: tuple[str, str], endpoint: str
) -> None:
    if not programs.PYTHON_V1.exists() or programs.missing():
        pytest.skip("clients by others are not installed; `make test` installs and runs them")
    found = seen(*client, url(gateway, endpoint), "out")
    assert sorted(found["tools"]) == NAMES
    assert sorted(found["called"]) == CALLED


@pytest.mark.promise("M29")
@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_a_schema_that_cannot_be_compiled_is_left_out_and_nothing_else(
    gateway: Gateway, era: str
) -> None:
    with closing(Client(gateway.port, era, "/metamcp/default/mcp")) as client:
        listed = {one["name"]: one for one in client.request("tools/list")["result"]["tools"]}
    sent = {f"s{at}__{tool['name']}": tool for at in range(SERVERS) for tool in tools(at)}
    for name, tool in listed.items():
        mine = {**sent[name], "name": name}
        if "outputSchema" not in tool:
            schema = mine.pop("outputSchema", None)
            assert "_in_" in name or schema in BROKEN.values() or era == LEGACY
        assert tool == mine
    assert "outputSchema" in listed["s0__good_out"]


def test_a_safe_endpoint_passes_arguments_as_they_came(gateway: Gateway) -> None:
    name = next(name for name in NAMES if name.endswith("__in_0"))
    with closing(Client(gateway.port, LEGACY, "/metamcp/safe/mcp")) as client:
        tool = next(t for t in client.request("tools/list")["result"]["tools"] if t["name"] == name)
        assert tool["inputSchema"] == of({"type": "array", "items": {}})
        assert "error" not in client.call(name, x=[1, "a"], y=None)


def test_people_are_told_of_each_schema_and_who_refuses_it(gateway: Gateway) -> None:
    where = ("--config", str(gateway.config), "--state-dir", str(gateway.folder / "state"))
    rows = json.loads(run(gateway, "tools", "--json", *where))["tools"]
    states = {f"{row['server']}__{row['tool']}": row["state"] for row in rows}
    broken = next(name for name in NAMES if name.endswith("__out_0"))
    assert states[broken] == (
        "as first seen; its output schema is left out,"
        " $.outputSchema.properties.x.type: expected a type of JSON"
    )
    bare = next(name for name in NAMES if name.endswith("__in_0"))
    assert states[bare] == (
        "as first seen; VS Code and the APIs of OpenAI and Gemini may refuse it,"
        " $.inputSchema.properties.x: is an array without 'items'"
    )
    assert states["s0__good_out"] == "as first seen"
    checked = gateway.ctl("doctor", ok=(0, 1))
    assert f"{broken.partition('__')[0]}: tool 'out_0': its output schema is left out" in checked
    assert 'schemas = "safe"' in checked
