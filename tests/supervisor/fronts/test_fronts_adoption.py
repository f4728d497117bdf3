"""Fronts that are killed, as true processes below a true nursery: who comes after them knows what
they knew."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from metamcp_supervisor.fronts.front import FrontProcess
from metamcp_supervisor.fronts.fronts import Fronts
from metamcp_supervisor.processes.heartbeats import Heartbeats
from metamcp_supervisor.processes.nursery import Nursery
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_worker.ipc.disclosure import ServerListsChanged
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.figures import DayCount
from metamcp_worker.ipc.messages import Figures, FrontStats, OrderRequest, Tenant, WorkerExit
from metamcp_worker.ipc.spec import FrontSpec
from tests.fakes.nursery_hand import subreaper
from tests.live.processes import below, descriptors
from tests.supervisor.stage import until

pytestmark = pytest.mark.process

COMMAND = (sys.executable, str(Path(__file__).parents[1] / "front_role.py"))
LIVE_S_MAX = 40.0


class House:
    """Fronts with everything below them. `on_server_wanted` is what they told of the sessions they
    got."""

    def __init__(self) -> None:
        own = below(os.getpid())
        self.told: list[str] = []
        self.reasons: list[str] = []
        self.journal = Journal(lambda: 0.0)
        self.nursery = Nursery(
            on_exit=self._exited,
            on_halt=lambda pid, yes: None,
            on_lost=self.hopeless,
            on_event=lambda sentence: None,
            keep=lambda: own,
            command=COMMAND,
        )
        self.heartbeats = Heartbeats(self.nursery.signal, asyncio.get_running_loop().time)
        spec = FrontSpec(version="1", endpoints=(), hosts=())
        self.fronts = Fronts(self.nursery, self.heartbeats, self.journal, self, lambda: spec, [])

    def _exited(self, end: WorkerExit) -> None:
        assert self.fronts.on_exit(end)

    def welcome(self, front: FrontProcess) -> None: ...

    def connectors(self) -> Mapping[str, socket.socket]:
        return {}

    def on_server_wanted(self, server: str, tenant: Tenant | None) -> None:
        self.told.append(server)

    def on_roots_changed(self, who: str, roots: str) -> None: ...

    def on_sessions_ended(self, sessions: Sequence[str]) -> None: ...

    def on_request(
        self, front: FrontProcess, message: OrderRequest | ServerListsChanged, blob: bytes
    ) -> None: ...

    def on_attach_failed(self, front: FrontProcess, server: str, generation: int) -> None: ...

    def on_front_stats(
        self, front: FrontProcess, figures: Figures, summary: FrontStats
    ) -> None: ...

    def on_day_counts(self, front: FrontProcess, counts: Sequence[DayCount]) -> None: ...

    def on_other_message(self, front: FrontProcess, message: Message, blob: bytes) -> None: ...

    def on_front_gone(self, number: int) -> None: ...

    def hopeless(self, reason: str) -> None:
        self.reasons.append(reason)

    async def ready(self, after: int = 0) -> int:
        """The pid of a front that is ready, another one than `after`."""

        def found() -> int | None:
            ready = (front.pid for front in self.fronts.list_serving() if front.ready)
            return next((pid for pid in ready if pid != after), None)

        return await until(found, "a front is ready")

    async def close(self) -> None:
        await self.fronts.drain(1.0)
        await self.fronts.close()
        self.heartbeats.close()
        await self.nursery.close()


@pytest.fixture(autouse=True)
def _back_to_a_plain_process() -> Iterator[None]:
    yield
    subreaper(False)


def test_fronts_that_are_rolled_leave_their_sessions_to_their_successors() -> None:
    async def main() -> None:
        house = House()
        try:
            await house.nursery.start()
            house.fronts.start(1)
            first = await house.ready()
            await house.fronts.roll()
            second = await house.ready(after=first)
            await until(lambda: house.told, "they are adopted")
            assert house.told == [f"of {first}"]
            assert [front.pid for front in house.fronts.list_serving()] == [second]
        finally:
            await house.close()
        assert house.reasons == []
        assert [one.what for one in house.journal.since(0)].count("ready→stopped") == 2

    before = descriptors(os.getpid())
    asyncio.run(asyncio.wait_for(main(), LIVE_S_MAX))
    assert descriptors(os.getpid()) == before


def test_the_successor_of_a_front_that_is_killed_gets_its_sessions() -> None:
    async def main() -> None:
        house = House()
        try:
            await house.nursery.start()
            house.fronts.start(1)
            pids = [await house.ready()]
            for _ in range(2):
                os.kill(pids[-1], signal.SIGKILL)
                pids.append(await house.ready(after=pids[-1]))
            first, second, _ = (f"of {pid}" for pid in pids)
            assert house.told == [first, first, second]
        finally:
            await house.close()
        assert house.reasons == []
        assert "bug" not in [event.what for event in house.journal.since(0)]

    before = descriptors(os.getpid())
    asyncio.run(asyncio.wait_for(main(), LIVE_S_MAX))
    assert descriptors(os.getpid()) == before
