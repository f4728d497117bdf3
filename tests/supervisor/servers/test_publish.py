"""What fronts are told of servers: catalogues, states, pipes, and what is listed when."""

import asyncio
import resource
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from msgspec import structs

from metamcp_supervisor.config.config import Server
from metamcp_supervisor.servers.entry import ServerSnapshot
from metamcp_supervisor.servers.publish import AGAIN_S, ARRIVED_S, PublishedServer, Routes
from metamcp_supervisor.servers.states import ExitClass
from metamcp_worker.ipc import server_catalog
from metamcp_worker.ipc.messages import (
    AttachFailed,
    AttachFront,
    AttachServer,
    Catalogue,
    CatalogueChanged,
    Heartbeat,
    ServerState,
)
from tests.supervisor.gateway.test_upgrade_state import STATE
from tests.supervisor.stage import GATEWAY_ID, front_up, opened_stage, staged_front, states, until

pytestmark = pytest.mark.process

GIT = Server(name="git", source="x", command=("git-server",), env={"TOKEN": "t"})


async def test_a_front_hears_catalogue_pipe_and_state_and_the_pipe_reaches_the_worker(
    tmp_path: Path,
) -> None:
    async with staged_front(tmp_path, GIT) as (stage, front):
        worker = await stage.up("git")
        await until(lambda: ("ready", True) in states(front), "told that it is ready")
        kinds = [type(m) for m in front.heard if isinstance(m, Catalogue | AttachServer)]
        assert kinds == [Catalogue, AttachServer]
        assert isinstance(front.heard[-1], ServerState)
        await until(lambda: worker.told(AttachFront), "the worker's end")
        with Connection(front.fds.pop()) as ours, Connection(worker.fds.pop()) as theirs:
            ours.send_bytes(b"through")
            assert theirs.recv_bytes() == b"through"


async def test_a_server_that_comes_back_as_it_was_is_not_described_to_the_fronts_again(
    tmp_path: Path,
) -> None:
    async with staged_front(tmp_path, GIT) as (stage, front):
        (await stage.up("git")).down()
        await stage.up("git", 2)
        await until(lambda: len([m for m in front.heard if isinstance(m, AttachServer)]) == 2, "up")
        assert len([m for m in front.heard if isinstance(m, Catalogue)]) == 1


async def test_a_catalogue_that_could_not_be_sent_is_sent_with_the_next_start(
    tmp_path: Path,
) -> None:
    async with staged_front(tmp_path) as (stage, front):
        lists = server_catalog.ServerCatalogue(protocol="2025-11-25")
        offer = partial(stage.routes.offers, "git", server_catalog.pack(lists), "hash")
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            with pytest.raises(OSError, match="open files"):
                offer()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        offer()
        await until(lambda: any(isinstance(m, Catalogue) for m in front.heard), "the catalogue")


async def test_a_crash_keeps_the_tools_listed_until_hide_after(tmp_path: Path) -> None:
    async with staged_front(tmp_path) as (stage, front):
        stage.manager.add(Server(name="git", source="x", command=("x",), hide_after_s=0.2))
        (await stage.up("git")).down()
        await until(lambda: ("error", True) in states(front), "down, but listed")
        await until(lambda: not states(front)[-1][1], "hidden after a while")
        await stage.up("git", 2)
        await until(lambda: states(front)[-1] == ("ready", True), "listed again")


async def test_what_is_to_be_hidden_and_how_often_it_was_is_known_after_an_upgrade(
    tmp_path: Path,
) -> None:
    async with staged_front(tmp_path) as (stage, front):
        stage.manager.add(Server(name="git", source="x", command=("x",), hide_after_s=0.2))
        (await stage.up("git")).down()
        await until(lambda: ("error", True) in states(front), "down, but listed")
        known = stage.routes.find_published("git")
        after = Routes(stage.fronts)
        after.go_on(handed(known), known.list_hash)
        assert after.find_published("git").turns_at == pytest.approx(known.turns_at, abs=0.1)
        await until(lambda: not after.find_published("git").listed, "hidden after a while")
        await until(lambda: not known.listed, "and here")
        assert len(known.changes) == 1
        after.go_on(handed(known), known.list_hash)
        assert after.find_published("git").changes == known.changes
        assert after.find_published("git").turns_at is None


def handed(known: PublishedServer) -> ServerSnapshot:
    return structs.replace(
        STATE.servers[0], listed=known.listed, list_changes=known.changes,
        list_turns_at=known.turns_at,
    )  # fmt: skip


async def test_strict_listing_hides_the_tools_at_once(tmp_path: Path) -> None:
    async with staged_front(tmp_path) as (stage, front):
        stage.manager.add(Server(name="git", source="x", command=("x",), strict_listing=True))
        (await stage.up("git")).down()
        await until(lambda: ("error", False) in states(front), "hidden")
        assert ("error", True) not in states(front)


@pytest.mark.parametrize("strict", [False, True])
async def test_tools_that_are_known_from_before_are_listed_as_their_server_begins_to_start(
    tmp_path: Path, strict: bool
) -> None:
    async with staged_front(tmp_path) as (stage, front):
        lists = server_catalog.ServerCatalogue(protocol="2025-11-25")
        stage.routes.offers("git", server_catalog.pack(lists), "hash")
        server = Server(
            name="git", source="x", command=("x",), hide_after_s=0.2, strict_listing=strict
        )
        stage.manager.add(server)
        await until(lambda: ("warming", not strict) in states(front), "told that it starts")
        (await stage.up("git")).down()
        await until(lambda: not states(front)[-1][1], "hidden after a while")
        await until(lambda: ("warming", False) in states(front), "it starts again, and is hidden")


async def test_a_stopped_worker_gets_no_calls_until_it_goes_on(tmp_path: Path) -> None:
    async with staged_front(tmp_path, GIT) as (stage, front):
        worker = await stage.up("git")
        worker.say(Heartbeat(seq=1))
        stage.heartbeats.on_halt(worker.pid, True)
        await until(lambda: states(front)[-1] == ("error", True), "not routed")
        assert front.told(ServerState)[-1].reason == "hang"
        stage.heartbeats.on_halt(worker.pid, False)
        await until(lambda: states(front)[-1] == ("ready", True), "routed again")


async def test_a_new_front_is_told_everything_that_the_old_one_knew(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        worker = await stage.up("git")
        front = await front_up(stage)
        await until(lambda: front.told(AttachServer), "the pipe")
        assert states(front) == [("ready", True)]
        assert [m.server for m in front.told(Catalogue)] == ["git"]
        await until(lambda: worker.told(AttachFront), "the other end")


@pytest.mark.parametrize("who", ["front", "worker"])
async def test_a_pipe_that_was_lost_on_its_way_is_made_again(tmp_path: Path, who: str) -> None:
    async with staged_front(tmp_path, GIT) as (stage, front):
        worker = await stage.up("git")
        await until(lambda: front.told(AttachServer), "the first pipe")
        if who == "front":
            front.say(AttachFailed(what="git", number=1))
        else:
            worker.say(AttachFailed(what="front", number=0))
        await until(lambda: len(front.told(AttachServer)) == 2, "another pipe")
        await until(lambda: len(worker.told(AttachFront)) == 2, "its other end")


async def test_a_pipe_is_missing_until_a_while_after_a_try_without_a_word_of_its_failure(
    tmp_path: Path,
) -> None:
    async with staged_front(tmp_path, GIT) as (stage, front):
        await stage.up("git")
        missing = stage.manager.deliveries.missing
        await until(lambda: len(front.told(AttachServer)) == 1, "a pipe")
        assert not missing
        front.say(AttachFailed(what="git", number=1))
        await until(lambda: len(front.told(AttachServer)) == 2, "another pipe")
        assert "git" in missing
        front.say(AttachFailed(what="git", number=1))
        begin = asyncio.get_running_loop().time()
        await until(lambda: len(front.told(AttachServer)) == 3, "another pipe")
        assert "git" in missing
        await until(lambda: not missing, "it has arrived")
        assert asyncio.get_running_loop().time() - begin > AGAIN_S + ARRIVED_S - 0.1


async def test_a_catalogue_that_was_lost_on_its_way_is_sent_again(tmp_path: Path) -> None:
    async with staged_front(tmp_path, GIT) as (stage, front):
        await stage.up("git")
        front.say(AttachFailed(what="git", number=0))
        await until(lambda: len(front.told(Catalogue)) == 2, "again")


@pytest.mark.parametrize(
    ("gateways", "sentence"),
    [
        ((GATEWAY_ID,), "it is this gateway"),
        (("another", GATEWAY_ID), "it leads back to this gateway"),
    ],
)
async def test_a_server_that_turns_out_to_be_this_gateway_is_an_error_and_its_lists_are_not_told(
    tmp_path: Path, gateways: tuple[str, ...], sentence: str
) -> None:
    async with staged_front(tmp_path, GIT) as (stage, front):
        worker = await stage.up("git")
        told = len([m for m in front.heard if isinstance(m, Catalogue)])
        known = server_catalog.unpack(stage.routes.find_published("git").catalogue)
        worker.say(
            CatalogueChanged(), server_catalog.pack(structs.replace(known, gateways=gateways))
        )
        await until(
            lambda: stage.manager.entries["git"].life.reason is ExitClass.LOOP, "recognized"
        )
        assert sentence in stage.manager.entries["git"].life.message
        assert len([m for m in front.heard if isinstance(m, Catalogue)]) == told
