"""The servers: who is wanted, what happens to each, and what a life asks for carried out.

Owns: the table of servers, the start gate, the way from a fact over `server.step` to its actions.
Never: the rules (`states`, `server`, `backoff`, `gate`), processes (`crew`), what fronts are told
(`routes`).

Everything happens on the event loop: a fact comes in from a worker, a timer or an operator, `step`
says what it means, and the actions are done at once. Nothing here raises out of the loop: what
cannot be is an event `bug` in the journal.
"""

import asyncio
import os
import random
from collections.abc import Iterable, Mapping, Sequence

from metamcp_supervisor.lives import gate
from metamcp_supervisor.lives.catalogues import Catalogues, Offer, offer
from metamcp_supervisor.lives.crew import Crew
from metamcp_supervisor.lives.entries import Entry, why
from metamcp_supervisor.lives.front import Front
from metamcp_supervisor.lives.fronts import Forker
from metamcp_supervisor.lives.heartbeats import Heartbeats
from metamcp_supervisor.lives.routes import Routes
from metamcp_supervisor.lives.server import (
    Admitted,
    Answered,
    BecameReady,
    Fact,
    Left,
    Retuned,
    SiblingRecovered,
    Start,
    Stop,
    WentDown,
    step,
)
from metamcp_supervisor.lives.states import Action, ExitClass, Impossible, Phase
from metamcp_supervisor.lives.tokens import Tokens
from metamcp_supervisor.wanted.config import Server
from metamcp_supervisor.watched.events import Journal
from metamcp_supervisor.watched.logs import ServerLogs
from metamcp_supervisor.watched.metrics import Metrics
from metamcp_worker import codec
from metamcp_worker.errors import Code
from metamcp_worker.messages import (
    AttachFailed,
    CallStats,
    Counted,
    FromChild,
    Listed,
    LogLines,
    ServerReady,
)

DRAIN_S = 30.0
"""What a call in flight may still take when its server is stopped or restarted."""
ATTACH_RETRY_S = 1.0
"""After a pipe that found no free descriptor at its end."""
#: Counters of a worker that a change of the configuration can stop, and which.
_HELPED = {
    "unroutable_request": "it asked a client something, and it is not known which: its question was"
    " refused; with concurrency = 1 there is only one that it can mean",
    "unattributed_log": "it logged something for a client, and it is not known which: nobody got it"
    "; with concurrency = 1 there is only one that it can mean",
}
#: Calls that ended so say nothing about the server: the gateway answered, or the client left.
_NOT_ANSWERED = frozenset({
    "cancelled",
    *(str(int(code)) for code in (
        Code.SERVER_DOWN, Code.OVERLOADED, Code.TIMED_OUT, Code.TOO_LARGE,
    )),
})  # fmt: skip


class Tree:
    """`entries`: by name, in the order of the configuration."""

    def __init__(
        self,
        *,
        forker: Forker,
        hearts: Heartbeats,
        routes: Routes,
        catalogues: Catalogues,
        journal: Journal,
        logs: ServerLogs,
        metrics: Metrics,
        tokens: Tokens,
        environ: Mapping[str, str],
        version: str,
    ) -> None:
        self.crew = Crew(self, forker, hearts, journal, tokens, environ, version)
        self._routes = routes
        self._catalogues = catalogues
        self._journal = journal
        self._logs = logs
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._gate = gate.for_cores(os.cpu_count() or 1)
        self._gate_timer: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self._drain_s = DRAIN_S
        self._closed = False
        self.entries: dict[str, Entry] = {}

    # What is wanted

    def add(self, server: Server) -> None:
        """A new server of the configuration; started if it is enabled."""
        known = self.entries.get(server.name)
        if known is not None:  # it is back before it was gone
            known.removed = False
            self.change(server, restart=True)
            if server.enabled:  # it may be down already, with its last worker still on its way out
                self.feed(known, Start("boot"), "configured again")
            return
        cached = self._catalogues.load(server.name)
        entry = self.entries[server.name] = Entry(server, cached or Offer())
        self._routes.show(server, entry.life)
        if server.enabled:
            self.feed(entry, Start("boot"), "started with the gateway")

    def start(self, names: Iterable[str]) -> None:
        for name in names:
            self.feed(self.entries[name], Start("operator"), "started by an operator")

    def stop(self, names: Iterable[str]) -> None:
        for name in names:
            self.feed(self.entries[name], Stop(), "stopped by an operator")

    def restart(self, names: Iterable[str]) -> None:
        for name in names:
            self.feed(self.entries[name], Stop(restarting=True), "restarted by an operator")

    def change(self, server: Server, *, restart: bool) -> None:
        """Another configuration of a known server."""
        entry = self.entries[server.name]
        was_enabled, entry.server = entry.server.enabled, server
        self.feed(entry, Retuned(server.restart))
        left = entry.life.phase is Phase.DISABLED and entry.life.reason is None
        if not server.enabled:
            self.feed(entry, Stop(), "no longer enabled")
        elif restart and (not was_enabled or not left):
            entry.probe = True
            self.feed(entry, Stop(restarting=True), "its configuration changed")
        self._routes.show(server, entry.life)

    def remove(self, name: str) -> None:
        entry = self.entries[name]
        entry.removed = True
        self.feed(entry, Stop(), "no longer configured")
        self._drop_removed(entry)

    async def close(self) -> None:
        """Stop every server, without waiting for calls; each takes its own ladder."""
        self._drain_s = 0.0
        for entry in list(self.entries.values()):
            self.crew.hurry(entry)
            self.feed(entry, Stop(), "the gateway stops")
        while any(entry.running for entry in self.entries.values()):
            self._ended.clear()
            await self._ended.wait()
        self.abandon()

    def abandon(self) -> None:
        """Forget everything: the processes are gone, or somebody else ends them."""
        self._closed = True
        if self._gate_timer is not None:
            self._gate_timer.cancel()
        for entry in self.entries.values():
            entry.no_retry()
            entry.no_deadline()
            if entry.launch is not None:
                entry.launch.cancel()
            if entry.instance is not None:
                entry.instance.close()

    # What fronts say

    def welcome(self, front: Front) -> None:
        """Tell a new front about every server. Raises OSError."""
        self._routes.introduce(front)
        for entry in self.entries.values():
            if entry.instance is not None and entry.life.phase is Phase.READY:
                self._routes.connect(entry.instance, front.number)

    def wanted(self, server: str) -> None:
        if entry := self.entries.get(server):
            self.feed(entry, Start("client"), "started by a call")

    def counted(self, front: int, stats: Sequence[CallStats]) -> None:
        """Cumulative figures of a front: whoever answered something is proven to work."""
        answered: dict[str, int] = {}
        for one in stats:
            unanswered = sum(n for kind, n in one.errors.items() if kind in _NOT_ANSWERED)
            answered[one.server] = answered.get(one.server, 0) + one.count - unanswered
        for name, count in answered.items():
            entry = self.entries.get(name)
            if entry is not None and count > entry.answered.get(front, 0):
                entry.answered[front] = count
                self.feed(entry, Answered())

    def front_left(self, front: int) -> None:
        for entry in self.entries.values():
            entry.answered.pop(front, None)

    def offer_again(self, server: str, front: int) -> None:
        """A catalogue did not arrive for want of a descriptor: send it again in a while."""
        if not self._closed:
            self._loop.call_later(ATTACH_RETRY_S, self._offer_again, server, front)

    def reattach(self, server: str, front: int | None) -> None:
        """A pipe did not arrive for want of a descriptor: make another one in a while. `front`: its
        number, None for all."""
        if not self._closed:
            self._loop.call_later(ATTACH_RETRY_S, self._connect, server, front)

    # What workers say

    def told(self, entry: Entry, message: FromChild, blob: bytes) -> None:
        match message:
            case ServerReady():
                self._ready(entry, message, blob)
            case Listed(tools=tools):
                if self._offers(entry, blob) and entry.life.phase is Phase.READY:
                    news = f"tools: {tools}"
                    self._journal.add(entry.name, "lists changed", news, entry.life.generation)
            case LogLines(stream=stream, lines=lines, dropped=dropped):
                self._logs.add(entry.name, stream, lines, dropped)
                if dropped:
                    self._metrics.server_counts(entry.name, {"log_lines_dropped": dropped})
            case Counted(counts=counts):
                self._metrics.server_counts(entry.name, counts)
                self._tell_once(entry, counts)
            case AttachFailed(number=number):
                self.reattach(entry.name, number)
            case _:
                self._journal.add(entry.name, "bug", f"nobody hears {type(message).__name__}")

    def gone(self, entry: Entry) -> None:
        self.feed(entry, Left())
        self._drop_removed(entry)
        self._ended.set()
        self._soon()

    def _ready(self, entry: Entry, message: ServerReady, blob: bytes) -> None:
        if entry.life.phase is Phase.WARMING and self._offers(entry, blob):
            entry.no_deadline()
            self.feed(entry, BecameReady(), f"{message.start_s:.2f} s, tools: {message.tools}")

    def _tell_once(self, entry: Entry, counts: Iterable[str]) -> None:
        """What an operator can help is in the journal too, the first time of each instance."""
        told = entry.instance.told_of if entry.instance is not None else set[str]()
        for name in counts:
            if name in _HELPED and name not in told:
                told.add(name)
                what = name.replace("_", " ")
                self._journal.add(entry.name, what, _HELPED[name], entry.life.generation)

    def _offers(self, entry: Entry, blob: bytes) -> bool:
        """Take in a catalogue; without a usable one the server counts as broken."""
        try:
            entry.offer = offer(blob)
            self._routes.offers(entry.name, blob, entry.offer.list_hash)
        except codec.Malformed as error:
            message = f"its catalogue cannot be read: {error}"
            self.crew.condemn(entry, ExitClass.PROTOCOL, message)
            return False
        except OSError as error:
            self.crew.condemn(entry, ExitClass.EXIT, _no_descriptor(error))
            return False
        self._catalogues.keep(entry.name, blob)
        return True

    # Lives

    def feed(self, entry: Entry, fact: Fact, cause: str = "") -> None:
        """Let `fact` happen to a server: the next life, its actions, and the news of it."""
        before, now = entry.life, self._loop.time()
        try:
            entry.life, actions = step(before, fact, now, random.random())  # noqa: S311 - jitter
        except Impossible as error:
            self._journal.add(entry.name, "bug", str(error), before.generation)
            return
        for action in actions:
            self._act(entry, action)
        life = entry.life
        if (life.phase, life.degraded, life.retry_at) == (
            before.phase, before.degraded, before.retry_at,
        ):  # fmt: skip
            return
        self._routes.show(entry.server, life)
        if life.phase is not before.phase:
            what = f"{before.phase}→{life.phase}"
            cause = why(life, now) if isinstance(fact, WentDown) else cause
            self._journal.add(entry.name, what, cause, life.generation)
        if life.phase is Phase.READY and before.failures and before.reason is not None:
            self._wake_siblings(entry, before.reason)

    def _act(self, entry: Entry, action: Action) -> None:
        match action:
            case Action.JOIN_GATE:
                self._gate = gate.join(self._gate, entry.name, entry.life.failures)
                self._soon()
            case Action.LEAVE_GATE:
                self._gate = gate.leave(self._gate, entry.name)
                self._soon()
            case Action.FORK:
                self._count_restart(entry)
                self.crew.fork(entry)
            case Action.ROUTE:
                self._connect(entry.name, None)
            case Action.ASK_TO_STOP:
                draining = entry.life.phase is Phase.DRAINING
                self.crew.ask_to_stop(entry, self._drain_s if draining else 0.0)
            case Action.ARM_RETRY:
                if entry.life.retry_at is not None:
                    entry.retry_at(entry.life.retry_at, self._retry)
            case Action.DISARM_RETRY:
                entry.no_retry()

    def _count_restart(self, entry: Entry) -> None:
        if entry.life.generation > 1:
            self._metrics.restarted(entry.name, str(entry.life.reason or "operator"))

    def _retry(self, entry: Entry) -> None:
        entry.no_retry()
        self.feed(entry, Start("timer"), "its next start is due")

    def _wake_siblings(self, entry: Entry, reason: ExitClass) -> None:
        """It is back: whoever failed in the same way may be able to come back as well."""
        for other in list(self.entries.values()):
            if other is not entry and other.launcher == entry.launcher:
                self.feed(other, SiblingRecovered(reason))

    # The start gate

    def _soon(self) -> None:
        """Look at the gate in the next turn of the loop, once."""
        self._open_gate_at(self._loop.time())

    def _open_gate_at(self, when: float) -> None:
        if self._gate_timer is not None:
            self._gate_timer.cancel()
        self._gate_timer = None if self._closed else self._loop.call_at(when, self._open_gate)

    def _open_gate(self) -> None:
        self._gate_timer = None
        held = {entry.name for entry in self.entries.values() if entry.running}
        self._gate, names, again = gate.admit(self._gate, self._loop.time(), held)
        if again is not None:
            self._open_gate_at(again)
        for name in names:
            self.feed(self.entries[name], Admitted(), "the start gate is open")

    def _connect(self, server: str, front: int | None) -> None:
        entry = self.entries.get(server)
        if entry is None or entry.instance is None or entry.life.phase is not Phase.READY:
            return
        try:
            self._routes.connect(entry.instance, front)
        except OSError as error:
            self._journal.add(server, "error", _no_descriptor(error), entry.life.generation)
            self.reattach(server, front)

    def _offer_again(self, server: str, front: int) -> None:
        try:
            self._routes.offer_again(server, front)
        except OSError as error:
            self._journal.add(server, "error", _no_descriptor(error))
            self.offer_again(server, front)

    def _drop_removed(self, entry: Entry) -> None:
        if entry.removed and not entry.running and entry.life.phase is Phase.DISABLED:
            del self.entries[entry.name]
            self._routes.forget(entry.name)
            self._logs.forget(entry.name)
            self._metrics.forget(entry.name)


def _no_descriptor(error: OSError) -> str:
    return f"the gateway has no free descriptor for it: {error.strerror}"
