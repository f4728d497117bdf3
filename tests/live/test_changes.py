"""What clients are told without asking: lists that changed, and servers that are away."""

import json
from collections.abc import Iterator

import pytest

from metamcp_worker.ipc import codec
from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import Gateway, fake
from tests.live.raw import Raw
from tests.waiting import until

pytestmark = pytest.mark.live

CHANGED = "notifications/tools/list_changed"


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    """Tests that restart or stop `gamma` come after those that look at the others."""
    legacy, modern = fake("--era", "legacy"), fake("--era", "modern")
    with Gateway({"alpha": legacy, "beta": modern, "gamma": legacy}) as running:
        yield running


@pytest.mark.promise("M28", "M23")
@pytest.mark.parametrize("server", ["alpha", "beta"])
def test_a_new_tool_is_announced_in_both_eras_and_listed(gateway: Gateway, server: str) -> None:
    legacy, modern = Raw(gateway.port, LEGACY), Raw(gateway.port, MODERN)
    with legacy.listen() as one, modern.listen(toolsListChanged=True) as other:
        name = legacy.text(f"{server}__change")
        assert one.next().method == CHANGED
        told = other.next()
    assert told.method == CHANGED
    meta = codec.value(told.params)["_meta"]
    assert meta["io.modelcontextprotocol/subscriptionId"] == "l1"
    assert f"{server}__{name}" in legacy.names()
    assert f"{server}__{name}" in modern.names()


@pytest.mark.promise("M23")
def test_a_client_that_goes_away_frees_the_servers_slot(gateway: Gateway) -> None:
    client = Client(gateway.port, MODERN)
    params = {"name": "alpha__sleep", "arguments": {"ms": 60_000}, "_meta": client.meta()}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    client.http.request(
        "POST", "/mcp", json.dumps(message), client.headers("tools/call", "alpha__sleep")
    )
    until(lambda: gateway.server("alpha")["inflight"] == 1, "the call is in flight")
    client.close()
    until(lambda: gateway.server("alpha")["inflight"] == 0, "the call is cancelled")


@pytest.mark.promise("M23")
def test_a_cancelled_call_ends_and_the_session_goes_on(gateway: Gateway) -> None:
    client = Client(gateway.port, LEGACY)
    params = {"name": "alpha__sleep", "arguments": {"ms": 60_000}}
    message = {"jsonrpc": "2.0", "id": "slow", "method": "tools/call", "params": params}
    client.http.request("POST", "/mcp", json.dumps(message), client.headers())
    until(lambda: gateway.server("alpha")["inflight"] == 1, "the call is in flight")
    other = Client.joining(client, gateway.port)
    other.post(
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"slow"}}'
    )
    assert other.status == 202
    ended = client.http.getresponse()
    assert b"result" not in ended.read()
    assert client.text("alpha__echo", text="still here") == "still here"
    client.close()
    other.close()


@pytest.mark.promise("M71")
def test_a_catalogue_is_kept_on_disk(gateway: Gateway) -> None:
    folder = gateway.folder / "state" / "catalogue" / "alpha"
    (kept,) = until(lambda: list(folder.glob("*")), "it is written")
    assert "echo" in kept.read_text()


@pytest.mark.promise("M28")
def test_a_quick_restart_is_no_change_and_a_stop_is_one(gateway: Gateway) -> None:
    client = Raw(gateway.port, LEGACY)
    before = client.names()
    with client.listen() as stream:
        gateway.ctl("restart", "gamma", "--wait")
        assert client.names() == before
        gateway.ctl("stop", "gamma", "--wait")
        assert stream.next().method == CHANGED
    assert client.names() == [name for name in before if not name.startswith("gamma__")]


@pytest.mark.promise("M75", "M71")
@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_a_call_to_a_server_that_is_away_says_who_why_and_when(gateway: Gateway, era: str) -> None:
    gateway.ctl("start", "gamma", "--wait")
    client = Client(gateway.port, era)
    assert client.text("gamma__echo", text="here") == "here"
    gateway.ctl("stop", "gamma", "--wait")
    error = client.call("gamma__echo", text="gone")["error"]
    assert error["code"] == -10001
    assert "gamma" in error["message"]
    assert error["data"]["server"] == "gamma"
    assert {"reason", "retry_after_ms", "may_have_run"} <= set(error["data"])
    client.close()


@pytest.mark.promise("M28")
@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_a_client_that_lists_as_soon_as_the_port_answers_gets_the_tools_of_all_servers(
    era: str,
) -> None:
    servers = {f"quick{number}": fake() for number in range(8)}
    with Gateway(servers, wait=False) as gateway:
        until(gateway.answers, "the gateway answers, which has met none of them")
        assert {f"{name}__echo" for name in servers} <= set(Raw(gateway.port, era).names())
        gateway.stop()
        gateway.start()
        until(gateway.answers, "the next one knows them")
        assert {f"{name}__echo" for name in servers} <= set(Raw(gateway.port, era).names())
