"""All servers: facts about each of them, and the actions that follow.

Owns: the table of servers, passing a fact to `server.step` and carrying out its actions, and
signals of an operator for a server's process. Never: the rules of restarting (`server`, `states`),
the file of what operators decided (`decisions`).

Everything happens on the event loop: a worker, a timer or an operator causes a fact, `step` returns
the actions, and the tree carries them out at once. Errors do not leave the event loop: an
impossible fact becomes an event `bug` in the journal.
"""

import asyncio
import errno
import os
import random
import signal
import sys
from collections.abc import Callable, Mapping, Sequence

from msgspec import structs
from msgspec.structs import replace

from metamcp_supervisor.config.config import Server
from metamcp_supervisor.control.services import NotNow
from metamcp_supervisor.fronts.front import Forker, FrontProcess
from metamcp_supervisor.processes.heartbeats import Heartbeats
from metamcp_supervisor.servers.bounds import LimitEnforcer
from metamcp_supervisor.servers.catalogues import (
    CatalogueFigures,
    Catalogues,
    fill_unread_lists,
    offer,
)
from metamcp_supervisor.servers.decisions import DRAIN, ITSELF, QUARANTINE, STOP, Decisions
from metamcp_supervisor.servers.entry import Copy, ServerEntry, describe_failure, news, patience
from metamcp_supervisor.servers.per_client_io import PerClientProcesses
from metamcp_supervisor.servers.publish import Deliveries, Routes
from metamcp_supervisor.servers.quarantine_io import ToolQuarantine
from metamcp_supervisor.servers.reports import Reports
from metamcp_supervisor.servers.server import (
    LISTED_S,
    Admitted,
    Answered,
    BecameIdle,
    BecameReady,
    CallsBlocked,
    Fact,
    OperatorQuarantine,
    Retuned,
    Start,
    StopServer,
    WentDown,
    WorkerLeft,
    WorkerResponds,
    rest_s,
    step,
)
from metamcp_supervisor.servers.server_copies import CopySupervisor, Spares
from metamcp_supervisor.servers.start_gate_io import Outages, StartQueue
from metamcp_supervisor.servers.states import (
    Action,
    ExitClass,
    ImpossibleEvent,
    ServerPhase,
    format_move,
)
from metamcp_supervisor.servers.tokens import TokenKeys
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_supervisor.telemetry.logs import ServerLogs
from metamcp_supervisor.telemetry.metrics import Metrics
from metamcp_supervisor.verbs import Decision
from metamcp_worker.confinement.denials import DeniedRight
from metamcp_worker.ipc.messages import (
    AnswerTimes,
    AttachFailed,
    CallStats,
    CatalogueChanged,
    EventCounts,
    FromChild,
    LogLines,
    ServerDown,
    ServerReady,
    Tenant,
)

DRAIN_S = 30.0
"""Maximum seconds for calls in flight when their server is stopped or restarted."""
LISTED = "its lists are read; the first call starts it"
LISTED_LOOK_S = LISTED_S + 1.0
"""Seconds after which a server that was only started to be listed is looked at: the worker of one
without calls sleeps then, and reports nothing for a while."""


class ServerManager:
    """`entries`: all servers, by name, in the order of the configuration. `gateway_id`: returns the
    id of this gateway."""

    def __init__(
        self,
        *,
        forker: Forker,
        heartbeats: Heartbeats,
        routes: Routes,
        catalogues: Catalogues,
        journal: Journal,
        logs: ServerLogs,
        metrics: Metrics,
        tokens: TokenKeys,
        bounds: LimitEnforcer,
        approvals: ToolQuarantine,
        decisions: Decisions,
        environ: Mapping[str, str],
        version: str,
        gateway_id: Callable[[], str],
        workers: str,
    ) -> None:
        self.copies = CopySupervisor(
            self, forker, heartbeats, journal, tokens, bounds, environ, version, workers
        )
        self.bounds = bounds
        self.approvals = approvals
        self.decisions = decisions
        self._routes = routes
        self._catalogues = catalogues
        self._journal = journal
        self._reports = Reports(journal, logs, metrics)
        self._loop = asyncio.get_running_loop()
        self._ended = asyncio.Event()
        self._drain_s = DRAIN_S
        self._closed = False
        self.entries: dict[str, ServerEntry] = {}
        self.deliveries = Deliveries(self.entries, routes, approvals, journal, gateway_id)
        self.starting = StartQueue(self.entries, self._admit)
        self.outages = Outages(self.entries, self.starting, self.feed)
        self.spares = Spares(self.copies, journal, self.feed)
        self.per_client = PerClientProcesses(self, routes, catalogues, journal)

    # Requests of the configuration and of operators

    def add(self, server: Server) -> None:
        """Add a new server of the configuration; start it if it is enabled and no operator decided
        otherwise, also in an earlier run."""
        existing = self.entries.get(server.name)
        if existing is not None:  # it is configured again before it was gone
            existing.removed = False
            is_kept_down = self._keep_down(existing)
            self.change(server, restart=not is_kept_down)
            # It may be down already, with its last worker still on its way out.
            if server.enabled and not is_kept_down:
                self.feed(existing, Start("boot"), "configured again")
            return
        entry = self.entries[server.name] = self.make(server)
        self.per_client.recall(entry)
        self.per_client.share(entry)
        is_kept_down = self._keep_down(entry)
        self._routes.show(server, entry.life)
        if server.enabled and not (is_kept_down or (entry.offer.from_cache and server.lazy)):
            self.feed(entry, Start("boot"), "started with the gateway")

    def _keep_down(self, entry: ServerEntry) -> bool:
        """Put a server into quarantine or stop it, if that was decided before. Return whether that
        is so."""
        decision = self.decisions.find(entry.name)
        if decision is not None and decision.kind == QUARANTINE:
            is_class = decision.reason in set(ExitClass)  # a later version may have others
            reason = ExitClass(decision.reason) if is_class else ExitClass.OPERATOR
            self._quarantine(entry, OperatorQuarantine(decision.why, reason))
            return True
        if decision is None or decision.kind != STOP:
            return False
        if not entry.server.enabled:  # when it is enabled again, it is to start
            self.decisions.lift(entry.name, STOP)
            return False
        self.feed(entry, StopServer(), "stopped by an operator before this start")
        self.per_client.end_of(entry.name, "its server was stopped by an operator")
        return True

    def make(self, server: Server) -> ServerEntry:
        """Make an entry for a server, with its last catalogue."""
        data = self._catalogues.load(server)
        entry = ServerEntry(server, offer(data, from_cache=True) if data else CatalogueFigures())
        if (base := self.entries.get(entry.base)) is not None:
            entry.trial = base.trial
        self.deliveries.report_left_out(entry, CatalogueFigures(), entry.offer)
        if data and not (entry.legacy and entry.offer.modern):
            # Calls by names that are already known wait until the server is ready.
            self.approvals.on_catalogue(server.name, data)
            try:
                self._routes.offers(server.name, data, entry.offer.list_hash)
            except OSError:  # no free descriptor: the server starts as if nothing was known of it
                entry.offer = CatalogueFigures()
        return entry

    def start(self, name: str) -> None:
        entry = self.entries[name]
        if not entry.removed:
            self.decisions.lift(name, QUARANTINE, STOP)
            self.feed(entry, Start("operator"), "started by an operator")

    def stop(self, name: str, by: str = "") -> None:
        """Stop a server. `by`: caller whose decision outlasts this run; empty: it does not."""
        entry = self.entries[name]
        self.feed(entry, StopServer(), "stopped by an operator")
        self.per_client.end_of(name, "its server was stopped by an operator")
        if by:
            self._decide(entry, STOP, by)
        else:
            self.decisions.lift(name, QUARANTINE, STOP, DRAIN)

    def restart(self, name: str) -> None:
        """Restart a server: without a gap if it may have two copies."""
        cause, base = "restarted by an operator", self.entries[name]
        base.one_era = ""  # it may be a different server by now
        self.per_client.share(base)
        for entry in (base, *self.per_client.of(name)):
            if not entry.removed and (entry.is_running or not entry.legacy):
                self.spares.renew(entry, cause)

    def trial(self, name: str, rights: set[DeniedRight] | None) -> None:
        """Restart a server, and its processes for single clients, in a trial that adds to these
        rights; None: in its sandbox. No copy of before is left. Raises NotNow."""
        if rights is not None and self.entries[name].trial is not None:
            raise NotNow(f"{name} is in a trial already")
        cause = "its sandbox is on" if rights is None else "a trial without its sandbox"
        for entry in (self.entries[name], *self.per_client.of(name)):
            entry.trial = rights
            if not entry.removed:
                self.feed(entry, StopServer(restarting=True), cause)

    def recycle(self, name: str, reason: str) -> None:
        """Replace the instance of a server that uses too much, between two calls."""
        entry = self.entries[name]
        self._journal.add(name, "recycled", reason, entry.life.generation)
        self.spares.renew(entry, reason)

    def quarantine(self, name: str, reason: str, by: str) -> None:
        """Put a server into quarantine. `by`: caller who decided that."""
        entry = self.entries[name]
        self._quarantine(entry, OperatorQuarantine(reason))
        self._decide(entry, QUARANTINE, by)

    def _quarantine(self, entry: ServerEntry, fact: OperatorQuarantine) -> None:
        self.feed(entry, fact, fact.why)
        self.copies.let_go(entry)
        self.per_client.end_of(entry.name, "its server is in quarantine")

    def _decide(self, entry: ServerEntry, kind: str, who: str) -> None:
        """Record a decision about a server. Processes for single clients are not in the
        configuration: what is decided about one ends with it."""
        decision = Decision(server=entry.name, kind=kind, who=who)
        if kind == QUARANTINE:
            life = entry.life
            decision = structs.replace(decision, why=life.message, reason=life.reason or "")
        if not entry.own:
            self.decisions.put(decision)

    def record_decisions(self, who: str) -> None:
        """Take what operators decided from the lives of the servers, which the previous program
        handed over without a record of decisions."""
        for name, entry in self.entries.items():
            life, stopped = entry.life, entry.life.phase is ServerPhase.DISABLED
            self.decisions.lift(name, QUARANTINE, STOP, DRAIN)
            if life.phase is ServerPhase.QUARANTINED:
                by_operator = life.reason is ExitClass.OPERATOR
                self._decide(entry, QUARANTINE, who if by_operator else ITSELF)
            elif life.parted or (stopped and entry.server.enabled and life.reason is None):
                self._decide(entry, DRAIN if life.parted else STOP, who)

    def crowded_out(self, signal: int) -> str:
        """Return words if the kernel killed a process because the gateway's control group was out
        of memory, else "". If so, delay starts for a while."""
        if cause := self.bounds.crowded_out(signal):
            self.starting.on_oom_kill()
        return cause

    def part(self, name: str, by: str, *, yes: bool) -> None:
        """Keep new calls from a server, or let them through again. `by`: caller who decided
        that."""
        base = self.entries[name]
        for entry in (base, *self.per_client.of(name)):
            self.feed(entry, CallsBlocked(yes))
        if yes:
            self._decide(base, DRAIN, by)
        else:
            self.decisions.lift(name, DRAIN)

    def change(self, server: Server, *, restart: bool) -> None:
        """Apply a changed configuration of a known server."""
        entry = self.entries[server.name]
        before, entry.server = entry.server, server
        self.per_client.apply_config_change(entry, before, restart=restart)
        tuned = Retuned(server.restart, server.lazy, patience(server), server.mistake)
        self.feed(entry, tuned, "it is eager now")
        life = entry.life
        was_stopped = life.phase is ServerPhase.DISABLED and life.reason is None
        by_operator = life.reason is ExitClass.OPERATOR  # who alone lets it out
        is_kept_out = life.phase is ServerPhase.QUARANTINED and by_operator
        if not server.enabled and (before.enabled or restart) and not is_kept_out:
            self.decisions.lift(server.name, STOP)
            self.feed(entry, StopServer(), "no longer enabled")
        elif restart and not is_kept_out and (not before.enabled or not was_stopped):
            entry.probe = True
            self.spares.renew(entry, "its configuration changed", anew=True)
        self.spares.settle(entry)
        self.bounds.redraw(entry)
        self._routes.show(server, entry.life)

    def remove(self, name: str, cause: str = "no longer configured") -> None:
        entry = self.entries[name]
        entry.removed = True
        self.feed(entry, StopServer(), cause)
        self._drop_removed(entry)
        self.per_client.end_of(name, cause)

    async def close(self) -> None:
        """Stop every server, without waiting for calls. Each has its own time to shut down, and
        servers that depend on it stop first."""
        self._drain_s = 0.0
        stopping: set[str] = set()
        while True:
            self._ended.clear()
            for entry in list(self.entries.values()):
                if entry.name not in stopping and not self.starting.dependents(entry):
                    stopping.add(entry.name)
                    self.copies.hurry(entry)
                    self.feed(entry, StopServer(), "the gateway stops")
            if not any(entry.is_running for entry in self.entries.values()):
                break
            await self._ended.wait()
        self.abandon()

    def abandon(self) -> None:
        """Forget everything, because the processes are gone, or other code ends them."""
        self._closed = True
        self.starting.close()
        self.outages.close()
        self.deliveries.close()
        for entry in self.entries.values():
            entry.no_retry()
            entry.no_spare()
            for copy in entry.copies:
                copy.abandon()

    # Messages of fronts

    def welcome(self, front: FrontProcess) -> None:
        """Send a new front the state of every server. Raises OSError."""
        self._routes.introduce(front)
        for entry in self.entries.values():
            if entry.instance is not None and entry.life.phase is ServerPhase.READY:
                self._routes.connect(entry.instance, front.number)

    def on_server_wanted(self, server: str, tenant: Tenant | None = None) -> None:
        if entry := self.entries.get(server):
            self.per_client.note_use(entry, 0.0, tenant)
            self.feed(entry, Start("client"), "started by a call")
        else:
            self.per_client.on_server_wanted(server, tenant)

    def on_call_stats(self, front: int, stats: Sequence[CallStats]) -> None:
        """Take in cumulative figures of a front: a server that answered a call is proven to
        work."""
        for entry in self._reports.proven(self.entries, front, stats):
            self.feed(entry, Answered())

    def front_left(self, front: int) -> None:
        for entry in self.entries.values():
            entry.answered.pop(front, None)

    # Messages of workers: `server_copies.CopyListener`

    def on_message(self, copy: Copy, message: FromChild, blob: bytes) -> None:
        entry = copy.entry
        match message:
            case ServerReady() if copy is entry.spare:
                self.spares.ready(copy, message, blob)
            case ServerReady() if copy is entry.serving:
                self._ready(copy, message, blob)
            case ServerReady() | CatalogueChanged() if copy is not entry.serving:
                pass
            case CatalogueChanged():
                self._offers(entry, blob)
            case LogLines() | AnswerTimes() | ServerDown():
                self._reports.on_message(copy, message)
            case EventCounts(counts=counts):
                self._reports.on_counters(copy, message)
                self.per_client.on_counters(entry, counts)
            case AttachFailed(number=number):
                self.deliveries.connect_again(entry.name, number)
            case _:
                self._journal.add(entry.name, "bug", f"nobody hears {type(message).__name__}")

    def went_down(self, copy: Copy, fact: WentDown) -> None:
        entry = copy.entry
        if copy is entry.serving:
            if not self.per_client.detect_one_era(entry, fact):
                self.feed(entry, replace(fact, spare=self.spares.generation(entry)))
        elif copy is entry.spare:
            self.spares.on_spare_down(copy, fact)

    def responds(self, copy: Copy, fact: WorkerResponds) -> None:
        if copy is copy.entry.serving:
            self.feed(copy.entry, fact)

    def on_copy_gone(self, copy: Copy) -> None:
        entry = copy.entry
        entry.leaving.discard(copy)
        self._reports.on_copy_gone(copy)
        if copy is entry.serving:
            entry.serving = None
            self.feed(entry, WorkerLeft())
        self._drop_removed(entry)
        self.per_client.drop_if_idle(entry)
        self._ended.set()
        self.starting.schedule_check()

    def idle(self, copy: Copy, idle_s: float) -> None:
        entry, server = copy.entry, copy.entry.server
        self.per_client.note_use(entry, idle_s)
        is_listed = not entry.offer.unread
        stop_s = rest_s(entry.life, server.rest_s) if is_listed else server.rest_s
        if (
            copy is entry.serving
            and server.lazy
            and idle_s >= stop_s
            and not self.starting.is_awaited(entry)
        ):
            cause = f"nobody needed it for {idle_s:.0f} s" if stop_s == server.rest_s else LISTED
            self.feed(entry, BecameIdle(), cause)

    def _ready(self, copy: Copy, message: ServerReady, blob: bytes) -> None:
        entry = copy.entry
        if entry.life.phase is ServerPhase.WARMING and self._offers(entry, blob):
            copy.ready = True
            copy.no_deadline()
            decision = self.decisions.find(entry.base)
            fact = BecameReady(parted=decision is not None and decision.kind == DRAIN)
            self.feed(entry, fact, f"{message.start_s:.2f} s, tools: {entry.offer.tools}")
            if entry.life.to_list:
                self._loop.call_later(LISTED_LOOK_S, self._look_at_listed, copy)

    def _look_at_listed(self, copy: Copy) -> None:
        if not self._closed:
            self.idle(copy, self._loop.time() - copy.entry.used_at)

    def _offers(self, entry: ServerEntry, blob: bytes) -> bool:
        """Take in a catalogue; if it cannot be used, the server counts as broken. Return whether it
        can be used."""
        blob = fill_unread_lists(blob, self._routes.find_published(entry.name).catalogue)
        broken = self.deliveries.offer(entry, blob)
        if broken is None:
            if entry.legacy or not entry.own:
                self._catalogues.keep(entry.server, blob)
            self.per_client.on_catalogue(entry)
        if not entry.own:
            self.per_client.share(entry)
        if broken is not None and entry.serving is not None and entry.instance is not None:
            self.copies.condemn(entry.serving, *broken)
        return broken is None

    # Lives

    def feed(self, entry: ServerEntry, fact: Fact, cause: str = "") -> None:
        """Process a fact about a server: calculate its next life, carry out the actions, and report
        changes."""
        before, now = entry.life, self._loop.time()
        try:
            entry.life, actions = step(before, fact, now, random.random())  # noqa: S311 - jitter
        except ImpossibleEvent as error:
            self._journal.add(entry.name, "bug", str(error), before.generation)
            return
        for action in actions:
            self._act(entry, action)
        life = entry.life
        if news(life) == news(before):
            return
        self._routes.show(entry.server, life)
        if life.phase is not before.phase or life.generation != before.generation:
            self._reports.measure_downtime(entry, before, fact, now)
            self.spares.settle(entry)
            entry.rested = entry.rested or life.phase is ServerPhase.IDLE or life.resting
            event = format_move(before.phase, life.phase)
            down = isinstance(fact, WentDown) or life.phase is ServerPhase.FAILED
            cause = describe_failure(life, now) if down else cause
            self._journal.add(entry.name, event, cause, life.generation)
            if life.phase is ServerPhase.QUEUED:
                self.decisions.lift(entry.name, QUARANTINE, STOP)
            elif isinstance(fact, WentDown) and life.phase is ServerPhase.QUARANTINED:
                self._decide(entry, QUARANTINE, ITSELF)
        self.outages.on_life_change(entry, before)
        self.per_client.drop_if_idle(entry)

    def _act(self, entry: ServerEntry, action: Action) -> None:
        match action:
            case Action.JOIN_GATE:
                self.starting.join(entry)
                for needed in self.starting.find_unready_dependencies(entry):
                    self.feed(needed, Start("dependent"), f"{entry.name} depends on it")
            case Action.LEAVE_GATE:
                self.starting.leave(entry)
            case Action.FORK:
                self._reports.count_restart(entry)
                entry.serving = Copy(entry, entry.life.generation)
                self.copies.fork(entry.serving)
            case Action.ROUTE:
                self.deliveries.connect(entry.name, None)
            case Action.PROMOTE:
                self._promote(entry)
            case Action.ASK_TO_STOP if entry.serving is not None:
                draining = entry.life.phase is ServerPhase.DRAINING
                self.copies.ask_to_stop(entry.serving, self._drain_s if draining else 0.0)
            case Action.ARM_RETRY:
                if entry.life.retry_at is not None:
                    entry.retry_at(entry.life.retry_at, self.retry)
            case Action.DISARM_RETRY:
                entry.no_retry()
            case _:
                pass

    def _promote(self, entry: ServerEntry) -> None:
        self._reports.count_restart(entry)
        old = entry.serving
        self.spares.promote(entry)
        if entry.serving is not None and entry.serving.lists:
            self._offers(entry, entry.serving.lists)
        self.deliveries.connect(entry.name, None)
        if old is not None and old.instance is not None and not old.instance.reported:
            self.copies.ask_to_stop(old, self._drain_s)

    def _admit(self, entry: ServerEntry) -> None:
        self.feed(entry, Admitted(entry.new_generation()), "the start gate is open")

    def retry(self, entry: ServerEntry) -> None:
        entry.no_retry()
        if not self.per_client.forgotten(entry):
            self.feed(entry, Start("timer"), "its next start is due")

    def _drop_removed(self, entry: ServerEntry) -> None:
        if entry.removed and entry.spent:
            self.drop(entry)

    def renew(self, entry: ServerEntry, cause: str) -> None:
        self.spares.renew(entry, cause)

    def drop(self, entry: ServerEntry) -> None:
        """Forget a server that does not run, with everything that is kept about it."""
        if self.entries.get(entry.name) is entry:
            entry.no_retry()
            self.starting.leave(entry)
            del self.entries[entry.name]
            self._routes.forget(entry.name)
            self.approvals.forget(entry.name)
            self._reports.forget(entry)


def send(entry: ServerEntry, number: int) -> int:
    """Send a signal to the process of a server; return its process id. Raises NotNow with the
    reason if that is not possible."""
    server, instance = entry.server, entry.instance
    if server.url is not None:
        raise NotNow(f"{entry.name} is reached by URL: it has no process here")
    if server.module is not None:
        raise NotNow(
            f"{entry.name} runs in its worker and has no process of its own; 'metamcp ctl restart'"
            " starts it anew"
        )
    if instance is None or instance.reported or not instance.server_pid:
        raise NotNow(f"{entry.name} has no process of its own at this moment")
    try:
        deliver(instance.server_pid, number, parent=instance.pid)
    except (ProcessLookupError, FileNotFoundError):
        raise NotNow(f"the process of {entry.name} has just ended") from None
    except OSError as error:
        problem = f"process {instance.server_pid} of {entry.name} takes no signal {number}"
        raise NotNow(f"{problem}: {error.strerror}") from None
    return instance.server_pid


def deliver(pid: int, number: int, *, parent: int) -> None:
    """Send a signal to a process, if it is a child of `parent`. Raises OSError."""
    if not hasattr(os, "pidfd_open"):
        os.kill(pid, number)
        return
    descriptor = os.pidfd_open(pid)
    try:
        # The descriptor stays with this process. But the process may be the wrong one: if a server
        # has just ended, another process may have its number already.
        if sys.platform == "linux" and _parent(pid) != parent:
            raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))
        signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def _parent(pid: int) -> int:
    """Return the parent of a process. Raises OSError."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        # The name of a program is in brackets and may hold anything, brackets as well.
        return int(file.read().rpartition(b")")[2].split()[1])
