"""Processes that serve one client each: there when it calls, gone when it has gone.

Owns: which there are of a server, starting one for a client, and what ends them. Never: the rules
(`process_names`), their lives, which are those of any other server (`tree`), who a client is (the
fronts know, and put a word for it into the name).

A server that speaks both eras has one more, for its clients of the earlier one, as it decides at
its first request which of them it speaks. Whether it speaks both is not asked beforehand, as that
would cost a start of each server: the first call of such a client starts this process, and if
nothing comes of that, the server itself serves the call. Either outcome is kept on disk.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from msgspec import structs

from metamcp_supervisor.config.config import Server
from metamcp_supervisor.config.reload import launched
from metamcp_supervisor.servers import per_client
from metamcp_supervisor.servers.catalogues import Catalogues, Offer, one_era
from metamcp_supervisor.servers.entry import Entry
from metamcp_supervisor.servers.per_client import Refusal
from metamcp_supervisor.servers.publish import Routes
from metamcp_supervisor.servers.server import Fact, Parted, Start, WentDown
from metamcp_supervisor.servers.states import ExitClass, Phase
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_worker.ipc import process_names as words
from metamcp_worker.ipc.messages import Tenant
from metamcp_worker.ipc.roots import wider


class Lives(Protocol):
    """The servers, and what can be done to them."""

    entries: dict[str, Entry]

    def make(self, server: Server) -> Entry:
        """An entry for it, with what it offered last; nobody knows of it yet."""
        ...

    def feed(self, entry: Entry, fact: Fact, cause: str = "") -> None: ...

    def change(self, server: Server, *, restart: bool) -> None: ...

    def remove(self, name: str, cause: str = "") -> None:
        """Stop it; it is dropped as soon as nothing of it is left."""
        ...

    def drop(self, entry: Entry) -> None:
        """Forget it at once. Nothing of it runs."""
        ...

    def renew(self, entry: Entry, cause: str) -> None:
        """Start it anew."""
        ...


class Apart:
    def __init__(
        self, lives: Lives, routes: Routes, catalogues: Catalogues, journal: Journal
    ) -> None:
        self._lives = lives
        self._routes = routes
        self._catalogues = catalogues
        self._journal = journal
        self._loop = asyncio.get_running_loop()

    def of(self, server: str) -> list[Entry]:
        """The processes of this server that serve one client each."""
        every = self._lives.entries.values()
        return [one for one in every if one.own and one.base == server]

    def share(self, base: Entry) -> None:
        """Who calls this server is to find the process that serves it from now on."""
        division = base.division
        self._routes.share(base.name, division)
        legacy = self._legacy(base)
        if legacy is not None and not legacy.removed and not division.by_era:
            self._routes.forget(legacy.name)  # before it is told to stop: who waits goes elsewhere
            self._lives.remove(legacy.name, "no client is to be served by it any more")

    def recall(self, base: Entry) -> None:
        """What is known of the other era of a server, when that was just configured."""
        if not base.both:
            return
        entry = self._lives.make(per_client.own(base.server, words.own(base.name, words.LEGACY)))
        if entry.offer.modern:
            base.one_era = entry.offer.identity
        self.offered(entry)
        if not entry.offer.modern and entry.offer.list_hash and base.division.by_era:
            self._lives.entries[entry.name] = entry
            self._routes.show(entry.server, entry.life)

    def refused(self, entry: Entry, fact: WentDown) -> bool:
        """One went down. If that was the first try to speak to its server in the other era, there
        will be no other one, and who waits is served by the server itself."""
        base = self._lives.entries.get(entry.base)
        known = entry.offer.list_hash or entry.life.phase in per_client.LEAVING
        if base is None or not entry.legacy or known or fact.excused:
            return False
        base.one_era = base.offer.identity
        if fact.reason is ExitClass.PROTOCOL:
            whole = self._routes.handed(base.name).catalogue
            self._catalogues.keep(entry.server, one_era(whole))
        why = f"it speaks one era, so clients of the other one reach it by a bridge: {fact.message}"
        self._journal.add(base.name, "era", why, base.life.generation)
        self.share(base)
        return True

    def wanted(self, name: str, tenant: Tenant | None) -> None:
        """A client called a process of its own, or of its project, and there is none."""
        base = self._lives.entries.get(words.base(name))
        if not words.whose(name):
            return  # a server that is no longer configured
        legacy = words.whose(name) == words.LEGACY
        if legacy and base is not None and not base.both:
            self._routes.forget(name)  # it was called before its front knew that
            return
        others = [one for one in self.of(words.base(name)) if not one.legacy]
        why = per_client.refusal(
            None if base is None else base.life,
            shared=base is None or not (legacy or base.division),
            count=per_client.Count() if legacy else self._count(others, tenant),
        )
        if why is None and base is not None and not per_client.placed(base.server, tenant):
            why = Refusal("error", per_client.NO_FOLDER, per_client.NO_FOLDER_TEXT)
        if why is not None and why.reason == words.NO_PLACE and self._made_room(others):
            why = None
        if base is None or why is not None:
            assert why is not None
            self._routes.refuse(name, why)
            return
        entry = self._lives.make(per_client.own(base.server, name))
        if not legacy:
            entry.offer = base.offer
        elif entry.offer.modern:  # it refused once, and may be another one by now
            entry.offer = Offer()
        entry.probe = base.probe
        entry.used_at = self._loop.time()
        if tenant is not None:
            entry.tenants[tenant.who] = tenant
        self._lives.entries[name] = entry
        whom = "clients of the earlier era, by a call" if legacy else "one client, by its call"
        self._lives.feed(entry, Start("client"), f"started for {whom}")

    def used(self, entry: Entry, idle_s: float, tenant: Tenant | None = None) -> None:
        """A server was last of use so long ago, if it is known to this client."""
        entry.used_at = self._loop.time() - idle_s
        if tenant is not None and entry.own:
            entry.tenants.pop(tenant.who, None)
            entry.tenants[tenant.who] = tenant

    def rooted(self, who: str, roots: str) -> None:
        """The client with this word has other roots now: its processes know them when they start
        again. Those that run were told by the front."""
        for entry in self._lives.entries.values():
            if words.whose(entry.name) == who and (tenant := entry.tenants.get(who)) is not None:
                entry.tenants[who] = structs.replace(tenant, roots=roots)

    def offered(self, entry: Entry) -> None:
        """A server has told what it offers, and whether it asks for the roots of its clients."""
        base = self._lives.entries.get(entry.base)
        if base is None or not entry.offer.asks_roots:
            return
        asks_roots = wider(base.offer.asks_roots, entry.offer.asks_roots)
        base.offer = replace(base.offer, asks_roots=asks_roots)
        if self._routes.share(base.name, base.division):
            self._journal.add(base.name, "sharing", per_client.ROOTED, base.life.generation)

    def ended(self, sessions: Iterable[str]) -> None:
        """These sessions are over, and what was started for them with them."""
        if not any(entry.own for entry in self._lives.entries.values()):
            return
        gone = {words.of_session(session) for session in sessions}
        for entry in list(self._lives.entries.values()):
            left = gone & entry.tenants.keys()
            for who in left:
                del entry.tenants[who]
            over = words.whose(entry.name) in gone or (left and not entry.tenants)
            if over and not entry.removed:
                self._lives.remove(entry.name, "the session of its last client has ended")

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
        if entry.life.phase is Phase.IDLE and not entry.legacy:
            self._lives.drop(entry)
        elif entry.spent and entry.life.retry_at is None:
            entry.retry_at(entry.used_at + entry.server.rest_s, self._expired)

    def _expired(self, entry: Entry) -> None:
        """Nobody may have called it for `idle_stop`."""
        if self._loop.time() < entry.used_at + entry.server.rest_s:
            self.settled(entry)
        elif entry.spent:
            self._lives.drop(entry)

    def forgotten(self, entry: Entry) -> bool:
        """It is to be started again, after it went down. Did its client forget it? Then it is not
        kept."""
        idle_s = self._loop.time() - entry.used_at
        gone = entry.own and not entry.running
        gone = gone and per_client.forgotten(entry.life, idle_s, entry.server.rest_s)
        if gone:
            self._lives.drop(entry)
        return gone

    def counted(self, entry: Entry, counts: Mapping[str, int]) -> None:
        """What a worker counted. Shared until it does harm: that is over with the first question
        that reached nobody. What knows the roots of one client is not kept for others."""
        alone = entry.own and not entry.legacy
        base = None if alone else self._lives.entries.get(entry.base)
        if base is None:
            return
        if per_client.LENT_ROOTS in counts and base.division.roots:
            self._lives.renew(entry, "it was told the roots of one client")
        if per_client.CONTESTED in counts and base.server.sharing == "auto" and not base.contested:
            base.contested = True
            self._journal.add(base.name, "sharing", per_client.SWITCHED, base.life.generation)
            self.share(base)

    def changed(self, entry: Entry, before: Server, *, restart: bool) -> None:
        """A server has another configuration, and so have its processes for single clients. The one
        for the earlier era restarts with it, so that calls wait and none fails."""
        if entry.own:
            return
        another = launched(before) != launched(entry.server)
        if another:
            entry.unknown()
        self.share(entry)
        stays = entry.server.enabled or not (before.enabled or restart)  # an operator started it
        for one in self.of(entry.name):
            still = entry.both and (one.running or not another) if one.legacy else entry.division
            if stays and still and not one.removed:
                if one.legacy and another:
                    one.offer = Offer()  # as of one that is tried for the first time
                self._lives.change(per_client.own(entry.server, one.name), restart=restart)
            else:
                self._end(one, "its server is shared now, or not enabled")

    def end_of(self, server: str, cause: str) -> None:
        """Nobody has a process of this server any more."""
        for one in self.of(server):
            self._end(one, cause)

    def _count(self, others: list[Entry], tenant: Tenant | None) -> per_client.Count:
        """`others`: of the same server."""
        who = "" if tenant is None else tenant.who
        return per_client.Count(
            server=len(others),
            client=sum(who in one.tenants for one in others),
            gateway=sum(one.own for one in self._lives.entries.values()),
        )

    def _end(self, one: Entry, cause: str) -> None:
        if not one.removed:
            self._lives.remove(one.name, cause)

    def _legacy(self, base: Entry) -> Entry | None:
        return self._lives.entries.get(words.own(base.name, words.LEGACY))

    def _made_room(self, others: Iterable[Entry]) -> bool:
        for one in others:
            if one.spent:
                self._lives.drop(one)
                return True
        return False
