"""The lives of servers that have no process here, with workers that the tests play."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from metamcp_supervisor.config.config import Address, Server
from metamcp_supervisor.servers import status
from metamcp_supervisor.servers.tokens import FILE
from metamcp_supervisor.telemetry import usage
from metamcp_supervisor.telemetry.usage import MeasuredProcess, Usage
from metamcp_supervisor.verbs import ServerStatus
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.messages import EventCounts, Spawned
from metamcp_worker.ipc.spec import OAuth, ServerSpec
from tests.supervisor.configs import config
from tests.supervisor.stage import Player, Stage, opened_stage, until

pytestmark = pytest.mark.process

LINEAR = Server(
    name="linear",
    source="x",
    url="https://mcp.example.com/canary/mcp?key=canary",
    headers={"Authorization": "Bearer canary"},
)


def shown(stage: Stage, usages: Mapping[MeasuredProcess, Usage]) -> ServerStatus:
    facts = status.GatewayFacts(
        version="1", state="active", now=100.0, started=0.0, listen=Address("127.0.0.1", 1),
        ops_listen=Address("127.0.0.1", 2), config=config(LINEAR), config_hash="", config_read=0.0,
        nursery_pid=0,
    )  # fmt: skip
    found = status.collect(facts, stage.manager.entries, [], stage.metrics, usages)
    return found.servers[0]


async def told(worker: Player) -> ServerSpec:
    await until(lambda: worker.fds, "the specification")
    return codec.decode_as(ServerSpec, os.pread(worker.fds[0], 100_000, 0))


async def test_a_worker_is_told_where_its_server_is(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(LINEAR)
        spec = await told(await stage.player("linear#1"))
        assert (spec.command, spec.url, spec.transport) == ((), LINEAR.url, "auto")
        assert (spec.headers, spec.oauth) == (LINEAR.headers, None)


@pytest.mark.promise("M95")
async def test_a_server_without_a_process_is_ready_and_shown_by_its_origin_alone(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(LINEAR)
        worker = await stage.player("linear#1")
        worker.say(Spawned(pid=0))
        await stage.up("linear")
        roots = status.roots(stage.manager.entries, [], 0, {})
        assert roots[MeasuredProcess("server", "linear")] == 0
        # The worker is played by this process, so that there is something to measure.
        usages = usage.sample({**roots, MeasuredProcess("worker", "linear"): os.getpid()})
        assert MeasuredProcess("server", "linear") not in usages
        got = shown(stage, usages)
        assert (got.phase, got.pid, got.worker_pid) == ("ready", 0, worker.pid)
        used = usages[MeasuredProcess("worker", "linear")]
        assert (got.rss_bytes, got.memory_bytes) == (used.rss_bytes, used.held_bytes)
        assert got.rss_bytes > 0
        assert got.origin == "https://mcp.example.com"
        assert "canary" not in repr(got) + repr(stage.journal.since(0))


@pytest.mark.parametrize("reason", ["exit", "clean", "signal", "connect", "no such class"])
async def test_a_connection_that_ends_is_tried_again_whatever_its_worker_calls_it(
    tmp_path: Path, reason: str
) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(LINEAR)
        (await stage.up("linear")).down(reason, "it closed the connection")
        await stage.up("linear", 2)
        life = stage.manager.entries["linear"].life
        assert (life.reason, life.message) == ("connect", "it closed the connection")
        assert life.failures == 1


async def test_a_server_that_speaks_nonsense_or_breaks_a_limit_keeps_its_class(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(LINEAR)
        for generation, reason in enumerate(("protocol", "limit", "start_timeout"), 1):
            (await stage.player(f"linear#{generation}")).down(reason)
            await until(lambda: stage.manager.entries["linear"].life.phase == "backoff", "down")
            assert stage.manager.entries["linear"].life.reason == reason
            stage.manager.start("linear")


async def test_servers_on_the_same_host_recover_together(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        for name, path in (("a", "one"), ("b", "two")):
            stage.manager.add(Server(name=name, source="x", url=f"https://mcp.example.com/{path}"))
        stage.manager.add(Server(name="c", source="x", url="https://other.example.com/"))
        launchers = [stage.manager.entries[name].launcher for name in "abc"]
        assert launchers == ["https://mcp.example.com"] * 2 + ["https://other.example.com"]


async def test_a_server_with_oauth_gets_a_key_and_fails_alone_without_one(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(Server(name="good", source="x", url="https://x/", oauth=OAuth()))
        spec = await told(await stage.player("good#1"))
        assert spec.oauth is not None
        assert (spec.oauth.store, len(spec.oauth.key)) == (str(tmp_path / "oauth"), 44)
    async with opened_stage(tmp_path) as stage:
        (tmp_path / FILE).chmod(0o644)
        stage.manager.add(Server(name="bad", source="x", url="https://x/", oauth=OAuth()))
        stage.manager.add(LINEAR)
        await stage.up("linear")
        await stage.phase("bad", "failed")
        life = stage.manager.entries["bad"].life
        assert life.reason == "spawn"
        assert "chmod 600" in life.message


async def test_what_nobody_could_be_asked_is_counted_shown_and_told_once(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(LINEAR)
        worker = await stage.up("linear")
        for _ in range(3):
            worker.say(EventCounts(counts={"unroutable_request": 2, "unattributed_log": 1}))
        worker.say(EventCounts(counts={"late_reply": 1}))
        await until(lambda: shown(stage, {}).unattributed_logs == 3, "counted")
        assert shown(stage, {}).unroutable_requests == 6
        told = stage.told("linear")
        assert (told.count("unroutable request"), told.count("unattributed log")) == (1, 1)
        assert "late reply" not in told
