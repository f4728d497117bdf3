"""What clients are told without asking: lists that changed, and servers that are away."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import Gateway, fake
from tests.waiting import until

pytestmark = pytest.mark.live

CHANGED = "notifications/tools/list_changed"


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway({"alpha": fake("--era", "legacy"), "beta": fake("--era", "modern")}) as running:
        yield running


class Stream:
    """The messages of one SSE stream."""

    def __init__(self, port: int, method: str, body: bytes | None, headers: dict[str, str]) -> None:
        self.http = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self.http.request(method, "/mcp", body, headers)
        self.answer = self.http.getresponse()
        assert self.answer.status == 200, self.answer.read()

    def next(self) -> dict[str, Any]:
        """The next message; comments and empty lines in between are skipped."""
        while True:
            line = self.answer.readline()
            assert line, "the stream has ended"
            if line.startswith(b"data:"):
                found: dict[str, Any] = json.loads(line[5:])
                return found

    def close(self) -> None:
        self.answer.close()
        self.http.close()


def session_stream(client: Client, port: int) -> Stream:
    return Stream(port, "GET", None, {**client.headers(), "Accept": "text/event-stream"})


def listen_stream(client: Client, port: int) -> Stream:
    params = {"_meta": client.meta(), "notifications": {"toolsListChanged": True}}
    message = {"jsonrpc": "2.0", "id": "l1", "method": "subscriptions/listen", "params": params}
    headers = client.headers("subscriptions/listen")
    return Stream(port, "POST", json.dumps(message).encode(), headers)


@pytest.mark.promise("M28")
@pytest.mark.promise("M23")
@pytest.mark.parametrize("server", ["alpha", "beta"])
def test_a_new_tool_is_announced_in_both_eras_and_listed(gateway: Gateway, server: str) -> None:
    legacy, modern = Client(gateway.port, LEGACY), Client(gateway.port, MODERN)
    one = session_stream(legacy, gateway.port)
    other = listen_stream(modern, gateway.port)
    assert other.next()["method"] == "notifications/subscriptions/acknowledged"
    name = legacy.text(f"{server}__change")
    assert one.next()["method"] == CHANGED
    told = other.next()
    assert told["method"] == CHANGED
    assert told["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"] == "l1"
    assert f"{server}__{name}" in legacy.tools()
    assert f"{server}__{name}" in modern.tools()
    for opened in (one, other, legacy, modern):
        opened.close()


@pytest.mark.promise("M28")
def test_a_quick_restart_is_no_change_and_a_stop_is_one(gateway: Gateway) -> None:
    client = Client(gateway.port, LEGACY)
    stream = session_stream(client, gateway.port)
    before = client.tools()
    gateway.ctl("restart", "alpha", "--wait")
    assert client.tools() == before
    gateway.ctl("stop", "alpha", "--wait")
    assert stream.next()["method"] == CHANGED
    assert client.tools() == [name for name in before if not name.startswith("alpha__")]
    stream.close()
    client.close()


@pytest.mark.promise("M75")
@pytest.mark.promise("M71")
@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_a_call_to_a_server_that_is_away_says_who_why_and_when(gateway: Gateway, era: str) -> None:
    client = Client(gateway.port, era)
    assert client.text("alpha__echo", text="here") == "here"
    gateway.ctl("stop", "alpha", "--wait")
    error = client.call("alpha__echo", text="gone")["error"]
    assert error["code"] == -10001
    assert "alpha" in error["message"]
    assert error["data"]["server"] == "alpha"
    assert {"reason", "retry_after_ms", "may_have_run"} <= set(error["data"])
    client.close()


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
    kept = gateway.folder / "state" / "catalogue" / "alpha.json"
    assert "echo" in kept.read_text()
