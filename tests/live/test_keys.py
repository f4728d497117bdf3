"""API keys with the true binary: made before the first start, used by real clients, revoked."""

import http.client
import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp.client.client import Client as Sdk
from mcp.client.streamable_http import streamable_http_client

from metamcp_supervisor.runtime import UNFINISHED
from tests import programs
from tests.live import processes
from tests.live.client import LEGACY, MODERN
from tests.live.crowd import Crowd, Ear
from tests.live.gateway import Gateway, fake
from tests.waiting import until

pytestmark = pytest.mark.live

STREAMS = 500
POSTS = 12
"""Enough that both fronts get some of them."""
EXTRA = """
[gateway]
auth = "keys"
fronts = 2
[endpoints.default]
namespace = "default"
[endpoints.web]
namespace = "default"
auth = "keys"
url_keys = true
"""
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}


def keys(gateway: Gateway, *words: str, ok: int = 0) -> Any:
    """The JSON that `metamcp keys` prints."""
    command = [*gateway.command("keys"), *words, "--json"]
    done = programs.run(command)
    assert done.returncode == ok, done.stderr
    return json.loads(done.stdout) if done.stdout else done.stderr


def ask(gateway: Gateway, key: str = "", path: str = "/mcp") -> int:
    """The status of a list of tools."""
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
    try:
        return listed(connection, key, path)
    finally:
        connection.close()


def listed(connection: http.client.HTTPConnection, key: str, path: str = "/mcp") -> int:
    body: dict[str, Any] = {
        "jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META},
    }  # fmt: skip
    headers = {
        "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/list",
    }  # fmt: skip
    if key:
        headers["Authorization"] = f"Bearer {key}"
    connection.request("POST", path, json.dumps(body), headers)
    answer = connection.getresponse()
    answer.read()
    return answer.status


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    found = Gateway({"new": fake("--era", "modern"), "old": fake("--era", "legacy")}, extra=EXTRA)
    first = keys(found, "--state-dir", str(found.folder / "state"), "create", "first")
    found.environ["FIRST"] = first["key"]
    with found:
        yield found


@pytest.mark.promise("M63")
def test_a_key_that_was_made_before_the_first_start_opens_the_gateway(gateway: Gateway) -> None:
    assert ask(gateway, gateway.environ["FIRST"]) == 200
    assert ask(gateway) == 401
    (found,) = keys(gateway, "list")["keys"]
    assert (found["name"], found["state"], found["workspace"]) == ("first", "active", "default")
    assert gateway.environ["FIRST"] not in gateway.log.read_text()


async def test_a_real_client_lists_and_calls_with_a_key(gateway: Gateway) -> None:
    made = keys(gateway, "create", "sdk", "--expires", "1h")

    headers = {"Authorization": f"Bearer {made['key']}"}
    async with (
        httpx2.AsyncClient(headers=headers, timeout=30) as web,
        Sdk(streamable_http_client(gateway.url, http_client=web)) as client,
    ):
        tools = (await client.list_tools()).tools
        assert {"new__echo", "old__echo"} <= {tool.name for tool in tools}
        answer = await client.call_tool("new__echo", {"text": "with a key"})
        assert "with a key" in str(answer.content)
    keys(gateway, "revoke", made["id"])


@pytest.mark.promise("M63")
def test_a_revoked_key_is_refused_on_the_next_request_and_its_500_streams_have_ended(
    gateway: Gateway,
) -> None:
    made = keys(gateway, "create", "laptop", "--scope", "mcp:list", "--scope", "mcp:subscribe")
    connections = [
        http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30) for _ in range(6)
    ]
    assert {listed(one, made["key"]) for one in connections} == {200}
    eras = (MODERN, LEGACY) * (STREAMS // 2)
    with (
        Crowd(Ear(gateway.port, era, "/mcp", made["key"]) for era in eras) as crowd,
        Crowd([Ear(gateway.port, MODERN, "/mcp", gateway.environ["FIRST"])]) as other,
    ):
        keys(gateway, "revoke", "laptop")
        assert {listed(one, made["key"]) for one in connections} == {401}
        crowd.hear(lambda ear: ear.ended_s > 0)
        other.ears[0].take()
        assert not other.ears[0].ended_s
    for one in connections:
        one.close()
    assert "laptop" not in [key["name"] for key in keys(gateway, "list")["keys"]]
    assert "no key has the id or name 'laptop'" in keys(gateway, "show", "laptop", ok=8)


def test_a_rotated_key_ends_at_once_and_with_a_grace_both_are_valid(gateway: Gateway) -> None:
    first = keys(gateway, "create", "ci")
    second = keys(gateway, "rotate", first["id"])
    assert [ask(gateway, one["key"]) for one in (first, second)] == [401, 200]
    third = keys(gateway, "rotate", second["id"], "--grace", "1h")
    assert third["old_until"] == keys(gateway, "show", second["id"])["keys"][0]["expires"]
    assert [ask(gateway, one["key"]) for one in (second, third)] == [200, 200]
    assert third["principal"] == first["principal"]
    keys(gateway, "expire", third["id"])
    assert [ask(gateway, one["key"]) for one in (second, third)] == [200, 401]
    states = {key["id"]: key["state"] for key in keys(gateway, "list")["keys"]}
    assert states[third["id"]] == "expired"


@pytest.mark.parametrize("grace", [(), ("--grace", "1h")])
def test_of_orders_to_rotate_a_key_at_the_same_time_one_counts(
    gateway: Gateway, grace: tuple[str, ...]
) -> None:
    name = f"many{len(grace)}"
    first = keys(gateway, "create", name)
    command = [*gateway.command("keys"), "rotate", name, *grace, "--json"]
    pipe = subprocess.PIPE
    orders = [subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) for _ in range(6)]
    told = [(one.communicate(timeout=60), one.returncode) for one in orders]
    ((said, _),) = [output for output, code in told if code == 0]
    refusals = [error for (_, error), code in told if code != 0]
    assert len(refusals) == 5
    for error in refusals:
        assert f"'{name}' was rotated" in error or f"2 keys are named '{name}'" in error
    assert ask(gateway, json.loads(said)["key"]) == 200
    assert ask(gateway, first["key"]) == (200 if grace else 401)


def test_a_mistake_is_answered_with_what_was_meant(gateway: Gateway) -> None:
    said = keys(gateway, "create", "x", "--scope", "mcp:cal", ok=2)
    assert "'mcp:cal' is not a scope; did you mean 'mcp:call'?" in said
    said = keys(gateway, "create", "x", "--endpoint", "defualt", ok=8)
    assert "has no endpoint 'defualt'; did you mean 'default'?" in said
    said = keys(gateway, "create", "x", "--expires", "soon", ok=2)
    assert "'soon' is not a duration; write it like" in said
    assert "'call_per_day' is not a limit" in keys(
        gateway, "create", "x", "--quota", "call_per_day=1", ok=2
    )
    assert "is not a duration" in keys(gateway, "rotate", "first", "--grace", "soon", ok=2)
    secret = gateway.environ["FIRST"].rpartition("_")[2]
    assert keys(gateway, "show", gateway.environ["FIRST"])["keys"][0]["name"] == "first"
    assert secret not in keys(gateway, "show", f"mmcp_Nobody00_{secret}", ok=8)
    made = keys(gateway, "create", "first", "--scope", "mcp:call:nwe")
    assert "is named 'first' too" in made["doubts"][0]
    assert made["doubts"][1].endswith("no server is named 'nwe'; did you mean 'new'?")
    keys(gateway, "revoke", made["id"])
    state = str(gateway.folder / "state")
    said = keys(gateway, "--state-dir", state, "list", ok=75)
    assert "already keeps its state" in said
    assert "name its --runtime-dir instead" in said


@pytest.mark.parametrize("at_rest", [True, False])
def test_a_key_that_cannot_be_delivered_is_not_made(
    gateway: Gateway, tmp_path: Path, at_rest: bool
) -> None:
    where = ["--state-dir", str(tmp_path)] if at_rest else []
    there = tmp_path / "k.key"
    made = keys(gateway, *where, "create", "here", "--out", str(there))
    assert (made["key"], stat.S_IMODE(there.stat().st_mode)) == ("", 0o600)
    before = keys(gateway, *where, "list")
    for out in (str(tmp_path / "nowhere" / "k.key"), "", str(there)):
        assert "--out: " in keys(gateway, *where, "create", "x", "--out", out, ok=2)
        assert "--out: " in keys(gateway, *where, "rotate", "here", "--out", out, ok=2)
    for words in (("create", "x"), ("rotate", "here")):
        assert "write it to a file with --out" in keys(gateway, *where, "-q", *words, ok=2)
    refused = tmp_path / "refused.key"
    keys(gateway, *where, "create", "x", "--scope", "no", "--out", str(refused), ok=2)
    assert not refused.exists()
    assert keys(gateway, *where, "list") == before


def test_a_key_whose_file_cannot_be_written_is_revoked(gateway: Gateway, tmp_path: Path) -> None:
    before = keys(gateway, "list")
    words = [*gateway.command("keys"), "create", "full", "--out", str(tmp_path / "k.key")]
    command = ["bash", "-c", 'ulimit -f 0; exec "$@"', "bash", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "File too large" in done.stderr) == (1, True), done.stderr
    assert not (tmp_path / "k.key").exists()
    assert keys(gateway, "list") == before


def test_a_front_that_does_not_confirm_is_replaced(gateway: Gateway) -> None:
    made = keys(gateway, "create", "stuck")
    front = next(one for one in gateway.status()["fronts"] if one["state"] == "ready")
    os.kill(front["pid"], signal.SIGSTOP)
    began = time.monotonic()
    done = keys(gateway, "revoke", made["id"])
    assert time.monotonic() - began < 6.0
    assert done["unconfirmed"] == [f"front-{front['number']}"]
    assert not processes.alive({front["pid"]})
    until(lambda: len(ready(gateway)) == 2, "another front has taken its place")
    assert {ask(gateway, made["key"]) for _ in range(8)} <= {401, 429}
    assert {ask(gateway, gateway.environ["FIRST"]) for _ in range(8)} == {200}


def ready(gateway: Gateway) -> list[int]:
    return [one["pid"] for one in gateway.status()["fronts"] if one["state"] == "ready"]


def test_keys_are_valid_during_and_after_an_upgrade(gateway: Gateway) -> None:
    first = gateway.environ["FIRST"]
    gone = keys(gateway, "create", "gone")
    keys(gateway, "revoke", "gone")
    gateway.ctl("upgrade")
    assert {ask(gateway, first) for _ in range(8)} == {200}
    assert {ask(gateway, gone["key"]) for _ in range(8)} <= {401, 429}
    later = keys(gateway, "create", "later")
    assert {ask(gateway, later["key"]) for _ in range(8)} == {200}
    keys(gateway, "revoke", "later")
    assert {ask(gateway, later["key"]) for _ in range(8)} <= {401, 429}
    until(lambda: "renewed" in gateway.journal(), "the fronts are of the new program")


def test_a_client_with_a_key_in_its_url_can_post_by_every_front(gateway: Gateway) -> None:
    """A new connection comes to the front of the stream or to another one."""
    made = keys(gateway, "create", "chat", "--endpoint", "web", "--url")
    stream = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
    stream.request("GET", f"/metamcp/web/sse?api_key={made['key']}")
    answer = stream.getresponse()
    event = answer.readline() + answer.readline()
    where = event.decode().partition("data: ")[2].strip()
    wrong = where.partition("&token=")[0] + "&token=x"
    for path, status in [(where, 202)] * POSTS + [(wrong, 401)] * 2:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=30)
        body = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        assert connection.getresponse().status == status
        connection.close()
    stream.close()


def test_keys_outlive_fronts_and_the_gateway(gateway: Gateway) -> None:
    first = gateway.environ["FIRST"]
    for pid in ready(gateway):
        os.kill(pid, signal.SIGKILL)
    until(lambda: ask_again(gateway, first) == 200, "new fronts know the key")
    assert gateway.stop() == 0
    gateway.start()
    assert ask(gateway, first) == 200
    assert ask(gateway) == 401


@pytest.mark.promise("M86")
def test_a_gateway_without_a_valid_key_says_so_until_their_pepper_is_back(
    gateway: Gateway,
) -> None:
    first, pepper = gateway.environ["FIRST"], gateway.folder / "state" / "keys.pepper"
    content = pepper.read_bytes()
    pepper.unlink()
    assert gateway.stop() == 0
    gateway.start()
    assert ask(gateway, first) == 401
    status, page = gateway.ops("/readyz?verbose")
    assert (status, "[-]keys none is valid" in page) == (503, True)
    shown = gateway.run("status", ok=(3,)).stdout
    assert "no API key is valid, and endpoints ask for one: " in shown
    assert "none is valid: " in gateway.run("doctor", ok=(1,)).stdout
    assert "active" not in {key["state"] for key in keys(gateway, "list")["keys"]}
    pepper.write_bytes(content)
    pepper.chmod(0o600)
    assert "active" in {key["state"] for key in keys(gateway, "list")["keys"]}
    assert gateway.ops("/readyz")[0] == 200
    until(lambda: ask(gateway, first) == 200, "all fronts know the keys again")


def ask_again(gateway: Gateway, key: str) -> int:
    try:
        return ask(gateway, key)
    except OSError:
        return 0


@pytest.mark.promise("M115")
def test_a_backup_of_a_running_gateway_brings_back_what_was_deleted_later(
    gateway: Gateway,
) -> None:
    made = keys(gateway, "create", "precious")
    copy, passphrase = gateway.folder / "copy", gateway.folder / "passphrase"
    passphrase.write_text("correct horse")
    passphrase.chmod(0o600)
    where = ["--state-dir", str(gateway.folder / "state"), "--passphrase-file", str(passphrase)]
    assert run(*gateway.command("backup")[2:], str(copy), *where[2:]) == 0
    secret = made["key"].rpartition("_")[2]
    assert secret.encode() not in copy.read_bytes()
    keys(gateway, "revoke", "precious")
    command = [sys.executable, "-m", "metamcp_supervisor", "restore", str(copy), *where]
    done = programs.run(command)
    assert done.returncode == 75, "the gateway runs"
    assert "stop it first ('metamcp down')" in done.stderr
    done = gateway.run("restore", copy, *where[2:], ok=(75,))
    assert f"then restore with --state-dir {gateway.folder / 'state'}" in done.stderr
    assert gateway.stop() == 0
    (gateway.folder / "state" / "keys.pepper").unlink()
    (gateway.folder / "state" / UNFINISHED).touch()
    gateway.waits = False
    gateway.start()
    assert gateway.process is not None
    assert gateway.process.wait(timeout=60) == 77
    assert "was interrupted; run 'metamcp restore FILE' again" in gateway.log.read_text()
    gateway.waits = True
    assert run("metamcp_supervisor", "restore", str(copy), *where) == 0
    gateway.start()
    assert ask(gateway, made["key"]) == 200


@pytest.mark.promise("M63")
def test_a_key_is_accepted_until_the_grace_of_a_new_pepper_ends(gateway: Gateway) -> None:
    made = keys(gateway, "create", "peppered")
    rotated = keys(gateway, "rotate-pepper", "--grace", "1h")
    assert rotated["keys"] >= 1
    new = keys(gateway, "rotate", "peppered", "--grace", "30m")
    for key in (made["key"], new["key"]):
        assert {ask(gateway, key) for _ in range(POSTS)} == {200}, "every front knows it"
    assert gateway.stop() == 0
    gateway.start()
    assert ask(gateway, made["key"]) == ask(gateway, new["key"]) == 200
    done = gateway.run("keys", "rotate-pepper", ok=(2,))
    assert "all keys would end at once; say --grace TIME, or --yes" in done.stderr
    keys(gateway, "rotate-pepper", "--yes")
    assert ask(gateway, made["key"]) == ask(gateway, new["key"]) == 401
    assert ask(gateway, keys(gateway, "create", "last")["key"]) == 200


def run(*words: str) -> int:
    command = [sys.executable, "-m", *words]
    return programs.run(command).returncode
