"""Orders that meet: a database that another program keeps locked holds the first one open."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client as Sdk
from mcp_types import CallToolResult

from metamcp_supervisor.store.database import FILE
from tests.live.gateway import Gateway
from tests.live.raw import MODERN, Raw
from tests.live.viewed import (
    SETS,
    called,
    done,
    endpoint,
    eras,
    heard,
    listeners,
    named,
    names,
    opened_client,
    refused,
    said,
)
from tests.supervisor.locker import locked

pytestmark = [pytest.mark.live, pytest.mark.promise("M33")]

IN_PROGRESS = [
    f"Failed to {verb} toolset: operation in progress, please wait" for verb in ("equip", "build")
]
TRIES = 5
"""The database waits 2 s for the other program; a machine that is busy for so long is given another
chance."""
SETS_OF = {"dev-tools": "git_status", "data-tools": "db_query"}


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    keys = {"exposure": '"toolset"', "naming": '{ style = "flat" }'}
    servers = {"git": named("status"), "db": named("query")}
    extra = endpoint("default", **keys) + endpoint("other", **keys)
    with Gateway(servers, extra=extra) as running:
        client = Raw(running.port, MODERN)
        for name, tool in SETS_OF.items():
            assert not called(client, "build-toolset", name=name, tools=[tool])["isError"]
        yield running


def database(gateway: Gateway) -> Path:
    return gateway.folder / "state" / FILE


class Late(Exception):
    """The first order was given up before the others had come."""


async def tried(gateway: Gateway, mode: str, test: Callable[[Sdk], Awaitable[None]]) -> None:
    """The same once more for as long as it was too late."""
    for number in range(TRIES):
        try:
            async with opened_client(gateway, mode) as client:
                await test(client)
        except* Late:
            assert number + 1 < TRIES, "never in time"
        else:
            return


def in_time(result: CallToolResult) -> Any:
    """What came of an order that the lock held open."""
    if result.is_error and "keeps it locked" in said(result):
        raise Late
    assert not result.is_error, said(result)
    return result.structured_content


def check_in_progress(refusals: list[str]) -> None:
    """Each was refused because of an order that is carried out. Raises Late."""
    if any("keeps it locked" in why for why in refusals):
        raise Late
    for why in refusals:
        assert why in IN_PROGRESS


@eras
async def test_while_one_equip_is_carried_out_another_fails_at_once_and_an_unequip_waits_for_it(
    gateway: Gateway, mode: str
) -> None:
    async def work(client: Sdk) -> None:
        await done(client, "unequip-toolset")
        async with asyncio.TaskGroup() as orders:

            def order(tool: str, **given: object) -> asyncio.Task[CallToolResult]:
                return orders.create_task(client.call_tool(tool, given))

            with locked(database(gateway)) as lock:
                both = {order("equip-toolset", name=name) for name in SETS_OF}
                over, left = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                check_in_progress([said(one.result()) for one in over])
                (first,) = left  # whichever came first is carried out
                check_in_progress([
                    await refused(client, "equip-toolset", name="data-tools"),
                    await refused(
                        client, "build-toolset", name="new", tools=["git_status"], autoEquip=True
                    ),
                ])  # fmt: skip
                last = order("unequip-toolset")
                assert await names(client) == SETS, "nothing is in view before it is done"
                await asyncio.to_thread(lock.release)
        equipped = in_time(first.result())
        assert list(equipped["registeredTools"]) == [SETS_OF[equipped["toolset"]["name"]]]
        assert in_time(last.result())["unequipped"] == equipped["toolset"]["name"]
        assert await names(client) == SETS
        assert await done(client, "equip-toolset", name="data-tools"), "nothing is in progress"

    await tried(gateway, mode, work)


@eras
async def test_an_equip_on_another_endpoint_waits_for_its_turn_and_succeeds(
    gateway: Gateway, mode: str
) -> None:
    async def work(client: Sdk) -> None:
        await done(client, "unequip-toolset")
        where = f"http://127.0.0.1:{gateway.port}/metamcp/other/mcp"
        async with Sdk(where, mode=mode) as other:
            await done(other, "unequip-toolset")
            with locked(database(gateway)) as lock:
                orders = [
                    asyncio.create_task(one.call_tool("equip-toolset", {"name": "dev-tools"}))
                    for one in (client, other)
                ]
                assert await names(other) == SETS
                await asyncio.to_thread(lock.release)
            for result in await asyncio.gather(*orders):
                in_time(result)
            assert await names(other) == await names(client) == [*SETS, "git_status"]

    await tried(gateway, mode, work)


@eras
async def test_an_equip_that_cannot_be_written_changes_nothing_and_says_why(
    gateway: Gateway, mode: str
) -> None:
    async with opened_client(gateway, mode) as client:
        await done(client, "equip-toolset", name="data-tools")
        before = await names(client)
        with listeners(gateway) as streams:
            with locked(database(gateway)):
                why = await refused(client, "equip-toolset", name="dev-tools")
            assert why == (
                f"Failed to equip toolset: {database(gateway)} cannot be written: another program"
                " keeps it locked; try again"
            )
            assert await names(client) == before == [*SETS, "db_query"]
            await done(client, "equip-toolset", name="dev-tools")
            heard(streams)
        assert await names(client) == [*SETS, "git_status"]
