"""What the fronts know of the servers: catalogues, states, and the pipes to the instances.

Owns: the last word to the fronts about each server, whether its tools are listed, the pipes between
fronts and instances. Never: when a server starts or stops (`tree`), the fronts themselves
(`fronts`), what a view shows (the fronts decide).

A front that starts late is told everything that the others know. The order towards a front is
catalogue, pipe, state: whoever hears of a ready server can list and call it.
"""

import asyncio
import os
import socket
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from msgspec import structs

from metamcp_supervisor.config.config import Server
from metamcp_supervisor.servers import damping
from metamcp_supervisor.servers.entries import ServerSnapshot
from metamcp_supervisor.servers.instances import Instance
from metamcp_supervisor.servers.server import Life
from metamcp_supervisor.servers.sharing import PARTED, Division, Refusal
from metamcp_supervisor.servers.states import DOWN, PUBLIC, ExitClass, Phase
from metamcp_worker.ipc import packets
from metamcp_worker.ipc.catalogue import MODERN_SINCE
from metamcp_worker.ipc.messages import (
    AttachServer,
    Catalogue,
    ForgetServer,
    Message,
    ServerState,
)

SILENT = "its worker does not answer"


class Ahead(Protocol):
    """A front, as far as it is told about servers."""

    @property
    def number(self) -> int: ...

    def send(self, message: Message, fds: Iterable[int] = ()) -> None:
        """Takes the descriptors."""
        ...


class Fronts(Protocol):
    def serving(self) -> Iterable[Ahead]:
        """Those that know their task already."""
        ...


class Known:
    """What the fronts know of one server. `changes`: when it was listed or hidden (`damping`)."""

    def __init__(self) -> None:
        self.catalogue = b""
        self.list_hash = ""
        self.life: tuple[Server, Life] | None = None
        self.state: ServerState | None = None
        self.listed = False
        self.division = Division()
        self.changes: tuple[float, ...] = ()
        self._planned: asyncio.TimerHandle | None = None

    @property
    def planned(self) -> bool:
        """Is it to be listed, or hidden, in a while?"""
        return self._planned is not None

    @property
    def turns_at(self) -> float | None:
        """When that is, if it is to be."""
        return None if self._planned is None else self._planned.when()

    def plan(self, wait_s: float, then: Callable[[], None]) -> None:
        self.keep()
        self._planned = asyncio.get_running_loop().call_later(wait_s, then)

    def keep(self) -> None:
        """It stays as it is."""
        if self._planned is not None:
            self._planned.cancel()
            self._planned = None


class Routes:
    def __init__(self, fronts: Fronts) -> None:
        self._fronts = fronts
        self._known: dict[str, Known] = {}
        self._loop = asyncio.get_running_loop()

    def offers(self, server: str, data: bytes, list_hash: str) -> bytes:
        """The server has this catalogue; the one before, or nothing. Raises OSError without free
        descriptors."""
        known = self._known.setdefault(server, Known())
        before = known.catalogue
        if before != data:  # a restart rarely changes it
            known.catalogue, known.list_hash = data, list_hash
            for front in self._fronts.serving():
                _send_catalogue(front, server, known)
        return before

    def handed(self, server: str) -> Known:
        """What the program after this one must know."""
        return self._known.get(server, Known())

    def go_on(self, found: ServerSnapshot, list_hash: str) -> None:
        """After what the program before told the fronts."""
        known = self._known[found.name] = Known()
        known.catalogue, known.list_hash = found.catalogue, list_hash
        known.listed, known.changes = found.listed, found.list_changes
        if found.list_turns_at is not None:
            wait_s = max(0.0, found.list_turns_at - self._loop.time())
            known.plan(wait_s, partial(self._turn_later, known, listed=not found.listed))

    def offer_again(self, server: str, number: int) -> None:
        """The front with this number did not get the catalogue. Raises OSError."""
        known = self._known.get(server)
        for front in self._fronts.serving():
            if front.number == number and known is not None and known.catalogue:
                _send_catalogue(front, server, known)

    def show(self, server: Server, life: Life) -> None:
        """Tell the fronts how the server stands, and list its tools or hide them."""
        known = self._known.setdefault(server.name, Known())
        self._list(known, server, life)
        self._tell(known, server, life)

    def share(self, server: str, division: Division) -> bool:
        """Who calls this server shares its process from now on, or has one of its own. Is that
        news?"""
        known = self._known.setdefault(server, Known())
        if known.division == division:
            return False
        known.division = division
        if known.life is not None:
            self._tell(known, *known.life)
        return True

    def refuse(self, server: str, why: Refusal) -> None:
        """Nothing is started for the client that called this process of its own."""
        state = ServerState(
            server=server, state=why.state, listed=False, reason=why.reason, message=why.message
        )
        for front in self._fronts.serving():
            front.send(state)
            front.send(ForgetServer(server=server))

    def connect(self, instance: Instance, number: int | None) -> None:
        """A fresh pipe between the instance and the front with this number, or all of them. Raises
        OSError."""
        for front in self._fronts.serving():
            if number not in (None, front.number):
                continue
            one, other = socket.socketpair()  # what a `multiprocessing.Pipe` is
            with one, other:
                ours = os.dup(one.fileno())
                try:
                    theirs = os.dup(other.fileno())
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

    def introduce(self, front: Ahead) -> None:
        """Tell a new front what the others know, all but the pipes. Raises OSError."""
        for server, known in self._known.items():
            if known.catalogue:
                _send_catalogue(front, server, known)
            if known.state is not None:
                front.send(known.state)

    def forget(self, server: str) -> None:
        """The server is no longer configured."""
        known = self._known.pop(server, None)
        if known is not None:
            known.keep()
        for front in self._fronts.serving():
            front.send(ForgetServer(server=server))

    def close(self) -> None:
        for known in self._known.values():
            known.keep()

    def _list(self, known: Known, server: Server, life: Life) -> None:
        """Listed from the first time that it is ready until somebody takes it away. One that went
        down by itself or restarts has `hide_after` to come back before its tools go; one that goes
        down again and again stays as it is for a while (`damping`)."""
        damped_s = damping.wait_s(known.changes, self._loop.time()) if life.failures else 0.0
        if life.phase is Phase.READY or (server.lazy and _at_rest(life) and known.catalogue):
            if known.listed or not damped_s:
                self._turn(known, listed=True, counts=life.failures > 0)
            elif not known.planned:
                known.plan(damped_s, partial(self._turn_later, known, listed=True))
        elif not _comes_back(life) or server.strict_listing or not known.listed:
            self._turn(known, listed=False, counts=life.failures > 0)
        elif not known.planned:
            wait_s = max(server.hide_after_s, damped_s)
            known.plan(wait_s, partial(self._turn_later, known, listed=False))

    def _turn(self, known: Known, *, listed: bool, counts: bool) -> None:
        """List its tools, or hide them, from now on."""
        known.keep()
        if counts and listed != known.listed:
            known.changes = damping.noted(known.changes, self._loop.time())
        known.listed = listed

    def _turn_later(self, known: Known, *, listed: bool) -> None:
        self._turn(known, listed=listed, counts=True)
        if known.life is not None:
            self._tell(known, *known.life)

    def _tell(self, known: Known, server: Server, life: Life) -> None:
        known.life = server, life
        state = _state(server, life, known.listed, self._loop.time())
        division = known.division
        known.state = structs.replace(
            state, by=division.by, roots=division.roots, both=division.both
        )
        for front in self._fronts.serving():
            front.send(known.state)


def _at_rest(life: Life) -> bool:
    """Does it wait for a call, or is it on its way there?"""
    return life.phase is Phase.IDLE or life.resting


def _starts(life: Life) -> bool:
    return life.phase in (Phase.QUEUED, Phase.WARMING)


def _comes_back(life: Life) -> bool:
    """Is it down only until it is up again?"""
    if life.phase in (Phase.DRAINING, Phase.STOPPING):
        return life.restarting
    return life.phase in (Phase.QUEUED, Phase.WARMING, Phase.BACKOFF, Phase.FAILED)


def _state(server: Server, life: Life, listed: bool, now: float) -> ServerState:
    if life.degraded and life.phase is Phase.READY:
        # No new calls go there; they wait a moment, as for a server that is just coming back.
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
        hold_ms=round(server.start_timeout_s * 1000) if server.lazy or _starts(life) else -1,
    )


def _retry_after_ms(life: Life, now: float) -> int:
    if _starts(life) or life.restarting:
        return 0
    return -1 if life.retry_at is None else max(0, round((life.retry_at - now) * 1000))


def _send_catalogue(front: Ahead, server: str, known: Known) -> None:
    message = Catalogue(server=server, list_hash=known.list_hash)
    front.send(message, [packets.blob(known.catalogue)])
