"""The nursery from the supervisor's side, with real processes at every step."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from metamcp_supervisor.processes.nursery import (  # fmt: skip
    DEFAULT_COMMAND,
    ForkedWorker,
    NotForked,
    Nursery,
    NurseryDown,
)
from metamcp_worker.ipc import packets
from metamcp_worker.ipc.messages import WorkerExit
from metamcp_worker.ipc.spec import LogSpec
from metamcp_worker.runtime import logs
from tests.fakes.nursery_hand import (
    FAKES,
    ROLES,
    THREADED,
    WAIT_S,
    litter,
    name_of,
    said,
    sleepers,
    subreaper,
)  # fmt: skip
from tests.live.processes import alive, below, descriptors
from tests.waiting import until

pytestmark = pytest.mark.process


class House:
    """A nursery in this process and what was heard of it. What it forked is noted in `workers`
    as a caller would do it: right after the fork."""

    def __init__(self, command: tuple[str, ...] = ROLES) -> None:
        own = below(os.getpid())
        self.exits: asyncio.Queue[WorkerExit] = asyncio.Queue()
        self.halts: asyncio.Queue[tuple[int, bool]] = asyncio.Queue()
        self.lost: asyncio.Queue[str] = asyncio.Queue()
        self.events: asyncio.Queue[str] = asyncio.Queue()
        self.workers: dict[int, ForkedWorker] = {}
        self.nursery = Nursery(
            on_exit=self._exit,
            on_halt=lambda pid, halted: self.halts.put_nowait((pid, halted)),
            on_lost=self.lost.put_nowait,
            on_event=self.events.put_nowait,
            keep=lambda: own,
            command=command,
        )

    async def fork(self, role: str = "child", name: str = "git") -> ForkedWorker:
        worker = await self.nursery.fork(role, name)
        self.workers[worker.pid] = worker
        worker.sock.settimeout(WAIT_S)
        return worker

    async def born(self) -> ForkedWorker:
        """A worker that has said hello."""
        worker = await self.fork()
        assert await asyncio.to_thread(said, worker.sock) == b"hello"
        return worker

    async def replaced(self) -> None:
        """Wait for the event that tells of a new nursery."""
        while "a new nursery runs" not in await self.events.get():
            pass

    def _exit(self, report: WorkerExit) -> None:
        self.workers.pop(report.pid).sock.close()  # KeyError: told too early, or twice
        self.exits.put_nowait(report)


@pytest.fixture(autouse=True)
def _back_to_a_plain_process() -> Iterator[None]:
    """Starting a nursery makes this process a subreaper; for other tests it must not be one."""
    yield
    subreaper(False)


@asynccontextmanager
async def opened_nursery(command: tuple[str, ...] = ROLES) -> AsyncGenerator[House]:
    gc.collect()  # what an earlier test left must not be closed meanwhile
    before, own = descriptors(os.getpid()), below(os.getpid())
    failures: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    house = House(command)
    try:
        await house.nursery.start()
        yield house
    finally:
        await house.nursery.close()
    assert not house.workers, "every worker's end was told"
    assert not failures
    assert below(os.getpid()) == own
    assert descriptors(os.getpid()) == before


async def test_a_worker_is_forked_and_speaks_on_its_socket() -> None:
    async with opened_nursery() as house:
        worker = await house.born()
        assert (worker.role, worker.name) == ("child", "git")
        assert worker.pid in below(house.nursery.pid)
        packets.send(worker.sock, b"exit 4")
        assert await house.exits.get() == WorkerExit(pid=worker.pid, code=4)


@pytest.fixture
def spoken() -> Iterator[Callable[[str], None]]:
    """Sets the form in which this process speaks, until the end of the test."""
    before = logs.current()
    yield lambda form: logs.tune(LogSpec(format=form))
    logs.tune(before)


@pytest.mark.promise("M89")
async def test_a_nursery_speaks_as_its_supervisor_does_from_its_start_and_when_that_changes(
    spoken: Callable[[str], None], capfd: pytest.CaptureFixture[str]
) -> None:
    async def fails(house: House) -> str:
        worker = await house.born()
        packets.send(worker.sock, b"raise what it is")
        await house.exits.get()
        return capfd.readouterr().err

    spoken("text")
    async with opened_nursery() as house:
        assert "critical nursery: git ends: it has a fault" in await fails(house)
        spoken("json")
        house.nursery.tune()
        assert '"room":"nursery","message":"git ends: it has a fault"' in await fails(house)
        os.kill(house.nursery.pid, signal.SIGKILL)
        await house.replaced()
        assert '"room":"nursery","message":"git ends: it has a fault"' in await fails(house)


async def test_a_module_that_cannot_be_preloaded_is_an_event() -> None:
    async with opened_nursery() as house:
        assert "could not preload no_module_of_this_name" in await house.events.get()


async def test_the_end_of_a_worker_is_told_after_its_fork_and_once() -> None:
    async with opened_nursery() as house:
        forked = [(await house.fork("brief")).pid for _ in range(20)]
        reports = [await house.exits.get() for _ in forked]
        assert sorted(report.pid for report in reports) == sorted(forked)
        assert {report.code for report in reports} == {3}


async def test_workers_are_forked_side_by_side() -> None:
    async with opened_nursery() as house:
        workers = await asyncio.gather(*(house.nursery.fork("child", "git") for _ in range(10)))
        house.workers.update((worker.pid, worker) for worker in workers)
        assert len(house.workers) == 10
        for worker in workers:
            house.nursery.signal(worker.pid, signal.SIGKILL)
            assert (await house.exits.get()).signal == signal.SIGKILL


async def test_a_fork_that_cannot_be_says_why() -> None:
    async with opened_nursery() as house:
        with pytest.raises(NotForked, match="git has the role 'cook'"):
            await house.fork("cook")
    async with opened_nursery(THREADED) as house:
        with pytest.raises(NotForked, match="runs 2 threads"):
            await house.fork()


async def test_a_stopped_worker_and_its_resumption_are_told() -> None:
    async with opened_nursery() as house:
        worker = await house.born()
        house.nursery.signal(worker.pid, signal.SIGSTOP)
        assert await house.halts.get() == (worker.pid, True)
        house.nursery.signal(worker.pid, signal.SIGCONT)
        assert await house.halts.get() == (worker.pid, False)


@pytest.mark.promise("M74")
async def test_a_killed_worker_is_told_with_the_number_of_its_orphans() -> None:
    async with opened_nursery() as house:
        worker = await house.born()
        await asyncio.to_thread(litter, worker.sock, "setsid", "wrapped")
        await asyncio.to_thread(until, lambda: len(sleepers(below(worker.pid))) == 2, "sleepers")
        doomed = below(worker.pid)
        os.kill(worker.pid, signal.SIGKILL)
        assert await house.exits.get() == WorkerExit(pid=worker.pid, signal=9, orphans=len(doomed))
        assert not alive(doomed)


async def test_a_fork_whose_caller_left_leaves_no_worker() -> None:
    async with opened_nursery() as house:
        asked = asyncio.create_task(house.nursery.fork("child", "git"))
        asyncio.get_running_loop().call_soon(asked.cancel)
        with pytest.raises(asyncio.CancelledError):
            await asked
        worker = await house.born()  # answered after the first one
        alone = {worker.pid}
        await asyncio.to_thread(until, lambda: below(house.nursery.pid) == alone, "the first gone")
        assert house.exits.empty()


@pytest.mark.promise("M74")
async def test_a_killed_nursery_is_swept_told_and_replaced() -> None:
    async with opened_nursery() as house:
        first = house.nursery.pid
        workers = {(await house.born()).pid: worker for worker in ("git", "web")}
        for pid in workers:
            await asyncio.to_thread(litter, house.workers[pid].sock, "setsid", "daemon")
        await asyncio.to_thread(until, lambda: len(sleepers(below(first))) == 4, "sleepers")
        doomed = below(first)
        os.kill(min(workers), signal.SIGSTOP)
        assert await house.halts.get() == (min(workers), True)
        os.kill(first, signal.SIGKILL)
        reports = [await house.exits.get() for _ in workers]
        assert not alive(doomed | {first})
        assert {report.pid for report in reports} == set(workers)
        assert {(report.signal, report.with_nursery) for report in reports} == {(9, True)}
        assert sum(report.orphans for report in reports) == len(doomed) - len(workers)
        assert house.nursery.pid != first
        await house.born()  # waits for the new one
        told = [house.events.get_nowait() for _ in range(house.events.qsize())]
        assert any(f"(process {first}) died, signal 9; 2 workers" in event for event in told)
        assert any("a new nursery runs as process" in event for event in told)


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", "1000"])


async def test_what_others_started_here_survives_the_sweep() -> None:
    with sleeper() as bystander:
        async with opened_nursery() as house:
            os.kill(house.nursery.pid, signal.SIGKILL)
            await house.replaced()
        assert bystander.poll() is None
        bystander.kill()


async def test_a_nursery_that_keeps_dying_is_given_up() -> None:
    async with opened_nursery() as house:
        for _ in range(5):
            os.kill(house.nursery.pid, signal.SIGKILL)
            await house.replaced()
        os.kill(house.nursery.pid, signal.SIGKILL)
        assert await house.lost.get() == "the nursery died 6 times in 60 s"
        with pytest.raises(NotForked, match="git is not started: the nursery died 6 times"):
            await house.fork()
        assert house.nursery.pid == 0


async def test_a_nursery_that_dies_as_soon_as_it_is_ready_did_not_start() -> None:
    ready = (
        "import socket, sys\n"
        "from metamcp_worker.ipc.messages import NurseryReady, pack\n"
        "socket.socket(fileno=int(sys.argv[-1])).send(pack(NurseryReady(pid=1)))"
    )
    house = House((sys.executable, "-c", ready))
    start = asyncio.create_task(house.nursery.start())
    # A busy loop reads the message and the end together.
    asyncio.get_running_loop().call_soon(
        lambda: os.waitid(os.P_PID, house.nursery.pid, os.WEXITED | os.WNOWAIT)
    )
    with pytest.raises(NurseryDown, match="did not start: it closed its control socket"):
        await start
    await house.nursery.close()


def test_a_nursery_that_does_not_start_is_an_error_with_its_reason() -> None:
    async def main(command: tuple[str, ...]) -> None:
        house = House(command)
        with pytest.raises(NurseryDown, match="did not start: "):
            await house.nursery.start()
        await house.nursery.close()

    before = descriptors(os.getpid())
    asyncio.run(main((sys.executable, "-c", "raise SystemExit(3)")))
    asyncio.run(main(("/no/such/program",)))
    assert descriptors(os.getpid()) == before


async def test_closing_ends_every_worker_and_tells_it() -> None:
    async with opened_nursery() as house:
        workers = {(await house.born()).pid for _ in range(2)}
        doomed = below(house.nursery.pid)
        await house.nursery.close()
        assert not alive(doomed)
        assert {house.exits.get_nowait().pid for _ in workers} == workers
        with pytest.raises(NotForked, match="the gateway stops"):
            await house.fork()


async def test_a_stopped_nursery_can_be_closed() -> None:
    async with opened_nursery() as house:
        worker = await house.born()
        os.kill(house.nursery.pid, signal.SIGSTOP)
        await house.nursery.close()
        assert (await house.exits.get()).pid == worker.pid


async def test_fifty_workers_leave_no_descriptor_behind() -> None:
    async with opened_nursery() as house:
        before = descriptors(os.getpid()), descriptors(house.nursery.pid)
        for _ in range(50):
            await house.fork("brief")
            await house.exits.get()
        assert (descriptors(os.getpid()), descriptors(house.nursery.pid)) == before


@pytest.mark.promise("M74")
def test_a_killed_supervisor_leaves_nothing_of_its_tree() -> None:
    command = (sys.executable, str(FAKES / "nursery_supervisor.py"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as supervisor:
        assert supervisor.stdout is not None
        nursery, *workers = map(int, supervisor.stdout.readline().split())
        until(lambda: len(sleepers(below(nursery))) == 9, "nine sleepers")
        doomed = below(nursery) | {nursery}
        os.kill(workers[0], signal.SIGSTOP)
        os.kill(max(sleepers(doomed)), signal.SIGSTOP)
        supervisor.kill()
    until(lambda: not alive(doomed), "the whole tree gone")


async def test_the_usual_command_starts_a_nursery() -> None:
    async with opened_nursery(DEFAULT_COMMAND) as house:
        assert name_of(house.nursery.pid) == "mmcp:nursery"


async def test_a_nursery_under_suspicion_stays_if_it_answers_and_is_replaced_if_not() -> None:
    async with opened_nursery() as house:
        first = house.nursery.pid
        house.nursery.suspect()
        await house.born()  # the answer to the question came before this one,
        await house.born()  # and has been taken in before this one
        assert house.nursery.pid == first
        os.kill(first, signal.SIGSTOP)
        house.nursery.suspect()
        await house.replaced()
        assert (await house.exits.get()).with_nursery
