"""The workers of the servers, from the fork to the end of everything below them, and spares.

Owns: forking, the deadlines of processes that start or stop, killing, reading the last messages of
a worker after its death; when a spare is started, its retries, and replacing a server by its spare.
Never: the rules (`server`), the choice of servers that run (`server_io`), pipes (`publish`).

An instance is over after two events, in any order: the nursery reports that the worker and
everything below it is gone, and its control socket, in which last messages may wait, has ended.

A spare is a second copy of a server. The copy costs as much as a server, and makes a restart
without a gap possible: when the first copy goes down, the spare has already done its handshake. A
restart by an operator works in the same way: the new copy is ready before the old copy is asked to
finish.
"""

import asyncio
import random
import signal
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

from metamcp_supervisor import backoff
from metamcp_supervisor.config import environment
from metamcp_supervisor.control.services import NotNow
from metamcp_supervisor.fronts.front import Forker
from metamcp_supervisor.processes.heartbeats import Heartbeats, NoStacks
from metamcp_supervisor.processes.nursery import ForkedWorker, NotForked, NurseryGone
from metamcp_supervisor.processes.workers import PulseVerdict
from metamcp_supervisor.servers import catalog_changes, instances
from metamcp_supervisor.servers.bounds import LimitEnforcer
from metamcp_supervisor.servers.entry import Copy, CopySnapshot, ServerEntry
from metamcp_supervisor.servers.instances import Instance
from metamcp_supervisor.servers.server import Fact, Replaced, StopServer, WentDown, WorkerResponds
from metamcp_supervisor.servers.shared_workers import SharedWorkers
from metamcp_supervisor.servers.specs import STOP_EOF_S, server_spec
from metamcp_supervisor.servers.states import ExitClass, ServerPhase
from metamcp_supervisor.servers.tokens import KeyUnfit, TokenKeys
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.messages import (
    LARGE_MESSAGE,
    THROTTLED,
    EventCounts,
    FromChild,
    Heartbeat,
    LogLines,
    ServerDown,
    ServerReady,
    Spawned,
    WorkerExit,
)
from metamcp_worker.ipc.spec import LogSpec
from metamcp_worker.runtime import logs

START_S_MARGIN = 5.0
"""Seconds after `start_timeout` at which a worker is killed; the worker watches `start_timeout`
itself."""
STOP_S_MARGIN = 3.0
"""Seconds after the time for the worker's shutdown steps (end of stdin, SIGTERM, SIGKILL) at which
the worker is killed."""
LEAVE_S_MAX = 10.0
"""Maximum seconds from the report that a server is down to the end of its worker."""
KILLED_S_MAX = 2.0
"""Maximum seconds from SIGKILL to the report of a worker's end: milliseconds are usual, a second
for a worker with much memory."""
SILENT_S_MAX = 2.0
"""Maximum seconds from the end of a control socket to the end of its worker."""
LAST_WORDS_S_MAX = 1.0
"""Maximum seconds, after a worker has ended, to read the rest of what it wrote to its control
socket."""
QUIET_S = 5.0
"""Seconds without a call after which a server that was moved out is restarted."""
MOVES_OUT = (
    "its large or many messages make servers wait that share its worker: it gets one of its own at"
    " its next start, or when nobody has called it for some seconds"
)
_HURTFUL = frozenset({LARGE_MESSAGE, THROTTLED})


class CopyListener(Protocol):
    """The code that decides about servers (`server_io`). Copies that do not serve are reported
    too."""

    def went_down(self, copy: Copy, fact: WentDown) -> None: ...

    def responds(self, copy: Copy, fact: WorkerResponds) -> None: ...

    def on_message(self, copy: Copy, message: FromChild, blob: bytes) -> None:
        """Handle a message of an instance that is not about its own start or end."""
        ...

    def crowded_out(self, signal: int) -> str:
        """Return words if the kernel killed a process because the gateway's control group was out
        of memory, else ""."""
        ...

    def idle(self, copy: Copy, idle_s: float) -> None:
        """Note that clients have not used a copy for `idle_s` seconds."""
        ...

    def renew(self, entry: ServerEntry, cause: str) -> None:
        """Replace the instance of a server by another one."""
        ...

    def on_copy_gone(self, copy: Copy) -> None:
        """Note that a copy is gone, with all its processes."""
        ...


class CopySupervisor:
    def __init__(
        self,
        lives: CopyListener,
        forker: Forker,
        heartbeats: Heartbeats,
        journal: Journal,
        tokens: TokenKeys,
        bounds: LimitEnforcer,
        environ: Mapping[str, str],
        version: str,
        workers: str,
    ) -> None:
        self.shared = SharedWorkers(forker, self._on_server_left, workers)
        self._lives = lives
        self._forker = forker
        self._heartbeats = heartbeats
        self._journal = journal
        self._tokens = tokens
        self._bounds = bounds
        self._environ = environ
        self._version = version
        self._copies: dict[tuple[int, int], Copy] = {}
        """By process and number in it (`ForkedWorker`)."""
        self._tuned: LogSpec | None = None

    def fork(self, copy: Copy) -> None:
        """Start a worker for a copy."""
        task = asyncio.get_running_loop().create_task(self._launch(copy))
        copy.launch = task
        task.add_done_callback(partial(self._on_launch_done, copy))

    def adopt(self, copy: Copy, snapshot: CopySnapshot) -> None:
        """Continue with a copy of the previous program, whose worker still runs."""
        sock = socket.socket(fileno=snapshot.instance.line.fd)
        before, name = snapshot.instance, f"{copy.entry.name}#{copy.generation}"
        worker = ForkedWorker(before.pid, "child", name, sock, before.shared, before.slot)
        self.shared.adopt_server(before.pid, before.slot)
        instance = copy.instance = Instance(copy.entry.name, copy.generation, worker, self)
        instance.go_on(snapshot.instance)
        self._tuned = None  # it has the log settings of the previous program
        self._copies[worker.pid, worker.slot] = copy
        self._watch(copy, instance, halted=snapshot.halted)
        if snapshot.due is not None:
            copy.deadline(snapshot.due - asyncio.get_running_loop().time(), self._overdue)

    def ask_to_stop(self, copy: Copy, grace_s: float) -> None:
        """Let a copy finish its calls for `grace_s`, then shut it down step by step."""
        copy.stopping = True
        if copy.instance is None:
            return  # the fork is still under way; the worker is stopped after it
        copy.instance.stop(grace_s)
        copy.deadline(grace_s + _ladder_s(copy.entry), self._overdue)

    def withheld(self, entry: ServerEntry, lines: Iterable[str]) -> tuple[str, ...]:
        """Return environment variables that a server does not get but may need. `lines`: the last
        lines that the server wrote. A remote server gets no variables."""
        server = entry.server
        if server.url is not None:
            return ()
        words = (server.name, *server.command, server.module or "")
        text = "\n".join((entry.life.message, *lines))
        return environment.withheld(
            self._environ, server.inherit_env, server.env, words=words, output=text
        )

    def tune(self) -> None:
        """Set the log format and log levels of the nursery and all workers to those of this
        process, if they changed."""
        settings = logs.current()
        if settings == self._tuned:
            return
        self._tuned = settings
        self._forker.tune()
        try:
            for copy in self._copies.values():
                if copy.instance is not None:
                    copy.instance.tune(settings)
        except TooLarge as error:
            problem = f"workers speak otherwise from their next start: {error}"
            self._journal.add("gateway", "note", problem)

    def let_go(self, entry: ServerEntry) -> None:
        """Stop the serving copy at once, without waiting for its calls."""
        if entry.serving is not None:
            copy, entry.serving = entry.serving, None
            entry.leaving.add(copy)
            self.ask_to_stop(copy, 0.0)

    def hurry(self, entry: ServerEntry) -> None:
        """Leave copies that are stopping only the time for their shutdown steps, because calls are
        not waited for any more."""
        for copy in entry.copies:
            if copy.instance is not None and copy.stopping:
                copy.deadline(_ladder_s(entry), self._overdue)

    def condemn(self, copy: Copy, reason: ExitClass, message: str) -> None:
        """Count a copy as down for this reason, and kill its worker."""
        assert copy.instance is not None
        if not copy.instance.reported:
            copy.instance.reported = True
            self._lives.went_down(copy, WentDown(reason, message))
        self._kill(copy)

    # Messages of the nursery

    def on_exit(self, end: WorkerExit) -> bool:
        """A worker and everything below it is gone; return whether it was the worker of a server.

        Messages that still wait in its control socket are read before the copy counts as gone.
        """
        copies = self._list_copies(end.pid)
        servers = () if end.with_nursery else {copy.entry.name for copy in copies}
        self.shared.on_exit(end.pid, servers, asyncio.get_running_loop().time())
        for copy in copies:
            self._on_worker_exit(copy, end)
        return bool(copies)

    def _list_copies(self, pid: int) -> list[Copy]:
        """Return the copies that have this worker."""
        return [copy for (each, _), copy in self._copies.items() if each == pid]

    def _on_server_left(self, pid: int, slot: int, end: WorkerExit) -> None:
        """A shared worker has ended a server, with everything below it."""
        copy = self._copies.get((pid, slot))
        if copy is not None and copy.instance is not None:
            copy.instance.ended_alone = True
            self._on_worker_exit(copy, end)

    def _on_worker_exit(self, copy: Copy, end: WorkerExit) -> None:
        assert copy.instance is not None
        copy.instance.end = end
        if end.stacks:
            notice = "what its worker did at last is in its log"
            self._journal.add(copy.entry.name, "stacks", notice, copy.generation)
            self.log_stacks(copy, end.stacks)
        if copy.instance.silent:
            self._bury(copy)
        else:
            copy.deadline(LAST_WORDS_S_MAX, self._bury)

    def on_halt(self, pid: int, yes: bool) -> None:
        for copy in self._list_copies(pid):
            self._journal.add(copy.entry.name, "halted" if yes else "resumed")

    # Messages of workers

    def on_message(self, instance: Instance, message: FromChild, blob: bytes) -> None:
        copy = self._copies[instance.pid, instance.slot]
        match message:
            case Heartbeat():
                instance.inflight, instance.queued = message.inflight, message.queued
                self._report_probes(instance, message.probes_missed)
                self._heartbeats.beat(instance.pid, "worker", message.lag_ms)
                self._lives.idle(copy, message.idle_s)
                self._move_if_quiet(copy, message)
            case Spawned():  # the instance has noted the pid
                if message.lacking:
                    problem = f"this kernel cannot keep it from {' and '.join(message.lacking)}"
                    self._journal.add(instance.server, "degraded", problem, instance.generation)
            case ServerDown():
                self._lives.on_message(copy, message, blob)
                self._on_server_down(copy, instance, message)
            case EventCounts(counts=counts):
                self._lives.on_message(copy, message, blob)
                if instance.slot and not counts.keys().isdisjoint(_HURTFUL):
                    self._move_out(copy)
                if THROTTLED in counts:
                    self._held_back(copy)
            case _:
                self._lives.on_message(copy, message, blob)

    def unheard(self, instance: Instance, sentence: str) -> None:
        self._journal.add(instance.server, "bug", sentence, instance.generation)

    def fell_silent(self, instance: Instance) -> None:
        instance.silent = True
        copy = self._copies[instance.pid, instance.slot]
        if instance.end is not None:
            self._bury(copy)
        else:
            copy.deadline(SILENT_S_MAX, self._overdue)

    async def stacks(self, entry: ServerEntry, dump: Callable[[int], Awaitable[str]]) -> str:
        """Return the current stacks of a server's worker, and write them to its log. `dump`: called
        with a process id. Raises NotNow."""
        copy = entry.serving
        if copy is None or copy.instance is None:
            raise NotNow(f"{entry.name} has no worker at this moment")
        try:
            text = await dump(copy.instance.pid)
        except NoStacks as error:
            raise NotNow(str(error)) from None
        self.log_stacks(copy, text)
        return text

    def log_stacks(self, copy: Copy, text: str) -> None:
        """Write the stacks of a worker to the log of its server."""
        lines = LogLines(stream="stacks", lines=tuple(filter(None, text.splitlines())))
        self._lives.on_message(copy, lines, b"")

    def _report_probes(self, instance: Instance, missed: int) -> None:
        """Write to the journal when the server begins to miss probes, and when it answers again.
        Calls still go to the server, because it may only be slow."""
        if missed != instance.probes_missed:
            event = "probe missed" if missed else "heard again"
            cause = f"it did not answer, {missed} in a row" if missed else ""
            instance.probes_missed = missed
            self._journal.add(instance.server, event, cause, instance.generation)

    def _move_out(self, copy: Copy) -> None:
        """Note that a server makes those wait that share its worker."""
        if self.shared.move_out(copy.entry.name):
            self._journal.add(copy.entry.name, "alone", MOVES_OUT, copy.generation)

    def _move_if_quiet(self, copy: Copy, beat: Heartbeat) -> None:
        """Give a server that was moved out its own worker while it has no calls."""
        instance, entry = copy.instance, copy.entry
        if (
            instance is not None
            and instance.slot
            and copy is entry.serving
            and copy.ready
            and beat.idle_s >= QUIET_S
            and not (beat.inflight or beat.queued or entry.replacing)
            and self.shared.is_alone(entry.name)
        ):
            self._lives.renew(entry, "it gets a worker of its own")

    def _held_back(self, copy: Copy) -> None:
        """Note that the worker slows the server down, because it sends too much unasked."""
        now = asyncio.get_running_loop().time()
        before, copy.flood = copy.flood, catalog_changes.held_back(copy.flood, now)
        if reason := catalog_changes.too_long(copy.flood):
            self.condemn(copy, ExitClass.FLOOD, reason)
        elif catalog_changes.is_throttled(copy.flood, now) and not catalog_changes.is_throttled(
            before, before.until
        ):
            name, generation = copy.entry.name, copy.generation
            self._journal.add(
                name, catalog_changes.THROTTLED, catalog_changes.HELD_BACK, generation
            )

    def _on_server_down(self, copy: Copy, instance: Instance, message: ServerDown) -> None:
        if instance.reported:
            return
        entry = copy.entry
        instance.reported = True
        if instance.end is None:
            copy.deadline(LEAVE_S_MAX, self._overdue)
        down = instances.to_went_down(message, remote=entry.server.url is not None)
        if message.probing and entry.probe and down.reason is ExitClass.EXIT:
            # Some old servers exit at an unknown request: start again without the probe.
            entry.probe = False
            down = instances.with_excuse(down)
        if cause := self._bounds.out_of_memory(copy, message.signal):
            down = WentDown(ExitClass.LIMIT, cause)
        elif cause := self._crowded_out(copy, message.signal):
            down = WentDown(ExitClass.SIGNAL, f"it {cause}")
        self._lives.went_down(copy, down)

    def _crowded_out(self, copy: Copy, signal: int) -> str:
        if cause := self._lives.crowded_out(signal):
            self._lives.on_message(copy, EventCounts(counts={"oom_kill": 1}), b"")
        return cause

    # Starting and stopping

    async def _launch(self, copy: Copy) -> None:
        entry = copy.entry
        try:
            name = f"{entry.name}#{copy.generation}"
            worker = await self.shared.fork(entry.server, name)
        except NotForked as error:
            copy.launch = None
            if not copy.stopping:
                excused = isinstance(error, NurseryGone)
                self._lives.went_down(copy, WentDown(ExitClass.NURSERY, str(error), excused))
            self._lives.on_copy_gone(copy)
            return
        instance = copy.instance = Instance(entry.name, copy.generation, worker, self)
        copy.launch = None
        self._copies[worker.pid, worker.slot] = copy
        self._watch(copy, instance)
        if copy.stopping:
            self.ask_to_stop(copy, 0.0)  # it was stopped during its fork
            return
        copy.deadline(entry.server.start_timeout_s + START_S_MARGIN, self._overdue)
        try:
            oauth = self._tokens.spec(entry.server.oauth)
            self._bounds.create_cgroup(copy)
            spec = server_spec(
                entry.server, self._environ, probe=entry.probe, oauth=oauth, leaf=copy.leaf,
                log=logs.current(), tenant=entry.tenant, asks_roots=entry.offer.asks_roots,
                protocol=entry.offer.protocol, private=self._bounds.private(),
                trial=entry.trial is not None,
            )  # fmt: skip
            instance.run(spec, self._version)
        except KeyUnfit as error:
            self.condemn(copy, ExitClass.SPAWN, str(error))
        except OSError as error:
            self.condemn(copy, ExitClass.EXIT, f"the gateway could not brief it: {error.strerror}")

    def _on_launch_done(self, copy: Copy, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._journal.add(copy.entry.name, "bug", f"its start broke off: {error!r}")

    def _overdue(self, copy: Copy) -> None:
        """Kill a worker that did not start or stop in time."""
        if copy.is_starting:
            limit = f"{copy.entry.server.start_timeout_s:g} s"
            message = f"it was not ready within {limit}, and its worker did not say so"
            self.condemn(copy, ExitClass.START_TIMEOUT, message)
        else:
            self._journal.add(copy.entry.name, "kill", "its worker did not leave in time")
            self._lives.on_message(copy, EventCounts(counts={"stop_worker_SIGKILL": 1}), b"")
            self._kill(copy)

    def _kill(self, copy: Copy) -> None:
        """Kill the worker of a copy; one that it shares first has to end this server alone."""
        instance = copy.instance
        assert instance is not None
        if instance.end is not None:  # only its last messages are waited for
            return
        if instance.slot and not instance.dropped and instance.condemned is None:
            instance.dropped = True
            self.shared.drop(instance.pid, instance.slot)
        else:
            self._forker.signal(instance.pid, signal.SIGKILL)
        copy.deadline(KILLED_S_MAX, self._outlives)

    def _outlives(self, copy: Copy) -> None:
        """Kill a worker again whose end was not reported, and check the nursery, which may not
        carry out orders."""
        self._journal.add(copy.entry.name, "kill", "its worker was killed and its end is not told")
        self._forker.suspect()
        self._kill(copy)

    def _watch(self, copy: Copy, instance: Instance, *, halted: bool | None = None) -> None:
        if len(self._list_copies(instance.pid)) > 1:  # they share a worker, which is watched
            return
        self._heartbeats.watch(
            instance.pid, partial(self._on_verdict, instance.pid),
            on_rest=partial(self._rests, copy), halted=halted,
        )  # fmt: skip

    def _rests(self, copy: Copy) -> None:
        """Act on a worker that was not used since its last beat."""
        self._lives.idle(copy, asyncio.get_running_loop().time() - copy.entry.used_at)

    def _on_verdict(self, pid: int, verdict: PulseVerdict) -> None:
        for copy in self._list_copies(pid):
            instance = copy.instance
            assert instance is not None
            if verdict in (PulseVerdict.HUNG, PulseVerdict.DEAD):
                instance.condemned = ExitClass.HANG
            name, generation = copy.entry.name, instance.generation
            self._journal.add(name, f"heartbeat {verdict}", generation=generation)
            self._lives.responds(copy, WorkerResponds(verdict is PulseVerdict.FINE))
            if verdict is PulseVerdict.DEAD:
                self._kill(copy)

    def _bury(self, copy: Copy) -> None:
        instance = copy.instance
        assert instance is not None
        assert instance.end is not None
        copy.no_deadline()
        instance.close()
        if copy.leaf is not None and (kills := copy.leaf.oom_kills()):
            self._lives.on_message(copy, EventCounts(counts={"oom_kill": kills}), b"")
        self._bounds.erase(copy)
        copy.instance = None
        del self._copies[instance.pid, instance.slot]
        if not self._list_copies(instance.pid):
            self._heartbeats.forget(instance.pid)
        if instance.end.orphans:
            self._lives.on_message(copy, EventCounts(counts={"orphan": instance.end.orphans}), b"")
            notice = f"{instance.end.orphans} processes that it left behind were killed"
            self._journal.add(copy.entry.name, "swept", notice, instance.generation)
        if not instance.reported:
            shared = bool(instance.slot) and not instance.ended_alone
            down = instances.untold(instance.end, instance.condemned, shared=shared)
            if down.reason is ExitClass.SIGNAL and (
                cause := self._crowded_out(copy, instance.end.signal or 0)
            ):
                down = WentDown(ExitClass.SIGNAL, f"its worker {cause}")
            self._lives.went_down(copy, down)
        self._lives.on_copy_gone(copy)


def _ladder_s(entry: ServerEntry) -> float:
    """Return the seconds that a worker may need to end its server and itself."""
    return STOP_EOF_S + entry.server.stop_grace_s + STOP_S_MARGIN


SPARE_S = 1.0
"""Seconds from the moment that a server is ready to the start of its spare: a server that has just
started has work to do."""


class Spares:
    """`feed(entry, fact, cause)`: reports a fact about a server."""

    def __init__(
        self,
        copies: CopySupervisor,
        journal: Journal,
        feed: Callable[[ServerEntry, Fact, str], None],
    ) -> None:
        self._copies = copies
        self._journal = journal
        self._feed = feed

    def settle(self, entry: ServerEntry) -> None:
        """Plan the spare of a server that is ready, and stop the spare of one that is not. Call
        this after any change."""
        if entry.life.phase is not ServerPhase.READY:
            entry.replacing = False
            self._dismiss(entry)
        elif entry.server.spares and entry.spare is None:
            entry.spare_in(SPARE_S, self._start)
        elif not entry.server.spares and not entry.replacing:
            self._dismiss(entry)

    def generation(self, entry: ServerEntry) -> int:
        """Return the generation of a spare that can take over now, or 0."""
        return entry.spare.generation if entry.spare is not None and entry.spare.ready else 0

    def replace(self, entry: ServerEntry, cause: str, *, anew: bool) -> bool:
        """Restart without a gap, if the server may have two copies; return whether that is so.
        `anew`: do not use the present spare, which has the old configuration."""
        if not entry.server.spares or entry.life.phase is not ServerPhase.READY:
            return False
        if anew:
            self._dismiss(entry)
        self._journal.add(entry.name, "replacing", cause, entry.life.generation)
        entry.replacing, entry.spare_failures = True, 0
        if generation := self.generation(entry):
            self._feed(entry, Replaced(generation), cause)
        elif entry.spare is None:
            self._start(entry)
        return True

    def renew(self, entry: ServerEntry, cause: str, *, anew: bool = False) -> None:
        """Replace the instance by another one: without a gap if possible, else by a restart."""
        if not self.replace(entry, cause, anew=anew):
            self._feed(entry, StopServer(restarting=True, anew=anew and not entry.own), cause)

    def promote(self, entry: ServerEntry) -> None:
        """Let the spare serve from now on; the old copy finishes."""
        old, entry.serving, entry.spare = entry.serving, entry.spare, None
        entry.replacing, entry.spare_failures = False, 0
        if old is not None:
            entry.leaving.add(old)

    def ready(self, copy: Copy, message: ServerReady, blob: bytes) -> None:
        """A spare is ready."""
        entry = copy.entry
        copy.ready = True
        copy.no_deadline()
        copy.lists = blob if message.list_hash != entry.offer.list_hash else b""
        self._journal.add(entry.name, "spare ready", f"{message.start_s:.2f} s", copy.generation)
        if entry.replacing:
            self._feed(entry, Replaced(copy.generation), "its new copy is ready")

    def on_spare_down(self, copy: Copy, fact: WentDown) -> None:
        """A spare went down, or did not become ready. The server goes on as it is."""
        entry = copy.entry
        entry.spare = None
        entry.leaving.add(copy)
        entry.spare_failures += 1
        delay_s = backoff.delay(entry.spare_failures, random.random())  # noqa: S311 - jitter
        cause = f"{fact.reason}: {fact.message}; the next one in {delay_s:.1f} s"
        self._journal.add(entry.name, "spare down", cause, copy.generation)
        entry.spare_in(delay_s, self._start)

    def _start(self, entry: ServerEntry) -> None:
        entry.no_spare()
        if entry.life.phase is ServerPhase.READY and entry.spare is None:
            entry.spare = Copy(entry, entry.new_generation())
            self._copies.fork(entry.spare)

    def _dismiss(self, entry: ServerEntry) -> None:
        entry.no_spare()
        if entry.spare is not None:
            copy, entry.spare = entry.spare, None
            entry.leaving.add(copy)
            self._copies.ask_to_stop(copy, 0.0)
