"""Kept results with the true binary: whose they are, who gets them whole, how long they stay."""

import asyncio
import json
import os
import re
import signal
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client as Sdk
from mcp.client.streamable_http import streamable_http_client

from tests import programs
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import ROOT, Gateway, fake
from tests.live.test_keys import keys
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.promise("M110")]

EXTRA = """
[code]
[endpoints.default]
namespace = "default"
results = { max = "16K", total = "1M" }
[endpoints.whole]
namespace = "default"
[endpoints.programs]
namespace = "default"
exposure = "code"
results = { max = "8K" }
[endpoints.guarded]
namespace = "default"
auth = "keys"
results = { max = "16K" }
"""
KIB = 100
BOOK: dict[str, Any] = {"title": "x" * 20_000, "authors": []}
THREE: dict[str, Any] = {"book": BOOK, "copies": 3}
BOOKS = 3 * json.dumps(
    {**BOOK, "kind": "novel", "rating": None, "shelves": {}}, separators=(",", ":")
)


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    servers: dict[str, dict[str, Any]] = {
        "one": fake("--era", "legacy", "--tasks"),
        "two": fake("--era", "modern"),
        "typed": {"module": "tests.fakes.typed_tools:server", "env": {"PYTHONPATH": str(ROOT)}},
    }
    with Gateway(servers, extra=EXTRA) as running:
        yield running


def results(gateway: Gateway, *words: str, ok: int = 0) -> Any:
    """The JSON that `metamcp results` prints, or its complaint."""
    command = [*gateway.command("results"), *words, "--json"]
    done = programs.run(command)
    assert done.returncode == ok, done.stderr
    return json.loads(done.stdout) if done.stdout else done.stderr


def short(client: Client, tool: str = "one__blob", kib: int = KIB) -> dict[str, Any]:
    found: dict[str, Any] = client.call(tool, kib=kib)["result"]["_meta"]["io.metamcp/result"]
    return found


def handle(client: Client, tool: str = "one__blob", kib: int = KIB) -> str:
    return str(short(client, tool, kib)["handle"])


def files(gateway: Gateway) -> set[str]:
    return {path.name for path in (gateway.folder / "state" / "results").rglob("*.json")}


@pytest.mark.parametrize("era", [LEGACY, MODERN])
@pytest.mark.parametrize("server", ["one", "two"])
def test_a_kept_result_is_read_by_offset_path_and_expression(
    gateway: Gateway, era: str, server: str
) -> None:
    with closing(Client(gateway.port, era)) as client:
        assert "read_result" in client.tools()
        kept = handle(client, f"{server}__blob")
        piece = client.text("read_result", handle=kept, offset=KIB * 1024 - 3, length=9)
        assert piece == f"xxx\n\n[bytes {KIB * 1024 - 3} to {KIB * 1024} of {KIB * 1024}, the end]"
        assert len(client.text("read_result", handle=kept)) < 16 * 1024 + 100
        assert client.text("read_result", handle=kept, grep="x+").startswith("0: xxx")
        wrong = client.call("read_result", handle=kept, path="/a")["result"]
        assert wrong["isError"]
        assert "/a" in wrong["content"][0]["text"] or "not" in wrong["content"][0]["text"]
        assert "wrong" in client.text("read_result", handle=kept, extra=1)


def test_a_small_result_and_other_endpoints_pass_results_whole(gateway: Gateway) -> None:
    with closing(Client(gateway.port, MODERN)) as client:
        assert client.call("one__echo", text="hi")["result"]["structuredContent"]["text"] == "hi"
        assert len(client.text("one__blob", kib=10)) == 10 * 1024
    with closing(Client(gateway.port, MODERN, "/metamcp/whole/mcp")) as client:
        assert len(client.text("one__blob", kib=KIB)) == KIB * 1024
        assert "read_result" not in client.tools()
        unknown = client.request("resources/read", {"uri": "metamcp-result://" + "a" * 24})
        assert "error" in unknown


def test_code_gets_the_whole_result(gateway: Gateway) -> None:
    with closing(Client(gateway.port, MODERN, "/metamcp/programs/mcp")) as client:
        code = f"return (await mcp.call('one__blob', {{kib: {KIB}}})).length"
        answer = client.call("run_code", code=code)["result"]
        assert answer["structuredContent"]["value"] == KIB * 1024


def test_a_result_belongs_to_its_principal_and_goes_with_the_last_key(gateway: Gateway) -> None:
    made = [keys(gateway, "create", name, "--endpoint", "guarded") for name in ("ada", "bob")]
    kept = asyncio.run(called(gateway, made[0]["key"], "one__blob", {"kib": KIB}))
    found = re.search("under the handle ([0-9a-f]{24})", kept)
    assert found is not None
    again = asyncio.run(called(gateway, made[0]["key"], "read_result", {"handle": found[1]}))
    assert again.startswith("xxx")
    stranger = asyncio.run(called(gateway, made[1]["key"], "read_result", {"handle": found[1]}))
    nobody = asyncio.run(called(gateway, made[1]["key"], "read_result", {"handle": "a" * 24}))
    assert stranger == nobody.replace("a" * 24, found[1])
    with closing(Client(gateway.port, MODERN)) as client:  # the user of this machine neither
        assert "No result has the handle" in client.text("read_result", handle=found[1])
    listed = {one["handle"]: one for one in results(gateway, "list")["results"]}
    assert listed[found[1]]["principal"] == f"key:{made[0]['id']}"
    keys(gateway, "revoke", made[0]["id"])
    until(lambda: f"{found[1]}.json" not in files(gateway), "the result is gone with the key")


@pytest.mark.parametrize("title", ["x", "x" * 20_000], ids=["small", "large"])
def test_a_client_that_checks_output_schemas_accepts_both_kinds_of_results(
    gateway: Gateway, title: str
) -> None:
    key = keys(gateway, "create", f"typed-{len(title)}", "--endpoint", "guarded")["key"]
    book: dict[str, Any] = {"title": title, "authors": []}
    said = asyncio.run(called(gateway, key, "typed__keep", {"book": book}))
    assert (json.loads(said)["title"] == title) if len(title) == 1 else "read_result" in said


async def called(gateway: Gateway, key: str, tool: str, arguments: dict[str, Any]) -> str:
    """The first text of the answer that a client of the official SDK accepts."""
    url = f"http://127.0.0.1:{gateway.port}/metamcp/guarded/mcp"
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        Sdk(streamable_http_client(url, http_client=http)) as client,
    ):
        await client.list_tools()
        found = await client.call_tool(tool, arguments)
        return str(getattr(found.content[0], "text", ""))


def test_results_outlive_fronts_and_workers(gateway: Gateway) -> None:
    with closing(Client(gateway.port, MODERN)) as client:
        kept = handle(client)
    front: int = gateway.status()["fronts"][0]["pid"]
    os.kill(front, signal.SIGKILL)
    gateway.ctl("restart", "one", "--wait")
    until(lambda: gateway.status()["fronts"][0]["pid"] not in (0, front), "another front serves")
    gateway.wait()
    with closing(Client(gateway.port, MODERN)) as client:
        assert client.text("read_result", handle=kept).startswith("xxx")


def test_the_result_of_a_task_is_kept(gateway: Gateway) -> None:
    with closing(Client(gateway.port, LEGACY)) as client:
        arguments = {"ms": 1, "text": "y" * 40_000}
        params = {"name": "one__task", "arguments": arguments, "task": {"ttl": 60_000}}
        task = client.request("tools/call", params)["result"]["task"]["taskId"]
        until(
            lambda: (
                client.request("tasks/get", {"taskId": task})["result"]["status"] == "completed"
            ),
            "the task is over",
        )
        answer = client.request("tasks/result", {"taskId": task})["result"]
        assert answer["_meta"]["io.metamcp/result"]["bytes"] == 40_000


@pytest.mark.parametrize(
    ("tool", "arguments", "whole"),
    [("one__blob", {"kib": KIB}, "x" * KIB * 1024), ("typed__keep", THREE, BOOKS)],
    ids=["text", "json"],
)
def test_a_call_at_the_prompt_writes_the_whole_result(
    gateway: Gateway, tool: str, arguments: dict[str, Any], whole: str
) -> None:
    file = gateway.folder / "out"
    gateway.run("call", tool, "--args", json.dumps(arguments), "-o", file)
    assert re.sub(r"\s", "", file.read_text()) == whole


def test_operators_list_show_and_purge_results(gateway: Gateway) -> None:
    with closing(Client(gateway.port, MODERN)) as client:
        one, other = handle(client), handle(client)
        found = results(gateway, "list")
        listed = {each["handle"]: each for each in found["results"]}
        assert {one, other} <= listed.keys()
        assert (listed[one]["server"], listed[one]["tool"]) == ("one", "blob")
        assert listed[one]["saved_tokens"] > 20_000
        shown = results(gateway, "show", one)
        assert shown["text"] == "x" * KIB * 1024
        assert results(gateway, "purge", one) == {"v": 1, "purged": 1}
        assert "No result has the handle" in client.text("read_result", handle=one)
        assert "is not a result" in results(gateway, "show", one, ok=8)
        results(gateway, "purge", "--all")
        assert files(gateway) == set()
        page = gateway.ops("/metrics")[1]
        assert re.search(r'metamcp_results_kept_total\{server="one"\} [1-9]', page)
        assert re.search(r'metamcp_result_tokens_saved_total\{server="one"\} [1-9]', page)


def test_a_result_that_does_not_fit_is_an_error_that_says_so(gateway: Gateway) -> None:
    with closing(Client(gateway.port, MODERN)) as client:
        error = client.call("one__blob", kib=2000)["error"]
        assert "all results of this endpoint may have 1048576 bytes" in error["message"]
        assert error["data"]["may_have_run"] is True


def test_results_go_when_the_gateway_ends_or_begins() -> None:
    extra = '[endpoints.default]\nnamespace = "default"\nresults = { max = "8K" }'
    with Gateway({"one": fake()}, extra=extra) as gateway:
        with closing(Client(gateway.port, MODERN)) as client:
            handle(client)
        assert len(files(gateway)) == 1
        assert gateway.process is not None
        gateway.process.kill()
        gateway.process.wait(timeout=30)
        until(lambda: not gateway.left(), "everything has ended")
        assert len(files(gateway)) == 1
        gateway.start()
        assert files(gateway) == set()
        with closing(Client(gateway.port, MODERN)) as client:
            handle(client)
        gateway.stop()
        assert not (gateway.folder / "state" / "results").exists()


def test_a_full_disk_is_an_error_that_says_so() -> None:
    extra = '[endpoints.default]\nnamespace = "default"\nresults = { max = "8K" }'
    with Gateway({"one": fake()}, extra=extra) as gateway:
        (gateway.folder / "state" / "results").write_text("in the way")
        with closing(Client(gateway.port, MODERN)) as client:
            error = client.call("one__blob", kib=KIB)["error"]
            assert "which the gateway could not keep" in error["message"]
            assert client.text("one__echo", text="goes on") == "goes on"
