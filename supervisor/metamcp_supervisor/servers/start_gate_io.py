"""The start gate on the clock: the turns of servers to start, and the tries in a shared outage.

Owns: the gate and its timer, the servers that wait for a dependency or for the end of an earlier
instance, the timer of the next try. Never: the rules of both (`start_gate`), the consequences of a
recovery (`server`), starting (`server_io`).
"""

import asyncio
import os
from collections.abc import Callable, Mapping

from metamcp_supervisor.servers import start_gate
from metamcp_supervisor.servers.entry import ServerEntry
from metamcp_supervisor.servers.server import Fact, ServerLife, SiblingRecovered, Start, evidence
from metamcp_supervisor.servers.start_gate import ObservedServer
from metamcp_supervisor.servers.states import ServerPhase


class StartQueue:
    """`entries`: all servers, by name. `admit(entry)`: called when a server may start."""

    def __init__(
        self, entries: Mapping[str, ServerEntry], admit: Callable[[ServerEntry], None]
    ) -> None:
        self._entries = entries
        self._admit = admit
        self._loop = asyncio.get_running_loop()
        self._gate = start_gate.for_cores(os.cpu_count() or 1)
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def join(self, entry: ServerEntry) -> None:
        self._gate = start_gate.join(
            self._gate, entry.name, entry.life.failures, again=entry.life.generation > 0
        )
        self.schedule_check()

    def leave(self, entry: ServerEntry) -> None:
        self._gate = start_gate.leave(self._gate, entry.name)
        self.schedule_check()

    def schedule_check(self) -> None:
        """Look at the gate once, in the next iteration of the event loop."""
        self._open_at(self._loop.time())

    def on_oom_kill(self) -> None:
        """Start no servers for a while, because the kernel killed a process for lack of memory."""
        self._gate = start_gate.on_oom_kill(self._gate, self._loop.time())
        self.schedule_check()

    def find_unready_dependencies(self, entry: ServerEntry) -> list[ServerEntry]:
        """Return the servers that this server waits for."""
        needed = (self._entries.get(name) for name in entry.server.depends_on)
        return [
            other
            for other in needed
            if other is not None and other.life.phase is not ServerPhase.READY
        ]

    def dependents(self, entry: ServerEntry) -> list[ServerEntry]:
        """Return the servers that run and depend on this server; they must stop first."""
        return [
            other
            for other in self._entries.values()
            if other.is_running and entry.name in other.server.depends_on
        ]

    def is_awaited(self, entry: ServerEntry) -> bool:
        """Whether a server that runs, or waits for its turn to start, depends on this server."""
        return any(
            entry.name in other.server.depends_on
            for other in self._entries.values()
            if other.is_running or other.life.phase is ServerPhase.QUEUED
        )

    def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _open_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if self._closed else self._loop.call_at(when, self._open)

    def _open(self) -> None:
        self._timer = None
        blocked = {
            entry.name
            for entry in self._entries.values()
            if entry.is_running
            or (entry.life.phase is ServerPhase.QUEUED and self.find_unready_dependencies(entry))
        }
        self._gate, names, again = start_gate.admit(self._gate, self._loop.time(), blocked)
        if again is not None:
            self._open_at(again)
        for name in names:
            self._admit(self._entries[name])


class Outages:
    """`entries`: all servers, by name. `feed(entry, fact, cause)`: report a fact about a server."""

    def __init__(
        self,
        entries: Mapping[str, ServerEntry],
        starting: StartQueue,
        feed: Callable[[ServerEntry, Fact, str], None],
    ) -> None:
        self._entries = entries
        self._starting = starting
        self._feed = feed
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._look_at(
            self._loop.time() + start_gate.PACE_S
        )  # servers adopted in an upgrade may wait

    def on_life_change(self, entry: ServerEntry, before: ServerLife) -> None:
        """Note that the life of a server changed: plan a look, or notify siblings of a recovery."""
        if entry.life.vain is not None:
            self._look_at(self._loop.time() + start_gate.PACE_S)
        reason = evidence(before, entry.life)
        if reason is None:
            return
        for other in list(self._entries.values()):
            if other is not entry and other.launcher == entry.launcher:
                self._feed(other, SiblingRecovered(reason), "")

    def close(self) -> None:
        self._closed = True
        self._no_timer()

    def _look_at(self, when: float) -> None:
        """Look at this time, unless an earlier look is planned."""
        if self._closed or (self._timer is not None and self._timer.when() <= when):
            return
        self._no_timer()
        self._timer = self._loop.call_at(when, self._look)

    def _no_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self._timer = None
        seen = [
            ObservedServer(entry.name, entry.launcher, entry.life, held=self._is_blocked(entry))
            for entry in self._entries.values()
            if entry.life.vain is not None and not entry.own  # own: started again by calls
        ]
        chosen, again = start_gate.turns(seen, self._loop.time())
        if again is not None:
            self._look_at(again)
        for turn in chosen:
            cause = f"to see for {turn.others} more whether what they need is back"
            self._feed(self._entries[turn.name], Start("others"), cause)

    def _is_blocked(self, entry: ServerEntry) -> bool:
        """Whether a server cannot start yet: an earlier copy is still leaving, or the server waits
        for another server, or it is removed."""
        if entry.life.phase is ServerPhase.WARMING:
            return False
        return (
            entry.removed
            or entry.is_running
            or bool(self._starting.find_unready_dependencies(entry))
        )
