"""Servers and their instances on real control sockets, with workers that the tests play."""

import asyncio
import os
import signal
from functools import partial
from pathlib import Path

import pytest
from msgspec import Raw
from msgspec.structs import replace

from metamcp_supervisor.config.config import Server
from metamcp_supervisor.processes.nursery import NurseryGone
from metamcp_worker.ipc import codec, packets, server_catalog
from metamcp_worker.ipc.messages import (
    CallStats,
    EventCounts,
    Figures,
    ForgetServer,
    FrontStats,
    LogLines,
    RunServer,
    ServerDown,
    ServerReady,
    ServerWanted,
    Spawned,
    Stop,
    WorkerExit,
)
from metamcp_worker.ipc.server_catalog import ServerCatalogue
from metamcp_worker.ipc.spec import ServerSpec
from tests.supervisor.stage import front_up, opened_stage, staged_front, states, until

pytestmark = pytest.mark.process

GIT = Server(name="git", source="x", command=("git-server",), env={"TOKEN": "t"})


async def test_a_server_is_started_with_its_own_environment_and_little_else(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        worker = await stage.player("git#1")
        await until(lambda: worker.fds, "the specification")
        assert worker.told(RunServer) == [RunServer(generation=1, version="1.2.3")]
        spec = codec.decode_as(ServerSpec, os.pread(worker.fds[0], 100_000, 0))
        assert spec.command == ("git-server",)
        assert spec.env == {"PATH": os.defpath, "TOKEN": "t"}
        assert spec.era == "auto"


async def test_the_last_words_of_a_worker_count_although_its_end_is_heard_first(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        worker = await stage.up("git")
        stage.manager.copies.on_exit(WorkerExit(pid=worker.pid, code=1))
        worker.say(ServerDown(reason="protocol", message="it spoke French"))
        worker.close()
        await until(lambda: not stage.manager.entries["git"].instance, "the end")
        assert stage.manager.entries["git"].life.message == "it spoke French"


async def test_a_worker_that_dies_without_a_word_is_classed_by_its_signal(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        (await stage.up("git")).leave(None, signal.SIGSEGV)
        await until(lambda: stage.manager.entries["git"].life.reason, "the reason")
        life = stage.manager.entries["git"].life
        assert (life.reason, life.message) == ("signal", "its worker was ended by SIGSEGV (11)")


async def test_servers_that_went_down_with_the_nursery_come_back_uncounted(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        worker = await stage.up("git")
        worker.close()
        stage.manager.copies.on_exit(WorkerExit(pid=worker.pid, signal=9, with_nursery=True))
        await stage.up("git", 2)
        assert stage.manager.entries["git"].life.failures == 0


async def test_a_server_that_dislikes_the_probe_is_started_again_without_it(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        worker = await stage.player("git#1")
        worker.say(ServerDown(reason="exit", message="what?", probing=True))
        worker.leave()
        second = await stage.player("git#2")
        await until(lambda: second.fds, "the specification")
        assert (
            codec.decode_as(ServerSpec, os.pread(second.fds[0], 100_000, 0)).era == "legacy-first"
        )
        assert stage.manager.entries["git"].life.failures == 0


async def test_a_worker_that_does_not_start_in_time_is_killed(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(Server(name="git", source="x", command=("x",), start_timeout_s=-4.9))
        worker = await stage.player("git#1")
        await until(lambda: signal.SIGKILL in worker.signals, "killed")
        assert stage.manager.entries["git"].life.reason == "start_timeout"


async def test_a_stop_asks_waits_and_then_kills(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(Server(name="git", source="x", command=("x",), stop_grace_s=-33.9))
        worker = await stage.up("git")
        stage.manager.stop("git")
        await until(lambda: worker.told(Stop), "asked")
        assert worker.told(Stop)[0].grace_s > 0
        await until(lambda: signal.SIGKILL in worker.signals, "killed: it does not leave")
        await stage.phase("git", "disabled")


async def test_a_restart_starts_the_next_generation_when_the_last_is_gone(tmp_path: Path) -> None:
    async with staged_front(tmp_path, GIT) as (stage, front):
        worker = await stage.up("git")
        stage.manager.restart("git")
        await until(lambda: worker.told(Stop), "asked to stop")
        worker.say(ServerDown(reason="clean", message="it was stopped"))
        await stage.phase("git", "stopping")
        assert stage.players[-1] is worker
        worker.leave(0)
        await stage.up("git", 2)
        assert ("draining", True) in states(front), "its tools stay listed"


async def test_a_start_that_is_stopped_during_the_fork_leaves_nothing(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        await stage.phase("git", "warming")
        stage.manager.stop("git")
        worker = await stage.player("git#1")
        await until(lambda: worker.told(Stop), "asked to stop")
        assert not worker.told(RunServer)
        worker.leave(0)
        await stage.phase("git", "disabled")


async def test_a_server_that_cannot_be_forked_waits_and_tries_again(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.refuse = "no processes left"
        stage.manager.add(GIT)
        await stage.phase("git", "backoff")
        stage.refuse = ""
        await stage.up("git", 2)
        assert stage.manager.entries["git"].life.message == "no processes left"


async def test_a_clients_call_starts_a_failed_server_at_once(tmp_path: Path) -> None:
    async with staged_front(tmp_path, GIT) as (stage, front):
        (await stage.player("git#1")).down("spawn", "no such program")
        await stage.phase("git", "failed")
        front.say(ServerWanted(server="git"))
        front.say(ServerWanted(server="unknown"))
        await stage.player("git#2")


async def test_a_recovery_wakes_those_who_failed_in_the_same_way(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        for name in ("one", "two"):
            stage.manager.add(Server(name=name, source="x", command=("npx", name)))
        for generation in range(1, 4):
            (await stage.player(f"two#{generation}")).down()
            await stage.phase("two", "backoff")
        before = stage.manager.entries["two"].life.retry_at
        (await stage.player("one#1")).down()
        await stage.up("one", 2)
        after = stage.manager.entries["two"].life.retry_at
        assert before is not None
        assert after is None or after <= before


async def test_what_a_server_offered_is_on_disk_and_known_after_the_next_start(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        (await stage.player("git#1")).ready(tools=3)
        await stage.phase("git", "ready")
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(replace(GIT, enabled=False))
        offer = stage.manager.entries["git"].offer
        assert (offer.tools, offer.from_cache, offer.token_cost) == (3, True, 34)


async def test_the_journal_counts_the_tools_that_clients_see(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        worker = await stage.player("git#1")
        tools = Raw(b'{"name":"t","inputSchema":{"type":"object"}}'), Raw(b'{"name":"no schema"}')
        offered = server_catalog.pack(ServerCatalogue(protocol="2025-11-25", tools=tools))
        worker.say(ServerReady(protocol="2025-11-25", start_s=0.1, list_hash=""), offered)
        await stage.phase("git", "ready")
        (cause,) = [one.cause for one in stage.journal.since(0) if one.what == "warming→ready"]
        assert cause == "0.10 s, tools: 1"


async def test_a_catalogue_that_cannot_be_read_is_a_broken_protocol(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        worker = await stage.player("git#1")
        worker.say(ServerReady(protocol="x", start_s=0, list_hash=""), b"[]")
        await until(lambda: stage.manager.entries["git"].life.reason, "the reason")
        assert stage.manager.entries["git"].life.reason == "protocol"
        assert signal.SIGKILL in worker.signals


async def test_logs_and_counts_of_a_worker_reach_their_books(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        worker = await stage.up("git")
        worker.say(Spawned(pid=77))
        worker.say(LogLines(stream="stderr", lines=("hello",), dropped=2))
        worker.say(EventCounts(counts={"stray_stdout": 3}))
        await until(lambda: stage.logs.tail("git", 9), "the log")
        assert stage.logs.tail("git", 1)[0].text == "hello"
        instance = stage.manager.entries["git"].instance
        assert instance is not None
        assert instance.server_pid == 77


async def test_an_answer_proves_a_server_and_an_error_of_ours_does_not(tmp_path: Path) -> None:
    async with staged_front(tmp_path, GIT) as (stage, front):
        await stage.up("git")
        figures = FrontStats(connections=0, streams=0, sessions={}, refused={})
        failed = CallStats("git", "tools/call", 2, 0.1, (2,), "-10001")
        fine = CallStats("git", "tools/call", 1, 0.1, (1,))
        for calls in ((failed,), (failed, fine)):
            front.say(figures, codec.dump(Figures(calls=calls)))
        await until(lambda: len(stage.figures) == 2, "the figures")
        assert stage.manager.entries["git"].answered == {0: 1}
        assert stage.manager.entries["git"].life.proven


async def test_another_configuration_restarts_or_only_retunes(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        worker = await stage.up("git")
        never = Server(name="git", source="x", command=("git-server",), restart="never")
        stage.manager.change(never, restart=False)
        assert stage.manager.entries["git"].life.restart == "never"
        await stage.phase("git", "ready")
        stage.manager.change(GIT, restart=True)
        await until(lambda: worker.told(Stop), "asked to stop")
        worker.leave(0)
        await stage.up("git", 2)
        off = Server(name="git", source="x", command=("git-server",), enabled=False)
        stage.manager.change(off, restart=True)
        await stage.phase("git", "draining")
        assert not stage.manager.entries["git"].life.restarting


async def test_a_removed_server_is_forgotten_when_it_is_gone_and_may_come_back(
    tmp_path: Path,
) -> None:
    async with staged_front(tmp_path, GIT) as (stage, front):
        worker = await stage.up("git")
        stage.manager.remove("git")
        assert "git" in stage.manager.entries
        stage.manager.add(GIT)
        worker.leave(0)
        second = await stage.up("git", 2)
        stage.manager.remove("git")
        second.leave(0)
        await until(lambda: "git" not in stage.manager.entries, "forgotten")
        await until(lambda: front.told(ForgetServer), "the front forgets it as well")


async def test_the_end_stops_every_server_and_waits_for_the_last(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        for name in ("one", "two"):
            stage.manager.add(Server(name=name, source="x", command=(name,)))
        workers = [await stage.up(name) for name in ("one", "two")]
        ending = asyncio.create_task(stage.manager.close())
        for worker in workers:
            await until(partial(worker.told, Stop), "asked to stop")
            assert worker.told(Stop) == [Stop(grace_s=0.0)]
            assert not ending.done()
            worker.leave(0)
        await ending


async def test_no_descriptor_is_left_after_many_generations(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        await front_up(stage)
        stage.manager.add(GIT)
        await stage.up("git")
        counts: list[int] = []
        writers = (stage.catalogues, stage.manager.approvals)
        for generation in range(2, 8):
            stage.players[-1].down()
            await stage.phase("git", "backoff")
            stage.manager.start("git")
            await stage.up("git", generation)
            for player in stage.players:
                packets.close_all(player.fds)
                player.fds.clear()
            await until(lambda: not any(one.busy for one in writers), "all is written")
            counts.append(len(os.listdir("/proc/self/fd")))
        assert len(set(counts)) == 1, counts


async def test_a_server_that_is_back_in_the_configuration_runs_while_its_last_worker_still_leaves(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(GIT)
        worker = await stage.up("git")
        worker.say(ServerDown(reason="exit", message="it ended with status 1"))
        await stage.phase("git", "queued")
        stage.manager.remove("git")
        stage.manager.add(GIT)
        worker.leave()
        await stage.up("git", 2)


async def test_a_nursery_that_died_before_the_fork_counts_against_no_server(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.refuse, stage.refuse_as = "the nursery died", NurseryGone
        stage.manager.add(GIT)
        await until(lambda: "warming→error" in stage.told("git"), "the fork failed")
        stage.refuse = ""
        await until(lambda: stage.players, "a worker")
        stage.players[-1].ready()
        await stage.phase("git", "ready")
        assert stage.manager.entries["git"].life.failures == 0


async def test_a_worker_that_no_signal_ends_makes_the_nursery_prove_that_it_answers(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(Server(name="git", source="x", command=("x",), stop_grace_s=-33.9))
        await stage.up("git")
        stage.deaf = True
        stage.manager.stop("git")
        await until(lambda: stage.suspected, "the nursery is asked")
