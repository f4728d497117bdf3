"""Processes that serve one client each: there when it calls, gone when it has gone.

Owns: which there are of a server, starting one for a client, and what ends them. Never: the rules
(`sharing`), their lives, which are those of any other server (`tree`), who a client is (the fronts
know, and put a word for it into the name).
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Protocol

from metamcp_supervisor.lives import sharing
from metamcp_supervisor.lives.entries import Entry
from metamcp_supervisor.lives.routes import Routes
from metamcp_supervisor.lives.server import Fact, Parted, Start
from metamcp_supervisor.lives.states import Phase
from metamcp_supervisor.wanted.config import Server
from metamcp_supervisor.wanted.reload import launched
from metamcp_supervisor.watched.events import Journal
from metamcp_worker import sharing as words


class Lives(Protocol):
    """The servers, and what can be done to them."""

    entries: dict[str, Entry]

    def feed(self, entry: Entry, fact: Fact, cause: str = "") -> None: ...

    def change(self, server: Server, *, restart: bool) -> None: ...

    def remove(self, name: str, cause: str = "") -> None:
        """Stop it; it is dropped as soon as nothing of it is left."""
        ...

    def drop(self, entry: Entry) -> None:
        """Forget it at once. Nothing of it runs."""
        ...


class Apart:
    def __init__(self, lives: Lives, routes: Routes, journal: Journal) -> None:
        self._lives = lives
        self._routes = routes
        self._journal = journal
        self._loop = asyncio.get_running_loop()

    def of(self, server: str) -> list[Entry]:
        """The processes of this server that serve one client each."""
        every = self._lives.entries.values()
        return [one for one in every if one.own and one.base == server]

    def wanted(self, name: str) -> None:
        """A client called a process of its own, and there is none."""
        base = self._lives.entries.get(words.base(name))
        if not words.whose(name):
            return  # a server that is no longer configured
        others = self.of(words.base(name))
        why = sharing.refusal(
            None if base is None else base.life,
            shared=base is None or not base.per_session,
            count=len(others),
        )
        if why is not None and why.reason == words.NO_PLACE and self._made_room(others):
            why = None
        if base is None or why is not None:
            assert why is not None
            self._routes.refuse(name, why)
            return
        entry = Entry(sharing.own(base.server, name), base.offer)
        entry.probe = base.probe
        entry.used_at = self._loop.time()
        self._lives.entries[name] = entry
        self._lives.feed(entry, Start("client"), "started for one client, by its call")

    def used(self, entry: Entry, idle_s: float) -> None:
        """A server was last of use so long ago."""
        entry.used_at = self._loop.time() - idle_s

    def ended(self, sessions: Iterable[str]) -> None:
        """These sessions are over, and what was started for them with them."""
        if not any(entry.own for entry in self._lives.entries.values()):
            return
        gone = {words.of_session(session) for session in sessions}
        for entry in list(self._lives.entries.values()):
            if words.whose(entry.name) in gone and not entry.removed:
                self._lives.remove(entry.name, "its session has ended")

    def ready(self, entry: Entry) -> None:
        """A server is ready. One that was on its way up when an operator began to keep calls from
        its server gets none either."""
        base = self._lives.entries.get(entry.base)
        if entry.own and base is not None and base.life.parted:
            self._lives.feed(entry, Parted(yes=True))

    def settled(self, entry: Entry) -> None:
        """A server is in another phase, or a copy of it has left. One that its client did not need
        any more is not kept; one that does not start again by itself, for as long as its client
        calls."""
        if not entry.own or entry.running:
            return
        if entry.life.phase is Phase.IDLE:
            self._lives.drop(entry)
        elif entry.spent and entry.life.retry_at is None:
            entry.retry_at(entry.used_at + entry.server.idle_stop_s, self._expired)

    def _expired(self, entry: Entry) -> None:
        """Nobody may have called it for `idle_stop`."""
        if self._loop.time() < entry.used_at + entry.server.idle_stop_s:
            self.settled(entry)
        elif entry.spent:
            self._lives.drop(entry)

    def forgotten(self, entry: Entry) -> bool:
        """It is to be started again, after it went down. Did its client forget it? Then it is not
        kept."""
        idle_s = self._loop.time() - entry.used_at
        gone = entry.own and not entry.running
        gone = gone and sharing.forgotten(entry.life, idle_s, entry.server.idle_stop_s)
        if gone:
            self._lives.drop(entry)
        return gone

    def counted(self, entry: Entry, counts: Mapping[str, int]) -> None:
        """What a worker counted. Shared until it does harm: that is over with the first question
        that reached nobody."""
        auto = entry.server.sharing == "auto" and not entry.own
        if sharing.CONTESTED in counts and auto and not entry.contested:
            entry.contested = True
            self._journal.add(entry.name, "sharing", sharing.SWITCHED, entry.life.generation)
            self._routes.share(entry.name, per_session=entry.per_session)

    def changed(self, entry: Entry, before: Server, *, restart: bool) -> None:
        """A server has another configuration, and so have its processes for single clients."""
        if entry.own:
            return
        if launched(before) != launched(entry.server):
            entry.contested = False
        self._routes.share(entry.name, per_session=entry.per_session)
        stays = entry.server.enabled or not (before.enabled or restart)  # an operator started it
        for one in self.of(entry.name):
            if stays and entry.per_session and not one.removed:
                self._lives.change(sharing.own(entry.server, one.name), restart=restart)
            else:
                self._end(one, "its server is shared now, or not enabled")

    def end_of(self, server: str, cause: str) -> None:
        """Nobody has a process of this server any more."""
        for one in self.of(server):
            self._end(one, cause)

    def _end(self, one: Entry, cause: str) -> None:
        if not one.removed:
            self._lives.remove(one.name, cause)

    def _made_room(self, others: Iterable[Entry]) -> bool:
        for one in others:
            if one.spent:
                self._lives.drop(one)
                return True
        return False
