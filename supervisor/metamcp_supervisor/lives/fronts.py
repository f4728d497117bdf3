"""The processes that speak MCP to clients: kept alive, told what to serve, drained at the end.

Owns: one slot per front, its deadlines, when a crashed one comes back and when it is time to give
up, what a front inherits from the one before it. Never: the packets of one front (`front`), what it
is told about servers (`routes`), client traffic, listening (it only hands the sockets on).

The listening sockets belong to the supervisor and every front inherits the same ones: while a front
is replaced, clients wait in the kernel and nobody is refused. A front that was ready and was killed
from outside comes back at once; one that crashes comes back with a growing delay, and when they
crash again and again the gateway ends, because a fault of our own does not heal.
"""

import asyncio
import random
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Protocol

from metamcp_supervisor.lives import backoff
from metamcp_supervisor.lives.front import Front
from metamcp_supervisor.lives.heartbeats import Heartbeats
from metamcp_supervisor.lives.pulse import Verdict
from metamcp_supervisor.lives.sessions import Sessions
from metamcp_supervisor.lives.spawn import NotForked, Worker, WorkerExit
from metamcp_supervisor.watched.events import Journal
from metamcp_worker import codec, packets
from metamcp_worker.messages import (
    Adopt,
    AttachFailed,
    Beat,
    CallStats,
    FromFront,
    FrontReady,
    FrontStats,
    Listen,
    Reconfigure,
    ServeOn,
    SessionKept,
    SessionsOver,
    Stop,
    Wanted,
)
from metamcp_worker.spec import FrontSpec

READY_S_MAX = 20.0
"""From the fork to FrontReady: milliseconds on an idle machine; then it is killed."""
SILENT_S_MAX = 1.0
"""From the end of its control socket to its own end."""
LAST_WORDS_S_MAX = 1.0
"""From its own end to the end of what it wrote to its control socket."""
KILLED_S_MAX = 2.0
"""From SIGKILL to the news of its end: milliseconds, or a second for one with much memory."""
FAREWELL_S = 3.0
"""Beyond its grace, for a front to close what is left; then it is killed."""


class Forker(Protocol):
    """What is needed of the nursery."""

    async def fork(self, role: str, name: str) -> Worker: ...

    def signal(self, pid: int, number: int) -> None: ...

    def suspect(self) -> None:
        """A process was killed and its end is not told: does the nursery still answer?"""
        ...


class House(Protocol):
    """What the rest of the gateway does for fronts."""

    def welcome(self, front: Front) -> None:
        """Tell a new front about the servers. Raises OSError."""
        ...

    def wanted(self, server: str) -> None:
        """A client called a server that is not ready."""
        ...

    def undelivered(self, front: Front, server: str, generation: int) -> None:
        """A front did not get the pipe to this instance; generation 0: nor the catalogue of this
        server."""
        ...

    def counted(self, front: Front, stats: Sequence[CallStats], summary: FrontStats) -> None: ...

    def left(self, number: int) -> None:
        """This front is gone, and its last figures have come."""
        ...

    def hopeless(self, reason: str) -> None:
        """Fronts crash again and again: the gateway must end."""
        ...


class Fronts:
    def __init__(
        self,
        forker: Forker,
        hearts: Heartbeats,
        journal: Journal,
        house: House,
        spec: Callable[[], FrontSpec],
        listeners: Sequence[socket.socket],
        *,
        ready_s_max: float = READY_S_MAX,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._forker = forker
        self._hearts = hearts
        self._journal = journal
        self._house = house
        self._spec = spec
        self._listeners = listeners
        self._ready_s_max = ready_s_max
        self._dice = dice
        self._sessions = Sessions()
        self._loop = asyncio.get_running_loop()
        self._slots: dict[int, Front | None] = {}
        self._launches: dict[int, asyncio.Task[None]] = {}
        self._leaving: set[Front] = set()
        self._last = -1
        self._crashes: tuple[float, ...] = ()
        self._unready = 0
        """Fronts in a row that ended before they were ready."""
        self._draining = False
        self._changed = asyncio.Event()

    def start(self, count: int) -> None:
        for slot in range(count):
            self._slots[slot] = None
            self._relaunch(slot, 0.0)

    def serving(self) -> list[Front]:
        return [front for front in self._slots.values() if front is not None]

    @property
    def slots(self) -> list[Front | None]:
        return list(self._slots.values())

    @property
    def draining(self) -> bool:
        return self._draining

    def reconfigure(self) -> None:
        """Tell every front the new configuration. One that cannot be told is replaced."""
        spec = codec.dump(self._spec())
        for front in self.serving():
            try:
                front.send(Reconfigure(), [packets.blob(spec)])
            except OSError as error:
                self._journal.add(front.who, "error", f"no free descriptor: {error.strerror}")
                self._kill(front)

    def exited(self, end: WorkerExit) -> bool:
        """A worker ended; True if it was one of ours."""
        front = self._of(end.pid)
        if front is None:
            return False
        self._hearts.forget(front.pid)
        self._slots[front.slot] = None
        self._changed.set()
        front.cancel()
        if front.silent:
            self._bury(front)
        else:  # its last figures are still to be read
            self._leaving.add(front)
            front.deadline = self._loop.call_later(LAST_WORDS_S_MAX, self._bury, front)
        how = f"signal {end.signal}" if end.signal else f"status {end.code}"
        if self._draining:
            self._journal.add(front.who, "ready→stopped", f"ended with {how}")
            return True
        self._journal.add(front.who, "ready→error" if front.ready else "warming→error", how)
        self._relaunch(front.slot, self._delay(front, end))
        return True

    def halted(self, pid: int, yes: bool) -> None:
        front = self._of(pid)
        if front is not None:
            self._journal.add(front.who, "halted" if yes else "resumed")

    async def drain(self, grace_s: float) -> None:
        """Let every front finish and end; kill those that do not."""
        self._draining = True
        for task in list(self._launches.values()):
            task.cancel()
        for front in self.serving():
            front.send(Stop(grace_s=grace_s))
        try:
            async with asyncio.timeout(grace_s + FAREWELL_S):
                await self._emptied()
        except TimeoutError:
            self.kill()
            try:
                async with asyncio.timeout(FAREWELL_S):
                    await self._emptied()
            except TimeoutError:
                self._journal.add("gateway", "bug", "a killed front did not end")

    def kill(self) -> None:
        for front in self.serving():
            self._kill(front)

    async def close(self) -> None:
        self._draining = True
        launches = list(self._launches.values())
        for task in launches:
            task.cancel()
        if launches:
            await asyncio.wait(launches)
        for front in [*self.serving(), *self._leaving]:
            self._bury(front)

    async def _emptied(self) -> None:
        while self.serving():
            self._changed.clear()
            await self._changed.wait()

    def _of(self, pid: int) -> Front | None:
        return next((front for front in self.serving() if front.pid == pid), None)

    def _delay(self, front: Front, end: WorkerExit) -> float:
        """How long this slot stays empty; tells the house when it is hopeless."""
        from_outside = end.signal == signal.SIGKILL and not front.condemned
        if end.cause != "exit" or (from_outside and front.ready):
            return 0.0
        if not front.ready:
            self._unready += 1
        self._crashes, delay_s = backoff.crashed(
            self._crashes, self._unready, self._loop.time(), self._dice()
        )
        if delay_s is None:
            self._house.hopeless(
                f"fronts crashed {len(self._crashes)} times in {backoff.CRASHES_WINDOW_S:.0f} s"
                if self._unready <= backoff.CRASHES_MAX
                else f"{self._unready} fronts in a row did not become ready"
            )
        return delay_s or 0.0

    def _relaunch(self, slot: int, delay_s: float) -> None:
        task = self._loop.create_task(self._launch(slot, delay_s))
        self._launches[slot] = task
        task.add_done_callback(lambda done: self._launched(slot, done))

    def _launched(self, slot: int, task: asyncio.Task[None]) -> None:
        if self._launches.get(slot) is task:
            del self._launches[slot]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._journal.add(f"front-{slot}", "bug", repr(error))
            self._house.hopeless(f"front-{slot} could not be started: {error!r}")

    async def _launch(self, slot: int, delay_s: float) -> None:
        """Fork the front of this slot, however often that takes."""
        failures = 0
        while True:
            await asyncio.sleep(delay_s)
            while self._leaving:  # what they say last, the new one is to know
                self._changed.clear()
                await self._changed.wait()
            try:
                worker = await self._forker.fork("front", f"front-{slot}")
            except NotForked as error:
                failures += 1
                delay_s = backoff.delay(failures, self._dice())
                self._journal.add(f"front-{slot}", "error", str(error))
                continue
            self._adopt(slot, worker)
            return

    def _adopt(self, slot: int, worker: Worker) -> None:
        self._last += 1
        front = Front(self._last, slot, worker, self._loop.time(), self)
        front.deadline = self._loop.call_later(self._ready_s_max, self._late, front)
        self._slots[slot] = front
        self._hearts.watch(front.pid, lambda verdict: self._judged(front, verdict))
        self._journal.add(front.who, "warming", f"process {front.pid}")
        try:
            blob = packets.blob(codec.dump(self._spec()))
            front.send(ServeOn(front=front.number), [blob, *self._dup_listeners(blob)])
            self._house.welcome(front)
            if records := self._sessions.adopt(front.number):
                front.send(Adopt(), [packets.blob(records)])
            front.send(Listen())
        except OSError as error:
            self._journal.add(front.who, "error", f"no free descriptor: {error.strerror}")
            self._kill(front)

    def _dup_listeners(self, blob: int) -> list[int]:
        fds: list[int] = []
        try:
            fds.extend(sock.dup().detach() for sock in self._listeners)
        except OSError:
            packets.close_all([blob, *fds])
            raise
        return fds

    # What fronts say: front.Ear

    def heard(self, front: Front, message: FromFront, blob: bytes) -> None:
        match message:
            case Beat():
                self._hearts.beat(front.pid)
            case FrontReady():
                self._ready(front)
            case Wanted(server=server):
                self._house.wanted(server)
            case AttachFailed(what=server, number=generation):
                self._house.undelivered(front, server, generation)
            case FrontStats():
                stats = codec.typed(list[CallStats], blob or b"[]")
                front.summary = message
                self._house.counted(front, stats, message)
            case SessionKept():
                self._sessions.keep(front.number, blob)
            case SessionsOver(ids=ids):
                self._sessions.over(front.number, ids)

    def unheard(self, front: Front, sentence: str) -> None:
        self._journal.add(front.who, "bug", sentence)

    def fell_silent(self, front: Front) -> None:
        front.silent = True
        if front in self._leaving:
            self._bury(front)
            return
        # Its end is on the way; if it only closed its socket, nothing else can reach it.
        front.cancel()
        front.deadline = self._loop.call_later(SILENT_S_MAX, self._kill, front)

    def _ready(self, front: Front) -> None:
        front.ready = True
        self._unready = 0
        front.cancel()
        self._journal.add(front.who, "warming→ready", f"process {front.pid}")

    def _judged(self, front: Front, verdict: Verdict) -> None:
        if verdict in (Verdict.HUNG, Verdict.DEAD):
            front.condemned = True
        self._journal.add(front.who, f"heartbeat {verdict}")
        if verdict is Verdict.DEAD:
            self._kill(front)

    def _late(self, front: Front) -> None:
        self._journal.add(front.who, "error", f"not ready within {self._ready_s_max:g} s")
        self._kill(front)

    def _bury(self, front: Front) -> None:
        self._leaving.discard(front)
        front.close()
        self._sessions.left(front.number)
        self._changed.set()
        self._house.left(front.number)

    def _kill(self, front: Front) -> None:
        front.condemned = True
        self._forker.signal(front.pid, signal.SIGKILL)
        front.cancel()
        front.deadline = self._loop.call_later(KILLED_S_MAX, self._outlives, front)

    def _outlives(self, front: Front) -> None:
        self._journal.add(front.who, "kill", "it was killed and its end is not told")
        self._forker.suspect()
        self._kill(front)
