"""Fronts that work and are replaced one after the other, with fronts that the tests play."""

import asyncio
import signal
from functools import partial
from pathlib import Path

import pytest

from metamcp_supervisor.fronts import fronts
from metamcp_supervisor.fronts.front import FrontNotReplaced
from metamcp_worker.ipc.messages import AdoptSessions, SessionKept, Stop
from tests.supervisor.fronts.test_fronts import names, nth, ready, session
from tests.supervisor.stage import Player, Stage, opened_stage, until

pytestmark = pytest.mark.process


async def begun(stage: Stage, count: int = 1) -> list[Player]:
    stage.fronts.start(count)
    players = [await nth(stage, 1, slot) for slot in range(count)]
    for player in players:
        await ready(stage, player)
    return players


async def refused(roll: asyncio.Task[None]) -> str:
    with pytest.raises(FrontNotReplaced) as found:
        await roll
    return str(found.value)


@pytest.mark.promise("M79")
async def test_a_roll_stops_no_front_before_its_successor_serves_and_only_one_at_a_time(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        olds = await begun(stage, 2)
        roll = asyncio.create_task(stage.fronts.roll())
        for slot, old in enumerate(olds):
            new = await nth(stage, 2, slot)
            assert old.told(Stop) == []
            assert [one.told(Stop) for one in olds[slot:]] == [[]] * len(olds[slot:])
            await ready(stage, new)
            await until(partial(old.told, Stop), "now it may go")
            assert stage.fronts.slots[slot] is not None
            old.leave(0)
        await roll
        assert len(stage.players) == 4
        assert [front.pid for front in stage.fronts.list_serving()] == [
            player.pid for player in stage.players[2:]
        ]


@pytest.mark.promise("M79")
async def test_the_sessions_of_a_front_that_is_replaced_go_to_its_successor(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        (old,) = await begun(stage)
        old.say(SessionKept(), session("a"))
        roll = asyncio.create_task(stage.fronts.roll(0))
        new = await nth(stage, 2)
        await ready(stage, new)
        await until(partial(old.told, Stop), "it may go")
        old.say(SessionKept(), session("b"))
        assert new.told(AdoptSessions) == [], "it finishes what is in flight in them"
        old.leave(0)
        await roll
        await until(partial(new.told, AdoptSessions), "they are adopted")
        assert names(new.fds[-1]) == ["a", "b"]


async def test_a_front_stays_whose_successor_does_not_become_ready(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        (old,) = await begun(stage)
        roll = asyncio.create_task(stage.fronts.roll())
        (await nth(stage, 2)).leave(1)
        assert await refused(roll) == "front-0 stays: its successor did not become ready"
        assert [front.pid for front in stage.fronts.list_serving()] == [old.pid]
        assert (old.told(Stop), stage.hopes, len(stage.players)) == ([], [], 2)
        stage.refuse = "no processes left"
        again = asyncio.create_task(stage.fronts.roll())
        assert "no processes left" in await refused(again)


async def test_a_front_that_crashes_while_it_is_replaced_is_replaced_once(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        (old,) = await begun(stage)
        roll = asyncio.create_task(stage.fronts.roll())
        rolled = await nth(stage, 2)
        old.leave(None, signal.SIGKILL)
        launched = await nth(stage, 3)
        await ready(stage, launched)
        rolled.ready()
        await roll
        await until(partial(rolled.signals.count, signal.SIGKILL), "one is enough")
        await until(lambda: len(stage.fronts.list_serving()) == 1, "it is gone")
        assert stage.fronts.list_serving()[0].pid == launched.pid


async def test_a_front_that_does_not_finish_for_its_successor_is_killed(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        (old,) = await begun(stage)
        roll = asyncio.create_task(stage.fronts.roll(0, -fronts.FAREWELL_S))
        new = await nth(stage, 2)
        await ready(stage, new)
        await roll
        assert signal.SIGKILL in old.signals
        assert [front.pid for front in stage.fronts.list_serving()] == [new.pid]


async def test_a_drain_in_the_middle_of_a_roll_ends_with_no_front(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        (old,) = await begun(stage)
        roll = asyncio.create_task(stage.fronts.roll())
        new = await nth(stage, 2)
        await until(lambda: len(stage.fronts.list_serving()) == 2, "both are there")
        drain = asyncio.create_task(stage.fronts.drain(5.0))
        for player in (old, new):
            await until(partial(player.told, Stop), "told to stop")
            player.leave(0)
        await drain
        await refused(roll)
        assert stage.fronts.list_serving() == []
        assert len(stage.players) == 2
