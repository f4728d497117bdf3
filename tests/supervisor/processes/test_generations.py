"""Nurseries of two programs side by side, with real processes."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from metamcp_supervisor.processes.generations import Nurseries
from metamcp_supervisor.processes.nursery import ForkedWorker
from tests.fakes.nursery_hand import subreaper
from tests.live.processes import below

pytestmark = pytest.mark.process


async def taken_over(nurseries: Nurseries) -> tuple[int, asyncio.Task[ForkedWorker]]:
    """Another one forks from now on. The older one is stopped, and so is a fork that was asked of
    it."""
    older = nurseries.pid
    os.kill(older, signal.SIGSTOP)
    forked = asyncio.create_task(nurseries.fork("child", "git"))
    assert await nurseries.renew()
    return older, forked


async def test_a_fork_that_was_asked_of_the_older_one_is_not_lost_when_another_takes_over() -> None:
    async with opened_nurseries() as (nurseries, ends):
        older, forked = await taken_over(nurseries)
        os.kill(older, signal.SIGCONT)
        worker = await forked
        assert older in nurseries.pids
        worker.sock.close()
        assert await ends.get() == worker.pid
        await settled(nurseries)
        assert nurseries.pids == [nurseries.pid]
        assert nurseries.pid != older


async def test_a_fork_that_the_older_one_cannot_do_any_more_is_one_of_the_newer_one() -> None:
    async with opened_nurseries() as (nurseries, ends):
        older, forked = await taken_over(nurseries)
        os.kill(older, signal.SIGKILL)
        worker = await forked
        assert worker.pid in below(nurseries.pid)
        worker.sock.close()
        assert await ends.get() == worker.pid
        await settled(nurseries)
        assert nurseries.pids == [nurseries.pid]


@asynccontextmanager
async def opened_nurseries() -> AsyncGenerator[tuple[Nurseries, asyncio.Queue[int]]]:
    ends: asyncio.Queue[int] = asyncio.Queue()
    nurseries = Nurseries(
        on_exit=lambda end: ends.put_nowait(end.pid),
        on_halt=lambda _pid, _yes: None,
        on_lost=lambda _reason: None,
        on_event=lambda _sentence: None,
    )
    nurseries.spared |= below(os.getpid())
    try:
        await nurseries.start()
        yield nurseries, ends
    finally:
        await nurseries.close()
        subreaper(False)


async def settled(nurseries: Nurseries) -> None:
    while nurseries.find_blocker():
        await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.01)
