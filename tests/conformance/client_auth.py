"""The scenarios about authorization: who logs in for the gateway, and opens the links it gives.

The suite's authorization server asks nobody: opening a link is agreeing. A login that fails is part
of some scenarios, so the shim then ends without calling anything.
"""

import asyncio
import json
import os
import sys
from typing import Any

from mcp.client.client import Client
from mcp.shared.exceptions import MCPError

from metamcp_supervisor.__main__ import main as metamcp
from metamcp_worker.ipc.errors import Code
from tests.conformance.cells import MODERN
from tests.live.gateway import Gateway, toml
from tests.live.person import fetch
from tests.waiting import until

#: Within the suite's own limit for a scenario.
DRIVE_S_MAX = 60
LOGINS_MAX = 3
CALLS_MAX = 3

#: The suite knows no other document of a client.
DOCUMENT = "https://conformance-test.local/client-metadata.json"


def settings(scenario: str) -> str:
    """`oauth` of the server, with the credentials that the suite gives."""
    given: dict[str, Any] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    found: dict[str, str] = {}
    found |= {name: given[name] for name in ("client_id", "client_secret") if name in given}
    if "client-credentials" in scenario:
        found["grant"] = "client_credentials"
    if not found:
        found["client_metadata_url"] = DOCUMENT
    return f"oauth = {toml(found)}"


def authorized(gateway: Gateway, name: str) -> bool:
    """Log in as long as the gateway says that this is needed. Is the server ready then?"""
    for _ in range(LOGINS_MAX):
        until(lambda: gateway.server(name)["state"] != "warming", "the server is decided on")
        found = gateway.server(name)
        if found["state"] != "error":
            return True
        if found["reason"] != "authorization" or login(gateway, name):
            break
    return bool(gateway.server(name)["state"] != "error")


def login(gateway: Gateway, name: str) -> int:
    """`metamcp login` in a fork of this process, which has loaded all that it needs, and its link
    opened. Returns the exit code."""
    reader, writer = os.pipe()
    state = ("--state-dir", gateway.folder / "state")
    words = gateway.command("login", name, "--no-browser", "--config", gateway.config, *state)[3:]
    pid = os.fork()
    if pid == 0:
        os.dup2(writer, 1)
        code: object = 0
        try:
            metamcp(words, prog_name="metamcp")
        except SystemExit as end:
            code = end.code
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 1)
    os.close(writer)
    with open(reader) as output:
        if link := output.readline().strip():
            fetch(link)
        output.read()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


async def drive(url: str, era: str) -> None:
    """Call every tool; where a call needs more authorization, get it and call again."""
    client = Client(url, mode="legacy" if era == "legacy" else MODERN)
    async with asyncio.timeout(DRIVE_S_MAX), client:
        for tool in (await client.list_tools()).tools:
            for _ in range(CALLS_MAX):
                try:
                    await client.call_tool(tool.name, {})
                    break
                except MCPError as error:
                    data: dict[str, Any] = dict(error.data or {})
                    link = str(data.get("authorization_url", ""))
                    if error.code != Code.AUTHORIZATION_NEEDED or not link:
                        raise
                    await asyncio.to_thread(fetch, link)


def play(gateway: Gateway, name: str, era: str, path: str) -> None:
    if authorized(gateway, name):
        asyncio.run(drive(f"http://localhost:{gateway.port}{path}", era))
