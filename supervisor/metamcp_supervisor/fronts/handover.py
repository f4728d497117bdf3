"""Connections of clients on their way from the front that accepted them to the one that they need.

Owns: to which front a connection goes, those that wait until that is known, those that are sent and
not yet taken, and the bounds on all of them. Never: a byte of what is said on a connection, whose a
session is (`sessions`).

The session that a request is for has a holder, if it is known here; else it is the front that made
the name in the request. If nobody has what is asked for, the connection goes back, and its front
says so. What a front has not taken when it ends was not read by anybody: it goes to the heir.
"""

import os
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from msgspec import Struct

from metamcp_supervisor.fronts.front import Front
from metamcp_supervisor.fronts.sessions import NOBODY, Sessions
from metamcp_worker.ipc import messages, packets
from metamcp_worker.ipc.messages import HandOver

DESCRIPTORS = 2
"""Of each connection: its socket, and what was read."""
SENT_MAX = 64
"""Connections that one front has not taken yet; each is open here as well as in its socket."""
WAITING_MAX = 256
"""Connections that wait for a front; further ones are cut, as are those that a dying front had."""

HELD_BYTES_MAX = 64 * 1024 * 1024
"""Of what was read of all of them: a few of the largest requests, thousands of usual ones."""


class MovingSnapshot(Struct, frozen=True, kw_only=True):
    """A connection on its way to another front. `to`: who has not taken it yet, None: nobody got
    it; `message`: packed."""

    to: int | None
    asker: int
    message: bytes
    fds: tuple[int, ...]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Moving:
    """`asker`: the number of the front that accepted it."""

    asker: int
    message: HandOver
    fds: list[int]
    size_bytes: int


class Handovers:
    """`fronts`: all that are not buried."""

    def __init__(self, sessions: Sessions, fronts: Callable[[], Sequence[Front]]) -> None:
        self._sessions = sessions
        self._fronts = fronts
        self._waiting: list[_Moving] = []
        self._sent: dict[int, deque[_Moving]] = {}
        self._held_bytes = 0

    def take(self, asker: Front, message: HandOver, fds: list[int]) -> None:
        """This front has accepted a connection for somebody else. Takes the descriptors."""
        size = os.fstat(fds[0]).st_size if len(fds) == DESCRIPTORS else HELD_BYTES_MAX + 1
        if self._held_bytes + size > HELD_BYTES_MAX:
            packets.close_all(fds)
            return
        self._held_bytes += size
        self._pass(_Moving(asker.number, message, fds, size))

    def taken(self, number: int) -> None:
        """This front has the oldest of those that were sent to it."""
        if sent := self._sent.get(number):
            self._drop(sent.popleft())
            if self._waiting:
                self.again()

    def left(self, number: int) -> None:
        """This front is gone. Where its connections go is known as soon as its sessions have
        another holder: then look `again`."""
        self._waiting += self._sent.pop(number, ())

    def again(self) -> None:
        """Fronts have come or gone, or sessions have another holder."""
        waiting, self._waiting = self._waiting, []
        for moving in waiting:
            self._pass(moving)

    def handed(self) -> tuple[MovingSnapshot, ...]:
        """Those under way, for the program that goes on with them."""
        sent = ((number, one) for number, several in self._sent.items() for one in several)
        return tuple(
            MovingSnapshot(
                to=to,
                asker=one.asker,
                message=messages.pack(one.message),
                fds=tuple(one.fds),
                size_bytes=one.size_bytes,
            )
            for to, one in (*sent, *((None, one) for one in self._waiting))
        )

    def adopt(self, found: Sequence[MovingSnapshot]) -> None:
        """Takes the descriptors. Raises codec.Malformed."""
        for each in found:
            message = messages.unpack_from_front(each.message)
            assert isinstance(message, HandOver)
            moving = _Moving(each.asker, message, list(each.fds), each.size_bytes)
            self._held_bytes += moving.size_bytes
            if each.to is None:
                self._waiting.append(moving)
            else:
                self._sent.setdefault(each.to, deque()).append(moving)

    def close(self) -> None:
        for moving in [*self._waiting, *(one for sent in self._sent.values() for one in sent)]:
            self._drop(moving)
        self._waiting.clear()
        self._sent.clear()

    def _pass(self, moving: _Moving) -> None:
        message = moving.message
        fronts = {front.number: front for front in self._fronts()}
        if not message.name:  # any will do; the newest is most likely to be there for long
            able = [number for number, front in fronts.items() if front.able]
            heir = max((number for number in able if number != moving.asker), default=None)
            if heir is None:
                self._wait(moving)
            else:
                self._send(fronts[heir], moving)
            return
        holder = self._sessions.holder(message.name)
        owner = fronts.get(message.maker if holder is None else holder)
        if holder == NOBODY:
            self._wait(moving)
        elif owner is not None and owner.number != moving.asker:
            self._send(owner, moving)
        else:
            self._back(fronts.get(moving.asker), moving)

    def _back(self, asker: Front | None, moving: _Moving) -> None:
        """Nobody has what is asked for: its front, or any other, is to say so."""
        asker = asker or next((front for front in self._fronts() if front.able), None)
        if asker is None:
            self._drop(moving)
        else:
            self._send(asker, replace(moving, message=moving.message.back()))

    def _send(self, front: Front, moving: _Moving) -> None:
        sent = self._sent.setdefault(front.number, deque())
        if len(sent) >= SENT_MAX:
            self._wait(moving)
            return
        copies: list[int] = []
        try:
            copies.extend(os.dup(fd) for fd in moving.fds)
        except OSError:  # no descriptor is free: the client is cut
            packets.close_all(copies)
            self._drop(moving)
            return
        sent.append(moving)
        front.send(moving.message, copies)

    def _wait(self, moving: _Moving) -> None:
        if len(self._waiting) < WAITING_MAX:
            self._waiting.append(moving)
        else:
            self._drop(moving)

    def _drop(self, moving: _Moving) -> None:
        """It is somebody else's, or nobody's: then its client is cut."""
        packets.close_all(moving.fds)
        self._held_bytes -= moving.size_bytes
