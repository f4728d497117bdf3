"""Quotas over the ends of fronts and programs, on a real database, with fronts that tests play."""

import asyncio
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest

from metamcp_supervisor.keys.quotas import Quotas
from metamcp_supervisor.store.database import FILE, DatabaseFile
from metamcp_worker.access.use_limits import DAY_S, Owner
from metamcp_worker.ipc.figures import DayCount, DayCounts
from metamcp_worker.ipc.messages import Listen, Stop
from tests.supervisor.stage import Player, Stage, front_up, opened_stage, until

pytestmark = [pytest.mark.process, pytest.mark.promise("M66")]

TODAY = 20_000
DEV: Owner = ("endpoint", "dev")
BOB: Owner = ("key", "bob")


class Program:
    """One program after another on the same state directory. `noted`: errors."""

    def __init__(self, stage: Stage, folder: Path, *, places: int = 1, day: int = TODAY) -> None:
        self.day = day
        self.noted: list[str] = []
        self.database = DatabaseFile(folder, busy_s=0.1)
        self.quotas = Quotas(
            self.database, lambda: self.day * DAY_S + 5.0, stage.fronts.list_serving,
            lambda: places, self.noted.append,
        )  # fmt: skip
        stage.quotas = self.quotas

    async def end(self) -> None:
        await self.quotas.close()
        await self.database.close()


def calls(owner: Owner, count: int, day: int = TODAY) -> DayCounts:
    return DayCounts(counts=(DayCount(*owner, day, count),))


async def resumed(front: Player) -> dict[Owner, int]:
    """What a front was told before it was to listen, and since."""
    await until(lambda: front.told(Listen), "the front is to listen")
    return total(one for message in front.told(DayCounts) for one in message.counts)


def told(program: Program, calls: dict[Owner, int]) -> bool:
    return program.quotas.today() == calls and not program.quotas.busy


def total(counts: Iterable[DayCount]) -> dict[Owner, int]:
    found: dict[Owner, int] = {}
    for one in counts:
        found[one.kind, one.name] = found.get((one.kind, one.name), 0) + one.calls
    return found


async def test_a_front_goes_on_where_the_one_before_in_its_place_ended(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        program = Program(stage, tmp_path)
        await program.quotas.begin()
        front = await front_up(stage)
        assert await resumed(front) == {}
        front.say(calls(DEV, 3))
        front.say(calls(BOB, 2))
        front.say(calls(DEV, 4))
        front.leave(None, 9)
        after = await until(lambda: next(iter(stage.players[1:]), None), "another front")
        assert await resumed(after) == {DEV: 7, BOB: 2}
        assert program.quotas.today() == {DEV: 7, BOB: 2}


async def test_the_next_program_goes_on_and_each_front_has_its_share(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        before = Program(stage, tmp_path)
        await before.quotas.begin()
        front = await front_up(stage)
        front.say(calls(DEV, 3))
        front.say(calls(BOB, 4))
        await until(lambda: len(before.quotas.today()) == 2, "it has heard of both")
        await before.end()
        program = Program(stage, tmp_path, places=2)
        await program.quotas.begin()
        assert program.quotas.today() == {DEV: 3, BOB: 4}
        front.say(calls(DEV, 1))
        front.leave(None, 9)
        after = await until(lambda: next(iter(stage.players[1:]), None), "another front")
        assert await resumed(after) == {DEV: 3, BOB: 2}
        await program.end()


async def test_calls_that_a_front_still_has_while_another_takes_its_place_count_there(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        program = Program(stage, tmp_path)
        await program.quotas.begin()
        front = await front_up(stage)
        front.say(calls(DEV, 3))
        await until(program.quotas.today, "it is told")
        rolled = asyncio.create_task(stage.fronts.roll())
        after = await until(lambda: next(iter(stage.players[1:]), None), "the other front")
        assert await resumed(after) == {DEV: 3}
        after.ready()
        await until(lambda: front.told(Stop), "the first one is to end")
        front.say(calls(DEV, 2))
        front.leave(0)
        await rolled
        await until(lambda: len(after.told(DayCounts)) == 2, "the other front is told")
        assert await resumed(after) == {DEV: 5} == program.quotas.today()
        assert front.told(DayCounts) == []


async def test_another_day_begins_with_nothing_and_late_counts_of_the_last_are_dropped(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        program = Program(stage, tmp_path)
        await program.quotas.begin()
        front = await front_up(stage)
        front.say(calls(DEV, 3))
        await until(lambda: program.quotas.today() == {DEV: 3}, "it is told")
        program.day += 1
        assert program.quotas.today() == {}
        front.say(calls(BOB, 9))
        front.say(calls(DEV, 1, TODAY + 1))
        await until(lambda: program.quotas.today() == {DEV: 1}, "it is told")
        await program.end()
        for day, found in ((TODAY, {}), (TODAY + 1, {DEV: 1})):
            later = Program(stage, tmp_path, day=day)
            await later.quotas.begin()
            assert later.quotas.today() == found
            await later.end()


async def test_where_nothing_can_be_written_it_is_said_once_and_the_counts_go_on(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        program = Program(stage, tmp_path)
        await program.quotas.begin()
        (tmp_path / FILE).mkdir()
        front = await front_up(stage)
        for number in (1, 2):
            front.say(calls(DEV, 1))
            await until(partial(told, program, {DEV: number}), "it is told and tried")
        (said,) = program.noted
        assert said.startswith("a restart would forget calls of today: ")
        (tmp_path / FILE).rmdir()
        front.say(calls(BOB, 1))
        await until(lambda: program.quotas.today().total() == 3, "it is told")
        await program.end()
        later = Program(stage, tmp_path)
        await later.quotas.begin()
        assert later.quotas.today() == {DEV: 2, BOB: 1}
        await later.end()


async def test_without_a_quota_no_file_is_made(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        program = Program(stage, tmp_path / "state")
        await program.quotas.begin()
        assert await resumed(await front_up(stage)) == {}
        await program.end()
    assert not (tmp_path / "state").exists()
