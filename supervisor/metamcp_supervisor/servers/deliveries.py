"""What the fronts get of each server, again and again until they have it: pipes and catalogues.

Owns: the next try after one that found no free descriptor, here or there. Never: what is in a
catalogue, who is connected when (`tree`), the packets (`routes`).
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

from metamcp_supervisor.rations import left_out
from metamcp_supervisor.servers.catalogues import Offer, offer
from metamcp_supervisor.servers.changes import changes
from metamcp_supervisor.servers.entries import Entry
from metamcp_supervisor.servers.pinning import Pinned
from metamcp_supervisor.servers.routes import Routes
from metamcp_supervisor.servers.states import ExitClass, Phase
from metamcp_supervisor.telemetry.events import Journal
from metamcp_worker.ipc import codec
from metamcp_worker.ipc.roots import wider

LEFT_OUT_TOLD_MAX = 10
"""Definitions that one line of the log names; 'metamcp tools' names all."""
AGAIN_S = 1.0
"""After a pipe that found no free descriptor at its end."""


class Deliveries:
    """`entries`: all servers, by name. `owed`: how many deliveries are to be tried again.
    `missing`: why a server that is ready cannot be called, while a pipe to it is not there."""

    def __init__(
        self, entries: Mapping[str, Entry], routes: Routes, pinned: Pinned, journal: Journal
    ) -> None:
        self.owed = 0
        self.missing: dict[str, str] = {}
        self._pinned = pinned
        self._entries = entries
        self._routes = routes
        self._journal = journal
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def connect(self, server: str, front: int | None) -> None:
        """A pipe between the server, if it is ready, and this front, or all of them."""
        entry = self._entries.get(server)
        if entry is None or entry.instance is None or entry.life.phase is not Phase.READY:
            self.missing.pop(server, None)
            return
        try:
            self._routes.connect(entry.instance, front)
            self.missing.pop(server, None)
        except OSError as error:
            self._journal.add(server, "error", no_descriptor(error), entry.life.generation)
            self.connect_again(server, front, no_descriptor(error))

    def connect_again(self, server: str, front: int | None, why: str = "") -> None:
        """The pipe did not arrive for want of a descriptor: make another one in a while. `why`: who
        has none, as a sentence."""
        if not self._closed:
            self.owed += 1
            self.missing[server] = why or "its worker or a front has no free descriptor"
            self._loop.call_later(AGAIN_S, self._connect_now, server, front)

    def offer(self, entry: Entry, data: bytes) -> tuple[ExitClass, str] | None:
        """Take in and send its catalogue, and say what is other in it than before. Why the server
        counts as broken, if it does."""
        try:
            self.judged(entry, entry.offer, found := offer(data))
            # Once seen, it is so until it is another server.
            asks_roots = wider(found.asks_roots, entry.offer.asks_roots)
            entry.offer = replace(found, asks_roots=asks_roots)
            self._pinned.offered(entry.name, data)
            if entry.own and not entry.legacy:
                return None  # what its client is listed is what the server itself offers
            before = self._routes.offers(entry.name, data, entry.offer.list_hash)
            if before and (changed := changes(before, data)):
                self._tell(entry, changed)
        except codec.Malformed as error:
            return ExitClass.PROTOCOL, f"its catalogue cannot be read: {error}"
        except OSError as error:
            return ExitClass.EXIT, no_descriptor(error)
        return None

    def judged(self, entry: Entry, before: Offer, now: Offer) -> None:
        """Say which of its definitions lists leave out, if they are others than before."""
        if now.left_out and now.left_out != before.left_out:
            said = "; ".join(now.left_out[:LEFT_OUT_TOLD_MAX])
            if (more := now.invalid - LEFT_OUT_TOLD_MAX) > 0:
                said += f"; and {more} more, which 'metamcp tools {entry.base}' names"
            self._journal.add(entry.name, "left out", said, entry.life.generation)

    def _tell(self, entry: Entry, changed: str) -> None:
        missing = entry.changes.take(self._loop.time())
        if missing is not None:
            what = changed + left_out(missing)
            self._journal.add(entry.name, "lists changed", what, entry.life.generation)

    def offer_again(self, server: str, front: int) -> None:
        """The catalogue did not arrive for want of a descriptor: send it again in a while."""
        if not self._closed:
            self.owed += 1
            self._loop.call_later(AGAIN_S, self._offer, server, front)

    def close(self) -> None:
        self._closed = True

    def _connect_now(self, server: str, front: int | None) -> None:
        self.owed -= 1
        self.connect(server, front)

    def _offer(self, server: str, front: int) -> None:
        self.owed -= 1
        try:
            self._routes.offer_again(server, front)
        except OSError as error:
            self._journal.add(server, "error", no_descriptor(error))
            self.offer_again(server, front)


def no_descriptor(error: OSError) -> str:
    return f"the gateway has no free descriptor for it: {error.strerror}"
