"""The clock of shared outages: start the server that tries for all, and wake the others afterwards.

Owns: the timer of the next look. Never: the choice of the server and the time of a try (`outage`),
the consequences of a recovery (`server`), starting (`tree`).
"""

import asyncio
from collections.abc import Callable, Mapping

from metamcp_supervisor.servers import outage
from metamcp_supervisor.servers.entry import ServerEntry
from metamcp_supervisor.servers.outage import Seen
from metamcp_supervisor.servers.server import Fact, ServerLife, SiblingRecovered, Start, evidence
from metamcp_supervisor.servers.start_gate_io import Starting
from metamcp_supervisor.servers.states import ServerPhase


class Outages:
    """`entries`: all servers, by name. `feed(entry, fact, cause)`: report a fact about a server."""

    def __init__(
        self,
        entries: Mapping[str, ServerEntry],
        starting: Starting,
        feed: Callable[[ServerEntry, Fact, str], None],
    ) -> None:
        self._entries = entries
        self._starting = starting
        self._feed = feed
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._look_at(self._loop.time() + outage.PACE_S)  # servers adopted in an upgrade may wait

    def heard(self, entry: ServerEntry, before: ServerLife) -> None:
        """Note that the life of a server changed: plan a look, or tell siblings of a recovery."""
        if entry.life.vain is not None:
            self._look_at(self._loop.time() + outage.PACE_S)
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
            Seen(entry.name, entry.launcher, entry.life, held=self._held(entry))
            for entry in self._entries.values()
            if entry.life.vain is not None and not entry.own  # own: started again by calls
        ]
        chosen, again = outage.turns(seen, self._loop.time())
        if again is not None:
            self._look_at(again)
        for turn in chosen:
            cause = f"to see for {turn.others} more whether what they need is back"
            self._feed(self._entries[turn.name], Start("others"), cause)

    def _held(self, entry: ServerEntry) -> bool:
        """Whether a server cannot start yet: an earlier copy is still leaving, or the server waits
        for another server, or it is removed."""
        if entry.life.phase is ServerPhase.WARMING:
            return False
        return entry.removed or entry.running or bool(self._starting.missing(entry))
