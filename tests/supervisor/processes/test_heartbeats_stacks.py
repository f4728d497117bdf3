"""What workers were doing: asked for while they run, and read when they have ended."""

import asyncio
import os
import signal

import pytest

from metamcp_supervisor.processes.heartbeats import (
    STACKS_BYTES_MAX,
    TICK_S,
    Heartbeats,
    NoStacks,
    Stacks,
)
from metamcp_supervisor.processes.workers import PulseVerdict
from metamcp_worker.ipc import packets
from tests.fakes.nursery_hand import said
from tests.supervisor.processes.test_nursery import House, opened_nursery
from tests.waiting import until

pytestmark = pytest.mark.process


async def spinning(house: House) -> int:
    """A worker whose only thread never gives way; its pid."""
    worker = await house.born()
    packets.send(worker.sock, b"spin on")
    assert await asyncio.to_thread(said, worker.sock) == b"spins"
    return worker.pid


@pytest.mark.promise("M73")
async def test_a_worker_tells_what_it_does_and_goes_on() -> None:
    async with opened_nursery() as house:
        worker = await house.born()
        for _ in range(3):
            text = await house.nursery.stacks.dump(worker.pid)
            assert "most recent call first" in text
            assert text.count("nursery_worker.py") == 1
        packets.send(worker.sock, b"exit 5")
        report = await house.exits.get()
        assert (report.code, report.stacks) == (5, "")


@pytest.mark.promise("M73")
async def test_a_worker_that_hangs_is_killed_and_its_last_stacks_are_told() -> None:
    async with opened_nursery() as house:
        pid, now = await spinning(house), 0.0
        verdicts: list[PulseVerdict] = []
        heartbeats = Heartbeats(house.nursery.signal, lambda: now)
        heartbeats.watch(pid, verdicts.append)
        heartbeats.beat(pid)
        while PulseVerdict.HUNG not in verdicts:
            now += TICK_S
            heartbeats.look()
        heartbeats.close()
        report = await house.exits.get()
        assert report.signal == signal.SIGABRT
        assert "Fatal Python error: Aborted" in report.stacks
        assert "nursery_worker.py" in report.stacks


async def test_who_is_stopped_or_gone_gives_no_stacks_but_a_reason() -> None:
    async with opened_nursery() as house:
        worker = await house.born()
        os.kill(worker.pid, signal.SIGSTOP)
        with pytest.raises(NoStacks, match="within 2 s: it is stopped"):
            await house.nursery.stacks.dump(worker.pid)
        os.kill(worker.pid, signal.SIGKILL)
        await house.exits.get()
        with pytest.raises(NoStacks, match="does not run"):
            await house.nursery.stacks.dump(worker.pid)


async def test_the_stacks_of_a_front_are_told_by_the_nursery() -> None:
    async with opened_nursery() as house:
        worker = await house.fork("front", "front-0")
        assert await asyncio.to_thread(said, worker.sock) == b"hello"
        os.kill(worker.pid, signal.SIGABRT)
        assert "Fatal Python error: Aborted" in (await house.exits.get()).stacks
        told = [house.events.get_nowait() for _ in range(house.events.qsize())]
        assert told[-1].startswith(f"front-0 (process {worker.pid}) wrote its stacks: Fatal")


def test_a_worker_that_writes_without_end_fills_its_file_and_no_memory() -> None:
    stacks = Stacks(lambda pid, number: None)
    fd = stacks.open(1, "front-0")
    stacks.on_fork(1, 7)
    with pytest.raises(PermissionError):
        until(lambda: os.write(fd, b"x" * 1000) < 0, "the end of the file")
    os.close(fd)
    name, text = stacks.take(7)
    assert name == "front-0"
    assert STACKS_BYTES_MAX - 1000 < len(text) <= STACKS_BYTES_MAX
