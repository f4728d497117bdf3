"""The fronts' lives, on real control sockets, with fronts that the tests play."""

import asyncio
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from metamcp_supervisor import backoff
from metamcp_supervisor.fronts import fronts
from metamcp_supervisor.fronts.front import FrontProcess
from metamcp_supervisor.processes.nursery import ForkedWorker
from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.messages import (
    AdoptSessions,
    CallStats,
    Figures,
    FromFront,
    FrontStats,
    HandOver,
    Listen,
    Reconfigure,
    ServeOn,
    SessionKept,
    SessionRecord,
    SessionsOver,
    Stop,
    WorkerExit,
)
from tests.live.processes import descriptors
from tests.supervisor.stage import Player, Stage, opened_stage, until

pytestmark = pytest.mark.process

FIGURES = FrontStats(connections=1, streams=0, sessions={}, refused={})


async def nth(stage: Stage, count: int, slot: int = 0) -> Player:
    """The front that is the `count`-th in this slot."""

    def found() -> Player | None:
        players = [player for player in stage.players if player.name == f"front-{slot}"]
        return players[count - 1] if len(players) >= count else None

    return await until(found, f"front number {count}")


async def ready(stage: Stage, player: Player) -> None:
    player.ready()
    await until(
        lambda: any(f.pid == player.pid and f.ready for f in stage.fronts.list_serving()), "ready"
    )


async def test_a_front_is_told_to_serve_and_then_to_listen(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.fronts.start(2)
        for slot in (0, 1):
            player = await nth(stage, 1, slot)
            await until(partial(player.told, Listen), "told to listen")
            assert [type(message) for message in player.heard] == [ServeOn, Listen]
        assert {front.number for front in stage.fronts.list_serving()} == {0, 1}


async def test_a_ready_front_that_is_killed_comes_back_at_once_however_often(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.fronts.start(1)
        for count in range(1, backoff.CRASHES_MAX + 5):
            player = await nth(stage, count)
            await ready(stage, player)
            player.leave(None, signal.SIGKILL)
        assert stage.hopes == []
        await until(lambda: len(stage.gone_fronts) > backoff.CRASHES_MAX, "they are counted out")
        assert stage.gone_fronts == sorted(set(stage.gone_fronts)), "no number is used twice"


async def test_a_front_that_crashes_is_started_again(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.fronts.start(1)
        for count in (1, 2):
            (await nth(stage, count)).leave(1)
        await nth(stage, 3)
        assert stage.hopes == []


async def test_fronts_that_crash_again_and_again_are_hopeless(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.fronts.start(1)
        for count in range(1, backoff.CRASHES_MAX + 2):
            player = await nth(stage, count)
            await ready(stage, player)
            player.leave(1)
        await until(lambda: stage.hopes, "the end")
        assert stage.hopes == ["fronts crashed 6 times in 60 s"]


async def test_fronts_that_are_never_ready_are_killed_and_hopeless_like_those_that_crash(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path, ready_s_max=0.01) as stage:
        stage.fronts.start(1)
        for count in range(1, backoff.CRASHES_MAX + 2):
            player = await nth(stage, count)
            await until(partial(player.signals.count, signal.SIGKILL), "killed")
        await until(lambda: stage.hopes, "the end")
        assert stage.hopes == ["6 fronts in a row did not become ready"]
        assert stage.told("front-0").count("error") == backoff.CRASHES_MAX + 1


async def test_a_front_that_was_ready_forgives_those_that_were_not(tmp_path: Path) -> None:
    async with opened_stage(tmp_path, ready_s_max=0.5) as stage:
        stage.fronts.start(1)
        for count in (1, 2):
            await until(partial((await nth(stage, count)).signals.count, signal.SIGKILL), "killed")
        player = await nth(stage, 3)
        await ready(stage, player)
        player.leave(None, signal.SIGKILL)
        await nth(stage, 4)
        assert stage.hopes == []


def session(name: str) -> bytes:
    return codec.dump(
        SessionRecord(id=name, endpoint="default", protocol="2025-11-25", caller="{}")
    )


def inherited(player: Player) -> list[str]:
    """The sessions that a front was told to adopt: its first descriptor is its specification, the
    second has these."""
    assert [type(message).__name__ for message in player.heard] == [
        "ServeOn",
        "AdoptSessions",
        "Listen",
    ]
    return names(player.fds[1])


def names(blob: int) -> list[str]:
    """The ids of these records."""
    records = codec.decode_as(list[SessionRecord], os.pread(blob, 100_000, 0))
    return [each.id for each in records]


async def test_the_sessions_of_a_front_that_died_are_its_successors(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.fronts.start(1)
        first = await nth(stage, 1)
        await ready(stage, first)
        for name in ("a", "b", "c"):
            first.say(SessionKept(), session(name))
        first.say(SessionsOver(ids=("b",)))
        first.leave(None, signal.SIGKILL)
        for count in (2, 3):
            later = await nth(stage, count)
            await until(partial(later.told, Listen), "told to listen")
            assert inherited(later) == ["a", "c"]
            await ready(stage, later)
            later.leave(1)


async def test_what_a_front_said_of_sessions_with_its_last_words_reaches_its_successor(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.fronts.start(1)
        first = await nth(stage, 1)
        await ready(stage, first)
        stage.fronts.on_exit(WorkerExit(pid=first.pid, signal=signal.SIGKILL))
        first.say(SessionKept(), session("a"))
        first.close()
        second = await nth(stage, 2)
        await until(partial(second.told, Listen), "told to listen")
        assert inherited(second) == ["a"]


async def test_a_front_that_serves_adopts_the_sessions_of_one_that_died_and_no_others(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.fronts.start(2)
        first, other = await nth(stage, 1, 0), await nth(stage, 1, 1)
        await ready(stage, first)
        await ready(stage, other)
        first.say(SessionKept(), session("a"))
        other.say(SessionKept(), session("b"))
        other.say(FIGURES, b"{}")
        await until(lambda: stage.figures, "it was heard")
        other.leave(None, signal.SIGKILL)
        await until(partial(first.told, AdoptSessions), "it adopts what the other one had")
        assert names(first.fds[-1]) == ["b"]
        later = await nth(stage, 2, 1)
        await until(partial(later.told, Listen), "told to listen")
        assert [type(message) for message in later.heard] == [ServeOn, Listen]


async def test_the_last_figures_of_a_front_are_counted_before_it_is_gone(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.fronts.start(1)
        player = await nth(stage, 1)
        await ready(stage, player)
        stage.fronts.on_exit(WorkerExit(pid=player.pid, code=0))
        player.say(FIGURES, codec.dump(Figures(calls=(CallStats("git", "ping", 1, 0.1, (1,)),))))
        player.close()
        await until(lambda: stage.gone_fronts, "gone")
        assert [one.server for one in stage.figures[0].calls] == ["git"]


async def test_what_a_front_tells_of_a_thousand_servers_arrives(tmp_path: Path) -> None:
    names = [f"{n:04}".ljust(64, "x") for n in range(1000)]
    counts = dict.fromkeys(names, 1)
    retries = {name: {"answered": 1, "failed": 1, "cancelled": 1} for name in names}
    counted = Figures(inflight=counts, held=counts, late_replies=counts, retries=retries)
    assert len(codec.dump(counts)) > packets.PACKET_BYTES_MAX, "no packet has room for it"
    async with opened_stage(tmp_path) as stage:
        stage.fronts.start(1)
        player = await nth(stage, 1)
        await ready(stage, player)
        player.say(FIGURES, codec.dump(counted))
        await until(lambda: stage.figures, "they are counted")
        assert stage.figures == [counted]


async def test_a_new_configuration_reaches_every_front(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.fronts.start(1)
        player = await nth(stage, 1)
        stage.fronts.reconfigure()
        await until(lambda: player.told(Reconfigure), "told")


@pytest.mark.parametrize("obedient", [True, False])
async def test_a_drain_ends_with_no_front(tmp_path: Path, obedient: bool) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.fronts.start(1)
        player = await nth(stage, 1)
        await ready(stage, player)
        grace_s = 5.0 if obedient else -fronts.FAREWELL_S
        drain = asyncio.create_task(stage.fronts.drain(grace_s))
        await until(lambda: player.told(Stop), "told to stop")
        if obedient:
            player.leave(0)
        await drain
        assert stage.fronts.list_serving() == []
        assert (signal.SIGKILL in player.signals) == (not obedient)
        assert len(stage.players) == 1, "it is not replaced"


async def test_a_front_that_cannot_be_forked_is_tried_again(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        stage.refuse = "no processes left"
        stage.fronts.start(1)
        await until(lambda: "error" in stage.told("front-0"), "refused")
        stage.refuse = ""
        await nth(stage, 1)


class Ear:
    """Hears what a front says, and its silence."""

    def __init__(self) -> None:
        self.sentences: list[str] = []
        self.silent: list[int] = []

    def on_message(self, front: FrontProcess, message: FromFront, blob: bytes) -> None:
        raise codec.Malformed("no list of figures")

    def on_hand_over(self, front: FrontProcess, message: HandOver, fds: list[int]) -> None:
        packets.close_all(fds)

    def unheard(self, front: FrontProcess, sentence: str) -> None:
        self.sentences.append(sentence)

    def fell_silent(self, front: FrontProcess) -> None:
        self.silent.append(front.number)


@pytest.mark.promise("M98")
def test_what_a_front_says_and_nobody_can_read_harms_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        ear, (ours, theirs) = Ear(), packets.pair()
        front = FrontProcess(7, 0, ForkedWorker(1, "front", "front-0", ours), 0.0, ear)
        with theirs, (tmp_path / "x").open("wb") as file:
            packets.send(theirs, b"nonsense", [file.fileno()])
            packets.send(theirs, messages.pack(FIGURES))
            await until(lambda: len(ear.sentences) == 2, "both are told")
        await until(lambda: ear.silent == [7], "its end")
        assert ear.sentences[1] == "it sent something that cannot be read: no list of figures"
        front.close()

    before = descriptors(os.getpid())
    asyncio.run(asyncio.wait_for(main(), 20))
    assert descriptors(os.getpid()) == before
