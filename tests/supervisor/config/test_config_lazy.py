"""Servers that start when they are called, and servers that wait for others, on real sockets."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from metamcp_supervisor.config.config import Server
from metamcp_supervisor.servers.server import LISTED_S
from metamcp_worker.ipc import server_catalog
from metamcp_worker.ipc.messages import CallStats, Heartbeat, ServerReady, ServerState, Stop
from metamcp_worker.ipc.server_catalog import ServerCatalogue
from tests.supervisor.stage import (
    Player,
    Stage,
    front_up,
    opened_stage,
    staged_front,
    states,
    until,
)

pytestmark = pytest.mark.process

GIT = Server(name="git", source="x", command=("git-server",), start="lazy", start_timeout_s=7.0)
DB = Server(name="db", source="x", command=("db-server",))
APP = Server(name="app", source="x", command=("app-server",), depends_on=("db",))


async def known(state_dir: Path) -> None:
    """The catalogue of `git` is on the disk."""
    async with opened_stage(state_dir) as stage:
        stage.manager.add(GIT)
        await stage.up("git")


async def test_a_lazy_server_is_listed_and_runs_only_when_it_is_called(tmp_path: Path) -> None:
    await known(tmp_path)
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        front = await front_up(stage)
        await until(lambda: states(front) == [("idle", True)], "listed")
        assert [one.name for one in stage.players] == ["front-0"]
        assert front.told(ServerState)[-1].hold_ms == 7000
        stage.manager.on_server_wanted("git")
        await stage.up("git")
        await until(lambda: states(front)[-1] == ("ready", True), "ready")


async def test_a_lazy_server_of_which_nothing_is_known_starts_once_to_be_listed(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        await stage.up("git")


async def test_a_lazy_server_that_was_started_to_be_listed_stops_when_its_lists_are_read(
    tmp_path: Path,
) -> None:
    async with staged_front(tmp_path, GIT) as (stage, front):
        worker = await stage.up("git")
        worker.say(Heartbeat(seq=1, idle_s=LISTED_S))
        await until(lambda: worker.told(Stop), "asked to stop")
        worker.down("clean", "it was stopped")
        await stage.phase("git", "idle")
        assert states(front)[-1] == ("idle", True)
        (event,) = [one for one in stage.journal.since(0) if one.what == "ready→draining"]
        assert event.cause == "its lists are read; the first call starts it"
        stage.manager.on_server_wanted("git")
        worker = await stage.up("git", 2)
        worker.say(Heartbeat(seq=1, idle_s=GIT.rest_s - 1, inflight=7))
        instance = stage.manager.entries["git"].instance
        await until(lambda: instance and instance.inflight == 7, "it was heard")
        assert not worker.told(Stop), "it was called"


async def test_a_lazy_server_with_a_list_that_was_not_read_runs_on_for_its_idle_time(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        worker = await stage.player("git#1")
        lists = server_catalog.pack(ServerCatalogue(protocol="2025-11-25", unread=("prompts",)))
        worker.say(ServerReady(protocol="2025-11-25", start_s=0.5, list_hash="h"), lists)
        await stage.phase("git", "ready")
        worker.say(Heartbeat(seq=1, idle_s=GIT.rest_s - 1, inflight=7))
        instance = stage.manager.entries["git"].instance
        await until(lambda: instance and instance.inflight == 7, "it was heard")
        assert not worker.told(Stop)


async def test_a_lazy_server_that_was_listed_stays_for_one_that_waits_for_its_turn_to_start(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        stage.manager.add(DB)
        stage.manager.add(replace(APP, depends_on=("git", "db")))
        git = await stage.up("git")
        await stage.player("db#1")
        git.say(Heartbeat(seq=1, idle_s=LISTED_S))
        git.say(Heartbeat(seq=2, idle_s=0.0, inflight=7))
        instance = stage.manager.entries["git"].instance
        await until(lambda: instance and instance.inflight == 7, "both were heard")
        assert not git.told(Stop)
        assert stage.manager.entries["app"].life.phase == "queued"


def answered(stage: Stage) -> None:
    """It answered a call."""
    stage.manager.on_call_stats(0, [CallStats("git", "tools/call", 1, 0.1, (1,))])


async def rested(stage: Stage, worker: Player) -> None:
    """Its worker says that nobody needs it, and is asked to stop."""
    worker.say(Heartbeat(seq=1, idle_s=GIT.rest_s))
    await until(lambda: worker.told(Stop), "asked to stop")


async def test_a_lazy_server_that_nobody_needs_is_stopped_and_stays_listed(tmp_path: Path) -> None:
    async with staged_front(tmp_path, GIT) as (stage, front):
        worker = await stage.up("git")
        answered(stage)
        worker.say(Heartbeat(seq=1, idle_s=GIT.rest_s - 1))
        worker.say(Heartbeat(seq=2, idle_s=GIT.rest_s - 1, inflight=7))
        instance = stage.manager.entries["git"].instance
        await until(lambda: instance and instance.inflight == 7, "both were heard")
        assert not worker.told(Stop)
        await rested(stage, worker)
        await until(lambda: states(front)[-1] == ("idle", True), "idle for the front")
        worker.down("clean", "it was stopped")
        await stage.phase("git", "idle")
        assert all(listed for _, listed in states(front)[2:])


async def test_a_lazy_server_that_becomes_an_eager_one_starts(tmp_path: Path) -> None:
    await known(tmp_path)
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        stage.manager.change(replace(GIT, start="eager"), restart=False)
        await stage.up("git")


async def test_a_call_on_the_way_to_rest_brings_it_back(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        worker = await stage.up("git")
        await rested(stage, worker)
        stage.manager.on_server_wanted("git")
        worker.down("clean", "it was stopped")
        await stage.up("git", 2)
        assert not stage.manager.entries["git"].restarts, "it was woken up, that is all"


async def test_a_server_starts_after_those_that_it_depends_on_and_stops_before_them(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(APP)
        stage.manager.add(DB)
        database = await stage.player("db#1")
        await stage.phase("app", "queued")
        assert [one.name for one in stage.players] == ["db#1"]
        database.ready()
        app = await stage.up("app")
        closing = asyncio.create_task(stage.manager.close())
        await until(lambda: app.told(Stop), "the one that depends on it stops")
        assert not database.told(Stop)
        app.down("clean", "it was stopped")
        await until(lambda: database.told(Stop), "then the other")
        database.down("clean", "it was stopped")
        await closing


async def test_a_lazy_server_that_another_one_needs_is_started_and_does_not_rest(
    tmp_path: Path,
) -> None:
    await known(tmp_path)
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        stage.manager.add(replace(APP, depends_on=("git",)))
        git = await stage.up("git")
        await stage.up("app")
        git.say(Heartbeat(seq=1, idle_s=GIT.rest_s))
        git.say(Heartbeat(seq=2, idle_s=0.0, inflight=7))
        instance = stage.manager.entries["git"].instance
        await until(lambda: instance and instance.inflight == 7, "both were heard")
        assert not git.told(Stop)
