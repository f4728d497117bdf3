"""The processes that speak MCP to clients: kept alive, given what to serve, drained at the end.

Owns: the deadlines of fronts, the phase of each front, and the delay before a crashed front starts
again. Never: MCP.

The listening sockets belong to the supervisor and every front inherits the same ones: while a front
is replaced, clients wait in the kernel and no client is refused. A front that serves adopts the
sessions of the replaced front; if there is none, the next front that starts does. A front that was
ready and was killed from outside starts again at once; after a crash a front starts again with a
growing delay. When fronts crash again and again the gateway ends, because a fault in its own code
does not go away.
"""

import asyncio
import random
import signal
import socket
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct

from metamcp_supervisor import backoff
from metamcp_supervisor.fronts.front import (
    Forker,
    FrontNotReplaced,
    FrontProcess,
    FrontServices,
    FrontSnapshot,
)
from metamcp_supervisor.fronts.handover import Handovers, MovingConnection
from metamcp_supervisor.fronts.sessions import SessionRecords
from metamcp_supervisor.processes.heartbeats import Heartbeats
from metamcp_supervisor.processes.nursery import ForkedWorker, NotForked
from metamcp_supervisor.processes.workers import PulseVerdict
from metamcp_supervisor.systemd import listen
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.disclosure import OrderRequest, ServerListsChanged
from metamcp_worker.ipc.key_table import KeysApplied
from metamcp_worker.ipc.messages import (
    AdoptSessions,
    AttachFailed,
    ConnectionTaken,
    DayCounts,
    Figures,
    FromFront,
    FrontReady,
    FrontStats,
    HandOver,
    Heartbeat,
    Listen,
    Reconfigure,
    RootsChanged,
    ServeOn,
    ServerWanted,
    SessionKept,
    SessionsOver,
    Spans,
    Stop,
    WorkerExit,
)
from metamcp_worker.ipc.spec import FrontSpec


class FrontTable:
    """All fronts. `slots`: the front in each slot, or None; `beside`: fronts without a slot, that
    will take the slot of another front or gave up their own; `leaving`: fronts that ended, whose
    control sockets are still to be read to the end. `last`: the last number given to a front;
    `crashes`: times of the last crashes; `unready`: fronts in a row that ended before they were
    ready."""

    def __init__(self) -> None:
        self.slots: dict[int, FrontProcess | None] = {}
        self.beside: set[FrontProcess] = set()
        self.leaving: set[FrontProcess] = set()
        self.last = -1
        self.crashes: tuple[float, ...] = ()
        self.unready = 0

    def list_serving(self) -> list[FrontProcess]:
        return [*(front for front in self.slots.values() if front is not None), *self.beside]

    def all(self) -> list[FrontProcess]:
        return [*self.list_serving(), *self.leaving]

    def of(self, pid: int) -> FrontProcess | None:
        return next((front for front in self.list_serving() if front.pid == pid), None)

    def count_crash(self, front: FrontProcess, now: float, jitter: float) -> tuple[float, str]:
        """Note a crash. Return the seconds until its slot is filled again, and the reason to give
        up, as a sentence, or ""."""
        if not front.ready:
            self.unready += 1
        self.crashes, delay_s = backoff.count_crash(self.crashes, self.unready, now, jitter)
        if delay_s is not None:
            return delay_s, ""
        if self.unready > backoff.CRASHES_MAX:
            return 0.0, f"{self.unready} fronts in a row did not become ready"
        window = f"{backoff.CRASHES_WINDOW_S:.0f} s"
        return 0.0, f"fronts crashed {len(self.crashes)} times in {window}"

    def find_blocker(self) -> str:
        """Return which front starts or ends, as a sentence, or ""."""
        for slot, front in self.slots.items():
            if front is None or not front.able:
                return f"front-{slot} does not serve"
        return "a front comes or goes" if self.beside or self.leaving else ""


READY_S_MAX = 20.0
"""Maximum seconds from the fork to FrontReady; then the front is killed. A start takes milliseconds
on an idle machine."""
SILENT_S_MAX = 1.0
"""Maximum seconds from the end of a front's control socket to the end of its process."""
LAST_WORDS_S_MAX = 1.0
"""Maximum seconds, after a front has ended, to read the rest of what it wrote to its control
socket."""
KILLED_S_MAX = 2.0
"""Maximum seconds from SIGKILL to the report of the front's end: milliseconds are usual, a second
for a front with much memory."""
ROLL_GRACE_S = 30.0
"""Seconds for calls in flight in a front whose successor serves already."""
FAREWELL_S = 3.0
"""Seconds beyond the grace for a front to close what is left; then it is killed."""


class FrontsSnapshot(Struct, frozen=True, kw_only=True):
    """The fronts, for the program after this one. `sessions`: the number of the front that holds
    each session, or None, and the record of the session."""

    fronts: tuple[FrontSnapshot, ...]
    last: int
    crashes: tuple[float, ...]
    sessions: tuple[tuple[int | None, bytes], ...]
    moving: tuple[MovingConnection, ...]


class Fronts:
    def __init__(
        self,
        forker: Forker,
        heartbeats: Heartbeats,
        journal: Journal,
        house: FrontServices,
        spec: Callable[[], FrontSpec],
        listeners: Sequence[socket.socket],
        *,
        spans: Callable[[bytes, int, int], None] = lambda blob, count, lost: None,
        crowded_out: Callable[[int], str] = lambda signal: "",
        ready_s_max: float = READY_S_MAX,
        dice: Callable[[], float] = random.random,
    ) -> None:
        self._forker = forker
        self._heartbeats = heartbeats
        self._journal = journal
        self._services = house
        self._spec = spec
        self._listeners = listeners
        self._spans = spans
        self._crowded_out = crowded_out
        self._ready_s_max = ready_s_max
        self._dice = dice
        self.roster = FrontTable()
        self.sessions = SessionRecords()
        self.handovers = Handovers(self.sessions, self.roster.all)
        self._loop = asyncio.get_running_loop()
        self._launches: dict[int, asyncio.Task[None]] = {}
        self._rolling = asyncio.Lock()
        self._draining = False
        self._changed = asyncio.Event()

    def start(self, count: int) -> None:
        self.sessions.fronts = count
        for slot in range(count):
            self.roster.slots[slot] = None
            self._relaunch(slot, 0.0)

    def adopt(self, snapshot: FrontSnapshot) -> None:
        """Adopt a front that the previous program started and that serves already."""
        worker = ForkedWorker(
            snapshot.pid, "front", f"front-{snapshot.slot}", socket.socket(fileno=snapshot.line.fd)
        )
        front = FrontProcess(snapshot.number, snapshot.slot, worker, snapshot.since, self)
        self.roster.slots[front.slot] = front
        self._heartbeats.watch(front.pid, partial(self._on_verdict, front), halted=snapshot.halted)
        front.adopt(snapshot)

    def find_blocker(self) -> str:
        """Return why fronts cannot be handed over now, as a sentence, or ""."""
        if self._launches or self._rolling.locked():
            return "fronts are being replaced"
        return self.roster.find_blocker()

    def list_serving(self) -> list[FrontProcess]:
        return self.roster.list_serving()

    @property
    def slots(self) -> list[FrontProcess | None]:
        return list(self.roster.slots.values())

    def reconfigure(self) -> None:
        """Send every front the new configuration; replace a front that cannot get it."""
        spec = self._spec()
        message, data = Reconfigure(vital=bool(spec.quarantined or spec.held)), codec.dump(spec)
        for front in self.list_serving():
            try:
                front.attach(self._services.connectors())
                front.send(message, [packets.blob(data)])
            except OSError as error:
                self.untold(front, error)

    def untold(self, front: FrontProcess, error: OSError) -> None:
        """Replace a front to which a message could not be sent."""
        self._journal.add(front.process_name, "error", f"no free descriptor: {error.strerror}")
        self._kill(front)

    def replace_unconfirmed(self, front: FrontProcess) -> None:
        """Replace a front that did not confirm in time that API keys have ended."""
        self._journal.add(
            front.process_name, "error", "it did not confirm a change of API keys in time"
        )
        self._kill(front)

    def on_exit(self, end: WorkerExit) -> bool:
        """A worker ended; return whether it was a front."""
        front = self.roster.of(end.pid)
        if front is None:
            return False
        self._heartbeats.forget(front.pid)
        beside = front in self.roster.beside
        if beside:
            self.roster.beside.discard(front)
        else:
            self.roster.slots[front.slot] = None
        self._changed.set()
        front.cancel()
        if front.silent:
            self._bury(front)
        else:  # its last figures are still to be read
            self.roster.leaving.add(front)
            front.deadline = self._loop.call_later(LAST_WORDS_S_MAX, self._bury, front)
        how = f"signal {end.signal}" if end.signal else f"status {end.code}"
        if not front.condemned and (reason := self._crowded_out(end.signal or 0)):
            how = f"{how}: it {reason}"
        if self._draining or (beside and front.ready and not front.condemned):
            self._journal.add(front.process_name, "ready→stopped", f"ended with {how}")
            return True
        self._journal.add(
            front.process_name, "ready→error" if front.ready else "warming→error", how
        )
        if not beside:
            self._relaunch(front.slot, self._delay(front, end))
        return True

    def on_halt(self, pid: int, yes: bool) -> None:
        front = self.roster.of(pid)
        if front is not None:
            self._journal.add(front.process_name, "halted" if yes else "resumed")

    async def roll(self, slot: int | None = None, grace_s: float = ROLL_GRACE_S) -> None:
        """Replace the front of this slot, or all fronts one after the other. The successor serves
        before the old front is asked to finish, and the old front is gone before the next front is
        replaced. Raises NotRolled; then the front stays as it was."""
        async with self._rolling:
            for each in list(self.roster.slots) if slot is None else [slot]:
                await self._replace(each, grace_s)

    async def _replace(self, slot: int, grace_s: float) -> None:
        old = self.roster.slots[slot]
        if old is None:
            return  # it crashed: its successor is on the way
        try:
            worker = await self._forker.fork("front", f"front-{slot}")
        except NotForked as error:
            raise FrontNotReplaced(f"front-{slot} stays: {error}") from None
        new = self._create_front(slot, worker)
        self.roster.beside.add(new)
        self._tell(new)
        if self._draining:
            self._kill(new)
        await self._until(lambda: new.ready or new not in self.roster.beside)
        if new not in self.roster.beside or self._draining:
            raise FrontNotReplaced(f"front-{slot} stays: its successor did not become ready")
        if self.roster.slots[slot] is not old:  # it crashed, and has another successor
            self._kill(new)
            return
        self.roster.slots[slot] = new
        self.roster.beside ^= {old, new}
        old.send(Stop(grace_s=grace_s, heirs=True))
        old.cancel()
        old.deadline = self._loop.call_later(grace_s + FAREWELL_S, self._kill, old)
        await self._until(lambda: old not in self.roster.beside)

    async def drain(self, grace_s: float) -> None:
        """Let every front finish and end; kill those that do not."""
        self._draining = True
        for task in list(self._launches.values()):
            task.cancel()
        for front in self.list_serving():
            front.send(Stop(grace_s=grace_s))
        for wait_s in (grace_s + FAREWELL_S, FAREWELL_S):
            try:
                async with asyncio.timeout(wait_s):
                    await self._until(
                        lambda: not self.roster.all()
                    )  # and their last words are read
                return
            except TimeoutError:
                for front in self.list_serving():
                    self._kill(front)
        self._journal.add("gateway", "bug", "a killed front did not end")

    async def close(self) -> None:
        self._draining = True
        launches = list(self._launches.values())
        for task in launches:
            task.cancel()
        if launches:
            await asyncio.wait(launches)
        for front in self.roster.all():
            self._bury(front)
        self.handovers.close()

    async def until(self, fact: Callable[[], bool], within_s: float) -> bool:
        """Wait until this fact about fronts is true: which of them serve, are ready, or have
        confirmed a change of keys. Return False if it is not true in time."""
        try:
            async with asyncio.timeout(within_s):
                await self._until(fact)
        except TimeoutError:
            return False
        return True

    async def _until(self, fact: Callable[[], bool]) -> None:
        while not fact():
            self._changed.clear()
            await self._changed.wait()

    def _delay(self, front: FrontProcess, end: WorkerExit) -> float:
        """Return the seconds that the slot stays empty; notify the house when to give up."""
        from_outside = end.signal == signal.SIGKILL and not front.condemned
        if end.with_nursery or (from_outside and front.ready):
            return 0.0
        delay_s, hopeless = self.roster.count_crash(front, self._loop.time(), self._dice())
        if hopeless:
            self._services.hopeless(hopeless)
        return delay_s

    def _relaunch(self, slot: int, delay_s: float) -> None:
        task = self._loop.create_task(self._launch(slot, delay_s))
        self._launches[slot] = task
        task.add_done_callback(lambda done: self._on_launch_done(slot, done))

    def _on_launch_done(self, slot: int, task: asyncio.Task[None]) -> None:
        if self._launches.get(slot) is task:
            del self._launches[slot]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._journal.add(f"front-{slot}", "bug", repr(error))
            self._services.hopeless(f"front-{slot} could not be started: {error!r}")

    async def _launch(self, slot: int, delay_s: float) -> None:
        """Fork the front of this slot; try again until that succeeds."""
        failures = 0
        while True:
            await asyncio.sleep(delay_s)
            await self._until(lambda: not self.roster.leaving)  # it adopts their sessions
            try:
                worker = await self._forker.fork("front", f"front-{slot}")
            except NotForked as error:
                failures += 1
                delay_s = backoff.delay(failures, self._dice())
                self._journal.add(f"front-{slot}", "error", str(error))
                continue
            front = self.roster.slots[slot] = self._create_front(slot, worker)
            self._tell(front)
            return

    def _create_front(self, slot: int, worker: ForkedWorker) -> FrontProcess:
        self.roster.last += 1
        front = FrontProcess(self.roster.last, slot, worker, self._loop.time(), self)
        front.deadline = self._loop.call_later(self._ready_s_max, self._on_ready_timeout, front)
        self._heartbeats.watch(front.pid, lambda verdict: self._on_verdict(front, verdict))
        self._journal.add(front.process_name, "warming", f"process {front.pid}")
        return front

    def _tell(self, front: FrontProcess) -> None:
        """Send a new front everything that it has to know."""
        try:
            blob = packets.blob(codec.dump(self._spec()))
            front.attach(self._services.connectors())
            front.send(ServeOn(front=front.number), [blob, *listen.copies(self._listeners, blob)])
            self._services.welcome(front)
            self._bequeath(front)
            front.send(Listen())
        except OSError as error:
            self.untold(front, error)

    def _bequeath(self, heir: FrontProcess) -> None:
        """Give the sessions that no front holds to this front. Raises OSError."""
        for untold, records in self.sessions.adopt(heir.number):
            heir.send(AdoptSessions(untold=untold), [packets.blob(records)])

    def _settle(self) -> None:
        """Assign waiting sessions and connections, after a front has gone or become ready."""
        able = [front for front in self.roster.slots.values() if front is not None and front.able]
        heir = min(
            able, key=lambda front: self.sessions.count_for_front(front.number), default=None
        )
        if heir is not None and not self._draining:
            try:
                self._bequeath(heir)
            except OSError as error:
                self.untold(heir, error)
        self.handovers.retry_waiting()
        self._changed.set()

    # Messages of fronts: front.Ear

    def on_message(self, front: FrontProcess, message: FromFront, blob: bytes) -> None:
        match message:
            case Heartbeat():
                self._heartbeats.beat(front.pid, "front", message.lag_ms)
            case FrontReady():
                self._ready(front)
            case ServerWanted(server=server, tenant=tenant):
                self._services.on_server_wanted(server, tenant)
            case RootsChanged(who=who, roots=roots):
                self._services.on_roots_changed(who, roots)
            case OrderRequest() | ServerListsChanged():
                self._services.on_request(front, message, blob)
            case AttachFailed(what=server, number=generation):
                self._services.on_attach_failed(front, server, generation)
            case FrontStats():
                self._services.on_front_stats(
                    front, codec.decode_as(Figures, blob or b"{}"), message
                )
                front.summary = message
            case DayCounts(counts=counts):
                self._services.on_day_counts(front, counts)
            case KeysApplied(generation=number):
                front.keys = max(front.keys, number)
                self._changed.set()
            case ConnectionTaken():
                self.handovers.on_taken(front.number)
            case SessionKept():
                self.sessions.keep(front.number, blob)
            case SessionsOver(ids=ids):
                self.sessions.on_sessions_end(front.number, ids)
                self._services.on_sessions_ended(ids)
            case Spans(count=count, lost=lost):
                self._spans(blob, count, lost)
            case HandOver():
                pass  # it has descriptors: `on_hand_over`
            case _:
                self._services.on_other_message(front, message, blob)

    def on_hand_over(self, front: FrontProcess, message: HandOver, fds: list[int]) -> None:
        self.handovers.take(front, message, fds)

    def unheard(self, front: FrontProcess, sentence: str) -> None:
        self._journal.add(front.process_name, "bug", sentence)

    def fell_silent(self, front: FrontProcess) -> None:
        front.silent = True
        if front in self.roster.leaving:
            self._bury(front)
            return
        # Its process is about to end; if it only closed its socket, only a kill can reach it.
        front.cancel()
        front.deadline = self._loop.call_later(SILENT_S_MAX, self._kill, front)

    def _ready(self, front: FrontProcess) -> None:
        front.ready = True
        self.roster.unready = 0
        front.cancel()
        self._journal.add(front.process_name, "warming→ready", f"process {front.pid}")
        self._settle()

    def _on_verdict(self, front: FrontProcess, verdict: PulseVerdict) -> None:
        front.condemned |= verdict in (PulseVerdict.HUNG, PulseVerdict.DEAD)
        self._journal.add(front.process_name, f"heartbeat {verdict}")
        if verdict is PulseVerdict.DEAD:
            self._kill(front)

    def _on_ready_timeout(self, front: FrontProcess) -> None:
        self._journal.add(front.process_name, "error", f"not ready within {self._ready_s_max:g} s")
        self._kill(front)

    def _bury(self, front: FrontProcess) -> None:
        self.roster.leaving.discard(front)
        front.close()
        self.sessions.on_front_gone(front.number, untold=front.owes > 0)
        self.handovers.on_front_gone(front.number)
        self._settle()
        self._services.on_front_gone(front.number)

    def _kill(self, front: FrontProcess) -> None:
        front.give_up()
        self._forker.signal(front.pid, signal.SIGKILL)
        front.cancel()
        front.deadline = self._loop.call_later(KILLED_S_MAX, self._outlives, front)

    def _outlives(self, front: FrontProcess) -> None:
        self._journal.add(front.process_name, "kill", "it was killed and its end is not told")
        self._forker.suspect()
        self._kill(front)
