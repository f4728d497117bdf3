"""What the fronts know of the servers: catalogues, states, and the pipes to the instances.

Owns: the last word to the fronts about each server, whether its tools are listed, the pipes between
fronts and instances. Never: when a server starts or stops (`tree`), the fronts themselves
(`fronts`), what a view shows (the fronts decide).

A front that starts late is told everything that the others know. The order towards a front is
catalogue, pipe, state: whoever hears of a ready server can list and call it.
"""

import asyncio
import os
from collections.abc import Iterable
from multiprocessing import Pipe
from typing import Protocol

from metamcp_supervisor.lives.instances import Instance
from metamcp_supervisor.lives.server import Life
from metamcp_supervisor.lives.states import PUBLIC, ExitClass, Phase
from metamcp_supervisor.wanted.config import Server
from metamcp_worker import packets
from metamcp_worker.messages import (
    AttachServer,
    Catalogue,
    ForgetServer,
    Message,
    ServerState,
)

SILENT = "its worker does not answer"
PARTED = "an operator keeps calls from it for now"


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


class _Known:
    """What the fronts know of one server."""

    def __init__(self) -> None:
        self.catalogue = b""
        self.list_hash = ""
        self.life: tuple[Server, Life] | None = None
        self.state: ServerState | None = None
        self.listed = False
        self.hide: asyncio.TimerHandle | None = None

    def keep(self) -> None:
        if self.hide is not None:
            self.hide.cancel()
            self.hide = None


class Routes:
    def __init__(self, fronts: Fronts) -> None:
        self._fronts = fronts
        self._known: dict[str, _Known] = {}
        self._loop = asyncio.get_running_loop()

    def offers(self, server: str, data: bytes, list_hash: str) -> None:
        """The server has this catalogue. Raises OSError without free descriptors."""
        known = self._known.setdefault(server, _Known())
        if known.catalogue == data:
            return  # a restart rarely changes it
        known.catalogue, known.list_hash = data, list_hash
        for front in self._fronts.serving():
            _send_catalogue(front, server, known)

    def offer_again(self, server: str, number: int) -> None:
        """The front with this number did not get the catalogue. Raises OSError."""
        known = self._known.get(server)
        for front in self._fronts.serving():
            if front.number == number and known is not None and known.catalogue:
                _send_catalogue(front, server, known)

    def show(self, server: Server, life: Life) -> None:
        """Tell the fronts how the server stands, and list its tools or hide them."""
        known = self._known.setdefault(server.name, _Known())
        self._list(known, server, life)
        self._tell(known, server, life)

    def connect(self, instance: Instance, number: int | None) -> None:
        """A fresh pipe between the instance and the front with this number, or all of them. Raises
        OSError."""
        for front in self._fronts.serving():
            if number not in (None, front.number):
                continue
            one, other = Pipe()
            with one, other:
                ours = os.dup(one.fileno())
                try:
                    theirs = os.dup(other.fileno())
                except OSError:
                    os.close(ours)
                    raise
            instance.attach(front.number, theirs)
            message = AttachServer(server=instance.server, generation=instance.generation)
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

    def _list(self, known: _Known, server: Server, life: Life) -> None:
        """Listed from the first time that it is ready until somebody takes it away. One that went
        down by itself or restarts has `hide_after` to come back before its tools go."""
        if life.phase is Phase.READY or (server.lazy and _at_rest(life) and known.catalogue):
            known.keep()
            known.listed = True
        elif not _comes_back(life) or server.strict_listing:
            known.keep()
            known.listed = False
        elif known.listed and known.hide is None:
            known.hide = self._loop.call_later(server.hide_after_s, self._hide, known)

    def _hide(self, known: _Known) -> None:
        known.hide = None
        known.listed = False
        if known.life is not None:
            self._tell(known, *known.life)

    def _tell(self, known: _Known, server: Server, life: Life) -> None:
        known.life = server, life
        known.state = _state(server, life, known.listed, self._loop.time())
        for front in self._fronts.serving():
            front.send(known.state)


def _at_rest(life: Life) -> bool:
    """Does it wait for a call, or is it on its way there?"""
    return life.phase is Phase.IDLE or life.resting


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
        reason=str(life.reason or "") if state == "error" else "",
        message=PARTED if life.parted else life.message if state == "error" else "",
        retry_after_ms=_retry_after_ms(life, now),
        hold_ms=round(server.start_timeout_s * 1000) if server.lazy else -1,
    )


def _retry_after_ms(life: Life, now: float) -> int:
    if life.phase in (Phase.QUEUED, Phase.WARMING) or life.restarting:
        return 0
    return -1 if life.retry_at is None else max(0, round((life.retry_at - now) * 1000))


def _send_catalogue(front: Ahead, server: str, known: _Known) -> None:
    message = Catalogue(server=server, list_hash=known.list_hash)
    front.send(message, [packets.blob(known.catalogue)])
