"""The inspector's command line, with the gateway as its server: over HTTP in both eras, over the
transport of 2024, and as a command."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients import programs
from tests.live.gateway import ROOT, Gateway, fake

pytestmark = pytest.mark.live

WAYS = ("http", "sse", "stdio")
ERAS = ("legacy", "modern")
CELLS = [(way, era) for way in WAYS for era in ERAS if (way, era) != ("sse", "modern")]


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    if why := programs.missing():
        pytest.skip(why)
    servers = {"old": fake("--era", "legacy", "--resources"), "new": fake("--era", "modern")}
    with Gateway(servers) as running:
        yield running


def inspected(gateway: Gateway, way: str, era: str, method: str, *more: str) -> dict[str, Any]:
    """The result of one method."""
    if way == "stdio":
        where = ["--runtime-dir", str(gateway.folder / "run")]
        bridge = {
            "command": sys.executable,
            "args": ["-m", "metamcp_supervisor", "connect", *where],
            "cwd": str(ROOT),
        }
        config = gateway.folder / "mcp.json"
        config.write_text(json.dumps({"mcpServers": {"metamcp": bridge}}))
        target = ["--config", str(config), "--server", "metamcp"]
    else:
        url = gateway.url if way == "http" else gateway.url.removesuffix("mcp") + "sse"
        target = [url, "--transport", way]
    asked = ["--protocol-era", era, "--method", method, *more, "--format", "json", "--quiet"]
    said = programs.node(programs.INSPECTOR, "--cli", *target, *asked, folder=gateway.folder)
    found: dict[str, Any] = json.loads(said)["result"]
    return found


@pytest.mark.promise("M1")
@pytest.mark.parametrize(("way", "era"), CELLS)
def test_the_inspector_lists_and_calls(gateway: Gateway, way: str, era: str) -> None:
    listed = inspected(gateway, way, era, "tools/list")
    names = {tool["name"] for tool in listed["tools"]}
    assert {"old__echo", "new__echo"} <= names
    assert len(names) == len(listed["tools"])
    for tool in ("old__echo", "new__echo"):
        arguments = ("--tool-name", tool, "--tool-arg", "text=hello")
        called = inspected(gateway, way, era, "tools/call", *arguments)
        assert called["content"] == [{"type": "text", "text": "hello"}]
    read = inspected(gateway, way, era, "resources/read", "--uri", "fake://one")
    assert read["contents"] == [{"uri": "fake://one", "text": "one"}]
