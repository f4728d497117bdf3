"""Malformed definitions of every kind in one server: clients of all SDKs read every list, and
people are told what is not in it."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client as PythonClient

from tests import malformed
from tests.clients import programs
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import ROOT, Gateway, fake
from tests.malformed import KEYS

pytestmark = [pytest.mark.live, pytest.mark.timeout(120)]

ODD = (sys.executable, str(ROOT / "tests" / "fakes" / "odd_server.py"))
RUN_S_MAX = 45
METHODS = {"tools": "tools/list", "prompts": "prompts/list", "resources": "resources/list",
           "resourceTemplates": "resources/templates/list"}  # fmt: skip
#: The SDK and the era that it speaks.
CLIENTS = (
    ("python", "legacy"), ("python", "modern"), ("python-v1", "legacy"),
    ("v1", "legacy"), ("v2", "legacy"), ("v2", "modern"),
)  # fmt: skip
ERAS = ("legacy", "modern")

Lists = Mapping[str, list[str]]


def answers() -> dict[str, dict[str, str]]:
    """Every list, as it is on the wire."""
    found: dict[str, dict[str, str]] = {}
    for kind, method in METHODS.items():
        items = [
            one for one in malformed.all_of(kind) if "surrogate" not in str(one.get(KEYS[kind]))
        ]
        more = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        found[method] = {"result": json.dumps({kind: items, **more})}
    return found


@contextmanager
def running(folder: Path) -> Generator[Gateway]:
    """A server of each era with them, each alone at an endpoint, and both beside one in order."""
    servers: dict[str, dict[str, Any]] = {"fine": fake("--prompts", "--resources")}
    extra = ""
    capabilities = '{"tools":{},"prompts":{},"resources":{}}'
    for era in ERAS:
        script = {"era": era, "capabilities": capabilities, "answers": answers()}
        path = folder / f"{era}.json"
        path.write_text(json.dumps(script))
        servers[era] = {"command": [*ODD, str(path)]}
        extra += f'[namespaces.{era}]\nservers = ["{era}"]\n'
        extra += f'[endpoints.{era}]\nnamespace = "{era}"\nnaming = {{ style = "bare" }}\n'
    extra += f"[namespaces.all]\nservers = {json.dumps([*servers])}\n"
    extra += '[endpoints.all]\nnamespace = "all"\n'
    with Gateway(servers, extra=extra) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Generator[Gateway]:
    with running(tmp_path_factory.mktemp("scripts")) as found:
        yield found


def url(gateway: Gateway, endpoint: str) -> str:
    return f"http://127.0.0.1:{gateway.port}/metamcp/{endpoint}/mcp"


def seen(sdk: str, era: str, where: str, call: str = "") -> Lists:
    """What a client of this SDK reads. `call`: it calls the tools with this in their names."""
    if sdk == "python":
        return asyncio.run(python(where, era, call))
    if sdk == "python-v1":
        done = subprocess.run(
            [str(programs.PYTHON_V1), str(programs.HERE / "v1" / "lists.py"), where, call],
            capture_output=True, text=True, timeout=RUN_S_MAX, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-2000:]
        return dict[str, list[str]](json.loads(done.stdout))
    asked = json.dumps({"sdk": sdk, "era": era, "url": where, "call": call})
    return dict[str, list[str]](json.loads(programs.node(programs.HERE / "lists.mjs", asked)))


async def python(where: str, era: str, call: str) -> Lists:
    mode = MODERN if era == "modern" else "legacy"
    async with asyncio.timeout(RUN_S_MAX), PythonClient(where, mode=mode) as client:
        templates = (await client.list_resource_templates()).resource_templates
        tools = [one.name for one in (await client.list_tools()).tools]
        called = [name for name in tools if call and call in name]
        results = [await client.call_tool(name, {}) for name in called]
        answered = zip(called, results, strict=True)
        return {
            "tools": tools,
            "called": [name for name, one in answered if one.structured_content],
            "prompts": [one.name for one in (await client.list_prompts()).prompts],
            "resources": [str(one.uri) for one in (await client.list_resources()).resources],
            "resourceTemplates": [one.uri_template for one in templates],
        }


@pytest.mark.promise("M29", "M15")
@pytest.mark.parametrize("server", ERAS)
@pytest.mark.parametrize("client", CLIENTS, ids="-".join)
def test_every_sdk_reads_every_list_with_all_that_is_in_order(
    gateway: Gateway, client: tuple[str, str], server: str
) -> None:
    if not programs.PYTHON_V1.exists() or programs.missing():
        pytest.skip("clients by others are not installed; `make test` installs and runs them")
    found = seen(*client, url(gateway, server))
    modern = client[1] == "modern"
    for kind in METHODS:
        assert sorted(found[kind]) == malformed.listed(kind, modern=modern), kind


@pytest.mark.promise("M98")
@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_their_neighbours_are_listed_and_a_call_of_one_is_told_why(
    gateway: Gateway, era: str
) -> None:
    with closing(Client(gateway.port, era, "/metamcp/all/mcp")) as client:
        assert {"fine__echo", "legacy__good", "modern__last"} <= set(client.tools())
        broken = client.call("legacy__schema_null")["error"]
        assert broken["data"] == {"reason": "invalid_definition"}
        assert broken["message"] == (
            "The tool 'schema_null' of legacy is not served: its definition is not valid"
            " ($.inputSchema: expected `object`, got `null`), which its server has to correct."
        )
        other = client.call("legacy__required_text")
        if era == LEGACY:
            assert "not served for clients before 2026-07-28" in other["error"]["message"]
        else:
            assert "not in the script" in other["error"]["message"]  # the server was asked
        prompt = client.request("prompts/get", {"name": "modern__arguments_text"})["error"]
        assert "$.arguments: expected `array`, got `string`" in prompt["message"]


def test_people_are_told_what_is_left_out_and_why(gateway: Gateway) -> None:
    place = "$.inputSchema.required: expected `array`, got `string`"
    legacy = f"tool 'required_text' for clients before {MODERN}: {place}"
    told = [line for line in gateway.log.read_text().splitlines() if "left out" in line]
    assert len(told) == len(ERAS)
    assert "tool 'description_number': $.description: expected `string`, got `integer`" in told[0]
    assert "more, which 'metamcp tools legacy' names" in "".join(told)
    assert legacy in gateway.ctl("describe", "legacy")
    count = sum(len(malformed.MALFORMED[kind]) - 1 for kind in METHODS)
    broken, fine = gateway.server("legacy"), gateway.server("fine")
    assert (broken["left_out"], fine["left_out"]) == (count, 0)
    assert broken["tools"] == len(malformed.LEGACY_ONLY) + 2
    assert f'metamcp_invalid_definitions{{server="modern"}} {count}' in gateway.ops("/metrics")[1]
    where = ("--config", str(gateway.config), "--state-dir", str(gateway.folder / "state"))
    rows = json.loads(run(gateway, "tools", "legacy", "--json", *where))["tools"]
    states = {row["tool"]: row["state"] for row in rows}
    assert states["required_text"] == f"left out for clients before {MODERN}: {place}"
    assert states["resource x://no_name"] == "left out: $.name: expected `string`, got `null`"
    assert states["good"] == "as first seen"
    checked = gateway.ctl("doctor", ok=(0, 1))
    assert "legacy: left out of lists, as not valid: tool 'description_number'" in checked
    assert f"(and {count - 1} more)" in checked


def run(gateway: Gateway, *arguments: str) -> str:
    """What `metamcp` says, beside the gateway."""
    done = subprocess.run(
        [sys.executable, "-m", "metamcp_supervisor", *arguments],
        capture_output=True, text=True, timeout=RUN_S_MAX, check=True, cwd=ROOT,
        env={**os.environ, **gateway.environ},
    )  # fmt: skip
    return done.stdout
