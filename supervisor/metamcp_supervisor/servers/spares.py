"""Second copies of servers that may have one: started beside the first copy, to take its place.

Owns: when a spare is started, retries of a spare that does not become ready, and replacing a server
by its spare. Never: which event of a life needs a spare (`server`), workers (`crew`), pipes
(`publish`).

A spare costs as much as a server, and makes a restart without a gap possible: when the first copy
goes down, the spare has already done its handshake. A restart by an operator works in the same way:
the new copy is ready before the old copy is told to finish.
"""

import random
from collections.abc import Callable

from metamcp_supervisor import backoff
from metamcp_supervisor.servers.crew import Crew
from metamcp_supervisor.servers.entry import Copy, ServerEntry
from metamcp_supervisor.servers.server import Fact, Replaced, StopServer, WentDown
from metamcp_supervisor.servers.states import ServerPhase
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_worker.ipc.messages import ServerReady

SPARE_S = 1.0
"""Seconds from the moment that a server is ready to the start of its spare: a server that has just
started has work to do."""


class Spares:
    """`feed(entry, fact, cause)`: reports a fact about a server."""

    def __init__(
        self, crew: Crew, journal: Journal, feed: Callable[[ServerEntry, Fact, str], None]
    ) -> None:
        self._crew = crew
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
            self._feed(entry, StopServer(restarting=True), cause)

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

    def down(self, copy: Copy, fact: WentDown) -> None:
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
            self._crew.fork(entry.spare)

    def _dismiss(self, entry: ServerEntry) -> None:
        entry.no_spare()
        if entry.spare is not None:
            copy, entry.spare = entry.spare, None
            entry.leaving.add(copy)
            self._crew.ask_to_stop(copy, 0.0)
