"""The fronts' lives, on real control sockets, with fronts that the tests play."""

import asyncio
import signal
from functools import partial
from pathlib import Path

import pytest

from metamcp_supervisor.lives import backoff, fronts
from metamcp_supervisor.lives.spawn import WorkerExit
from metamcp_worker import codec
from metamcp_worker.messages import (
    CallStats,
    FrontStats,
    Listen,
    Reconfigure,
    ServeOn,
    Stop,
)
from tests.supervisor.stage import Player, Stage, played, until

pytestmark = pytest.mark.process

FIGURES = FrontStats(connections=1, streams=0, inflight={}, sessions={}, refused={})


async def nth(stage: Stage, count: int, slot: int = 0) -> Player:
    """The front that is the `count`-th in this slot."""

    def found() -> Player | None:
        players = [player for player in stage.players if player.name == f"front-{slot}"]
        return players[count - 1] if len(players) >= count else None

    return await until(found, f"front number {count}")


async def ready(stage: Stage, player: Player) -> None:
    player.ready()
    await until(
        lambda: any(f.pid == player.pid and f.ready for f in stage.fronts.serving()), "ready"
    )


def test_a_front_is_told_to_serve_and_then_to_listen(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        stage.fronts.start(2)
        for slot in (0, 1):
            player = await nth(stage, 1, slot)
            await until(partial(player.told, Listen), "told to listen")
            assert [type(message) for message in player.heard] == [ServeOn, Listen]
        assert {front.number for front in stage.fronts.serving()} == {0, 1}

    played(tmp_path, play)


def test_a_ready_front_that_is_killed_comes_back_at_once_however_often(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        stage.fronts.start(1)
        for count in range(1, backoff.CRASHES_MAX + 5):
            player = await nth(stage, count)
            await ready(stage, player)
            player.leave(None, signal.SIGKILL)
        assert stage.hopes == []
        await until(lambda: len(stage.gone_fronts) > backoff.CRASHES_MAX, "they are counted out")
        assert stage.gone_fronts == sorted(set(stage.gone_fronts)), "no number is used twice"

    played(tmp_path, play)


def test_a_front_that_crashes_is_started_again(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        stage.fronts.start(1)
        for count in (1, 2):
            (await nth(stage, count)).leave(1)
        await nth(stage, 3)
        assert stage.hopes == []

    played(tmp_path, play)


def test_the_last_figures_of_a_front_are_counted_before_it_is_gone(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        stage.fronts.start(1)
        player = await nth(stage, 1)
        await ready(stage, player)
        stage.fronts.exited(WorkerExit(player.pid, 0, 0, 0, "exit"))
        player.say(FIGURES, codec.dump([CallStats("git", "ping", 1, 0.1, (1,), {})]))
        player.close()
        await until(lambda: stage.gone_fronts, "gone")
        assert [one.server for one in stage.figures[0]] == ["git"]

    played(tmp_path, play)


def test_a_new_configuration_reaches_every_front(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        stage.fronts.start(1)
        player = await nth(stage, 1)
        stage.fronts.reconfigure()
        await until(lambda: player.told(Reconfigure), "told")

    played(tmp_path, play)


@pytest.mark.parametrize("obedient", [True, False])
def test_a_drain_ends_with_no_front(tmp_path: Path, obedient: bool) -> None:
    async def play(stage: Stage) -> None:
        stage.fronts.start(1)
        player = await nth(stage, 1)
        await ready(stage, player)
        grace_s = 5.0 if obedient else -fronts.FAREWELL_S
        drain = asyncio.create_task(stage.fronts.drain(grace_s))
        await until(lambda: player.told(Stop), "told to stop")
        if obedient:
            player.leave(0)
        await drain
        assert stage.fronts.serving() == []
        assert (signal.SIGKILL in player.signals) == (not obedient)
        assert len(stage.players) == 1, "it is not replaced"

    played(tmp_path, play)


def test_a_front_that_cannot_be_forked_is_tried_again(tmp_path: Path) -> None:
    async def play(stage: Stage) -> None:
        stage.refuse = "no processes left"
        stage.fronts.start(1)
        await until(lambda: "error" in stage.told("front-0"), "refused")
        stage.refuse = ""
        await nth(stage, 1)

    played(tmp_path, play)
