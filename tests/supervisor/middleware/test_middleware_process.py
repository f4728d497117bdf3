"""Processes of middleware, played by the test: one for each table, replaced when it changes."""

import signal
import socket
from contextlib import aclosing
from pathlib import Path

import pytest
from msgspec.structs import replace

from metamcp_supervisor.config.config import MiddlewareConfig
from metamcp_supervisor.middleware.middleware_process import Middlewares
from metamcp_supervisor.processes.nursery import ForkedWorker
from metamcp_supervisor.roles.role_process import RoleProcess
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.messages import WorkerExit
from metamcp_worker.ipc.middleware_calls import (
    EXIT_MEMORY,
    MiddlewareFigures,
    MiddlewareOn,
    role_of,
)
from metamcp_worker.ipc.spec import FrontSpec
from tests.supervisor.configs import config
from tests.supervisor.services import service_context
from tests.supervisor.stage import until

pytestmark = pytest.mark.process

SPEC = FrontSpec(version="1", endpoints=(), hosts=())
ONE = MiddlewareConfig(name="one", uses="cache", match=("*/*",), order=5)
TWO = MiddlewareConfig(name="two", uses="filter", match=("a/*",), mode="permissive")
_read = codec.reader(MiddlewareOn)


class PlayedHost:
    """The other end of the control socket. `on`: what it was told."""

    def __init__(self, sock: socket.socket, pid: int) -> None:
        self.pid = pid
        self.gone = False
        self.on: MiddlewareOn | None = None
        self._channel = packets.Channel(sock, self._packet, self._left)

    def _packet(self, data: bytes, fds: list[int]) -> None:
        self.on = _read(data)
        with socket.socket(fileno=fds.pop()) as acceptor:
            packets.accept(acceptor).close()

    def _left(self) -> None:
        self.gone = True

    def say(self, figures: MiddlewareFigures) -> None:
        self._channel.send(messages.pack(figures))

    def close(self) -> None:
        self._channel.close()


class House:
    """What the processes are wired to. `lines`: the tables in force."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines: tuple[MiddlewareConfig, ...] = ()
        self.born: list[PlayedHost] = []
        self.forked: list[tuple[str, str]] = []
        self.journal = Journal(lambda: 0.0)
        self.roles: dict[str, RoleProcess] = {}
        base = config(runtime_dir=folder)
        context = service_context(
            self, lambda: replace(base, middleware=self.lines),
            journal=self.journal, roles=self.roles,
        )  # fmt: skip
        self._heartbeats = context.heartbeats
        self.middlewares = Middlewares(context)

    async def fork(self, role: str, name: str) -> ForkedWorker:
        ours, theirs = packets.pair()
        pid = 100 + len(self.born)
        self.forked.append((role, name))
        self.born.append(PlayedHost(theirs, pid))
        return ForkedWorker(pid, role, name, ours)

    def signal(self, pid: int, number: int) -> None: ...

    def tune(self) -> None: ...

    def suspect(self) -> None: ...

    def settle(self, *lines: MiddlewareConfig) -> FrontSpec:
        self.lines = lines
        return self.middlewares.add_settings(SPEC)

    async def told(self, number: int, name: str) -> PlayedHost:
        """The process of this number, from 0, after a front has connected to this middleware."""
        connector = self.roles[role_of(name)].connector
        assert connector is not None
        with packets.connect(connector):
            await until(lambda: len(self.born) > number, "it is forked")
            await until(lambda: self.born[number].on is not None, "it has its settings")
        return self.born[number]

    def said(self) -> list[str]:
        return [event.cause for event in self.journal.since(0) if event.what == "error"]

    async def aclose(self) -> None:
        for each in self.roles.values():
            await each.close()
        self._heartbeats.close()
        for born in self.born:
            born.close()


async def test_each_table_has_a_process_and_fronts_get_all_in_their_order(tmp_path: Path) -> None:
    async with aclosing(House(tmp_path)) as house:
        assert house.settle().middleware == ()
        assert house.roles == {}
        found = house.settle(ONE, TWO).middleware
        assert [(one.name, one.enforce, one.timeout_ms) for one in found] == [
            ("two", False, 200),
            ("one", True, 200),
        ]
        process = await house.told(0, "one")
        assert house.forked == [("middleware", "middleware one")]
        assert process.on is not None
        assert (process.on.name, process.on.entry) == ("one", "cache")
        assert bytes(process.on.options) == b"{}"
        process.say(MiddlewareFigures(requests=3, running=1, trouble="cannot be loaded"))
        role = house.roles["middleware one"]
        await until(lambda: role.status().trouble, "it says so")
        assert role.status().counts == {"requests": 3, "running": 1}
        assert house.said() == ["cannot be loaded"]


async def test_other_options_need_another_process_and_other_patterns_none(tmp_path: Path) -> None:
    async with aclosing(House(tmp_path)) as house:
        house.settle(ONE)
        first = await house.told(0, "one")
        house.settle(replace(ONE, match=("b/*",)))
        assert not first.gone
        house.settle(replace(ONE, options='{"ttl": "1s"}'))
        await until(lambda: first.gone, "it is to end")
        second = await house.told(1, "one")
        assert second.on is not None
        assert bytes(second.on.options) == b'{"ttl": "1s"}'
        house.settle()
        await until(lambda: second.gone, "it is to end, too")
        assert [(each.is_wanted, each.connector) for each in house.roles.values()] == [
            (False, None)
        ]


@pytest.mark.parametrize(
    ("code", "number", "words"),
    [
        (None, signal.SIGALRM, "it ended because it hung;"),
        (EXIT_MEMORY, 0, "it ended because its memory was used up;"),
        (None, signal.SIGKILL, "it ended with signal 9;"),
    ],
)
async def test_the_journal_says_why_it_ended(
    tmp_path: Path, code: int | None, number: int, words: str
) -> None:
    async with aclosing(House(tmp_path)) as house:
        house.settle(ONE)
        process = await house.told(0, "one")
        end = WorkerExit(pid=process.pid, code=code, signal=number)
        assert house.roles["middleware one"].on_exit(end)
        process.close()
        assert house.said()[0].startswith(words)
        await house.told(1, "one")
