"""Orders one after the other, on a real database: who waits, who does not, and what is in force."""

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from metamcp_supervisor.store.database import BUSY_S_MAX, FILE, DatabaseFile
from metamcp_supervisor.views.ledger_io import IN_PROGRESS, LATE, STOPS, TURN_S_MAX, LedgerKeeper
from metamcp_supervisor.views.store import Store
from metamcp_worker.front_steps import builtin_calls
from metamcp_worker.ipc.disclosure import (
    Activate,
    Amend,
    AnyOrder,
    Build,
    Delete,
    DisclosureState,
    Equip,
    Load,
    OrderOutcome,
    Save,
    ToolSet,
    Unequip,
    ViewContent,
    ViewOrder,
    ViewOwner,
)
from tests.supervisor.locker import locked
from tests.supervisor.stage import until

pytestmark = pytest.mark.process

ME, ANN = ViewOwner("desk", "local"), ViewOwner("desk", "ann")
SESSION = ViewOwner("desk", "local", "8a01")
STATUS, LOG = ("git", "status"), ("git", "log")
NOW = 7.0
DEV = ToolSet("dev", (STATUS,), "", NOW, NOW)


class Kept:
    """A keeper with what it told and noted."""

    def __init__(self, folder: Path, *, busy_s: float = 20.0, turn_s: float = 20.0) -> None:
        self.told: list[DisclosureState] = []
        self.notes: list[str] = []
        self.path = folder / FILE
        store = Store(DatabaseFile(folder, busy_s=busy_s))
        self.keeper = LedgerKeeper(
            store, self.told.append, self.notes.append, lambda: NOW, turn_s=turn_s
        )

    async def ordered(self, order: AnyOrder, whose: ViewOwner = ME) -> OrderOutcome:
        return await self.keeper.carry_out(ViewOrder(whose, order))

    def begun(self, order: AnyOrder, whose: ViewOwner = ME) -> asyncio.Task[OrderOutcome]:
        return asyncio.create_task(self.ordered(order, whose))

    async def file(self) -> DisclosureState:
        """What is on disk."""
        store = Store(DatabaseFile(self.path.parent, busy_s=0.1))
        try:
            return await store.read(())
        finally:
            await store.close()


@asynccontextmanager
async def opened_keeper(
    folder: Path, *, begin: bool = True, busy_s: float = 20.0, turn_s: float = 20.0
) -> AsyncGenerator[Kept]:
    one = Kept(folder, busy_s=busy_s, turn_s=turn_s)
    if begin:
        await one.keeper.begin(())
    try:
        yield one
    finally:
        await one.keeper.close()


# What is in force is what is written


@pytest.mark.promise("M31")
async def test_an_order_is_written_then_told_and_then_answered(tmp_path: Path) -> None:
    async with opened_keeper(tmp_path) as one:
        assert await one.ordered(Build("dev", (STATUS,))) == OrderOutcome(toolset=DEV)
        equipped = ViewContent((STATUS,), toolset="dev")
        assert await one.ordered(Equip("dev")) == OrderOutcome(after=equipped, toolset=DEV)
        now = DisclosureState(((ME, equipped),), (DEV,))
        assert one.told == [DisclosureState((), (DEV,)), now]
        assert one.keeper.read_everything() == await one.file() == now
        assert await one.ordered(Delete("dev")) == OrderOutcome(before=equipped)
        assert one.keeper.read_everything() == await one.file() == DisclosureState()
        assert not one.keeper.busy


async def test_outcomes_tell_of_the_tool_set_that_the_order_was_about(tmp_path: Path) -> None:
    async with opened_keeper(tmp_path) as one:
        await one.ordered(Load((STATUS,)))
        assert (await one.ordered(Save("dev"))).toolset == DEV
        amended = (await one.ordered(Amend("dev", add=(LOG,)))).toolset
        assert amended is not None
        assert amended.tools == (STATUS, LOG)
        assert (await one.ordered(Equip("dev"))).toolset == amended
        assert (await one.ordered(Unequip())).toolset is None


async def test_what_may_not_be_done_is_answered_with_the_sentence_and_the_view(
    tmp_path: Path,
) -> None:
    async with opened_keeper(tmp_path) as one:
        await one.ordered(Activate("git"))
        shown = ViewContent(servers=("git",))
        assert await one.ordered(Equip("dev")) == OrderOutcome(
            "there is no tool set 'dev'; there are: none yet", shown, shown
        )
        assert len(one.told) == 1


async def test_what_changes_nothing_is_neither_written_nor_told(tmp_path: Path) -> None:
    async with opened_keeper(tmp_path) as one:
        assert await one.ordered(Unequip()) == OrderOutcome()
        assert not one.path.exists()
        await one.ordered(Activate("git"))
        with locked(one.path):
            shown = ViewContent(servers=("git",))
            assert await one.ordered(Activate("git")) == OrderOutcome("", shown, shown)
        assert len(one.told) == 1


async def test_an_order_that_cannot_be_written_has_changed_nothing_and_is_said_once(
    tmp_path: Path,
) -> None:
    async with opened_keeper(tmp_path, busy_s=0.05) as one:
        await one.ordered(Build("dev", (STATUS,)))
        before = one.keeper.read_everything()
        why = f"{one.path} cannot be written: another program keeps it locked; try again"
        with locked(one.path):
            for order in (
                Equip("dev"),
                Delete("dev"),
                Build("new", (LOG,), equip=True),
            ):
                assert await one.ordered(order) == OrderOutcome(why)
                assert one.keeper.read_everything() == before
        assert one.notes == [f"tool sets, views and scripts cannot be kept: {why}"]
        assert len(one.told) == 1
        assert await one.file() == before
        assert (await one.ordered(Equip("dev"))).error == ""
        with locked(one.path):
            await one.ordered(Unequip())
        assert len(one.notes) == 2, "it is told again when it happens again"


async def test_an_order_whose_asker_goes_away_is_carried_out_whole(tmp_path: Path) -> None:
    async with opened_keeper(tmp_path) as one:
        await one.ordered(Build("dev", (STATUS,)))
        with locked(one.path) as lock:
            order = one.begun(Equip("dev"))
            await until(lambda: one.keeper.busy, "it is under way")
            order.cancel()
            await asyncio.wait([order])
            assert order.cancelled()
            assert one.keeper.busy
            await asyncio.to_thread(lock.release)
            await until(lambda: not one.keeper.busy, "it is done")
        assert one.keeper.read_everything() == await one.file() != DisclosureState((), (DEV,))


# Turns


async def test_while_an_order_is_carried_out_an_equip_fails_at_once_and_an_unequip_waits(
    tmp_path: Path,
) -> None:
    async with opened_keeper(tmp_path) as one:
        await one.ordered(Build("dev", (STATUS,)))
        with locked(one.path) as lock:
            first = one.begun(Equip("dev"))
            await until(lambda: one.keeper.busy, "it is under way")
            for order in (Equip("dev"), Build("new", (LOG,), equip=True)):
                assert await one.ordered(order) == OrderOutcome(IN_PROGRESS)
            last = one.begun(Unequip())
            done, _ = await asyncio.wait([first, last], timeout=0.1)
            assert not done
            await asyncio.to_thread(lock.release)
            equipped = ViewContent((STATUS,), toolset="dev")
            assert await first == OrderOutcome(after=equipped, toolset=DEV)
            assert await last == OrderOutcome(before=equipped)
        assert one.told[-2:] == [
            DisclosureState(((ME, equipped),), (DEV,)),
            DisclosureState((), (DEV,)),
        ]
        assert (await one.ordered(Equip("dev"))).error == "", "nothing is in progress any more"


async def test_the_view_of_somebody_else_is_not_in_progress(tmp_path: Path) -> None:
    async with opened_keeper(tmp_path) as one:
        await one.ordered(Build("dev", (STATUS,)))
        with locked(one.path) as lock:
            both = [one.begun(Equip("dev")), one.begun(Equip("dev"), ANN)]
            done, _ = await asyncio.wait(both, timeout=0.1)
            assert not done
            await asyncio.to_thread(lock.release)
            assert [each.error for each in await asyncio.gather(*both)] == ["", ""]


async def test_an_order_that_waits_too_long_for_its_turn_is_told_so(tmp_path: Path) -> None:
    async with opened_keeper(tmp_path, turn_s=0.1) as one:
        await one.ordered(Build("dev", (STATUS,)))
        with locked(one.path) as lock:
            first = one.begun(Equip("dev"))
            await until(lambda: one.keeper.busy, "it is under way")
            assert await one.ordered(Unequip()) == OrderOutcome(LATE)
            await asyncio.to_thread(lock.release)
            assert (await first).error == ""
        assert one.keeper.read_everything() == await one.file()


def test_a_front_hears_of_its_order_before_it_gives_up() -> None:
    assert TURN_S_MAX + 3 * BUSY_S_MAX < builtin_calls.ORDER_S_MAX


# Files that are no good


async def test_a_file_that_cannot_be_read_refuses_orders_until_somebody_moves_it_away(
    tmp_path: Path,
) -> None:
    garbage = b"this is no database\n" * 100
    (tmp_path / FILE).write_bytes(garbage)
    async with opened_keeper(tmp_path) as one:
        why = (
            f"{one.path} cannot be read, so it stays as it is: file is not a database; repair it,"
            " or move it away to begin anew"
        )
        assert one.notes == [f"tool sets, views and scripts cannot be kept: {why}"]
        assert one.keeper.read_everything() == DisclosureState()
        for order in (Build("dev", (STATUS,)), Unequip(), Equip("dev")):
            assert await one.ordered(order) == OrderOutcome(why)
        assert len(one.notes) == 1
        assert one.path.read_bytes() == garbage
        one.path.rename(tmp_path / "away")
        assert (await one.ordered(Build("dev", (STATUS,)))).error == ""
        assert (await one.file()).toolsets == (DEV,)


async def test_what_could_not_be_read_at_first_is_told_when_it_can(tmp_path: Path) -> None:
    async with opened_keeper(tmp_path) as one:
        await one.ordered(Build("dev", (STATUS,), equip=True))
    async with opened_keeper(tmp_path, begin=False, busy_s=0.05) as one:
        with locked(one.path):
            await one.keeper.begin(())
        assert (one.told, len(one.notes)) == ([], 1)
        assert (await one.ordered(Unequip(), ANN)).error == ""
        assert one.told == [DisclosureState(((ME, ViewContent((STATUS,), toolset="dev")),), (DEV,))]


# Sessions, and the end


async def test_sessions_that_end_take_their_own_views_with_them(tmp_path: Path) -> None:
    async with opened_keeper(tmp_path) as one:
        for whose in (ME, SESSION):
            await one.ordered(Activate("git"), whose)
        await one.keeper.forget(["ffff"])
        assert len(one.told) == 2
        await one.keeper.forget(["8a01"])
        left = DisclosureState(((ME, ViewContent(servers=("git",))),))
        assert one.told[-1] == one.keeper.read_everything() == await one.file() == left


async def test_a_session_that_ends_during_its_order_leaves_no_view(tmp_path: Path) -> None:
    async with opened_keeper(tmp_path) as one:
        await one.ordered(Build("dev", (STATUS,)))
        with locked(one.path) as lock:
            order = one.begun(Equip("dev"), SESSION)
            await until(lambda: one.keeper.busy, "it is under way")
            over = asyncio.create_task(one.keeper.forget(["8a01"]))
            done, _ = await asyncio.wait([order, over], timeout=0.1)
            assert not done
            await asyncio.to_thread(lock.release)
            await over
            assert (await order).error == ""
        assert one.keeper.read_everything() == DisclosureState((), (DEV,))


async def test_a_session_that_ends_while_nothing_can_be_written_has_no_view_either(
    tmp_path: Path,
) -> None:
    async with opened_keeper(tmp_path, busy_s=0.05) as one:
        await one.ordered(Activate("git"), SESSION)
        with locked(one.path):
            await one.keeper.forget(["8a01"])
        assert one.told[-1] == one.keeper.read_everything() == DisclosureState()
        assert len(one.notes) == 1
        assert await one.file() == DisclosureState(), "who starts next does not read it"


async def test_the_end_waits_for_what_is_under_way_and_takes_no_more_orders(tmp_path: Path) -> None:
    async with opened_keeper(tmp_path) as one:
        await one.ordered(Build("dev", (STATUS,)))
        with locked(one.path) as lock:
            order = one.begun(Equip("dev"))
            await until(lambda: one.keeper.busy, "it is under way")
            close = asyncio.create_task(one.keeper.close())
            done, _ = await asyncio.wait([order, close], timeout=0.1)
            assert not done
            assert await one.ordered(Unequip()) == OrderOutcome(STOPS)
            await asyncio.to_thread(lock.release)
            assert (await order).error == ""
            await close
        assert (await one.file()).views == ((ME, ViewContent((STATUS,), toolset="dev")),)


async def test_a_gateway_without_tool_sets_has_no_file_and_no_thread(tmp_path: Path) -> None:
    threads = len(os.listdir("/proc/self/task"))
    async with opened_keeper(tmp_path) as one:
        assert one.keeper.read_everything() == DisclosureState()
        await one.keeper.forget(["8a01"])
        assert len(os.listdir("/proc/self/task")) <= threads, "those of other tests may end"
    assert os.listdir(tmp_path) == []
