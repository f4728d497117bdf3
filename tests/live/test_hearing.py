"""What modern clients hear of servers of both eras: log messages, and updates of resources."""

import http.client
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.live.client import MODERN, Client
from tests.live.gateway import Gateway, fake

pytestmark = pytest.mark.live

FLAGS = ("--resources", "--logging")
EXTRA = """
[namespaces.one]
servers = ["old"]

[namespaces.two]
servers = ["new"]

[endpoints.old]
namespace = "one"
naming = { style = "bare" }

[endpoints.new]
namespace = "two"
naming = { style = "bare" }
"""
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    servers = {"old": fake("--era", "legacy", *FLAGS), "new": fake("--era", "modern", *FLAGS)}
    with Gateway(servers, extra=EXTRA) as running:
        yield running


class Ear:
    """One request of revision 2026-07-28 whose answer is a stream of events."""

    def __init__(
        self, gateway: Gateway, endpoint: str, method: str, params: dict[str, Any], **meta: Any
    ) -> None:
        client = Client(gateway.port, MODERN, f"/metamcp/{endpoint}/mcp")
        params["_meta"] = {**client.meta(), **meta}
        message = {"jsonrpc": "2.0", "id": "ear", "method": method, "params": params}
        headers = client.headers(method, params.get("name", ""))
        self.http: http.client.HTTPConnection = client.http
        self.http.request("POST", client.path, json.dumps(message), headers)
        self.answer = self.http.getresponse()

    def event(self) -> dict[str, Any]:
        """The next message, past signs of life."""
        line = b""
        while not line.startswith(b"data: "):
            line = self.answer.readline()
            assert line, "the stream has ended"
        found: dict[str, Any] = json.loads(line[6:])
        return found

    def close(self) -> None:
        self.answer.close()
        self.http.close()


@pytest.mark.promise("M21")
@pytest.mark.parametrize("endpoint", ["old", "new"])
def test_log_messages_come_to_those_who_ask_from_the_level_that_they_ask_for(
    gateway: Gateway, endpoint: str
) -> None:
    for level in ("warning", "debug"):
        params: dict[str, Any] = {"name": "log_levels", "arguments": {}}
        asked = {"io.modelcontextprotocol/logLevel": level}
        ear = Ear(gateway, endpoint, "tools/call", params, **asked)
        wanted = LEVELS[LEVELS.index(level) :]
        assert [ear.event()["params"]["level"] for _ in wanted] == wanted
        assert ear.event()["id"] == "ear"
        ear.close()
    client = Client(gateway.port, MODERN, f"/metamcp/{endpoint}/mcp")
    client.call("log_levels")
    assert client.content_type == "application/json"
    client.close()


@pytest.mark.promise("M23")
@pytest.mark.parametrize("endpoint", ["old", "new"])
def test_updates_come_to_those_who_subscribed(gateway: Gateway, endpoint: str) -> None:
    wish = {"resourceSubscriptions": ["fake://one", "other://x"], "toolsListChanged": True}
    ear = Ear(gateway, endpoint, "subscriptions/listen", {"notifications": wish})
    tag = {SUBSCRIPTION: "ear"}
    acknowledged = ear.event()
    assert acknowledged["method"] == "notifications/subscriptions/acknowledged"
    honoured = {"resourceSubscriptions": ["fake://one"], "toolsListChanged": True}
    assert acknowledged["params"] == {"_meta": tag, "notifications": honoured}
    client = Client(gateway.port, MODERN, f"/metamcp/{endpoint}/mcp")
    assert client.text("touch") == "1"
    updated = ear.event()
    assert updated["method"] == "notifications/resources/updated"
    assert updated["params"] == {"_meta": tag, "uri": "fake://one", "x-kept": 1.0}
    client.call("change")
    assert ear.event()["method"] == "notifications/tools/list_changed"
    ear.close()
    client.close()
