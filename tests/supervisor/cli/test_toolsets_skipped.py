"""What `metamcp toolsets` says of what is not in view, or not any more."""

import json

import pytest

from metamcp_worker.ipc.disclosure import Activate, Equip, Load, ViewOrder, ViewOwner
from tests.supervisor.control.test_toolsets import made, said
from tests.supervisor.small_gateway import server, steered

pytestmark = pytest.mark.process


@pytest.mark.promise("M34")
async def test_an_equipped_set_of_which_a_server_is_away_is_warned_of() -> None:
    async with steered(server("git"), server("db", "stopped")) as (gateway, directory):
        await made(gateway)
        warning = "db server unavailable (stopped), skipping tools: db.query"
        assert await said(directory, "equip", "dev") == (
            0, "dev: equipped on endpoint desk\n", f"metamcp: {warning}\n",
        )  # fmt: skip
        _, out, err = await said(directory, "equip", "dev", "--json")
        assert (json.loads(out)["warnings"], err) == ([warning], "")
        arguments = ("create", "x", "svn.log", "--force", "--equip")
        _, _, err = await said(directory, *arguments)
        why = "svn server unavailable (not configured), skipping tools: svn.log"
        assert err == f"metamcp: {why}\n"


@pytest.mark.promise("M34")
async def test_an_equipped_set_with_a_tool_in_quarantine_is_warned_of() -> None:
    async with steered(server("git"), server("db")) as (gateway, directory):
        await made(gateway)
        gateway.shelf.quarantined = frozenset({("db", "query"), ("git", "log")})
        assert await said(directory, "equip", "dev") == (
            0,
            "dev: equipped on endpoint desk\n",
            "metamcp: db server has tools in quarantine, skipping tools: db.query\n",
        )


async def test_what_was_in_view_without_a_tool_set_is_told_when_it_is_put_away() -> None:
    async with steered(server("git"), server("db")) as (gateway, directory):
        log, query = ("git", "log"), ("db", "query")
        cases: list[tuple[list[Load | Activate], str]] = [
            ([Load((log,))], "1 tool is"),
            ([Load((log, query))], "2 tools are"),
            ([Activate("git"), Activate("db")], "everything of 2 servers is"),
            ([Load((log,)), Activate("db")], "1 tool and everything of 1 server are"),
        ]
        for orders, told in cases:
            for order in orders:
                await gateway.shelf.carry_out(ViewOrder(ViewOwner("desk", "local"), order))
            assert await said(directory, "unequip") == (
                0, f"endpoint desk: {told} not in view any more\n", "",
            )  # fmt: skip


@pytest.mark.promise("M34")
async def test_what_is_put_away_where_everything_is_in_view_is_only_not_remembered() -> None:
    """It was in view there while the endpoint had another exposure."""
    stay = "all tools are in view, whatever is equipped"
    async with steered(server("git"), server("db")) as (gateway, directory):
        await made(gateway)
        cases: list[tuple[Load | Activate | Equip, str]] = [
            (Equip("dev"), "dev is not equipped any more"),
            (Load((("git", "log"),)), "what was chosen with another exposure is forgotten"),
            (Activate("git"), "what was chosen with another exposure is forgotten"),
        ]
        for order, told in cases:
            await gateway.shelf.carry_out(ViewOrder(ViewOwner("wide", "local"), order))
            assert await said(directory, "unequip", "--endpoint", "wide") == (
                0, f"endpoint wide: {told}; {stay}\n", "",
            )  # fmt: skip
