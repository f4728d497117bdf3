"""Public servers that ask for roots, and clients of the official SDK with roots of their own."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from mcp.client.client import Client
from mcp.client.context import ClientRequestContext
from mcp_types import ErrorData, ListRootsResult, Root, RootsListChangedNotification, TextContent

from tests.clients import programs
from tests.live.gateway import ROOT, Gateway
from tests.waiting import WAIT_S, until

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(120),
    pytest.mark.promise("M23"),
    pytest.mark.promise("M82"),
]

PACKAGES = ROOT / "tests/clients/node_modules/@modelcontextprotocol"
Mode = Literal["legacy", "auto"]


def public(name: str, *arguments: str) -> dict[str, Any]:
    return {"command": ["node", str(PACKAGES / name / "dist/index.js"), *arguments]}


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    if why := programs.missing():
        pytest.skip(why)
    servers = {
        "everything": public("server-everything", "stdio"),
        "files": public("server-filesystem") | {"write": [str(tmp_path_factory.getbasetemp())]},
        "team": public("server-filesystem", "${project}") | {"sharing": "per-project"},
    }
    with Gateway(servers) as running:
        for name in ("everything", "files"):  # each asks within a second of its first start
            until(partial(asks, running, name), f"{name} asks for roots")
        yield running


def asks(gateway: Gateway, server: str) -> bool:
    """Does the gateway know that this server asks for roots?"""
    return any(event["what"] == "sharing" for event in gateway.events(who=server))


class Agent:
    """A client of the SDK that works in this folder."""

    def __init__(self, gateway: Gateway, folder: Path, mode: Mode) -> None:
        self.folder = folder
        self.client = Client(gateway.url, mode=mode, list_roots_callback=self.roots)

    async def roots(self, context: ClientRequestContext) -> ListRootsResult | ErrorData:
        return ListRootsResult(roots=[Root.model_validate({"uri": self.folder.as_uri()})])

    async def call(self, tool: str, **arguments: object) -> str:
        result = await self.client.call_tool(tool, arguments)
        return cast(TextContent, result.content[0]).text


def folders(base: Path, *names: str) -> list[Path]:
    """Each with a file of its own name."""
    found = [base / name for name in names]
    for folder in found:
        folder.mkdir()
        (folder / "note.txt").write_text(folder.name)
    return found


def names(agents: list[Agent]) -> list[str]:
    return [str(one.folder) for one in agents]


async def answers(agents: list[Agent], tool: str) -> list[str]:
    """What each of these agents gets; none gets the folder of another."""
    texts = await asyncio.gather(*(one.call(tool) for one in agents))
    for name, text in zip(names(agents), texts, strict=True):
        assert not any(other in text for other in names(agents) if other != name), text
    return texts


@pytest.mark.parametrize("callers", [1, 3])
def test_clients_that_come_before_the_server_was_met_get_no_foreign_roots(
    tmp_path: Path, callers: int
) -> None:
    """server-everything asks a moment after it started, and in the first calls of this tool."""
    if why := programs.missing():
        pytest.skip(why)
    tool = "everything__get-roots-list"

    async def main(gateway: Gateway) -> None:
        agents = [Agent(gateway, one, "legacy") for one in folders(tmp_path, "f1", "f2", "f3")]
        async with AsyncExitStack() as stack, asyncio.timeout(WAIT_S):
            for one in agents:
                await stack.enter_async_context(one.client)
            await answers(agents[:callers], tool)
            while not all(map(str.__contains__, await answers(agents, tool), names(agents))):
                pass  # the gateway is still learning that it keeps roots

    with Gateway({"everything": public("server-everything", "stdio") | {"start": "lazy"}}) as fresh:
        asyncio.run(main(fresh))


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_three_clients_with_three_roots_get_each_its_own(
    gateway: Gateway, tmp_path: Path, mode: Mode
) -> None:
    agents = [Agent(gateway, one, mode) for one in folders(tmp_path, "f1", "f2", "f3")]
    async with AsyncExitStack() as stack:
        for one in agents:
            await stack.enter_async_context(one.client)
        for tool in ("everything__get-roots-list", "files__list_allowed_directories"):
            async with asyncio.timeout(WAIT_S):  # a server reads roots after its first answers
                while not all(map(str.__contains__, await answers(agents, tool), names(agents))):
                    pass
            told = await asyncio.gather(*(one.call(tool) for one in agents))
            for one, text in zip(agents, told, strict=True):
                assert str(one.folder) in text
                assert all(str(other.folder) not in text for other in agents if other != one)
        for one in agents:
            path = str(one.folder / "note.txt")
            assert await one.call("files__read_text_file", path=path) == one.folder.name


async def test_five_clients_with_one_root_share_one_process(
    gateway: Gateway, tmp_path: Path
) -> None:
    def processes() -> int:
        return sum(one["name"].startswith("files@") for one in gateway.status()["servers"])

    (folder,) = folders(tmp_path, "same")
    agents = [Agent(gateway, folder, "legacy") for _ in range(5)]
    before = await asyncio.to_thread(processes)
    async with AsyncExitStack() as stack:
        for one in agents:
            await stack.enter_async_context(one.client)
        for text in await answers(agents, "files__list_allowed_directories"):
            assert str(folder) in text
        assert await asyncio.to_thread(processes) == before + 1


async def test_a_client_that_moves_on_takes_its_servers_along(
    gateway: Gateway, tmp_path: Path
) -> None:
    before, after = folders(tmp_path, "before", "after")
    agent = Agent(gateway, before, "legacy")
    async with agent.client, asyncio.timeout(WAIT_S):
        for server in ("everything__get-roots-list", "files__list_allowed_directories"):
            assert str(before) in await agent.call(server)
        agent.folder = after
        await agent.client.session.send_notification(RootsListChangedNotification())
        for server in ("everything__get-roots-list", "files__list_allowed_directories"):
            while str(after) not in (told := await agent.call(server)):
                pass  # the server is still at it
            assert str(before) not in told


async def test_agents_of_one_project_share_a_server_that_is_started_in_it(
    gateway: Gateway, tmp_path: Path
) -> None:
    def processes() -> int:
        return sum(one["name"].startswith("team@") for one in gateway.status()["servers"])

    here, there = folders(tmp_path, "here", "there")
    agents = [
        Agent(gateway, here, "legacy"), Agent(gateway, here, "auto"),
        Agent(gateway, there, "legacy"),
    ]  # fmt: skip
    async with AsyncExitStack() as stack:
        for one in agents:
            await stack.enter_async_context(one.client)
        for one in agents:
            path = str(one.folder / "note.txt")
            assert await one.call("team__read_text_file", path=path) == one.folder.name
        assert await asyncio.to_thread(processes) == 2
