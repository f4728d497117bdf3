"""A server learns the extensions of its client, so an MCP App keeps its user interface."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest

from metamcp_worker.ipc import codec
from tests.fakes import app_server
from tests.fakes.app_server import EXTENSION, PAGE, PAGE_TYPE
from tests.live.gateway import Gateway
from tests.live.raw import LEGACY, MODERN, Raw

pytestmark = pytest.mark.live

SHOWS: dict[str, Any] = {"extensions": {EXTENSION: {"mimeTypes": [PAGE_TYPE]}}}
SHARINGS = ("auto", "per-session", "shared")
ERAS = ("legacy", "modern")


def app(era: str, sharing: str = "auto", **more: object) -> dict[str, Any]:
    return {"command": [sys.executable, app_server.__file__, era], "sharing": sharing, **more}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    servers = {f"{era}-{sharing}": app(era, sharing) for era in ERAS for sharing in SHARINGS}
    servers["none"] = app("legacy", extensions={})
    tables = [
        f'[namespaces.{name}]\nservers = ["{name}"]\n[endpoints.{name}]\nnamespace = "{name}"\n'
        'naming = { style = "bare" }'
        for name in servers
    ]
    with Gateway(servers, extra="\n".join(tables)) as running:
        yield running


@pytest.mark.promise("M20")
@pytest.mark.parametrize("client", [LEGACY, MODERN])
@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("era", ERAS)
def test_an_app_has_the_same_tool_and_page_as_directly(
    gateway: Gateway, era: str, sharing: str, client: str
) -> None:
    host = Raw(gateway.port, client, f"/metamcp/{era}-{sharing}/mcp", SHOWS)
    (tool,) = host.result("tools/list")["tools"]
    assert (tool["description"], tool["_meta"]) == ("a page", {"ui": {"resourceUri": PAGE}})
    assert host.text("weather") == "with a page"
    page = host.result("resources/read", codec.dump({"uri": PAGE}))
    assert page["contents"] == [{"uri": PAGE, "mimeType": PAGE_TYPE, "text": "<p>"}]


def test_a_client_that_shows_no_pages_reads_text(gateway: Gateway) -> None:
    plain = Raw(gateway.port, LEGACY, "/metamcp/legacy-per-session/mcp")
    assert plain.text("weather") == "text alone"


def test_the_configuration_says_what_is_declared_for_all_clients(gateway: Gateway) -> None:
    host = Raw(gateway.port, LEGACY, "/metamcp/none/mcp", SHOWS)
    (tool,) = host.result("tools/list")["tools"]
    assert tool["description"] == "text"
