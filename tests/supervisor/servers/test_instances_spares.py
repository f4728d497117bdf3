"""Second copies of servers on real control sockets, with workers that the tests play."""

import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from metamcp_supervisor.config.config import Server
from metamcp_worker.ipc.messages import AttachFront, AttachServer, Stop
from tests.supervisor.stage import (
    Player,
    Stage,
    opened_stage,
    staged_front,
    states,
    until,
)

pytestmark = pytest.mark.process

GIT = Server(name="git", source="x", command=("git-server",), spares=1)


async def pair(stage: Stage, number: int = 1) -> tuple[Player, Player]:
    """The copy that serves, and its spare, both ready."""
    serving = await stage.up("git", number)
    spare = await stage.player(f"git#{number + 1}")
    spare.ready()
    await until(lambda: stage.told("git")[-1] == "spare ready", "the spare is ready")
    return serving, spare


@pytest.mark.promise("M76")
async def test_a_spare_takes_over_when_the_server_goes_down_and_gets_a_spare_itself(
    tmp_path: Path,
) -> None:
    async with staged_front(tmp_path, GIT) as (stage, front):
        serving, spare = await pair(stage)
        assert not spare.told(AttachFront)
        serving.down("signal", "SIGKILL ended it")
        await until(lambda: spare.told(AttachFront), "the spare is connected")
        life = stage.manager.entries["git"].life
        assert (life.phase, life.generation, life.reason, life.failures) == (
            "ready",
            2,
            "signal",
            1,
        )
        assert [m.generation for m in front.told(AttachServer)] == [1, 2]
        assert states(front)[-1] == ("ready", True)
        assert not spare.told(Stop)
        await stage.player("git#3")
        assert stage.told("git").count("ready→ready") == 1
        assert stage.manager.entries["git"].restarts == 1


async def test_a_worker_that_is_killed_is_replaced_by_the_spare_too(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        serving, _ = await pair(stage)
        serving.leave(None, signal.SIGKILL)
        await until(lambda: stage.manager.entries["git"].life.generation == 2, "the spare serves")
        assert stage.manager.entries["git"].life.phase == "ready"


async def test_a_server_without_a_ready_spare_starts_again_in_the_usual_way(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        serving = await stage.up("git")
        spare = await stage.player("git#2")
        serving.down()
        await until(lambda: spare.told(Stop), "the one that is not ready is not waited for")
        spare.down("clean", "it was stopped")
        await stage.up("git", 3)


async def test_a_spare_that_does_not_come_up_changes_nothing_and_is_tried_again_later(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        await stage.up("git")
        (await stage.player("git#2")).down()
        await stage.player("git#3")
        life = stage.manager.entries["git"].life
        assert (life.phase, life.generation, life.failures) == ("ready", 1, 0)
        assert "spare down" in stage.told("git")


@pytest.mark.promise("M72")
async def test_a_restart_lets_the_spare_take_over_before_the_old_copy_is_told_to_finish(
    tmp_path: Path,
) -> None:
    async with staged_front(tmp_path, GIT) as (stage, front):
        serving, spare = await pair(stage)
        stage.manager.restart("git")
        await until(lambda: serving.told(Stop), "the old copy finishes")
        assert spare.told(AttachFront)
        assert serving.told(Stop)[-1].grace_s > 0
        serving.down("clean", "it was stopped")
        await until(lambda: not stage.manager.entries["git"].leaving, "it is gone")
        assert [state for state, _ in states(front)] == ["idle", "warming", "ready"]
        assert stage.manager.entries["git"].life.failures == 0


@pytest.mark.promise("M78")
async def test_another_configuration_is_ready_before_the_old_copy_goes(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        serving, spare = await pair(stage)
        stage.manager.change(replace(GIT, command=("other",)), restart=True)
        await until(lambda: spare.told(Stop), "the spare of the old configuration goes")
        assert not serving.told(Stop)
        spare.down("clean", "it was stopped")
        newer = await stage.player("git#3")
        newer.ready(tools=2)
        await until(lambda: serving.told(Stop), "the old copy finishes")
        entry = stage.manager.entries["git"]
        assert (entry.life.generation, entry.offer.tools) == (3, 2)


async def test_who_is_stopped_or_may_have_no_spare_any_more_has_none(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        serving, spare = await pair(stage)
        stage.manager.change(replace(GIT, spares=0), restart=False)
        await until(lambda: spare.told(Stop), "the spare goes")
        assert not serving.told(Stop)
        spare.down("clean", "it was stopped")
        stage.manager.change(GIT, restart=False)
        another = await stage.player("git#3")
        stage.manager.stop("git")
        await until(lambda: another.told(Stop) and serving.told(Stop), "both go")
        for player in (serving, another):
            player.down("clean", "it was stopped")
        await stage.phase("git", "disabled")
        await until(lambda: not stage.manager.entries["git"].is_running, "nothing is left")
