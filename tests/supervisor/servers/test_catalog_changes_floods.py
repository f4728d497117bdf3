"""How long a server may be held back for what it sends unasked."""

import asyncio
from pathlib import Path

import pytest

from metamcp_supervisor.config.config import Restart, Server
from metamcp_supervisor.servers.catalog_changes import (
    FLOOD_S,
    GAP_S,
    TOLD_S,
    Flood,
    held_back,
    is_throttled,
    too_long,
)
from metamcp_supervisor.servers.server import ServerLife, Start, WentDown
from metamcp_supervisor.servers.states import ExitClass, ServerPhase
from metamcp_worker.ipc.messages import THROTTLED, EventCounts, Stop
from tests.supervisor.servers.test_server import after, up
from tests.supervisor.stage import opened_stage, until


def test_a_server_is_throttled_after_a_while_and_put_away_after_a_minute() -> None:
    flood = Flood()
    for tick in range(int(4 * FLOOD_S)):
        now = 100.0 + tick / 4
        flood = held_back(flood, now)
        assert is_throttled(flood, now) == (now >= 100.0 + TOLD_S)
        assert not too_long(flood)
    assert "throttled for 60 s" in too_long(held_back(flood, 100.0 + FLOOD_S))


def test_bursts_are_no_flood() -> None:
    flood = Flood()
    for burst in range(100):
        for second in range(5):
            flood = held_back(flood, burst * 20.0 + second)
        assert not is_throttled(flood, flood.until)
    assert not too_long(flood)


def test_who_stops_is_throttled_no_more() -> None:
    flood = Flood(since=0.0, until=30.0)
    assert is_throttled(flood, 30.0 + GAP_S)
    assert not is_throttled(flood, 30.1 + GAP_S)
    assert held_back(flood, 40.0) == Flood(40.0, 40.0)


@pytest.mark.parametrize("restart", ["always", "on-failure", "never"])
def test_a_flood_is_quarantine_at_once_whatever_the_policy(restart: Restart) -> None:
    life = up(ServerLife(restart=restart))
    life = after(life, WentDown(ExitClass.FLOOD, "it flooded", spare=7), now=1.0)
    assert (life.phase, life.retry_at) == (ServerPhase.QUARANTINED, None)
    assert after(life, Start("client"), now=1e6).phase is ServerPhase.QUARANTINED
    assert after(life, Start("operator"), now=2.0).phase is ServerPhase.QUEUED


@pytest.mark.process
@pytest.mark.promise("M15")
async def test_a_server_that_floods_is_quarantined_even_if_it_has_a_spare(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.manager.add(Server(name="git", source="x", command=("x",), spares=1))
        worker = await stage.up("git")
        (await stage.player("git#2")).ready()
        await until(lambda: "spare ready" in stage.told("git"), "the spare")
        now = asyncio.get_running_loop().time()
        copy = stage.manager.entries["git"].serving
        assert copy is not None
        copy.flood = Flood(now - FLOOD_S, now)
        worker.say(EventCounts(counts={THROTTLED: 1}))
        await stage.phase("git", "quarantined")
        life = stage.manager.entries["git"].life
        assert life.reason == "flood"
        assert "throttled for 60 s" in life.message
        assert life.retry_at is None
        await until(lambda: worker.signals, "it is killed")
        spare = await stage.player("git#2")
        await until(lambda: spare.told(Stop), "the spare is told to go")
