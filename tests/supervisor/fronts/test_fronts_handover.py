"""Connections that move between fronts, with fronts that the tests play."""

import os
import signal
import socket
from functools import partial
from pathlib import Path

import pytest

from metamcp_supervisor.fronts import handover
from metamcp_worker.ipc import packets
from metamcp_worker.ipc.messages import (
    HOPS_MAX,
    AdoptSessions,
    ConnectionTaken,
    HandOver,
    SessionKept,
)
from tests.live.processes import descriptors
from tests.supervisor.fronts.test_fronts import names, nth, ready, session
from tests.supervisor.stage import Player, Stage, opened_stage, until

pytestmark = pytest.mark.process


async def troupe(stage: Stage, count: int) -> list[Player]:
    """So many fronts, which are ready; their numbers are their places."""
    stage.fronts.start(count)
    players = [await nth(stage, 1, slot) for slot in range(count)]
    for player in players:
        await ready(stage, player)
    by_pid = {front.pid: front.number for front in stage.fronts.list_serving()}
    return sorted(players, key=lambda player: by_pid[player.pid])


async def heard(player: Player, count: int = 1) -> HandOver:
    await until(lambda: len(player.told(HandOver)) >= count, f"{player.name} is handed it")
    return player.told(HandOver)[count - 1]


def give(player: Player, name: str, maker: int) -> socket.socket:
    """This front has read a request for `name`; the client's end of the connection."""
    ours, theirs = socket.socketpair()
    message = HandOver(name=name, maker=maker, hops=1, last=True)
    player.hand(message, [packets.blob(b"GET / " + name.encode()), theirs.detach()])
    return ours


def talks(client: socket.socket, fd: int) -> bool:
    """Is this a descriptor of the other end?"""
    os.write(fd, b"hello")
    return client.recv(5) == b"hello"


async def test_a_connection_goes_to_the_front_that_made_the_name_with_all_that_was_read(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        first, second = await troupe(stage, 2)
        with give(first, "token.1", 1) as client:
            message = await heard(second)
            assert message == HandOver(name="token.1", maker=1, hops=1, last=True)
            assert packets.read_blob(second.fds.pop(-2)) == b"GET / token.1"
            assert talks(client, second.fds[-1])
        second.say(ConnectionTaken())
        assert first.told(HandOver) == []


async def test_a_session_is_where_it_is_held_whoever_made_its_name(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        first, second, third = await troupe(stage, 3)
        first.say(SessionKept(), session("token.0"))
        first.leave(None, signal.SIGKILL)
        heir = await until(
            lambda: next((one for one in (second, third) if one.told(AdoptSessions)), None),
            "an heir",
        )
        other = third if heir is second else second
        with give(other, "token.0", 0) as client:
            await heard(heir)
            assert talks(client, heir.fds[-1])


@pytest.mark.parametrize("maker", [0, 7])
async def test_what_nobody_has_comes_back_and_goes_nowhere_from_there(
    tmp_path: Path, maker: int
) -> None:
    async with opened_stage(tmp_path) as stage:
        first, second = await troupe(stage, 2)
        with give(first, f"token.{maker}", maker):
            assert (await heard(first)).hops == HOPS_MAX
        assert second.told(HandOver) == []


async def test_what_a_dead_front_did_not_take_goes_to_the_heir_of_its_sessions(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        first, second = await troupe(stage, 2)
        first.say(SessionKept(), session("mine.0"))
        with give(second, "mine.0", 0) as taken, give(second, "mine.0", 0) as client:
            await heard(first, 2)
            first.say(ConnectionTaken())
            packets.close_all(first.fds)
            first.fds.clear()
            first.leave(None, signal.SIGKILL)
            await heard(second)
            assert [type(one) for one in second.heard[-2:]] == [AdoptSessions, HandOver]
            assert names(second.fds[-3]) == ["mine.0"]
            assert talks(client, second.fds[-1])
            assert taken.recv(1) == b"", "what it took ended with it"
            assert len(second.told(HandOver)) == 1


async def test_a_connection_whose_front_is_gone_is_answered_by_another(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        first, second = await troupe(stage, 2)
        with give(first, "token.9", 9) as client:
            await heard(first)
            packets.close_all(first.fds)
            first.fds.clear()
            first.leave(None, signal.SIGKILL)
            assert (await heard(second)).hops == HOPS_MAX
            assert talks(client, second.fds[-1])


async def test_a_front_that_takes_nothing_holds_a_bounded_number(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        first, second = await troupe(stage, 2)
        count = handover.SENT_MAX + 3
        clients = [give(first, "token.1", 1) for _ in range(count)]
        await heard(second, handover.SENT_MAX)
        for _ in range(3):
            second.say(ConnectionTaken())
        await heard(second, count)
        for client in clients:
            client.close()


@pytest.mark.promise("M98")
async def test_nothing_stays_open_of_what_cannot_be_passed_on(tmp_path: Path) -> None:
    before = descriptors(os.getpid())
    async with opened_stage(tmp_path) as stage:
        first, second = await troupe(stage, 2)
        first.hand(HandOver(name="token.1", maker=1, hops=1), [packets.blob(b"")])
        for _ in range(handover.SENT_MAX + handover.WAITING_MAX + 1):
            give(first, "token.1", 1).close()
        await heard(second, handover.SENT_MAX)
    assert descriptors(os.getpid()) == before


async def test_what_was_read_of_all_that_wait_has_a_bound(tmp_path: Path) -> None:
    async with opened_stage(tmp_path) as stage:
        first, second = await troupe(stage, 2)
        large = packets.blob(b"x" * (handover.HELD_BYTES_MAX // 4))
        message = HandOver(name="token.1", maker=1, hops=1)
        ends = [socket.socketpair() for _ in range(5)]
        for _, theirs in ends:
            first.hand(message, [os.dup(large), theirs.detach()])
        await heard(second, 4)
        ends[4][0].setblocking(False)
        await until(partial(cut, ends[4][0]), "the fifth is cut")
        for _ in range(4):
            second.say(ConnectionTaken())
        with give(first, "token.1", 1):
            await heard(second, 5)
        os.close(large)
        for ours, _ in ends:
            ours.close()


def cut(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False


async def test_a_connection_between_two_requests_goes_to_any_other_front_as_soon_as_there_is_one(
    tmp_path: Path,
) -> None:
    async with opened_stage(tmp_path) as stage:
        first, second = await troupe(stage, 2)
        with give(first, "", -1) as client:
            await heard(second)
            assert talks(client, second.fds[-1])
        second.leave(None, signal.SIGKILL)
        with give(first, "", -1) as client:
            third = await nth(stage, 2, 1)
            await ready(stage, third)
            await heard(third, 2)  # also what the dead one had not taken
            assert talks(client, third.fds[-1])
            assert not first.told(HandOver), "it goes elsewhere"
