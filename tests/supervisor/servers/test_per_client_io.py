"""Processes for single clients, on real sockets: started by a call, gone with the client."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from metamcp_supervisor.config.config import Server
from metamcp_supervisor.servers.catalogues import offer
from metamcp_worker.ipc import process_names, server_catalog
from metamcp_worker.ipc.messages import (
    Catalogue,
    CatalogueChanged,
    EventCounts,
    ForgetServer,
    Heartbeat,
    RootsChanged,
    ServerState,
    ServerWanted,
    SessionsOver,
    Stop,
    Tenant,
)
from metamcp_worker.ipc.process_names import SESSIONS_PROCESSES_MAX
from tests.supervisor.scraped import text
from tests.supervisor.small_gateway import SmallGateway
from tests.supervisor.stage import Player, Stage, front_up, opened_stage, until

pytestmark = pytest.mark.process

GIT = Server(name="git", source="x", command=("git-server",), sharing="per-session")
ADA, BOB = (process_names.own("git", process_names.of_session(name)) for name in ("ada", "bob"))


async def served(stage: Stage, server: Server = GIT) -> tuple[Player, Player]:
    """A front, and the worker of the server itself."""
    front = await front_up(stage)
    stage.manager.add(server)
    return front, await stage.up("git")


async def called(stage: Stage, front: Player) -> Player:
    """The process that a client starts by its call."""
    front.say(ServerWanted(server=ADA))
    return await stage.up(ADA)


def last(front: Player, name: str) -> ServerState:
    return [state for state in front.told(ServerState) if state.server == name][-1]


async def test_a_call_starts_one_and_its_lists_are_those_of_its_server(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        front, _ = await served(stage)
        assert last(front, "git").by == "client"
        await called(stage, front)
        await until(lambda: last(front, ADA).state == "ready", "the front knows")
        assert {message.server for message in front.told(Catalogue)} == {"git"}
        assert last(front, ADA).hold_ms == round(GIT.start_timeout_s * 1000)
    assert os.listdir(tmp_path / "catalogue") == ["git"]


async def test_with_the_session_it_goes_and_only_that_one(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        front, _ = await served(stage)
        for name in (ADA, BOB):
            front.say(ServerWanted(server=name))
        hers, his = await stage.up(ADA), await stage.up(BOB)
        front.say(SessionsOver(ids=("ada", "carl")))
        await until(lambda: hers.told(Stop), "asked to stop")
        hers.down("clean", "it was stopped")
        await until(lambda: ForgetServer(server=ADA) in front.heard, "the front forgets it")
        assert list(stage.manager.entries) == ["git", BOB]
        assert not his.told(Stop)
        assert stage.journal.histories.of(ADA).because == ""
        assert stage.journal.histories.of(BOB).because


async def test_one_that_was_not_needed_is_gone_and_a_call_on_its_way_out_brings_it_back(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        front, _ = await served(stage)
        worker = await called(stage, front)
        worker.say(Heartbeat(seq=1, idle_s=300.0))
        await until(lambda: worker.told(Stop), "asked to stop")
        front.say(ServerWanted(server=ADA))
        await until(lambda: stage.manager.entries[ADA].life.restarting, "wanted again")
        worker.down("clean", "it was stopped")
        worker = await stage.up(ADA, 2)
        worker.say(Heartbeat(seq=1, idle_s=300.0))
        await until(lambda: worker.told(Stop), "asked to stop again")
        worker.down("clean", "it was stopped")
        await until(lambda: ADA not in stage.manager.entries, "nothing of it is kept")
        assert ADA not in stage.journal.histories.all()


async def test_one_more_than_there_may_be_is_refused_and_one_that_is_down_makes_room(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        front, _ = await served(stage, replace(GIT, restart="never"))
        names = [f"git@{number:012x}" for number in range(1, SESSIONS_PROCESSES_MAX + 1)]
        for name in names:
            front.say(ServerWanted(server=name))
        await until(lambda: len(stage.manager.entries) == len(names) + 1, "all are there")
        front.say(ServerWanted(server=ADA))
        await until(lambda: ForgetServer(server=ADA) in front.heard, "refused")
        assert (last(front, ADA).state, last(front, ADA).reason) == (
            "error",
            process_names.NO_PLACE,
        )
        (await stage.player(f"{names[0]}#1")).down()
        await stage.phase(names[0], "failed")
        await until(lambda: not stage.manager.entries[names[0]].is_running, "nothing of it runs")
        front.say(ServerWanted(server=ADA))
        await until(lambda: ADA in stage.manager.entries, "there is room")
        assert names[0] not in stage.manager.entries


async def test_another_configuration_of_a_server_is_one_of_all_its_processes(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        front, server = await served(stage)
        worker = await called(stage, front)
        other = replace(GIT, command=("other-server",))
        stage.manager.change(other, restart=True)
        await until(lambda: worker.told(Stop) and server.told(Stop), "both restart")
        worker.down("clean", "it was stopped")
        worker = await stage.up(ADA, 2)
        assert stage.manager.entries[ADA].server.command == ("other-server",)
        stage.manager.change(replace(other, sharing="shared"), restart=False)
        await until(lambda: worker.told(Stop), "nobody has its own any more")
        worker.down("clean", "it was stopped")
        await until(lambda: ADA not in stage.manager.entries, "it is gone")
        assert not last(front, "git").by
        front.say(ServerWanted(server=ADA))
        await until(lambda: len(front.told(ForgetServer)) == 2, "nor gets it again")


async def test_auto_switches_with_the_first_contested_question_and_until_it_is_started_otherwise(
    tmp_path: Path,
) -> None:
    auto = replace(GIT, sharing="auto")
    async with opened_stage(tmp_path) as stage:
        front, worker = await served(stage, auto)
        worker.say(EventCounts(counts={"unroutable_request": 1}))  # asked when nobody called
        worker.say(Heartbeat(seq=1))
        assert not last(front, "git").by
        for _ in range(2):
            worker.say(EventCounts(counts={"unroutable_request": 1, "contested_request": 1}))
        await until(lambda: last(front, "git").by == "client", "the front knows")
        await until(
            lambda: stage.metrics.read_event_count("git", "unroutable_request") == 3, "counted"
        )
        assert stage.told("git").count("sharing") == 1
        assert "contested" not in text(stage.metrics, SmallGateway().status())
        stage.manager.change(replace(auto, timeout_s=5.0), restart=False)
        assert stage.manager.entries["git"].division
        stage.manager.change(replace(auto, command=("other-server",)), restart=True)
        await until(lambda: not last(front, "git").by, "shared again")


async def test_a_server_that_is_no_longer_configured_takes_all_its_processes_along(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        front, server = await served(stage)
        worker = await called(stage, front)
        stage.manager.remove("git")
        await until(lambda: worker.told(Stop) and server.told(Stop), "both stop")
        for player in (worker, server):
            player.down("clean", "it was stopped")
        await until(lambda: not stage.manager.entries, "nothing is left")


async def test_one_that_is_down_for_good_is_kept_only_as_long_as_its_client_calls(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        front, _ = await served(stage, replace(GIT, restart="never", idle_stop_s=0.5))
        for name in (ADA, BOB):
            front.say(ServerWanted(server=name))
        hers, his = await stage.up(ADA), await stage.up(BOB)
        hers.down()
        await stage.phase(ADA, "failed")
        stage.manager.quarantine(BOB, "it eats files", "ann")
        his.leave()
        before = stage.manager.entries[ADA].used_at
        front.say(ServerWanted(server=ADA))
        await until(lambda: stage.manager.entries[ADA].used_at > before, "a call counts as use")
        await until(lambda: list(stage.manager.entries) == ["git"], "nothing of both is kept")
        await until(lambda: len(front.told(ForgetServer)) == 2, "nor there")


@pytest.mark.parametrize("order", ["quarantine", "start"])
async def test_one_whose_session_is_over_goes_whatever_is_ordered_on_its_way_out(
    tmp_path: Path, order: str
) -> None:
    async with opened_stage(tmp_path) as stage:
        front, _ = await served(stage)
        worker = await called(stage, front)
        front.say(SessionsOver(ids=("ada",)))
        await until(lambda: worker.told(Stop), "asked to stop")
        if order == "start":
            stage.manager.start(ADA)
        else:
            stage.manager.quarantine(ADA, "it eats files", "ann")
        worker.leave()
        await until(lambda: ADA not in stage.manager.entries, "it is gone")


async def test_one_that_starts_while_its_server_is_kept_from_calls_gets_none_either(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        front, _ = await served(stage)
        front.say(ServerWanted(server=ADA))
        worker = await stage.player(f"{ADA}#1")
        stage.manager.part("git", "ann", yes=True)
        worker.ready()
        await until(lambda: last(front, ADA).state == "draining", "no calls for it")
        stage.manager.part("git", "ann", yes=False)
        await until(lambda: last(front, ADA).state == "ready", "they come again")


@pytest.mark.promise("M82")
async def test_that_a_server_asks_for_roots_is_known_from_then_on(tmp_path: Path) -> None:
    auto = replace(GIT, sharing="auto")
    async with opened_stage(tmp_path) as stage:
        front, worker = await served(stage, auto)
        assert not last(front, "git").roots
        asks = server_catalog.ServerCatalogue(protocol="2025-11-25", asksRoots="ahead")
        worker.say(CatalogueChanged(), server_catalog.pack(asks))
        await until(lambda: last(front, "git").roots, "the front knows")
        worker.ready()
        assert "sharing" in stage.told("git")
        await stage.catalogues.close()
        assert offer(stage.catalogues.load(auto)).asks_roots == "ahead"
        stage.manager.change(replace(auto, command=("other",)), restart=True)
        assert not stage.manager.entries["git"].division.roots


@pytest.mark.promise("M82")
async def test_a_process_for_a_project_goes_with_the_last_session_in_it(tmp_path: Path) -> None:
    name = process_names.own("git", process_names.of_project("local", ["file:///p"]))

    def tenant(session: str) -> Tenant:
        return Tenant(who=process_names.of_session(session))

    async with opened_stage(tmp_path) as stage:
        front, _ = await served(stage, replace(GIT, sharing="per-project"))
        front.say(ServerWanted(server=name, tenant=tenant("ada")))
        worker = await stage.up(name)
        front.say(ServerWanted(server=name, tenant=tenant("bob")))
        await until(lambda: len(stage.manager.entries[name].tenants) == 2, "both are there")
        front.say(SessionsOver(ids=("ada",)))
        await until(lambda: len(stage.manager.entries[name].tenants) == 1, "she has gone")
        assert not worker.told(Stop)
        front.say(SessionsOver(ids=("bob",)))
        await until(lambda: worker.told(Stop), "so has he")


@pytest.mark.promise("M82")
async def test_a_question_that_clients_with_the_same_roots_may_have_caused_parts_them(
    tmp_path: Path,
) -> None:
    name = process_names.own("git", process_names.of_project("local", ["file:///p"]))
    async with opened_stage(tmp_path) as stage:
        front, worker = await served(stage, replace(GIT, sharing="auto"))
        asks = server_catalog.ServerCatalogue(protocol="2025-11-25", asksRoots="ahead")
        worker.say(CatalogueChanged(), server_catalog.pack(asks))
        await until(lambda: last(front, "git").roots, "the front knows")
        front.say(ServerWanted(server=name, tenant=Tenant(who="ada")))
        theirs = await stage.up(name)
        assert last(front, "git").by == ""
        theirs.say(EventCounts(counts={"unroutable_request": 1, "contested_request": 1}))
        await until(lambda: last(front, "git").by == "client", "each has its own from now on")


async def test_other_roots_of_a_client_are_known_at_the_next_start(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        front, _ = await served(stage)
        who = process_names.parse_client(ADA)
        front.say(ServerWanted(server=ADA, tenant=Tenant(who=who, roots='{"roots":[1]}')))
        await stage.up(ADA)
        front.say(RootsChanged(who=who, roots='{"roots":[2]}'))
        entry = stage.manager.entries[ADA]
        await until(lambda: entry.tenant and entry.tenant.roots == '{"roots":[2]}', "they are")
