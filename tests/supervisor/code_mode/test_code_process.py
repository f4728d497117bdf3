"""The process of the sandboxes, played by the test over a real control socket: started by the first
connection, replaced when it dies, ended with its table."""

import os
import resource
import socket
from collections.abc import Generator
from contextlib import aclosing, contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from metamcp_supervisor.code_mode.code_process import CodeProcess
from metamcp_supervisor.config.config import CodeConfig
from metamcp_supervisor.config.installation import deno
from metamcp_supervisor.processes.nursery import ForkedWorker, NotForked
from metamcp_supervisor.roles.role_process import SocketProcess
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.code_runs import CodeFigures, CodeOn
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.messages import Heartbeat, WorkerExit
from tests.supervisor.configs import config
from tests.supervisor.services import service_context
from tests.supervisor.stage import until

pytestmark = pytest.mark.process

_read = codec.reader(CodeOn)


class PlayedSandboxes:
    """The other end of the control socket. `on`: what it was told; `listener`: what it got."""

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self.pid = pid
        self.gone = False
        self.on: CodeOn | None = None
        self.listener: socket.socket | None = None
        self._channel = packets.Channel(sock, self._packet, self._left)

    def _packet(self, data: bytes, fds: list[int]) -> None:
        self.on = _read(data)
        if fds:
            self.listener = socket.socket(fileno=fds.pop())

    def _left(self) -> None:
        self.gone = True

    def say(self, message: Message) -> None:
        self._channel.send(messages.pack(message))

    def accept(self) -> None:
        """Take one connection of a front, which must be there."""
        assert self.listener is not None
        packets.accept(self.listener).close()

    def close(self) -> None:
        self._channel.close()
        if self.listener is not None:
            self.listener.close()


class CodeHouse:
    """What the process is wired to. `code`: the settings in force."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.code = CodeConfig(enabled=True)
        self.born: list[PlayedSandboxes] = []
        self.signals: list[tuple[int, int]] = []
        self.refuses = False
        self.journal = Journal(lambda: 0.0)
        base = config(runtime_dir=folder)
        context = service_context(self, lambda: replace(base, code=self.code), journal=self.journal)
        self._heartbeats = context.heartbeats
        self.metrics = context.metrics
        self.process = CodeProcess(context)
        self.role: SocketProcess = self.process

    def rows(self) -> dict[str, dict[tuple[str, ...], object]]:
        """The page of metrics, as far as it is about the process."""
        return {name: dict[tuple[str, ...], object](rows) for name, rows in self.role.metric_rows()}

    async def fork(self, role: str, name: str) -> ForkedWorker:
        if self.refuses:
            self.refuses = False
            raise NotForked("there is no room")
        ours, theirs = packets.pair()
        pid = 100 + len(self.born)
        self.born.append(PlayedSandboxes(theirs, pid))
        return ForkedWorker(pid, role, name, ours)

    def signal(self, pid: int, number: int) -> None:
        self.signals.append((pid, number))

    def tune(self) -> None: ...

    def suspect(self) -> None: ...

    def settle(self, code: CodeConfig) -> bool:
        """Put settings in force. Return whether fronts can connect."""
        self.code = code
        self.process.adapt()
        return self.process.connector is not None

    def connect(self) -> socket.socket:
        assert self.role.connector is not None
        return packets.connect(self.role.connector)

    async def told(self, number: int) -> PlayedSandboxes:
        """The process of this number, from 0, when it has its settings."""
        await until(lambda: len(self.born) > number, "it is forked")
        await until(lambda: self.born[number].on is not None, "it has its settings")
        return self.born[number]

    def said(self) -> list[tuple[str, str]]:
        return [(event.what, event.cause) for event in self.journal.since(0)]

    async def aclose(self) -> None:
        await self.process.close()
        self._heartbeats.close()
        for each in self.born:
            each.close()


async def test_the_first_connection_starts_it_and_not_the_configuration(tmp_path: Path) -> None:
    async with aclosing(CodeHouse(tmp_path)) as house:
        assert house.settle(house.code)
        assert list(house.folder.iterdir()) == []
        assert (house.process.is_wanted, house.process.status().state) == (True, "idle")
        assert house.born == []
        with house.connect():
            process = await house.told(0)
            process.accept()
        assert process.on == CodeOn(deno=deno(), runs_max=os.cpu_count() or 1)
        with house.connect():
            process.accept()
        assert (len(house.born), house.process.status().pid) == (1, process.pid)


async def test_what_it_counts_is_told_and_shown(tmp_path: Path) -> None:
    async with aclosing(CodeHouse(tmp_path)) as house:
        house.settle(house.code)
        with house.connect():
            process = await house.told(0)
        process.say(Heartbeat(seq=1))
        process.say(CodeFigures(counts={"ok": 2}, running=1))
        last = CodeFigures(counts={"ok": 3, "timeout": 1}, warm=2, confined="landlock-7")
        process.say(last)
        await until(lambda: bool(house.process.status().confined), "it is counted")
        rows = house.rows()
        runs = {outcome: n for (outcome,), n in rows["metamcp_code_runs_total"].items() if n}
        assert runs == {"ok": 3, "timeout": 1}
        assert rows["metamcp_code_running"] == {(): 0}
        assert rows["metamcp_code_warm"] == {(): 2}
        status = house.process.status()
        assert (status.state, status.confined) == ("ready", "landlock-7")
        assert status.counts == {"runs": 4, "running": 0, "waiting": 0, "warm": 2}


async def test_connections_after_its_death_get_the_next_one(tmp_path: Path) -> None:
    async with aclosing(CodeHouse(tmp_path)) as house:
        house.settle(house.code)
        with house.connect():
            process = await house.told(0)
            process.accept()
        assert house.process.on_exit(WorkerExit(pid=process.pid, signal=9))
        assert not house.process.on_exit(WorkerExit(pid=process.pid, signal=9))
        assert house.process.status().state == "error"
        process.close()
        with house.connect():
            (await house.told(1)).accept()
        what = "it ended with signal 9; its runs failed; the next run starts another one"
        assert house.said()[1] == ("error", what)


async def test_a_fork_that_fails_is_tried_again_while_the_connection_waits(tmp_path: Path) -> None:
    async with aclosing(CodeHouse(tmp_path)) as house:
        house.settle(house.code)
        house.refuses = True
        with house.connect():
            (await house.told(0)).accept()
        assert house.said()[0] == ("error", "there is no room")


async def test_other_settings_are_told_to_the_process_that_runs_and_to_the_next(
    tmp_path: Path,
) -> None:
    async with aclosing(CodeHouse(tmp_path)) as house:
        house.settle(house.code)
        house.settle(CodeConfig(enabled=True, warm=4))
        with house.connect():
            first = await house.told(0)
            first.accept()
        assert first.on is not None
        assert first.on.warm == 4
        house.settle(CodeConfig(enabled=True, warm=5, jit=True))
        await until(lambda: first.on is not None and first.on.jit, "it is told")
        assert (first.on.warm, first.gone, len(house.born)) == (5, False, 1)
        assert house.process.on_exit(WorkerExit(pid=first.pid, code=0))
        first.close()
        with house.connect():
            assert (await house.told(1)).on == first.on


async def test_without_its_table_it_ends_and_nothing_listens(tmp_path: Path) -> None:
    async with aclosing(CodeHouse(tmp_path)) as house:
        house.settle(house.code)
        with house.connect():
            process = await house.told(0)
        assert not house.settle(CodeConfig())
        await until(lambda: process.gone, "it is to end")
        assert (house.process.is_wanted, house.process.pid) == (False, 0)
        assert house.rows() == {}
        assert house.said()[-1] == ("stopped", "code mode is switched off")
        assert house.settle(CodeConfig(enabled=True))
        with house.connect():
            assert await house.told(1)


async def test_a_pair_that_cannot_be_made_is_said_and_fronts_have_no_code_mode(
    tmp_path: Path,
) -> None:
    async with aclosing(CodeHouse(tmp_path)) as house:
        with no_more_descriptors():
            assert not house.settle(house.code)
        assert house.said() == [("error", "no free descriptor: Too many open files")]
        assert house.settle(house.code)


@contextmanager
def no_more_descriptors() -> Generator[None]:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open(os.devnull) as file:
        lowest = file.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limit[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
