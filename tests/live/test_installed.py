"""What `metamcp install` writes into the file of a client works: that command is a server."""

import asyncio
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # has no types
from mcp.client.client import Client as SdkClient
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client

from metamcp_supervisor.client_files import clients
from metamcp_supervisor.config import formats
from tests.live.client import MODERN
from tests.live.gateway import Gateway, fake

pytestmark = pytest.mark.live

PLACES = {
    "claude-code": (".claude.json", "mcpServers"),
    "vscode": (".config/Code/User/mcp.json", "servers"),
    "codex": (".codex/config.toml", "mcp_servers"),
    "goose": (".config/goose/config.yaml", "extensions"),
    "opencode": (".config/opencode/opencode.json", "mcp"),
}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    with Gateway({"alpha": fake("--era", "both")}) as running:
        yield running


def installed(
    gateway: Gateway, home: Path, client: str, *options: str
) -> tuple[tuple[str, ...], str]:
    """The command and the URL of the entry, as that client reads it."""
    off = ("XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME")
    environ = {key: value for key, value in os.environ.items() if key not in off}
    subprocess.run(
        [sys.executable, "-m", "metamcp_supervisor", "install", client, *options],
        env={**environ, "HOME": str(home), "METAMCP_RUNTIME_DIR": str(gateway.folder / "run")},
        cwd=home,
        check=True,
        timeout=30,
        capture_output=True,
    )
    name, place = PLACES[client]
    path = home / name
    text = path.read_text()
    values: Any = (
        tomllib.loads(text)
        if path.suffix == ".toml"
        else yaml.safe_load(text)
        if path.suffix == ".yaml"
        else formats.json_loads(text)
    )
    return clients.target_of(values[place]["metamcp"])


async def echoed(client: SdkClient) -> str:
    async with asyncio.timeout(30), client:
        tools = await client.list_tools()
        assert "alpha__echo" in [tool.name for tool in tools.tools]
        result = await client.call_tool("alpha__echo", {"text": "hello"})
        return str(result.content)


@pytest.mark.skipif(sys.platform != "linux", reason="the paths are those of Linux")
@pytest.mark.promise("M7")
@pytest.mark.parametrize("mode", ["legacy", MODERN])
@pytest.mark.parametrize("client", PLACES)
def test_the_installed_command_leads_to_the_gateway(
    gateway: Gateway, tmp_path: Path, client: str, mode: str
) -> None:
    run = str(gateway.folder / "run")
    (program, *args), _ = installed(gateway, tmp_path, client, "--runtime-dir", run)
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    parameters = StdioServerParameters(command=program, args=args, cwd=tmp_path, env=environ)
    text = asyncio.run(echoed(SdkClient(stdio_client(parameters), mode=mode)))
    assert "hello" in text


@pytest.mark.skipif(sys.platform != "linux", reason="the paths are those of Linux")
@pytest.mark.promise("M7")
@pytest.mark.parametrize("client", PLACES)
def test_the_installed_url_is_that_of_the_running_gateway(
    gateway: Gateway, tmp_path: Path, client: str
) -> None:
    _, url = installed(gateway, tmp_path, client, "--http")
    assert url == gateway.url
    text = asyncio.run(echoed(SdkClient(streamable_http_client(url), mode="legacy")))
    assert "hello" in text
