"""The engine, played by the test over a real control socket: what it is told, and what is told of
it. Its socket and start are as those of the process of the sandboxes."""

from collections import Counter
from contextlib import aclosing
from pathlib import Path

import pytest
from msgspec.structs import replace

from metamcp_supervisor.config.config import AiConfig, Endpoint, WorkflowFiles
from metamcp_supervisor.processes.nursery import ForkedWorker
from metamcp_supervisor.telemetry.journal import WAITING
from metamcp_supervisor.workflows.engine_process import EngineProcess
from metamcp_supervisor.workflows.engine_settings import EngineConfig
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.engine_runs import AiSettings, EngineFigures, EngineOn, ReportedRun
from metamcp_worker.ipc.messages import WorkerExit
from metamcp_worker.ipc.spec import FrontSpec
from tests.supervisor.code_mode.test_code_process import CodeHouse, PlayedSandboxes
from tests.supervisor.configs import config
from tests.supervisor.services import NoFronts, service_context
from tests.supervisor.stage import until

pytestmark = pytest.mark.process

SPEC = FrontSpec(version="1", endpoints=(), hosts=())
HELLO = b'{"name":"hello","steps":[]}'
AI = AiConfig(url="https://models.example", model="small", key="of-the-model", timeout_s=2.0)
FILES = WorkflowFiles(definitions={"default": {"hello": HELLO}})
_read = codec.reader(EngineOn)


class PlayedEngine(PlayedSandboxes):
    """`told`: every message, and whether a socket came with it."""

    def _packet(self, data: bytes, fds: list[int]) -> None:
        if not hasattr(self, "told"):
            self.told: list[tuple[EngineOn, int]] = []
        self.told.append((_read(packets.read_value(fds)), len(fds)))
        packets.close_all(fds)


class CountingFronts(NoFronts):
    reconfigured = 0

    def reconfigure(self) -> None:
        self.reconfigured += 1


class EngineHouse(CodeHouse):
    """What the engine is wired to. `config`: the configuration in force."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.config = config(runtime_dir=folder, state_dir=folder)
        self.engines: list[PlayedEngine] = []
        self.fronts = CountingFronts()
        context = service_context(
            self, lambda: self.config, journal=self.journal, fronts=self.fronts
        )
        self.engine = EngineProcess(context)
        self.role = self.engine

    async def fork(self, role: str, name: str) -> ForkedWorker:
        ours, theirs = packets.pair()
        self.engines.append(PlayedEngine(theirs, 100 + len(self.engines)))
        return ForkedWorker(self.engines[-1].pid, role, name, ours)

    def front(self) -> tuple[bool, bool]:
        """Settle; return whether fronts can connect, and whether they do at once."""
        found = self.engine.add_settings(SPEC)
        return self.engine.connector is not None, found.engine_at_once

    async def messages(self, number: int) -> list[tuple[EngineOn, int]]:
        """The first messages to the engine, when it has so many."""
        await until(lambda: bool(self.engines), "it is forked")
        await until(lambda: len(getattr(self.engines[0], "told", ())) >= number, "it is told")
        return self.engines[0].told

    async def aclose(self) -> None:
        await self.engine.close()
        for each in self.engines:
            each.close()
        await super().aclose()


async def test_nothing_listens_until_something_is_for_the_engine(tmp_path: Path) -> None:
    async with aclosing(EngineHouse(tmp_path)) as house:
        plain = house.config
        assert house.front() == (False, False)
        assert not house.engine.is_wanted
        named = Endpoint(name="x", namespace="default", builtins=("catalog",))
        for changed, at_once in (
            (replace(plain, ai=AI), False),
            (replace(plain, workflows=FILES), True),
            (replace(plain, workflows=WorkflowFiles(rules=(b"{}",))), False),
            (replace(plain, endpoints={"x": named}), False),
        ):
            house.config = changed
            assert house.front() == (True, at_once)
            house.config = plain
            assert house.front() == (False, False)
        assert house.engines == []


async def test_fronts_connect_to_an_engine_that_an_order_started(tmp_path: Path) -> None:
    async with aclosing(EngineHouse(tmp_path)) as house:
        house.config = replace(house.config, ai=AI)
        assert house.front() == (True, False)
        with house.connect():
            await house.messages(1)
            assert house.fronts.reconfigured == 1
            assert house.front() == (True, True)


async def test_it_is_told_all_of_its_settings_with_the_socket_and_later_ones_without(
    tmp_path: Path,
) -> None:
    async with aclosing(EngineHouse(tmp_path)) as house:
        engine = EngineConfig(keep_s=60.0, sync="normal", runs_max=3)
        house.config = replace(house.config, ai=AI, workflows=FILES, tables={"engine": engine})
        house.front()
        with house.connect():
            ((on, fds),) = await house.messages(1)
        settings = AiSettings("openai", AI.url, "small", AI.key, timeout_ms=2000)
        assert (fds, on.ai, on.journal) == (1, settings, str(tmp_path / "workflows.db"))
        assert bytes(on.definitions["default"]["hello"]) == HELLO
        assert (on.keep_s, on.sync, on.runs_max) == (60.0, "normal", 3)
        house.config = replace(house.config, ai=AiConfig())
        house.front()
        house.front()
        (_, (second, fds)) = await house.messages(2)
        assert (fds, second.ai, len(house.engines)) == (0, None, 1)


async def test_another_database_is_for_the_next_process(tmp_path: Path) -> None:
    async with aclosing(EngineHouse(tmp_path)) as house:
        house.config = replace(house.config, workflows=FILES)
        house.front()
        with house.connect():
            await house.messages(1)
        engine = EngineConfig(database="postgresql://host/runs")
        house.config = replace(house.config, tables={"engine": engine})
        house.front()
        with house.connect():
            await until(lambda: len(house.engines) == 2, "another one is forked")
            await until(lambda: len(getattr(house.engines[1], "told", ())) == 1, "it is told")
        assert house.engines[1].told[0][0].database == "postgresql://host/runs"
        assert len(house.engines[0].told) == 1


async def test_its_orders_are_counted_and_its_runs_shown(tmp_path: Path) -> None:
    async with aclosing(EngineHouse(tmp_path)) as house:
        house.config = replace(house.config, ai=AI)
        house.front()
        with house.connect():
            await house.messages(1)
        house.engines[0].say(EngineFigures(counts={"agent:ok": 2}))
        last = EngineFigures(counts={"agent:ok": 3}, runs={"running": 1})
        house.engines[0].say(last)
        await until(lambda: house.engine.status().counts.get("orders") == 3, "it is counted")
        assert house.rows() == {
            "metamcp_engine_orders_total": {("agent", "ok"): 3},
            "metamcp_engine_runs": {("running",): 1},
        }
        assert house.engine.status().counts == {"orders": 3, "running": 1}
        house.config = replace(house.config, ai=AiConfig())
        house.front()
        await until(lambda: house.engines[0].gone, "it is to end")
        assert house.rows() == {}


async def test_a_run_that_begins_to_wait_is_an_event_also_when_another_engine_goes_on(
    tmp_path: Path,
) -> None:
    async with aclosing(EngineHouse(tmp_path)) as house:
        house.config = replace(house.config, workflows=FILES)
        asks = ReportedRun("1a", "hello", "needs_answer", "order")
        stuck = ReportedRun("2b", "hello", "needs_decision", "0/fetch")

        async def engine(number: int, *parked: ReportedRun) -> None:
            house.front()
            with house.connect():
                await until(lambda: len(house.engines) > number, "an engine is forked")
                await until(lambda: hasattr(house.engines[number], "told"), "it has its settings")
            runs = dict(Counter(run.status for run in parked))
            house.engines[number].say(EngineFigures(counts={}, runs=runs, parked=parked))
            await until(
                lambda: house.engine.count_waiting() == {"run": len(parked)}, "they are counted"
            )

        await engine(0, asks)
        house.engine.on_exit(WorkerExit(pid=house.engines[0].pid, signal=9))
        assert house.engine.count_waiting() == {"run": 0}
        await engine(1, asks, stuck)
        told = [each.cause for each in house.journal.since(0) if each.what == WAITING]
        assert told == [
            "the workflow hello needs an answer: 'metamcp workflow answer 1a order'",
            "the workflow hello needs a decision: 'metamcp workflow decide 2b 0/fetch'",
        ]
