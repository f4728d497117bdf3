"""Processes that serve a single client each: started when it calls, removed when it has gone.

Owns: the set of such processes of a server, starting one for a client, and ending them. Never: the
rules (`per_client`), their lives, which are like those of any other server (`server_io`),
identifying a client (the fronts do that, and put a key for the client into the name).

A server that speaks both eras has one more process, for its clients of the earlier era, because a
process decides at its first request which era it speaks. Testing in advance whether a server speaks
both would cost a start of each server: instead, the first call of such a client starts this
process, and if that fails, the server itself serves the call. Either outcome is kept on disk.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Protocol

from msgspec import structs
from msgspec.structs import replace

from metamcp_supervisor.config.config import Server
from metamcp_supervisor.config.reload import hash_launch
from metamcp_supervisor.servers import per_client
from metamcp_supervisor.servers.catalogues import CatalogueFigures, Catalogues, one_era
from metamcp_supervisor.servers.entry import ServerEntry
from metamcp_supervisor.servers.per_client import ProcessRefusal
from metamcp_supervisor.servers.publish import Routes
from metamcp_supervisor.servers.server import Fact, Start, WentDown
from metamcp_supervisor.servers.states import ExitClass, ServerPhase
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_worker.ipc import process_names as words
from metamcp_worker.ipc.messages import Tenant
from metamcp_worker.ipc.roots import wider


class ServersPort(Protocol):
    """The servers, and what can be done to them."""

    entries: dict[str, ServerEntry]

    def make(self, server: Server) -> ServerEntry:
        """Make an entry for a server, with its last catalogue; the table does not have it yet."""
        ...

    def feed(self, entry: ServerEntry, fact: Fact, cause: str = "") -> None: ...

    def change(self, server: Server, *, restart: bool) -> None: ...

    def remove(self, name: str, cause: str = "") -> None:
        """Stop a server; drop it as soon as its last process is gone."""
        ...

    def drop(self, entry: ServerEntry) -> None:
        """Forget a server that does not run, at once."""
        ...

    def renew(self, entry: ServerEntry, cause: str) -> None:
        """Restart a server, without a gap if possible."""
        ...


class PerClientProcesses:
    def __init__(
        self, lives: ServersPort, routes: Routes, catalogues: Catalogues, journal: Journal
    ) -> None:
        self._lives = lives
        self._routes = routes
        self._catalogues = catalogues
        self._journal = journal
        self._loop = asyncio.get_running_loop()

    def of(self, server: str) -> list[ServerEntry]:
        """Return the processes of this server that do not serve all clients."""
        every = self._lives.entries.values()
        return [entry for entry in every if entry.own and entry.base == server]

    def share(self, base: ServerEntry) -> None:
        """Notify the fronts which clients share the process of a server from now on, and stop the
        process for the earlier era if it is not needed any more."""
        division = base.division
        self._routes.share(base.name, division)
        legacy = self._legacy(base)
        if legacy is not None and not legacy.removed and not division.by_era:
            self._routes.forget(legacy.name)  # before its stop, so that waiting calls go elsewhere
            self._lives.remove(legacy.name, "no client is to be served by it any more")

    def recall(self, base: ServerEntry) -> None:
        """Load what is known about the other era of a server that was just configured."""
        if not base.both:
            return
        entry = self._lives.make(per_client.own(base.server, words.own(base.name, words.LEGACY)))
        if entry.offer.modern:
            base.one_era = entry.offer.identity
        self.on_catalogue(entry)
        if not entry.offer.modern and entry.offer.list_hash and base.division.by_era:
            self._lives.entries[entry.name] = entry
            self._routes.show(entry.server, entry.life)

    def detect_one_era(self, entry: ServerEntry, fact: WentDown) -> bool:
        """A process went down. If it was the first try to speak to a server in the other era, note
        that the server speaks one era only; the server itself then serves the waiting clients.
        Return whether that was so."""
        base = self._lives.entries.get(entry.base)
        is_known = entry.offer.list_hash or entry.life.phase in per_client.LEAVING
        if base is None or not entry.legacy or is_known or fact.excused:
            return False
        base.one_era = base.offer.identity
        if fact.reason is ExitClass.PROTOCOL:
            catalogue = self._routes.find_published(base.name).catalogue
            self._catalogues.keep(entry.server, one_era(catalogue))
        cause = (
            f"it speaks one era, so clients of the other one reach it by a bridge: {fact.message}"
        )
        self._journal.add(base.name, "era", cause, base.life.generation)
        self.share(base)
        return True

    def on_server_wanted(self, name: str, tenant: Tenant | None) -> None:
        """Start the process of a client or project that called it and does not have it yet; refuse
        if that is not possible."""
        base = self._lives.entries.get(words.base(name))
        if not words.parse_client(name):
            return  # the server is not configured any more
        legacy = words.parse_client(name) == words.LEGACY
        if legacy and base is not None and not base.both:
            self._routes.forget(name)  # it was called before its front knew that
            return
        others = [process for process in self.of(words.base(name)) if not process.legacy]
        refusal = per_client.refusal(
            None if base is None else base.life,
            shared=base is None or not (legacy or base.division),
            count=per_client.ProcessCount() if legacy else self._count(others, tenant),
        )
        if (
            refusal is None
            and base is not None
            and not per_client.is_project_known(base.server, tenant)
        ):
            refusal = ProcessRefusal("error", per_client.NO_FOLDER, per_client.NO_FOLDER_TEXT)
        if refusal is not None and refusal.reason == words.NO_PLACE and self._made_room(others):
            refusal = None
        if base is None or refusal is not None:
            assert refusal is not None
            self._routes.refuse(name, refusal)
            return
        entry = self._lives.make(per_client.own(base.server, name))
        if not legacy:
            entry.offer = base.offer
        elif entry.offer.modern:  # it refused once, and may be a different server by now
            entry.offer = CatalogueFigures()
        entry.probe = base.probe
        entry.used_at = self._loop.time()
        if tenant is not None:
            entry.tenants[tenant.who] = tenant
        self._lives.entries[name] = entry
        whom = "clients of the earlier era, by a call" if legacy else "one client, by its call"
        self._lives.feed(entry, Start("client"), f"started for {whom}")

    def note_use(self, entry: ServerEntry, idle_s: float, tenant: Tenant | None = None) -> None:
        """Note that a server was last used `idle_s` ago, and by which client, if that is known."""
        entry.used_at = self._loop.time() - idle_s
        if tenant is not None and entry.own:
            entry.tenants.pop(tenant.who, None)
            entry.tenants[tenant.who] = tenant

    def on_roots_changed(self, who: str, roots: str) -> None:
        """Note the new roots of the client with this key, for the next start of its processes. The
        front notifies the running ones."""
        for entry in self._lives.entries.values():
            if (
                words.parse_client(entry.name) == who
                and (tenant := entry.tenants.get(who)) is not None
            ):
                entry.tenants[who] = structs.replace(tenant, roots=roots)

    def on_catalogue(self, entry: ServerEntry) -> None:
        """Note from a new catalogue whether a server asks for the roots of its clients."""
        base = self._lives.entries.get(entry.base)
        if base is None or not entry.offer.asks_roots:
            return
        asks_roots = wider(base.offer.asks_roots, entry.offer.asks_roots)
        base.offer = replace(base.offer, asks_roots=asks_roots)
        if self._routes.share(base.name, base.division):
            self._journal.add(base.name, "sharing", per_client.ROOTED, base.life.generation)

    def on_sessions_ended(self, sessions: Iterable[str]) -> None:
        """Remove the processes that were started for sessions that have ended."""
        if not any(entry.own for entry in self._lives.entries.values()):
            return
        ended_clients = {words.of_session(session) for session in sessions}
        for entry in list(self._lives.entries.values()):
            leaving = ended_clients & entry.tenants.keys()
            for who in leaving:
                del entry.tenants[who]
            over = words.parse_client(entry.name) in ended_clients or (
                leaving and not entry.tenants
            )
            if over and not entry.removed:
                self._lives.remove(entry.name, "the session of its last client has ended")

    def drop_if_idle(self, entry: ServerEntry) -> None:
        """Drop a process for a single client that has become idle. Keep a process that does not
        start again by itself only for as long as its client calls. Call this after a change of
        phase, or when a copy has left."""
        if not entry.own or entry.is_running:
            return
        if entry.life.phase is ServerPhase.IDLE and not entry.legacy:
            self._lives.drop(entry)
        elif entry.spent and entry.life.retry_at is None:
            entry.retry_at(entry.used_at + entry.server.rest_s, self._on_idle_timeout)

    def _on_idle_timeout(self, entry: ServerEntry) -> None:
        """Drop a process that its client has not called for `idle_stop`."""
        if self._loop.time() < entry.used_at + entry.server.rest_s:
            self.drop_if_idle(entry)
        elif entry.spent:
            self._lives.drop(entry)

    def forgotten(self, entry: ServerEntry) -> bool:
        """Drop a process whose next start is due if its client does not use it any more. Return
        whether it was dropped."""
        idle_s = self._loop.time() - entry.used_at
        is_forgotten = entry.own and not entry.is_running
        is_forgotten = is_forgotten and per_client.forgotten(
            entry.life, idle_s, entry.server.rest_s
        )
        if is_forgotten:
            self._lives.drop(entry)
        return is_forgotten

    def on_counters(self, entry: ServerEntry, counts: Mapping[str, int]) -> None:
        """Act on counters of a worker. Clients share a server until the first request that could
        not be sent to any of them. A shared process that knows the roots of one client is
        restarted."""
        base = self._lives.entries.get(entry.base)
        if base is None:
            return
        if per_client.LENT_ROOTS in counts and base.division.roots:
            self._lives.renew(entry, "it was told the roots of one client")
        if per_client.CONTESTED in counts and base.server.sharing == "auto" and not base.contested:
            base.contested = True
            self._journal.add(base.name, "sharing", per_client.SWITCHED, base.life.generation)
            self.share(base)

    def apply_config_change(self, entry: ServerEntry, before: Server, *, restart: bool) -> None:
        """Apply a changed configuration of a server to its processes for single clients. The
        process for the earlier era restarts together with the server, so that calls wait instead of
        failing."""
        if entry.own:
            return
        another = hash_launch(before) != hash_launch(entry.server)
        if another:
            entry.unknown()
        self.share(entry)
        stays = entry.server.enabled or not (before.enabled or restart)  # an operator started it
        for process in self.of(entry.name):
            still = (
                entry.both and (process.is_running or not another)
                if process.legacy
                else entry.division
            )
            if stays and still and not process.removed:
                if process.legacy and another:
                    process.offer = CatalogueFigures()  # as before the first try
                self._lives.change(per_client.own(entry.server, process.name), restart=restart)
            else:
                self._end(process, "its server is shared now, or not enabled")

    def end_of(self, server: str, cause: str) -> None:
        """End all processes of this server for single clients."""
        for process in self.of(server):
            self._end(process, cause)

    def _count(self, others: list[ServerEntry], tenant: Tenant | None) -> per_client.ProcessCount:
        """Count processes that are not for all clients. `others`: those of the same server."""
        who = "" if tenant is None else tenant.who
        return per_client.ProcessCount(
            server=len(others),
            client=sum(who in process.tenants for process in others),
            gateway=sum(entry.own for entry in self._lives.entries.values()),
        )

    def _end(self, process: ServerEntry, cause: str) -> None:
        if not process.removed:
            self._lives.remove(process.name, cause)

    def _legacy(self, base: ServerEntry) -> ServerEntry | None:
        return self._lives.entries.get(words.own(base.name, words.LEGACY))

    def _made_room(self, others: Iterable[ServerEntry]) -> bool:
        for process in others:
            if process.spent:
                self._lives.drop(process)
                return True
        return False
