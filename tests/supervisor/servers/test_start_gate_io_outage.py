"""Trouble that servers share: what a try for the others costs, and what a recovery shows."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as some
from msgspec.structs import replace

from metamcp_supervisor import backoff
from metamcp_supervisor.config.config import Server
from metamcp_supervisor.servers.server import (
    Admitted,
    BecameReady,
    OperatorQuarantine,
    ServerLife,
    SiblingRecovered,
    Start,
    StopServer,
    WentDown,
    WorkerLeft,
    evidence,
)
from metamcp_supervisor.servers.start_gate import OUTAGE_SERVERS_MIN, PACE_S
from metamcp_supervisor.servers.states import ExitClass, ServerPhase
from tests.supervisor.servers.test_server import CRASH, after, crashed, failed, up
from tests.supervisor.stage import Stage, opened_stage, until

FAR_S = 1000.0


def in_vain(now: float = 0.0) -> ServerLife:
    """Its first start came to nothing."""
    return after(ServerLife(), Start("boot"), Admitted(), CRASH, WorkerLeft(), now=now)


@pytest.mark.parametrize("phase", [ServerPhase.BACKOFF, ServerPhase.FAILED])
@given(some.floats(0, 90), some.floats(0, 1))
def test_a_start_for_the_others_that_fails_as_the_last_one_costs_nothing(
    phase: ServerPhase, now: float, jitter: float
) -> None:
    life = replace(in_vain(), phase=phase, failures=8, window=(1.0,) * 9, trips=2, retry_at=100.0)
    tried = after(life, Start("others"), Admitted(), now=now, jitter=jitter)
    assert (tried.phase, tried.planned_at) == (ServerPhase.WARMING, 100.0)
    again = after(tried, CRASH, WorkerLeft(), now=now, jitter=jitter)
    known = replace(life, generation=life.generation + 1, vain=(0.0, now), not_before=now)
    assert again == known


def test_its_own_time_that_passed_meanwhile_comes_at_once() -> None:
    life = after(replace(in_vain(), retry_at=5.0), Start("others"), Admitted(), now=4.0)
    assert after(life, CRASH, now=30.0).retry_at == 30.0 + backoff.DELAY_S_FLOOR


def test_a_start_for_the_others_that_fails_otherwise_counts() -> None:
    life = after(in_vain(), Start("others"), Admitted())
    life = after(life, WentDown(ExitClass.SPAWN, "no such file"))
    assert (life.phase, life.failures, life.trips, life.planned_at) == (
        ServerPhase.FAILED,
        2,
        1,
        None,
    )


def test_a_start_for_the_others_that_succeeds_is_a_start_like_any_other() -> None:
    life = after(failed(), Start("others"), Admitted(), BecameReady(), now=9.0)
    assert (life.phase, life.planned_at, life.vain) == (ServerPhase.READY, None, None)
    assert crashed(life, 10.0).failures == life.failures + 1


@pytest.mark.parametrize(
    "life", [ServerLife(), up(ServerLife()), crashed(up(ServerLife(restart="never")))]
)
def test_only_one_that_waits_for_its_time_tries_for_the_others(life: ServerLife) -> None:
    assert after(life, Start("others")) == life


def test_an_operator_who_starts_or_stops_it_ends_what_it_does_for_the_others() -> None:
    trying = after(in_vain(), Start("others"))
    assert after(trying, Start("operator")).planned_at is None
    assert after(trying, Admitted(), StopServer(), WorkerLeft()).planned_at is None
    assert after(trying, OperatorQuarantine("enough")).planned_at is None


def test_one_that_set_out_before_a_sibling_recovered_tries_once_more_at_once() -> None:
    life = after(replace(in_vain(), retry_at=5.0), Start("timer"), Admitted(), now=5.0)
    life = after(life, SiblingRecovered(ExitClass.EXIT), now=6.0)
    again = after(life, CRASH, WorkerLeft(), now=7.0)
    assert (again.failures, again.retry_at) == (1, 7.0 + backoff.DELAY_S_FLOOR)
    other = after(life, WentDown(ExitClass.SIGNAL, "x"), WorkerLeft(), now=7.0)
    assert (other.failures, other.planned_at) == (2, None)


def recovery(life: ServerLife, now: float) -> ExitClass | None:
    before = after(life, Start("timer"), Admitted(), now=now)
    return evidence(before, after(before, BecameReady(), now=now))


def test_a_recovery_shows_that_the_trouble_is_over() -> None:
    assert recovery(in_vain(), 1.0) is ExitClass.EXIT
    assert recovery(crashed(up(ServerLife()), backoff.BRIEF_S), 11.0) is ExitClass.EXIT
    assert recovery(ServerLife(), 0.0) is None
    ready = up(in_vain())
    assert evidence(ready, replace(ready, degraded=True)) is None


def test_two_that_flap_do_not_wake_each_other_without_end() -> None:
    flapping = crashed(up(ServerLife()), backoff.BRIEF_S / 2)
    assert recovery(flapping, 6.0) is None
    in_vain_again = after(flapping, Start("timer"), Admitted(), CRASH, WorkerLeft(), now=6.0)
    assert recovery(in_vain_again, 7.0) is ExitClass.EXIT


@pytest.mark.process
@pytest.mark.promise("M72")
async def test_one_of_many_that_wait_tries_for_all_and_wakes_them(tmp_path: Path) -> None:
    names = [f"s{number}" for number in range(OUTAGE_SERVERS_MIN)]
    async with opened_stage(tmp_path) as stage:
        loop = asyncio.get_running_loop()
        looked = loop.time() + PACE_S
        await until(lambda: loop.time() > looked, "the look after the start found nobody")
        for name in names:
            stage.manager.add(Server(name=name, source="x", command=("npx", name)))
        for name in names:
            (await stage.player(f"{name}#1")).down()
            await stage.phase(name, "backoff")
            wait_long(stage, name)
        canary = (await stage.player(f"{names[0]}#2")).name.partition("#")[0]
        assert len(stage.players) == len(names) + 1
        await stage.up(canary, 2)
        for name in names[1:]:
            await stage.up(name, 2)


def wait_long(stage: Stage, name: str) -> None:
    """As after many failures."""
    entry = stage.manager.entries[name]
    entry.life = replace(entry.life, retry_at=asyncio.get_running_loop().time() + FAR_S)
    assert entry.life.retry_at is not None
    entry.retry_at(entry.life.retry_at, stage.manager.retry)
