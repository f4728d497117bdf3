"""The knowledge of the fronts about servers: catalogues, states, and the pipes to the instances.

Owns: the last state of each server that fronts received, and the next try after a delivery without
a free descriptor. Never: the reaction of a front.

A front that starts later receives everything that the others know. A front gets the catalogue
first, then the pipe, then the state: so a front can list and call every server that is ready.
"""

import asyncio
import math
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Protocol

from msgspec import structs
from msgspec.structs import replace

from metamcp_supervisor.backoff import left_out
from metamcp_supervisor.config.config import Server
from metamcp_supervisor.servers import catalog_changes
from metamcp_supervisor.servers.catalog_changes import changes
from metamcp_supervisor.servers.catalogues import CatalogueFigures, offer
from metamcp_supervisor.servers.entry import ServerEntry, ServerSnapshot
from metamcp_supervisor.servers.instances import Instance
from metamcp_supervisor.servers.per_client import PARTED, ProcessRefusal, ProcessSharing
from metamcp_supervisor.servers.quarantine_io import ToolQuarantine
from metamcp_supervisor.servers.server import ServerLife, call_delay_s
from metamcp_supervisor.servers.states import DOWN, PUBLIC, ExitClass, ServerPhase
from metamcp_supervisor.telemetry.journal import Journal
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.messages import (
    AttachServer,
    Catalogue,
    ForgetServer,
    Message,
    ServerState,
)
from metamcp_worker.ipc.roots import wider
from metamcp_worker.ipc.server_catalog import MODERN_SINCE

SILENT = "its worker does not answer"


class PublishTarget(Protocol):
    """A front, as far as it receives news of servers."""

    @property
    def number(self) -> int: ...

    def send(self, message: Message, fds: Iterable[int] = ()) -> None:
        """Send a message. Takes the descriptors."""
        ...


class FrontsPort(Protocol):
    def list_serving(self) -> Iterable[PublishTarget]:
        """Return all fronts that have received what to serve."""
        ...


class PublishedServer:
    """Knowledge of the fronts about one server. `changes`: times when it was listed or hidden
    (`catalog_changes`)."""

    def __init__(self) -> None:
        self.catalogue = b""
        self.list_hash = ""
        self.life: tuple[Server, ServerLife] | None = None
        self.state: ServerState | None = None
        self.listed = False
        self.met = False
        """Whether it was ready since this program began."""
        self.division = ProcessSharing()
        self.changes: tuple[float, ...] = ()
        self._planned: asyncio.TimerHandle | None = None

    @property
    def has_plan(self) -> bool:
        """Whether the server will be listed, or hidden, later."""
        return self._planned is not None

    @property
    def turns_at(self) -> float | None:
        """Time of the planned change, if there is one."""
        return None if self._planned is None else self._planned.when()

    def plan(self, wait_s: float, then: Callable[[], None]) -> None:
        self.keep()
        self._planned = asyncio.get_running_loop().call_later(wait_s, then)

    def keep(self) -> None:
        """Cancel the planned change."""
        if self._planned is not None:
            self._planned.cancel()
            self._planned = None


class Routes:
    def __init__(self, fronts: FrontsPort) -> None:
        self._fronts = fronts
        self._known: dict[str, PublishedServer] = {}
        self._loop = asyncio.get_running_loop()

    def offers(self, server: str, data: bytes, list_hash: str) -> bytes:
        """Send the fronts the catalogue of a server. Return the catalogue before, or b"". Raises
        OSError without free descriptors; the next offer goes to all fronts then."""
        published = self._known.setdefault(server, PublishedServer())
        before = published.catalogue
        if before != data:  # a restart rarely changes it
            published.catalogue, published.list_hash = data, list_hash
            try:
                for front in self._fronts.list_serving():
                    _send_catalogue(front, server, published)
            except OSError:
                published.catalogue = b""
                raise
        return before

    def find_published(self, server: str) -> PublishedServer:
        """Return what the fronts received about a server last."""
        return self._known.get(server, PublishedServer())

    def go_on(self, snapshot: ServerSnapshot, list_hash: str) -> None:
        """Continue from what the previous program sent to the fronts."""
        published = self._known[snapshot.name] = PublishedServer()
        published.catalogue, published.list_hash = snapshot.catalogue, list_hash
        published.listed, published.met, published.changes = (
            snapshot.listed,
            True,
            snapshot.list_changes,
        )
        if snapshot.list_turns_at is not None:
            wait_s = max(0.0, snapshot.list_turns_at - self._loop.time())
            published.plan(wait_s, partial(self._turn_later, published, listed=not snapshot.listed))

    def offer_again(self, server: str, number: int) -> None:
        """Send the catalogue again to the front with this number, which did not get it. Raises
        OSError."""
        published = self._known.get(server)
        for front in self._fronts.list_serving():
            if front.number == number and published is not None and published.catalogue:
                _send_catalogue(front, server, published)

    def show(self, server: Server, life: ServerLife) -> None:
        """Send the fronts the state of a server, and list its tools or hide them."""
        published = self._known.setdefault(server.name, PublishedServer())
        self._list(published, server, life)
        self._tell(published, server, life)

    def share(self, server: str, division: ProcessSharing) -> bool:
        """Notify the fronts which clients of a server get processes of their own. Return whether
        that changed."""
        published = self._known.setdefault(server, PublishedServer())
        if published.division == division:
            return False
        published.division = division
        if published.life is not None:
            self._tell(published, *published.life)
        return True

    def refuse(self, server: str, refusal: ProcessRefusal) -> None:
        """Notify the fronts why this process for a single client is not started."""
        state = ServerState(
            server=server,
            state=refusal.state,
            listed=False,
            reason=refusal.reason,
            message=refusal.message,
        )
        for front in self._fronts.list_serving():
            front.send(state)
            front.send(ForgetServer(server=server))

    def connect(self, instance: Instance, number: int | None) -> None:
        """Make a new pipe between the instance and the front with this number, or every front.
        Raises OSError."""
        for front in self._fronts.list_serving():
            if number not in (None, front.number):
                continue
            front_end, worker_end = socket.socketpair()  # the same as a `multiprocessing.Pipe`
            with front_end, worker_end:
                ours = os.dup(front_end.fileno())
                try:
                    theirs = os.dup(worker_end.fileno())
                except OSError:
                    os.close(ours)
                    raise
            instance.attach(front.number, theirs)
            message = AttachServer(
                server=instance.server,
                generation=instance.generation,
                legacy=instance.protocol < MODERN_SINCE,
            )
            front.send(message, [ours])

    def introduce(self, front: PublishTarget) -> None:
        """Send a new front everything that the others know, except pipes. Raises OSError."""
        for server, published in self._known.items():
            if published.catalogue:
                _send_catalogue(front, server, published)
            if published.state is not None:
                front.send(published.state)

    def forget(self, server: str) -> None:
        """Notify the fronts that a server is not configured any more."""
        published = self._known.pop(server, None)
        if published is not None:
            published.keep()
        for front in self._fronts.list_serving():
            front.send(ForgetServer(server=server))

    def close(self) -> None:
        for published in self._known.values():
            published.keep()

    def _list(self, published: PublishedServer, server: Server, life: ServerLife) -> None:
        """List a server as soon as it is ready for the first time, or begins to start with a
        catalogue from before, until an operator or the configuration stops it. A server that went
        down by itself or restarts has `hide_after` to become ready again before its tools are
        hidden; if it goes down again and again, its tools stay as they are for a while
        (`catalog_changes`)."""
        damped_s = (
            catalog_changes.wait_s(published.changes, self._loop.time()) if life.failures else 0.0
        )
        at_rest = (server.lazy or published.listed) and _at_rest(life) and published.catalogue
        published.met = published.met or life.phase is ServerPhase.READY
        first = _starts(life) and not (published.met or life.failures or server.strict_listing)
        if life.phase is ServerPhase.READY or at_rest or (first and published.catalogue):
            if published.listed or not damped_s:
                self._turn(published, listed=True, counts=life.failures > 0)
            elif not published.has_plan:
                published.plan(damped_s, partial(self._turn_later, published, listed=True))
        elif not _comes_back(life) or server.strict_listing or not published.listed:
            self._turn(published, listed=False, counts=life.failures > 0)
        elif not published.has_plan:
            wait_s = max(server.hide_after_s, damped_s)
            published.plan(wait_s, partial(self._turn_later, published, listed=False))

    def _turn(self, published: PublishedServer, *, listed: bool, counts: bool) -> None:
        """List the tools of a server, or hide them, from now on."""
        published.keep()
        if counts and listed != published.listed:
            published.changes = catalog_changes.add_change(published.changes, self._loop.time())
        published.listed = listed

    def _turn_later(self, published: PublishedServer, *, listed: bool) -> None:
        self._turn(published, listed=listed, counts=True)
        if published.life is not None:
            self._tell(published, *published.life)

    def _tell(self, published: PublishedServer, server: Server, life: ServerLife) -> None:
        published.life = server, life
        state = _state(server, life, published.listed, self._loop.time())
        division = published.division
        published.state = structs.replace(
            state, by=division.by, roots=division.roots, both=division.both
        )
        for front in self._fronts.list_serving():
            front.send(published.state)


def _at_rest(life: ServerLife) -> bool:
    """Whether the server waits for a call, or goes down to do so."""
    return life.phase is ServerPhase.IDLE or life.resting


def _starts(life: ServerLife) -> bool:
    return life.phase in (ServerPhase.QUEUED, ServerPhase.WARMING)


def _comes_back(life: ServerLife) -> bool:
    """Whether the server is down, or going down, and will start again."""
    if life.phase in (ServerPhase.DRAINING, ServerPhase.STOPPING):
        return life.restarting
    return life.phase in (
        ServerPhase.QUEUED,
        ServerPhase.WARMING,
        ServerPhase.BACKOFF,
        ServerPhase.FAILED,
    )


def _state(server: Server, life: ServerLife, listed: bool, now: float) -> ServerState:
    if life.degraded and life.phase is ServerPhase.READY:
        # New calls are not sent there; they wait a moment, as for a server that is starting again.
        return ServerState(
            server=server.name,
            state="error",
            listed=listed,
            generation=life.generation,
            reason=ExitClass.HANG,
            message=SILENT,
            retry_after_ms=0,
        )
    state = "idle" if life.resting else "draining" if life.parted else PUBLIC[life.phase]
    return ServerState(
        server=server.name,
        state=state,
        listed=listed,
        generation=life.generation,
        reason=str(life.reason or "") if state in DOWN else "",
        message=PARTED if life.parted else life.message if state in DOWN else "",
        retry_after_ms=_retry_after_ms(life, now),
        call_after_ms=_call_after_ms(life, now),
        hold_ms=round(server.start_timeout_s * 1000)
        if server.lazy or _starts(life) or life.phase is ServerPhase.IDLE
        else -1,
    )


def _call_after_ms(life: ServerLife, now: float) -> int:
    delay_s = None if life.mistake else call_delay_s(life, now)
    return -1 if delay_s is None else math.ceil(delay_s * 1000)


def _retry_after_ms(life: ServerLife, now: float) -> int:
    if _starts(life) or life.restarting:
        return 0
    return -1 if life.retry_at is None else max(0, round((life.retry_at - now) * 1000))


def _send_catalogue(front: PublishTarget, server: str, published: PublishedServer) -> None:
    message = Catalogue(server=server, list_hash=published.list_hash)
    front.send(message, [packets.blob(published.catalogue)])


LEFT_OUT_TOLD_MAX = 10
"""Maximum number of definitions that a line of the journal names; 'metamcp tools' names all."""
AGAIN_S = 1.0
"""Seconds until the next try after a pipe or catalogue found no free descriptor."""
ARRIVED_S = 2.0
"""Seconds after such a try without a word of its failure, until the pipe counts as there."""


IS_SELF = "it is this gateway, which cannot be its own server: take it out of the configuration"
LEADS_BACK = (
    "it leads back to this gateway: it is a gateway that serves this gateway's own tools, so take"
    " the entry out of one of the two"
)


class Deliveries:
    """`entries`: all servers, by name. `gateway_id`: returns the id of this gateway. `owed`: how
    many deliveries will be tried again. `missing`: why a server that is ready cannot be called, as
    long as a pipe to it is missing."""

    def __init__(
        self,
        entries: Mapping[str, ServerEntry],
        routes: Routes,
        approvals: ToolQuarantine,
        journal: Journal,
        gateway_id: Callable[[], str],
    ) -> None:
        self.owed = 0
        self.missing: dict[str, str] = {}
        self._arriving: dict[str, asyncio.TimerHandle] = {}
        """By server: when a pipe that was sent again counts as there."""
        self._approvals = approvals
        self._entries = entries
        self._routes = routes
        self._journal = journal
        self._gateway_id = gateway_id
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def connect(self, server: str, front: int | None) -> None:
        """Make a pipe between the server, if it is ready, and this front, or every front."""
        entry = self._entries.get(server)
        if entry is None or entry.instance is None or entry.life.phase is not ServerPhase.READY:
            self._on_delivered(server)
            return
        try:
            self._routes.connect(entry.instance, front)
        except OSError as error:
            self._journal.add(server, "error", no_descriptor(error), entry.life.generation)
            self.connect_again(server, front, no_descriptor(error))
            return
        if server in self.missing:
            self._await_failure(server)

    def connect_again(self, server: str, front: int | None, reason: str = "") -> None:
        """Make another pipe after a while, because the last one did not arrive for lack of a
        descriptor. `reason`: the process without a free descriptor, as a sentence."""
        if not self._closed:
            self.owed += 1
            self._stop_timer(server)
            self.missing[server] = reason or "its worker or a front has no free descriptor"
            self._loop.call_later(AGAIN_S, self._connect_now, server, front)

    def _await_failure(self, server: str) -> None:
        """Call the pipe missing until it is likely to be there: only its failure is reported."""
        self._stop_timer(server)
        self._arriving[server] = self._loop.call_later(ARRIVED_S, self._on_delivered, server)

    def _stop_timer(self, server: str) -> None:
        if (timer := self._arriving.pop(server, None)) is not None:
            timer.cancel()

    def _on_delivered(self, server: str) -> None:
        self._stop_timer(server)
        self.missing.pop(server, None)

    def offer(self, entry: ServerEntry, data: bytes) -> tuple[ExitClass, str] | None:
        """Take in a server's catalogue, send it, and write to the journal what changed in it.
        Return why the server counts as broken, if it does."""
        try:
            figures = offer(data)
            if (own := self._gateway_id()) in figures.gateways:
                return ExitClass.LOOP, IS_SELF if own == figures.gateways[0] else LEADS_BACK
            self.report_left_out(entry, entry.offer, figures)
            # Once a server asked for roots, that counts until it may be a different server.
            asks_roots = wider(figures.asks_roots, entry.offer.asks_roots)
            entry.offer = replace(figures, asks_roots=asks_roots)
            self._approvals.on_catalogue(entry.name, data)
            if entry.own and not entry.legacy:
                return None  # its client gets the lists of the server itself
            before = self._routes.offers(entry.name, data, entry.offer.list_hash)
            if before and (changed := changes(before, data)):
                self._tell(entry, changed)
        except codec.Malformed as error:
            return ExitClass.PROTOCOL, f"its catalogue cannot be read: {error}"
        except OSError as error:
            return ExitClass.EXIT, no_descriptor(error)
        return None

    def report_left_out(
        self, entry: ServerEntry, before: CatalogueFigures, now: CatalogueFigures
    ) -> None:
        """Write to the journal which lists a server did not give, and which definitions the lists
        leave out, if they changed."""
        if now.unread and now.unread != before.unread:
            missing = (
                f"it did not give {', '.join(now.unread)}; 'metamcp logs {entry.base}' says why"
            )
            self._journal.add(entry.name, "left out", missing, entry.life.generation)
        if now.left_out and now.left_out != before.left_out:
            text = "; ".join(now.left_out[:LEFT_OUT_TOLD_MAX])
            if (more := now.invalid - LEFT_OUT_TOLD_MAX) > 0:
                text += f"; and {more} more, which 'metamcp tools {entry.base}' names"
            self._journal.add(entry.name, "left out", text, entry.life.generation)

    def _tell(self, entry: ServerEntry, changed: str) -> None:
        missing = entry.changes.take(self._loop.time())
        if missing is not None:
            text = changed + left_out(missing)
            self._journal.add(entry.name, "lists changed", text, entry.life.generation)

    def offer_again(self, server: str, front: int) -> None:
        """Send a catalogue again after a while, because it did not arrive for lack of a
        descriptor."""
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
