"""Namespaces and endpoints: several URLs, each with its own servers and its own way of naming."""

import http.client
from collections.abc import Iterator

import pytest

from tests.live.client import LEGACY, MODERN, Client
from tests.live.gateway import Gateway, fake

pytestmark = pytest.mark.live

EXTRA = """
[namespaces.work]
servers = ["alpha"]
tools."alpha.fail" = { enabled = false }

[namespaces.both]
servers = ["beta", "alpha"]

[endpoints.default]
namespace = "default"

[endpoints.plain]
namespace = "work"
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
    return Client(gateway.port, era, f"/metamcp/{endpoint}/mcp")


@pytest.mark.promise("M25")
@pytest.mark.promise("M62")
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


@pytest.mark.promise("M2")
@pytest.mark.promise("M62")
def test_an_endpoint_that_does_not_exist_is_not_found(gateway: Gateway) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=10)
    connection.request("POST", "/metamcp/none/mcp", b"{}", {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 404
    assert b"/metamcp/" in answer.read()
    connection.close()
