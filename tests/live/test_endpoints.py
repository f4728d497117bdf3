"""Namespaces and endpoints: several URLs, each with its own servers and its own way of naming."""

import http.client
from collections.abc import Iterator

import pytest

from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import Gateway, fake

pytestmark = pytest.mark.live

EXTRA = """
[namespaces.default]
servers = ["*"]

[namespaces.work]
description = "Only what work needs."
servers = ["alpha"]
tools."alpha.fail" = { enabled = false }

[namespaces.both]
servers = ["beta", "alpha"]

[endpoints.default]
namespace = "default"

[endpoints.plain]
namespace = "work"
path = "office"
naming = { style = "bare" }

[endpoints.flat]
namespace = "both"
naming = { style = "flat" }

[endpoints.dotted]
namespace = "both"
naming = { style = "dotted" }

[endpoints.clash]
namespace = "both"
naming = { style = "bare" }
"""


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway({"alpha": fake(), "beta": fake("--era", "modern")}, extra=EXTRA) as running:
        yield running


def at(gateway: Gateway, endpoint: str, era: str = LEGACY) -> Client:
    path = "office" if endpoint == "plain" else endpoint
    return Client(gateway.port, era, f"/metamcp/{path}/mcp")


@pytest.mark.promise("M61")
@pytest.mark.parametrize("era", [LEGACY, MODERN])
def test_a_server_of_another_namespace_is_not_at_the_default_endpoint(era: str) -> None:
    extra = '[namespaces.work]\nservers = ["alpha"]\n[endpoints.work]\nnamespace = "work"\n'
    extra += '[endpoints.default]\nnamespace = "default"\n'
    with Gateway({"alpha": fake(), "beta": fake()}, extra=extra) as gateway:
        client = Client(gateway.port, era)
        assert {name.partition("__")[0] for name in client.tools()} == {"beta"}
        assert client.call("alpha__echo", text="x")["error"]["code"] == -32602
        client.close()


@pytest.mark.promise("M62")
def test_the_three_urls_of_an_endpoint_have_its_path_and_not_its_name(gateway: Gateway) -> None:
    def get(path: str) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=10)
        connection.request("GET", path, headers={"Accept": "text/event-stream, application/json"})
        answer = connection.getresponse()
        begun = answer.status, answer.readline() + answer.readline()
        connection.close()
        return begun

    assert get("/metamcp/office/sse")[1].startswith(
        b"event: endpoint\ndata: /metamcp/office/messages?"
    )
    assert b"/metamcp/office/api" in get("/metamcp/office/api/openapi.json")[1]
    assert {get(f"/metamcp/plain/{last}")[0] for last in ("mcp", "sse", "api")} == {404}
    assert gateway.status()["endpoints"]["plain"].endswith("/metamcp/office/mcp")


@pytest.mark.promise("M61")
def test_clients_are_told_what_a_namespace_is_for(gateway: Gateway) -> None:
    client = at(gateway, "plain")
    assert client.initialized["instructions"].startswith("Only what work needs.")
    client.close()


@pytest.mark.promise("M25", "M62")
@pytest.mark.parametrize("era", [LEGACY, MODERN])
@pytest.mark.parametrize(
    ("endpoint", "name"),
    [
        ("default", "alpha__echo"),
        ("plain", "echo"),
        ("flat", "alpha_echo"),
        ("dotted", "alpha.echo"),
    ],
)
def test_each_endpoint_names_in_its_style(
    gateway: Gateway, endpoint: str, name: str, era: str
) -> None:
    client = at(gateway, endpoint, era)
    assert name in client.tools()
    assert client.text(name, text=endpoint) == endpoint
    client.close()


@pytest.mark.promise("M61")
def test_a_namespace_shows_its_servers_and_no_tool_that_is_switched_off(gateway: Gateway) -> None:
    client = at(gateway, "plain")
    names = client.tools()
    assert "echo" in names
    assert "fail" not in names
    assert client.call("fail")["error"]["code"] == -32602
    assert client.call("beta__echo", text="x")["error"]["code"] == -32602
    client.close()


@pytest.mark.promise("M25")
def test_both_sides_of_a_collision_get_a_hash_and_both_can_be_called(gateway: Gateway) -> None:
    client = at(gateway, "clash")
    echoes = [name for name in client.tools() if name.startswith("echo")]
    assert len(echoes) == 2
    assert "echo" not in echoes
    assert [client.text(name, text=name) for name in echoes] == echoes
    client.close()


@pytest.mark.promise("M2", "M62")
def test_an_endpoint_that_does_not_exist_is_not_found(gateway: Gateway) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=10)
    connection.request("POST", "/metamcp/none/mcp", b"{}", {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 404
    assert b"/metamcp/" in answer.read()
    connection.close()
