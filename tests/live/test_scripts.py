"""Scripts behind a real gateway: saved by one front, run by each, kept over a restart, exposed."""

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import programs
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import Gateway, fake
from tests.live.viewed import heard, listeners
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M48")]

EXTRA = """
[gateway]
fronts = 2
[code]
[endpoints.default]
namespace = "default"
exposure = "code"
[endpoints.found]
namespace = "default"
exposure = "search"
[workspaces.acme.namespaces.dev]
servers = ["default:git"]
[workspaces.acme.endpoints.acme]
namespace = "dev"
exposure = "code"
"""
SCHEMA = {"properties": {"n": {"type": "integer"}}, "required": ["n"]}
OURS, FOUND, THEIRS = "/mcp", "/metamcp/found/mcp", "/metamcp/acme/mcp"
CODE = "return args.n + 1"
TRIES = 20
"""Connections after which it would be odd if each front had none."""


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway({"git": fake("--only", "echo")}, extra=EXTRA) as running:
        yield running


def called(gateway: Gateway, tool: str, path: str = OURS, /, **arguments: Any) -> dict[str, Any]:
    """The whole result of a call."""
    client = Client(gateway.port, MODERN, path)
    try:
        result: dict[str, Any] = client.call(tool, **arguments)["result"]
        return result
    finally:
        client.close()


def done(gateway: Gateway, tool: str, path: str = OURS, /, **arguments: Any) -> dict[str, Any]:
    result = called(gateway, tool, path, **arguments)
    assert not result["isError"], result
    found: dict[str, Any] = result["structuredContent"]
    return found


def refused(gateway: Gateway, tool: str, path: str = OURS, /, **arguments: Any) -> str:
    result = called(gateway, tool, path, **arguments)
    assert result["isError"], result
    text: str = result["content"][0]["text"]
    return text


def names(gateway: Gateway, path: str = OURS) -> list[str]:
    return [one["name"] for one in done(gateway, "list_scripts", path)["scripts"]]


def listed(gateway: Gateway, path: str = OURS) -> list[str]:
    client = Client(gateway.port, MODERN, path)
    try:
        return client.tools()
    finally:
        client.close()


def scripts(gateway: Gateway, *arguments: str, folder: Path, ok: int = 0) -> str:
    """Output of the command `metamcp scripts`."""
    said = programs.run(gateway.command("scripts", *arguments), cwd=folder)
    assert said.returncode == ok, said.stderr
    return said.stdout + said.stderr


def test_a_saved_script_is_run_by_every_front_and_wrong_arguments_are_refused(
    gateway: Gateway,
) -> None:
    text = "return {next: args.n + 1, said: await mcp.call('git__echo', {text: 'hi'})}"
    saved = done(gateway, "save_script", name="sum", code=text, parameters=SCHEMA)
    assert saved["script"]["version"] == 1
    for _ in range(TRIES):
        assert names(gateway) == ["sum"]
    for path in (OURS, FOUND):
        ran = done(gateway, "run_script", path, name="sum", args={"n": 41})
        assert ran["value"] == {"next": 42, "said": {"text": "hi", "x": 1}}
        assert ran["calls"] == 1
    why = "args.n is not of the type integer (parameters: $.properties.n.type)"
    assert why in refused(gateway, "run_script", name="sum", args={"n": "41"})


def test_workspaces_do_not_see_scripts_of_each_other(gateway: Gateway) -> None:
    done(gateway, "save_script", name="mine", code="return 1")
    done(gateway, "save_script", THEIRS, name="mine", code="return 2")
    done(gateway, "save_script", THEIRS, name="theirs", code="return 3", expose=True)
    assert "theirs" not in names(gateway)
    assert names(gateway, THEIRS) == ["mine", "theirs"]
    assert "no script is named" in refused(gateway, "run_script", name="theirs")
    assert "letters, digits" in refused(gateway, "save_script", name="acme:mine", code="1")
    assert done(gateway, "run_script", name="mine")["value"] == 1
    assert done(gateway, "run_script", THEIRS, name="mine")["value"] == 2
    assert "scripts__theirs" in listed(gateway, THEIRS)
    assert "scripts__theirs" not in listed(gateway)
    done(gateway, "delete_script", name="mine")
    assert names(gateway, THEIRS) == ["mine", "theirs"]


@pytest.mark.parametrize("path", [OURS, FOUND])
def test_an_exposed_script_is_a_tool_and_clients_are_told(gateway: Gateway, path: str) -> None:
    client = Client(gateway.port, LEGACY, path)
    try:
        assert "scripts__next" not in client.tools()
        with listeners(gateway, path) as streams:
            done(gateway, "save_script", name="next", code=CODE, parameters=SCHEMA, expose=True)
            heard(streams)
        for _ in range(TRIES):
            assert "scripts__next" in listed(gateway, path)
        assert "scripts__next" in client.tools()
        found = done(gateway, "search_tools", path, query="next")["tools"]
        assert "scripts__next" in json.dumps(found)
        told = done(gateway, "describe_tool", path, name="scripts__next")
        assert told["definition"]["inputSchema"]["required"] == ["n"]
        result = client.call("scripts__next", n=1)["result"]
        assert result["structuredContent"]["value"] == 2
        wrong = client.call("scripts__next")["result"]
        assert wrong["isError"]
        assert "args has no 'n'" in wrong["content"][0]["text"]
        program = "return (await mcp.call('scripts__next', {n: 4})).value"
        assert done(gateway, "run_code", path, code=program)["value"] == 5
        done(gateway, "delete_script", path, name="next")
        assert "scripts__next" not in client.tools()
    finally:
        client.end()


def test_scripts_may_run_scripts_three_deep(gateway: Gateway) -> None:
    more = "(await mcp.call('run_script', {name: 'deep', args: {left: args.left - 1}})).value"
    inner = f"return args.left ? {more} : 'end'"
    done(gateway, "save_script", name="deep", code=inner)
    assert done(gateway, "run_script", name="deep", args={"left": 2})["value"] == "end"
    assert "3 deep" in refused(gateway, "run_script", name="deep", args={"left": 3})


def test_scripts_that_run_at_once_do_not_wait_for_each_other_for_ever(gateway: Gateway) -> None:
    done(gateway, "save_script", name="leaf", code="return args.n")
    leaves = "[...Array(4).keys()].map(n => mcp.call('run_script', {name: 'leaf', args: {n}}))"
    code = f"return (await Promise.all({leaves})).map(one => one.value)"
    clients = max(4, 2 * (os.cpu_count() or 1))
    with ThreadPoolExecutor(clients) as pool:
        found = [pool.submit(done, gateway, "run_code", code=code) for _ in range(clients)]
        assert [one.result(60)["value"] for one in found] == [[0, 1, 2, 3]] * clients


def test_what_is_saved_outlives_the_gateway_and_is_shown_at_a_prompt(
    gateway: Gateway, tmp_path: Path
) -> None:
    folder = tmp_path
    (folder / "kept.ts").write_text('// metamcp: {"description":"Kept."}\nreturn "kept"\n')
    assert "version 1" in scripts(gateway, "save", "kept.ts", folder=folder)
    done(gateway, "save_script", name="kept", code='return "new"')
    gateway.stop()
    at_rest = ("--state-dir", str(gateway.folder / "state"))
    (folder / "rest.js").write_text("return 7")
    scripts(gateway, *at_rest, "save", "rest.js", folder=folder)
    scripts(gateway, *at_rest, "--workspace", "acme", "save", "rest.js", folder=folder)
    gateway.start()
    assert {"kept", "rest"} <= {*names(gateway)}
    assert "rest" in names(gateway, THEIRS)
    assert "7" in scripts(gateway, "run", "rest", folder=folder)
    assert '"new"' in scripts(gateway, "show", "kept", folder=folder)
    old = scripts(gateway, "show", "kept", "--version", "1", "--json", folder=folder)
    (script,) = json.loads(old)["scripts"]
    assert (script["code"], script["description"]) == ('return "kept"\n', "Kept.")
    assert script["versions"] == [1, 2]
    failed = scripts(gateway, "run", "deep", "--args", '{"left": 9}', folder=folder, ok=1)
    assert "deep" in failed
    assert "\\x0a" not in failed
    copy = folder / "copy.db"
    gateway.run("backup", copy, "--without-secrets")
    until(lambda: b'return \\"kept\\"' in copy.read_bytes(), "the copy has the scripts")
