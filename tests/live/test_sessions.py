"""Sessions of the handshake era against the true gateway: what outlives a connection and a front,
and what many of them cost."""

import http.client
import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live import processes
from tests.live.client import LEGACY, Client
from tests.live.gateway import Gateway, fake
from tests.waiting import until

pytestmark = pytest.mark.live

SESSIONS = 10_000
SESSION_BYTES_MAX = 20 * 1024
ASKABLE: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    servers = {"old": fake("--era", "legacy", "--resources"), "new": fake("--era", "modern")}
    with Gateway(servers) as running:
        yield running


def front(gateway: Gateway) -> int:
    pid: int = gateway.status()["fronts"][0]["pid"]
    return pid


def initialize(capabilities: dict[str, Any]) -> bytes:
    params = {
        "protocolVersion": LEGACY,
        "capabilities": capabilities,
        "clientInfo": {"name": "c", "version": "1"},
    }
    message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    return json.dumps(message).encode()


class Events:
    """One answer of the gateway that is a stream of events."""

    def __init__(self, client: Client, port: int, method: str, body: bytes | None, **more: str):
        self.http = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        headers = {**client.headers(), **{name.replace("_", "-"): more[name] for name in more}}
        self.http.request(method, "/mcp", body, headers)
        self.answer = self.http.getresponse()
        assert self.answer.getheader("content-type") == "text/event-stream", self.answer.read()
        self.last_id = ""

    def next(self) -> dict[str, Any] | None:
        """The next message; None at the end."""
        while line := self.answer.readline():
            if line.startswith(b"id: "):
                self.last_id = line[4:].strip().decode()
            if line.startswith(b"data: ") and len(line) > 7:
                found: dict[str, Any] = json.loads(line[6:])
                return found
        return None

    def close(self) -> None:
        self.answer.close()
        self.http.close()


def asked(client: Client, port: int, tool: str) -> Events:
    """A call in whose middle the client is asked something."""
    message = {"jsonrpc": "2.0", "id": "c", "method": "tools/call", "params": {"name": tool}}
    return Events(client, port, "POST", json.dumps(message).encode())


def resumed(client: Client, port: int, last_id: str) -> Events:
    return Events(client, port, "GET", None, Accept="text/event-stream", Last_Event_ID=last_id)


@pytest.fixture
def client(gateway: Gateway) -> Iterator[Client]:
    """A client that can be asked anything."""
    one = Client(gateway.port)
    one.session = None
    one.post(initialize(ASKABLE))
    yield one
    one.close()


@pytest.mark.promise("M23")
@pytest.mark.parametrize("server", ["old", "new"])
def test_a_call_goes_on_after_a_lost_connection_with_a_question_in_its_middle(
    gateway: Gateway, client: Client, server: str
) -> None:
    first = asked(client, gateway.port, f"{server}__elicit")
    question = first.next()
    assert question is not None
    assert question["method"] == "elicitation/create"
    first.close()
    answer = {"jsonrpc": "2.0", "id": question["id"], "result": {"action": "decline"}}
    client.post(json.dumps(answer).encode())
    assert client.status == 202
    second = resumed(client, gateway.port, first.last_id)
    last = second.next()
    assert last is not None
    assert last["id"] == "c"
    assert json.loads(last["result"]["content"][0]["text"]) == {"action": "decline"}
    assert second.next() is None
    second.close()


@pytest.mark.promise("M79")
def test_a_session_outlives_the_front_that_opened_it(gateway: Gateway, client: Client) -> None:
    client.request("logging/setLevel", {"level": "error"})
    client.request("resources/subscribe", {"uri": "fake://one"})
    before = front(gateway)
    os.kill(before, signal.SIGKILL)
    until(lambda: front(gateway) != before and gateway.answers(), "another front serves")
    later = Client.joining(client, gateway.port)
    assert later.text("old__echo", text="again") == "again"
    news = Events(later, gateway.port, "GET", None, Accept="text/event-stream")
    until(lambda: later.text("old__touch") == "1", "the resource is watched again")
    message = news.next()
    assert message is not None
    assert message["params"]["uri"] == "fake://one"
    news.close()
    later.close()


@pytest.mark.promise("M98")
def test_ten_thousand_sessions_that_nobody_comes_back_to_cost_little(gateway: Gateway) -> None:
    pid = front(gateway)
    children = processes.below(gateway.pid)
    one = Client(gateway.port)
    before = processes.memory(pid, "Rss")
    for _ in range(SESSIONS - 1):  # and the one that it has
        one.session = None
        one.post(initialize({"roots": {"listChanged": True}, "sampling": {}}))
        assert one.status == 200
    grown = processes.memory(pid, "Rss") - before
    used, one.session = one.session, None
    one.post(initialize({}))
    assert one.status == 503  # none of them is idle for long enough to make room
    one.session = used
    assert grown <= SESSIONS * SESSION_BYTES_MAX
    assert processes.below(gateway.pid) == children  # no process of its own for any of them
    assert one.text("old__echo", text="still") == "still"
    one.close()
