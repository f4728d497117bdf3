"""A tree on a stage: true servers' lives, fronts and control sockets, in one process.

The nursery here forks nothing: it hands out socket pairs, and the test plays the worker at the
other end. Everything that the tree sends is real bytes with real descriptors.
"""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

from msgspec import Raw

from metamcp_supervisor.config.config import Server
from metamcp_supervisor.fronts.front import FrontProcess
from metamcp_supervisor.fronts.fronts import READY_S_MAX, Fronts
from metamcp_supervisor.keys.api_keys import ApiKeys
from metamcp_supervisor.keys.quotas import Quotas
from metamcp_supervisor.processes.heartbeats import Heartbeats
from metamcp_supervisor.processes.nursery import ForkedWorker, NotForked
from metamcp_supervisor.roles.role_process import GatewayService
from metamcp_supervisor.servers.bounds import LimitEnforcer
from metamcp_supervisor.servers.catalogues import Catalogues
from metamcp_supervisor.servers.decisions import Decisions
from metamcp_supervisor.servers.publish import Routes
from metamcp_supervisor.servers.quarantine_io import ToolQuarantine
from metamcp_supervisor.servers.server_io import ServerManager
from metamcp_supervisor.servers.tokens import TokenKeys
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.telemetry.logs import ServerLogs
from metamcp_supervisor.telemetry.metrics import Metrics
from metamcp_supervisor.views.views import Views
from metamcp_worker.ipc import messages, packets, server_catalog
from metamcp_worker.ipc.disclosure import (
    AnnounceLists,
    DisclosureApplied,
    ListsAnnounced,
    ServerListsChanged,
)
from metamcp_worker.ipc.figures import DayCount
from metamcp_worker.ipc.key_table import ChangeKeys, KeysApplied
from metamcp_worker.ipc.messages import (
    DisclosureUpdate,
    Figures,
    FrontReady,
    FrontStats,
    Message,
    OrderRequest,
    ServerDown,
    ServerReady,
    ServerState,
    Tenant,
    ToChild,
    ToFront,
    WorkerExit,
)
from metamcp_worker.ipc.spec import FrontSpec

WAIT_S = 30.0
GATEWAY_ID = "0123456789abcdef"
T = TypeVar("T")
M = TypeVar("M", bound=Message)


class Player:
    """A worker, played by the test. `heard`: what it was told, in order; `sent`: with descriptors,
    which are kept in `fds` and closed at the end. `builds`: as a front it has new lists at once,
    and tells its clients; `confirms`: as a front it applies changes of API keys at once."""

    def __init__(self, stage: "Stage", worker: ForkedWorker, sock: int) -> None:
        self.pid, self.role, self.name = worker.pid, worker.role, worker.name
        self.heard: list[ToChild | ToFront] = []
        self.sent: list[tuple[ToChild | ToFront, list[int]]] = []
        self.fds: list[int] = []
        self.signals: list[int] = []
        self.builds = self.confirms = True
        self._stage = stage
        self._channel = packets.Channel(socket.socket(fileno=sock), self._packet, lambda: None)

    def _packet(self, data: bytes, fds: list[int]) -> None:
        self.fds += fds
        read = messages.unpack_to_front if self.role == "front" else messages.unpack_to_child
        self.heard.append(read(data))
        self.sent.append((self.heard[-1], fds))
        told = self.heard[-1]
        if isinstance(told, DisclosureUpdate) and told.number and self.builds:
            self.say(DisclosureApplied(number=told.number))
        if isinstance(told, AnnounceLists) and self.builds:
            self.say(ListsAnnounced(number=told.number))
        if isinstance(told, ChangeKeys) and self.confirms:
            self.say(KeysApplied(generation=told.generation))

    def say(self, message: Message, blob: bytes | None = None) -> None:
        self._channel.send(messages.pack(message), () if blob is None else [packets.blob(blob)])

    def hand(self, message: Message, fds: list[int]) -> None:
        """Takes the descriptors."""
        self._channel.send(messages.pack(message), fds)

    def ready(self, tools: int = 1) -> None:
        """What a worker says of a server that is up, or a front of itself."""
        if self.role == "front":
            self.say(FrontReady())
            return
        tool = b'{"name":"t%d","inputSchema":{"type":"object"}}'
        named = tuple(Raw(tool % number) for number in range(tools))
        lists = server_catalog.ServerCatalogue(protocol="2025-11-25", tools=named)
        message = ServerReady(
            protocol="2025-11-25", start_s=0.1, list_hash=server_catalog.list_hash(lists)
        )
        self.say(message, server_catalog.pack(lists))

    def down(self, reason: str = "exit", message: str = "it ended with status 1") -> None:
        """Its server is gone, and then it is."""
        self.say(ServerDown(reason=reason, message=message))
        self.leave()

    def leave(self, code: int | None = 1, number: int = 0) -> None:
        self._channel.close()
        self._stage.exited(WorkerExit(pid=self.pid, code=code, signal=number))

    def told(self, kind: type[M]) -> list[M]:
        return [message for message in self.heard if isinstance(message, kind)]

    def close(self) -> None:
        """May be said again: its descriptors are closed once, whoever has their numbers by then."""
        self._channel.close()
        packets.close_all(self.fds)
        self.fds.clear()


class Stage:
    """Hearts, fronts, routes and tree, wired as the gateway wires them; a nursery and a house.
    Delays have no jitter. `views`, `keys`, `quotas`, `consents`: what is in view, who may come in,
    how much was used and what was agreed to, if the test has any."""

    def __init__(self, state_dir: Path, ready_s_max: float = READY_S_MAX) -> None:
        self.players: list[Player] = []
        self.refuse = ""
        self.refuse_as: type[NotForked] = NotForked
        self.deaf = False
        self.suspected = False
        self.hopes: list[str] = []
        self.gone_fronts: list[int] = []
        self.figures: list[Figures] = []
        self.views: Views | None = None
        self.keys: ApiKeys | None = None
        self.quotas: Quotas | None = None
        self.consents: GatewayService | None = None
        self.journal = Journal(lambda: 0.0)
        self.logs = ServerLogs(lambda: 0.0)
        self.metrics = Metrics("1")
        self.heartbeats = Heartbeats(self.signal, asyncio.get_running_loop().time)
        self.fronts = Fronts(
            self, self.heartbeats, self.journal, self, self.spec, [],
            ready_s_max=ready_s_max, dice=lambda: 0.0,
        )  # fmt: skip
        self.routes = Routes(self.fronts)
        self.catalogues = Catalogues(state_dir, self._note)
        self.manager = ServerManager(
            forker=self,
            heartbeats=self.heartbeats,
            routes=self.routes,
            catalogues=self.catalogues,
            journal=self.journal,
            logs=self.logs,
            metrics=self.metrics,
            bounds=LimitEnforcer(None, self.journal),
            tokens=TokenKeys(state_dir, {}),
            approvals=ToolQuarantine(state_dir, self.journal, self.fronts.reconfigure),
            decisions=Decisions(state_dir, self.journal, lambda: 0.0),
            environ={"PATH": os.defpath, "SECRET": "x"},
            version="1.2.3",
            gateway_id=lambda: GATEWAY_ID,
            workers="each",
        )

    def spec(self) -> FrontSpec:
        kept = self.manager.approvals.list_quarantined()
        held = self.manager.approvals.enforced_servers()
        return FrontSpec(
            version="1", endpoints=(), hosts=("localhost",), quarantined=kept, held=held
        )

    # The nursery

    async def fork(self, role: str, name: str) -> ForkedWorker:
        await _turn()
        if self.refuse:
            raise self.refuse_as(self.refuse)
        ours, theirs = packets.pair()
        worker = ForkedWorker(1000 + len(self.players), role, name, ours)
        self.players.append(Player(self, worker, theirs.detach()))
        return worker

    def signal(self, pid: int, number: int) -> None:
        player = next(player for player in self.players if player.pid == pid)
        player.signals.append(number)
        if number == signal.SIGKILL and not self.deaf:
            player.leave(None, signal.SIGKILL)

    def tune(self) -> None:
        """It says nothing."""

    def suspect(self) -> None:
        self.suspected = True

    def exited(self, end: WorkerExit) -> None:
        asyncio.get_running_loop().call_soon(self._exited, end)

    def _exited(self, end: WorkerExit) -> None:
        assert self.fronts.on_exit(end) or self.manager.copies.on_exit(end)

    def _note(self, who: str, sentence: str) -> None:
        self.journal.add(who, "note", sentence)

    # The house of the fronts

    def welcome(self, front: FrontProcess) -> None:
        self.manager.welcome(front)
        if self.views is not None:
            self.views.welcome(front)
        if self.keys is not None:
            self.keys.welcome(front)
        if self.quotas is not None:
            self.quotas.welcome(front)
        if self.consents is not None:
            self.consents.welcome(front)

    def connectors(self) -> Mapping[str, socket.socket]:
        return {}

    def on_server_wanted(self, server: str, tenant: Tenant | None) -> None:
        self.manager.on_server_wanted(server, tenant)

    def on_roots_changed(self, who: str, roots: str) -> None:
        self.manager.per_client.on_roots_changed(who, roots)

    def on_sessions_ended(self, sessions: Sequence[str]) -> None:
        self.manager.per_client.on_sessions_ended(sessions)
        if self.views is not None:
            self.views.on_sessions_ended(sessions)

    def on_request(
        self, front: FrontProcess, message: OrderRequest | ServerListsChanged, blob: bytes
    ) -> None:
        assert self.views is not None
        if isinstance(message, ServerListsChanged):
            self.views.news(message.number)
        else:
            self.views.carry_out_order(front, message.ticket, blob)

    def on_attach_failed(self, front: FrontProcess, server: str, generation: int) -> None:
        if generation:
            self.manager.deliveries.connect_again(server, front.number)
        else:
            self.manager.deliveries.offer_again(server, front.number)

    def on_front_stats(self, front: FrontProcess, figures: Figures, summary: FrontStats) -> None:
        self.figures.append(figures)
        self.manager.on_call_stats(front.number, figures.calls)

    def on_day_counts(self, front: FrontProcess, counts: Sequence[DayCount]) -> None:
        assert self.quotas is not None
        self.quotas.on_day_counts(front, counts)

    def on_other_message(self, front: FrontProcess, message: Message, blob: bytes) -> None:
        assert self.consents is not None
        self.consents.on_front_message(front, message, blob)

    def on_front_gone(self, number: int) -> None:
        self.gone_fronts.append(number)
        if self.consents is not None:
            self.consents.on_front_gone(number)
        if self.views is not None:
            self.views.on_front_gone(number)

    def hopeless(self, reason: str) -> None:
        self.hopes.append(reason)

    # The test's own hands

    async def player(self, name: str) -> Player:
        """The newest worker with this name, once it is there: `front-0`, `git#1`."""
        return await until(
            lambda: next((p for p in reversed(self.players) if p.name == name), None), name
        )

    async def up(self, name: str, generation: int = 1) -> Player:
        """Play the start of a server until it is ready."""
        player = await self.player(f"{name}#{generation}")
        player.ready()
        await self.phase(name, "ready")
        return player

    async def phase(self, name: str, phase: str) -> None:
        await until(
            lambda: name in self.manager.entries and self.manager.entries[name].life.phase == phase,
            f"{name} is {phase}: {self.told(name)}",
        )

    def told(self, who: str) -> list[str]:
        """What the journal says of somebody."""
        return [event.what for event in self.journal.since(0) if event.who == who]

    async def close(self) -> None:
        self.manager.abandon()
        self.routes.close()
        await self.fronts.close()
        await self.catalogues.close()
        await self.manager.approvals.close()
        await self.manager.decisions.close()
        self.heartbeats.close()
        for player in self.players:
            player.close()


def states(front: Player, server: str = "git") -> list[tuple[str, bool]]:
    """State and listing of a server as a front was told, without repetitions."""
    told = [(m.state, m.listed) for m in front.told(ServerState) if m.server == server]
    return [each for at, each in enumerate(told) if at == 0 or told[at - 1] != each]


async def front_up(stage: Stage) -> Player:
    stage.fronts.start(1)
    front = await stage.player("front-0")
    front.ready()
    await until(
        lambda: stage.fronts.list_serving() and stage.fronts.list_serving()[0].ready, "the front"
    )
    return front


@asynccontextmanager
async def opened_stage(state_dir: Path, ready_s_max: float = READY_S_MAX) -> AsyncGenerator[Stage]:
    stage = Stage(state_dir, ready_s_max)
    try:
        yield stage
    finally:
        await stage.close()
    assert "bug" not in [event.what for event in stage.journal.since(0)]


async def until(fact: Callable[[], T | None], what: str) -> T:
    """The first true value of `fact()`, looked for at every turn of the loop."""
    try:
        async with asyncio.timeout(WAIT_S):
            while not (found := fact()):
                await _turn()
    except TimeoutError:
        raise AssertionError(f"never came: {what}") from None
    return found


async def _turn() -> None:
    """Give the loop a moment: long enough to wait for a socket, short enough to miss nothing."""
    await asyncio.wait([asyncio.get_running_loop().create_future()], timeout=0.002)


@asynccontextmanager
async def staged_front(state_dir: Path, *servers: Server) -> AsyncGenerator[tuple[Stage, Player]]:
    """A stage with a front that serves, and these servers, added after it."""
    async with opened_stage(state_dir) as stage:
        front = await front_up(stage)
        for server in servers:
            stage.manager.add(server)
        yield stage, front
