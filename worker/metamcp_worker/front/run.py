"""Process of one front: it carries out the messages of the supervisor and reports to it.

Owns: the control socket, the order in which messages take effect, heartbeat and figures, the end of
the process. Never: HTTP, names, routing, policy, sessions, orders about views (`view_orders`).

Messages take effect one after the other, although attaching a pipe takes several turns of the loop:
they wait in an inbox, and one task carries them out. Lists are compared when the inbox is empty, so
that twenty servers that come up at once are one change for a client.
"""

import asyncio
import gc
import itertools
import logging
import socket
import time
from collections.abc import Mapping
from functools import partial
from typing import TypeVar

from metamcp_worker.front import view_orders
from metamcp_worker.front.compose import FrontSteps
from metamcp_worker.front.http import App
from metamcp_worker.front.view_orders import Disclosing
from metamcp_worker.front_calls import stats
from metamcp_worker.front_calls.front_recovery import SessionRecordSender
from metamcp_worker.front_calls.stats import Stats
from metamcp_worker.front_clients.exchange import Exchange
from metamcp_worker.front_clients.streams import Counts
from metamcp_worker.http.connection_moves import Handover, take_connection
from metamcp_worker.http.serve import HttpServer
from metamcp_worker.ipc import codec, messages, packets, server_catalog
from metamcp_worker.ipc.consent_records import ConsentDecided, ConsentGrant, ConsentGrants
from metamcp_worker.ipc.disclosure import (
    AnnounceLists,
    OrderOutcome,
)
from metamcp_worker.ipc.embedding import Embedded, Vectors
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.figures import KeyUse, ShowKeyUse
from metamcp_worker.ipc.key_table import ChangeKeys, KeyChanges, KeysApplied
from metamcp_worker.ipc.messages import (
    AdoptSessions,
    AttachFailed,
    AttachRole,
    AttachServer,
    CallsShown,
    Catalogue,
    ConnectionTaken,
    DayCounts,
    DisclosureUpdate,
    ForgetServer,
    FrontReady,
    FrontStats,
    HandOver,
    Heartbeat,
    Listen,
    Message,
    OrderReply,
    Reconfigure,
    ServeOn,
    ServerState,
    SessionRecord,
    ShowCalls,
    ShowPath,
    ShowTools,
    Stop,
    ToFront,
)
from metamcp_worker.ipc.packets import Channel
from metamcp_worker.ipc.spec import FrontSpec
from metamcp_worker.runtime import logs, loop, memory
from metamcp_worker.runtime.loop import BackgroundTasks

T = TypeVar("T")

INBOX_MAX = 8192
"""Maximum number of messages that were read and not carried out: several per server of a large
configuration."""
BEAT_S = 1.0
STATS_S = 2.0
TRIM_S = 15.0
"""Seconds between two times that freed memory is given back, which takes a millisecond: a moment in
which all clients wait leaves some MiB of holes."""
BUILDING_SHARE_MAX = 0.02
"""Maximum share of its time in which a front builds views while no client asks for one."""
BUILDING_PAUSE_S_MAX = 1.0
"""Maximum seconds until clients learn of a changed list for that reason."""
END_S = 1.0
"""Seconds for cancelled tasks to end: a few turns of the loop."""
EMBED_AGAIN_S = 30.0
"""Seconds of pause after vectors of tools that this process had no free descriptor for."""
UNREAD = "the outcome cannot be read, as no descriptor is free; look at what is in view"
EXIT_STOPPED = 0
EXIT_FAILED = 1
EXIT_SUPERVISOR_GONE = 2

log = logging.getLogger("metamcp.front")


def main(sock: socket.socket) -> int:
    """Run a front until it ends, and return the exit code. `sock`: the control socket to the
    supervisor."""
    return loop.run(_live(sock))


async def _live(sock: socket.socket) -> int:
    return await FrontWorker(sock).run()


class FrontWorker:
    """Process of one front; `run` is its life."""

    def __init__(self, sock: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._stats = Stats()
        self._steps = FrontSteps(self._stats, self._tell, lambda: self._channel.queue_length)
        self._calls, self._builtins = self._steps.calls, self._steps.builtins
        self._disclosing = Disclosing(self._steps, self._tell)
        self._app: App | None = None
        self._server: HttpServer | None = None
        self._listeners: list[socket.socket] = []
        self._inbox: asyncio.Queue[tuple[ToFront, list[int]]] = asyncio.Queue(INBOX_MAX)
        self._over: asyncio.Future[int] = self._loop.create_future()
        self._chores = BackgroundTasks(self._faulty)
        self._draining = False
        self._pause: asyncio.TimerHandle | None = None
        on_gone = partial(self._finish, EXIT_SUPERVISOR_GONE)
        self._channel = Channel(sock, self._packet, on_gone, self._fds_lost)
        self._keeping = SessionRecordSender(self._tell, lambda: self._channel.queue_length)
        self._handover = Handover(self._tell, lambda: self._channel.queue_length)

    async def run(self) -> int:
        """Serve until the front ends; then end everything. Returns the exit code."""
        self._chores.begin(self._obey())
        self._chores.begin(self._beat())
        self._chores.begin(self._report())
        self._chores.begin(memory.trim_every(TRIM_S))
        self._chores.begin(self._keeping.run())
        self._chores.begin(logs.count_every_second())
        try:
            return await self._over
        finally:
            await self._close()

    # --- the control socket -------------------------------------------------------------------

    def _packet(self, data: bytes, fds: list[int]) -> None:
        try:
            self._inbox.put_nowait((messages.unpack_to_front(data), fds))
        except codec.Malformed as error:
            packets.close_all(fds)
            log.error("a message of the supervisor cannot be read: %s", error)
        except asyncio.QueueFull:
            packets.close_all(fds)
            log.error("%d messages wait to be carried out; the front ends", INBOX_MAX)
            self._finish(EXIT_FAILED)

    def _fds_lost(self, data: bytes) -> None:
        """Handle a message that came without its descriptors, because this process is at its
        open-file limit."""
        match messages.unpack_to_front(data):
            case AttachServer(server=server, generation=generation):
                self._tell(AttachFailed(what=server, number=generation))
            case Catalogue(server=server):
                self._tell(AttachFailed(what=server, number=0))
            case Reconfigure(vital=False):
                log.error("no free descriptor for a new configuration; the old one stays")
            case HandOver():
                self._tell(ConnectionTaken())  # its client is cut: the socket is gone
                self._stats.count_refusal("handover")
            case OrderReply(ticket=ticket):
                self._builtins.on_order_outcome(ticket, OrderOutcome(error=UNREAD))
            case Embedded(ticket=ticket):
                lost = Vectors(pause_s=EMBED_AGAIN_S)
                self._builtins.on_vectors(ticket, codec.dump(lost))
            case AdoptSessions() if self._server is not None and self._server.started:
                log.error("no free descriptor for sessions of another front; they are lost")
            case _:
                log.error("no free descriptor for what the front must serve; the front ends")
                self._finish(EXIT_FAILED)

    def _tell(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        self._channel.send(messages.pack(message), fds)

    # --- what the supervisor wants ------------------------------------------------------------

    async def _obey(self) -> None:
        while True:
            message, fds = await self._inbox.get()
            try:
                await self._carry_out(message, fds)
            except (codec.Malformed, TooLarge, OSError) as error:
                self._on_failure(message, error)
            finally:
                packets.close_all(fds)
            if self._inbox.empty():
                await asyncio.sleep(0)  # what came along with it is read in this turn
            if self._inbox.empty():
                self._refresh()

    def _refresh(self) -> None:
        """Build stale views, and then pause: a list of hundreds of servers is not merged again for
        each one that comes."""
        if self._pause is not None:
            self._calls.viewers.defer()
            return
        begin = time.monotonic()
        self._calls.refresh()
        pause_s = (time.monotonic() - begin) / BUILDING_SHARE_MAX
        self._pause = self._loop.call_later(min(pause_s, BUILDING_PAUSE_S_MAX), self._on_pause_end)

    def _on_pause_end(self) -> None:
        self._pause = None
        if self._calls.viewers.deferred:
            self._refresh()

    async def _carry_out(self, message: ToFront, fds: list[int]) -> None:
        """Carry out one message; descriptors that are taken over leave `fds`."""
        match message:
            case ServeOn(front=number):
                self._prepare(number, _read(FrontSpec, fds), fds)
            case AdoptSessions(untold=untold):
                self._adopt(_read(list[SessionRecord], fds), untold=untold)
            case HandOver():
                await self._take_in(message, fds)
            case Listen():
                self._calls.refresh()
                await self._listen()
            case Reconfigure():
                self._reconfigure(_read(FrontSpec, fds))
            case Catalogue(server=server):
                self._calls.catalogue(server, server_catalog.unpack(packets.read_value(fds)))
            case AttachServer(server=server, generation=generation, legacy=legacy):
                await self._calls.attach(server, generation, packets.take_fd(fds), legacy=legacy)
            case AttachRole(role=role):
                self._steps.connectors.attach(role, packets.take_fd(fds))
            case ServerState():
                self._calls.server_state(message)
            case ForgetServer(server=server):
                self._calls.forget(server)
            case DisclosureUpdate():
                self._disclosing.on_disclosure(message, packets.read_value(fds))
            case AnnounceLists(number=number):
                self._disclosing.announce(number)
            case OrderReply(ticket=ticket):
                self._calls.refresh()  # clients that hear of it find it done
                self._builtins.on_order_outcome(ticket, _read(OrderOutcome, fds))
            case Embedded(ticket=ticket):
                self._builtins.on_vectors(ticket, packets.read_value(fds))
            case ShowCalls():
                self._show(message)
            case ShowPath(ticket=ticket, query=path_query):
                self._calls.refresh()
                path = view_orders.explain_call(self._steps, path_query)
                self._answer(ticket, codec.dump(path))
            case ShowTools(ticket=ticket, query=query):
                self._calls.refresh()
                view_orders.list_tools(self._steps, query, partial(self._answer, ticket))
            case ShowKeyUse(ticket=ticket):
                self._answer(ticket, codec.dump(self._key_use(message.key)))
            case ChangeKeys(generation=generation):
                if self._app is not None:
                    self._app.keys_changed(_read(KeyChanges, fds))
                    self._tell(KeysApplied(generation=generation))
            case ConsentGrants():
                self._steps.replace_grants(_read(list[ConsentGrant], fds))
            case ConsentDecided():
                self._steps.guard.consent.on_decision(message)
            case DayCounts(counts=counts):
                self._calls.meters.resume(counts, self._loop.time())
            case Stop():
                if not self._draining:
                    self._draining = True
                    self._disclosing.finish()
                    self._chores.begin(self._drain(message.grace_s, heirs=message.heirs))
                    await asyncio.sleep(0)  # a connection that comes next finds a front that ends

    def _on_failure(self, message: ToFront, error: Exception) -> None:
        """Report a message that could not be carried out. The front goes on with the others, unless
        it cannot serve without this one."""
        about = {"server": message.server} if isinstance(message, AttachServer | Catalogue) else {}
        log.error("%s failed: %s", type(message).__name__, error, extra=about)
        match message:
            case AttachServer(server=server, generation=generation):
                self._tell(AttachFailed(what=server, number=generation))
            case ServeOn() if self._app is None:
                self._finish(EXIT_FAILED)
            case (
                Reconfigure(vital=True) | DisclosureUpdate() | ChangeKeys()
            ):  # only changes are sent
                self._finish(EXIT_FAILED)
            case _:
                pass

    def _prepare(self, number: int, spec: FrontSpec, fds: list[int]) -> None:
        if self._app is not None:
            log.error("the front was told twice to serve; the first time counts")
            return
        while fds:
            self._listeners.append(socket.socket(fileno=fds.pop(0)))
        logs.tune(spec.log, about={"front": number})
        self._steps.front = number
        self._steps.configure(spec)
        self._disclosing.several = spec.several
        self._app = App(
            self._calls,
            self._stats,
            spec,
            front=number,
            on_kept=self._keeping.send_record,
            on_over=self._keeping.on_sessions_end,
            move=self._handover.give,
        )
        self._steps.app = self._app
        self._disclosing.clients = self._app.lists_changed
        tls = None
        if spec.tls is not None:
            from metamcp_worker.http.tls_files import TlsFiles  # few gateways have it

            tls = TlsFiles(spec.tls)
            self._chores.begin(tls.follow())
        refused = self._stats.count_refusal
        self._server = HttpServer(self._app, request=Exchange, on_refused=refused, tls=tls)

    def _adopt(self, records: list[SessionRecord], *, untold: bool) -> None:
        if self._app is None:
            log.error("the front was given sessions before it was told what to serve")
            return
        self._calls.refresh()  # what they watch is looked up in the views
        self._app.adopt(records, untold=untold)

    async def _take_in(self, message: HandOver, fds: list[int]) -> None:
        if self._server is not None and self._server.ended:
            return  # it is not taken, so the supervisor gives it to the heir
        self._tell(ConnectionTaken())
        moved = take_connection(message, fds)
        if self._server is None:
            packets.close_all([moved.socket_fd])
        else:
            await self._server.adopt(moved)

    def _reconfigure(self, spec: FrontSpec) -> None:
        logs.tune(spec.log)
        if self._app is not None:
            spec = self._app.with_parts(spec)
        self._steps.configure(spec)
        self._disclosing.several = spec.several and not self._draining
        self._calls.refresh()
        if self._app is not None:
            self._app.reconfigure(spec)

    def _show(self, query: ShowCalls) -> None:
        """Send the calls that are under way. Raises OSError and TooLarge."""
        calls, more = stats.describe_calls(
            self._calls.under_way(),
            self._loop.time(),
            servers=query.servers,
            slow_s=query.slow_s,
            most=query.most,
        )
        answer = CallsShown(ticket=query.ticket, more=more)
        self._tell(answer, (packets.blob(codec.dump(calls)),))

    def _answer(self, ticket: int, blob: bytes) -> None:
        """Send the answer to a question. Raises OSError and TooLarge."""
        self._tell(CallsShown(ticket=ticket), (packets.blob(blob),))

    def _key_use(self, key: str) -> KeyUse:
        """Return what is open with an API key."""
        streams, sessions = self._app.count_for_key(key) if self._app is not None else (0, 0)
        origins = (call.origin for call, _ in self._calls.under_way())
        calls = sum(origin is not None and origin.principal.key == key for origin in origins)
        return KeyUse(streams=streams, sessions=sessions, calls=calls)

    async def _listen(self) -> None:
        if self._server is None or not self._listeners or self._draining:
            return
        listeners, self._listeners = self._listeners, []
        try:
            await self._server.start(listeners)
        except OSError as error:
            log.error("the front cannot listen: %s", error)
            self._finish(EXIT_FAILED)
            return
        # What is there now stays; a full collection need not walk through it again.
        gc.collect()
        gc.freeze()
        self._tell(FrontReady())
        self._steps.on_listening()

    async def _drain(self, grace_s: float, *, heirs: bool) -> None:
        """Take no more requests, let those in flight finish, and end."""
        if self._app is not None and self._server is not None:
            self._server.away = self._handover.part if heirs else None
            self._app.leave(heirs=heirs)
            await asyncio.gather(self._app.drain(grace_s, heirs=heirs), self._server.drain(grace_s))
        self._finish(EXIT_STOPPED)

    # --- news ---------------------------------------------------------------------------------

    async def _beat(self) -> None:
        for number in itertools.count(1):
            now = self._loop.time()
            due = now + BEAT_S - now % BEAT_S  # with the other work of whole seconds
            await asyncio.sleep(due - now)
            lag_ms = (self._loop.time() - due) * 1000
            queued = self._calls.count_held_calls()
            inflight = sum(self._calls.inflight().values()) - queued
            self._tell(Heartbeat(seq=number, lag_ms=lag_ms, inflight=inflight, queued=queued))
            self._tell_use()

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(STATS_S - self._loop.time() % STATS_S)
            self._tell_figures()

    def _tell_use(self) -> None:
        for message in DayCounts.of(self._calls.meters.news()):
            self._tell(message)

    def _tell_figures(self) -> None:
        if self._app is None or self._server is None:
            return
        recorded = self._steps.count_records()
        open_now = self._server.connections
        front_stats = summary(self._app.counts(), self._stats, recorded, open_now)
        counted = self._steps.figures()
        try:
            self._tell(front_stats, (packets.blob(codec.dump(counted)),))
        except (OSError, TooLarge) as error:
            log.warning("no figures for the supervisor this time: %s", error)

    # --- the end ------------------------------------------------------------------------------

    def _finish(self, code: int) -> None:
        """End the front with this exit code; the first one counts."""
        if not self._over.done():
            self._over.set_result(code)

    def _faulty(self, error: BaseException) -> None:
        log.error("the front ends, it has a fault", exc_info=error)
        self._finish(EXIT_FAILED)

    async def _close(self) -> None:
        await self._chores.close(END_S)
        await self._calls.close()
        if self._app is not None and self._server is not None:
            # No client is waited for: an orderly end has none left, and a broken one is at once.
            await asyncio.gather(self._app.drain(0), self._server.drain(0))
        for sock in self._listeners:
            sock.close()
        while not self._inbox.empty():
            packets.close_all(self._inbox.get_nowait()[1])
        await self._steps.close()
        self._tell_use()
        self._tell_figures()
        self._keeping.flush()
        self._channel.close()


def _read(kind: type[T], fds: list[int]) -> T:
    """Return the value of a message, which comes in its descriptor. Raises Malformed,
    TooLarge and OSError."""
    return codec.decode_as(kind, packets.read_value(fds))


def summary(
    counts: Counts, stats: Stats, recorded: Mapping[str, int], connections: int
) -> FrontStats:
    """Return the figures of connections, sessions and refusals. `recorded`: counts of the recorded
    calls, by outcome; `connections`: open now."""
    return FrontStats(
        connections=connections,
        streams=counts.streams,
        sessions=counts.sessions,
        refused=dict(stats.refusals),
        recorded=dict(recorded),
    )
