"""Two workspaces behind one gateway: the same names, other processes, and nothing crosses."""

import http.client
import itertools
import json
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests import programs
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import SERVER, Gateway, fake, toml
from tests.waiting import until

pytestmark = pytest.mark.live

#: Canaries that stand in everything that a workspace has.
MINE, THEIRS = "canary-of-default", "canary-of-acme"


def entry(mark: str, word: str, *flags: str) -> str:
    """A server of acme whose processes carry the gateway's mark and this word."""
    name, _, value = mark.partition("=")
    env = {name: value, "WORD": word}
    return f"command = {json.dumps([*SERVER, *flags])}\nenv = {toml(env)}\n"


EXTRA = """
[endpoints.default]
namespace = "default"
exposure = "toolset"

[workspaces.acme.servers.git]
{git}
[workspaces.acme.servers.only]
{only}
[workspaces.acme.namespaces.dev]
servers = ["git", "only", "default:time", "default:clock"]
description = "canary-of-acme"

[workspaces.acme.endpoints.acme]
namespace = "dev"
exposure = "toolset"

[workspaces.acme.endpoints.acme-all]
namespace = "dev"
auth = "keys"
"""


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    found = Gateway({})
    found.extra = EXTRA.format(
        git=entry(found.mark, THEIRS, "--era", "both"),
        only=entry(found.mark, THEIRS, "--resources"),
    )
    found.write(
        {
            "git": {**fake("--era", "both"), "env": {"WORD": MINE}},
            "time": fake("--era", "legacy"),
            "clock": {**fake("--era", "modern"), "sharing": "shared"},
        }
    )
    with found:
        yield found


@pytest.mark.promise("M60")
def test_the_same_name_is_another_process_with_other_settings(gateway: Gateway) -> None:
    for era in (MODERN, LEGACY):
        ours, theirs = Client(gateway.port, era), Client(gateway.port, era, "/metamcp/acme/mcp")
        for client, word, other in ((ours, MINE, THEIRS), (theirs, THEIRS, MINE)):
            said = client.text("git__environ")
            assert word in said
            assert other not in said
            client.end()


@pytest.mark.promise("M60")
def test_a_borrowed_server_has_a_process_of_its_own_unless_all_share_it(gateway: Gateway) -> None:
    ours = Client(gateway.port, MODERN)
    theirs = Client(gateway.port, MODERN, "/metamcp/acme/mcp")
    assert ours.text("time__pid") != theirs.text("time__pid")
    assert ours.text("clock__pid") == theirs.text("clock__pid")
    names = {server["name"].partition("@")[0] for server in gateway.status()["servers"]}
    assert names == {"git", "time", "clock", "acme:git", "acme:only", "acme:time"}
    ours.end()
    theirs.end()


@pytest.mark.promise("M60")
def test_lists_and_calls_do_not_cross(gateway: Gateway) -> None:
    for era in (MODERN, LEGACY):
        client = Client(gateway.port, era, "/metamcp/default/mcp")
        seen = json.dumps([client.request(method) for method in (
            "tools/list", "resources/list", "prompts/list", "resources/templates/list",
        )])  # fmt: skip
        assert THEIRS not in seen
        assert "only" not in seen
        known, never = client.call("only__echo", text="x"), client.call("none__echo", text="x")
        assert known["error"]["code"] == never["error"]["code"]
        assert known["error"]["message"].replace("only", "none") == never["error"]["message"]
        client.end()


def test_the_tree_shows_workspaces_with_all_that_is_in_them(gateway: Gateway) -> None:
    default, acme = json.loads(gateway.ctl("tree", "--json"))["workspaces"]
    assert (default["name"], acme["name"]) == ("default", "acme")
    dev = next(one for one in acme["namespaces"] if one["name"] == "dev")
    assert set(dev["endpoints"]) == {"acme", "acme-all"}
    assert set(dev["servers"]) == {"acme:git", "acme:only", "acme:time", "clock"}
    assert "    server acme:git  " in gateway.ctl("tree")


def tool(client: Client, tool_name: str, **arguments: Any) -> str:
    return json.dumps(client.call(tool_name, **arguments))


@pytest.mark.promise("M60")
def test_tool_sets_belong_to_a_workspace(gateway: Gateway) -> None:
    ours = Client(gateway.port, MODERN, "/metamcp/default/mcp")
    theirs = Client(gateway.port, MODERN, "/metamcp/acme/mcp")
    made = tool(theirs, "build-toolset", name="dev", tools=[{"namespacedName": "git__echo"}])
    assert '"isError": true' not in made, made
    made = tool(ours, "build-toolset", name="dev", tools=[{"namespacedName": "time__echo"}])
    assert '"isError": true' not in made, made
    refused = tool(ours, "build-toolset", name="acme:x", tools=[{"namespacedName": "git__echo"}])
    assert '"isError": true' in refused
    listed = tool(ours, "list-saved-toolsets")
    assert "time" in listed
    assert "acme" not in listed
    assert "acme" not in tool(ours, "equip-toolset", name="gone")
    equipped = tool(theirs, "equip-toolset", name="dev")
    assert '"isError": true' not in equipped, equipped
    tools = theirs.tools()
    assert "git__echo" in tools
    assert "time__echo" not in tools
    assert "git__echo" not in ours.tools()
    stored = json.loads(gateway.run("toolsets", "list", "--json").stdout)
    assert {one["name"] for one in stored["toolsets"]} == {"dev", "acme:dev"}
    ours.end()
    theirs.end()


def test_a_key_of_a_workspace_opens_its_endpoints_alone(gateway: Gateway) -> None:
    keys: dict[str, str] = {}
    for workspace in ("default", "acme"):
        command = [*gateway.command("keys"), "create", "k", "--workspace", workspace, "--json"]
        done = programs.run(command, check=True)
        keys[workspace] = json.loads(done.stdout)["key"]
    found = {name: status(gateway, key) for name, key in keys.items()}
    assert found == {"default": 404, "acme": 200}
    wrong = [*gateway.command("keys"), "create", "k", "--workspace", "acmee"]
    said = programs.run(wrong)
    assert "no workspace is named 'acmee'; did you mean 'acme'?" in said.stderr


def status(gateway: Gateway, key: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
    headers = {"Authorization": f"Bearer {key}"}
    connection.request("GET", "/metamcp/acme-all/api", headers=headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


@pytest.mark.promise("M60")
def test_callers_with_the_same_ids_get_their_own_answers_while_workers_die(
    gateway: Gateway,
) -> None:
    """Every answer has a nonce of its call; a worker is killed again and again."""
    seconds = float(os.environ.get("METAMCP_SOAK_S", "6"))
    over, answered = threading.Event(), itertools.count()
    wrong: list[object] = []

    def call(path: str, word: str, foreign: str, number: int) -> None:
        client = Client(gateway.port, MODERN, path)
        for at in itertools.count():
            if over.is_set():
                break
            nonce = f"{word}-{number}-{at}"
            client.next_id = at  # the same ids as everybody
            answer = client.call("git__echo", text=nonce)
            if "error" not in answer and answer["result"]["content"][0]["text"] != nonce:
                wrong.append(answer)
            if foreign in json.dumps(answer):
                wrong.append(answer)
            next(answered)
        client.end()

    threads = [
        threading.Thread(target=call, args=(path, word, foreign, number))
        for path, word, foreign in (
            ("/metamcp/default/mcp", MINE, THEIRS),
            ("/metamcp/acme/mcp", THEIRS, MINE),
        )
        for number in range(50)
    ]
    for thread in threads:
        thread.start()
    ended = threading.Timer(seconds, over.set)
    ended.start()
    while not over.wait(min(10, seconds / 4)):
        os.kill(gateway.server("acme:git")["worker_pid"], 9)
        until(lambda: gateway.server("acme:git")["state"] in ("ready", "active"), "it is back")
    for thread in threads:
        thread.join(60)
    assert wrong == []
    assert next(answered) > 100
