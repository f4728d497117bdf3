"""Connections of clients on their way from the front that accepted them to the front they need.

Owns: the choice of the front for a connection, connections that wait until that front is known,
connections that are sent and not yet taken, and the bounds on all of them. Never: the bytes on a
connection, the holders of sessions (`sessions`).

A connection goes to the front that holds the session of its request. If no holder is known here, it
goes to the front that made the name in the request. If no front has what is asked for, the
connection goes back to the front that accepted it, which answers the client. Connections that a
front has not taken when it ends were not read by any process: they go to the front that adopts its
sessions.
"""

import os
from collections import deque
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from metamcp_supervisor.fronts.front import FrontProcess
from metamcp_supervisor.fronts.sessions import NOBODY, SessionRecords
from metamcp_worker.ipc import packets
from metamcp_worker.ipc.messages import HandOver

DESCRIPTORS = 2
"""Descriptors of each connection: its socket, and the bytes that were read from it."""
SENT_MAX = 64
"""Maximum connections that are sent to one front and not yet taken; each has a descriptor here and
one in the control socket."""
WAITING_MAX = 256
"""Maximum connections that wait for a front; further ones are closed, also those that come from a
front that ended."""

HELD_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes read from all these connections: a few of the largest requests, or thousands of
usual ones."""


class MovingConnection(Struct, frozen=True):
    """A connection on its way to another front. `asker`: number of the front that accepted the
    connection; `to`: in a snapshot, number of the front that has not taken it yet, None if it is
    not sent yet."""

    asker: int
    message: HandOver
    fds: tuple[int, ...]
    size_bytes: int
    to: int | None = None


class Handovers:
    """`fronts`: returns all fronts, also those that ended and are still read from."""

    def __init__(
        self, sessions: SessionRecords, fronts: Callable[[], Sequence[FrontProcess]]
    ) -> None:
        self._sessions = sessions
        self._fronts = fronts
        self._waiting: list[MovingConnection] = []
        self._sent: dict[int, deque[MovingConnection]] = {}
        self._held_bytes = 0

    def take(self, asker: FrontProcess, message: HandOver, fds: list[int]) -> None:
        """Pass on a connection that this front accepted and another front must serve. Takes the
        descriptors."""
        size = os.fstat(fds[0]).st_size if len(fds) == DESCRIPTORS else HELD_BYTES_MAX + 1
        if self._held_bytes + size > HELD_BYTES_MAX:
            packets.close_all(fds)
            return
        self._held_bytes += size
        self._pass(MovingConnection(asker.number, message, tuple(fds), size))

    def on_taken(self, number: int) -> None:
        """Note that this front took the oldest connection that was sent to it."""
        if sent := self._sent.get(number):
            self._drop(sent.popleft())
            if self._waiting:
                self.retry_waiting()

    def on_front_gone(self, number: int) -> None:
        """Keep the connections that were sent to a front that is gone. Call `retry_waiting` as soon
        as its sessions have another holder: only then is known where the connections go."""
        self._waiting += self._sent.pop(number, ())

    def retry_waiting(self) -> None:
        """Try to pass on all waiting connections, after fronts or holders of sessions changed."""
        waiting, self._waiting = self._waiting, []
        for moving in waiting:
            self._pass(moving)

    def take_snapshot(self) -> tuple[MovingConnection, ...]:
        """Return all connections under way, for the program after this one."""
        sent = ((number, moving) for number, several in self._sent.items() for moving in several)
        return (*(replace(moving, to=number) for number, moving in sent), *self._waiting)

    def adopt(self, snapshot: Sequence[MovingConnection]) -> None:
        """Continue with the connections of the previous program. Takes the descriptors."""
        for moving in snapshot:
            self._held_bytes += moving.size_bytes
            if moving.to is None:
                self._waiting.append(moving)
            else:
                self._sent.setdefault(moving.to, deque()).append(replace(moving, to=None))

    def close(self) -> None:
        for moving in [
            *self._waiting,
            *(moving for sent in self._sent.values() for moving in sent),
        ]:
            self._drop(moving)
        self._waiting.clear()
        self._sent.clear()

    def _pass(self, moving: MovingConnection) -> None:
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
            self._send_back(fronts.get(moving.asker), moving)

    def _send_back(self, asker: FrontProcess | None, moving: MovingConnection) -> None:
        """Send a connection back to the front that accepted it, or to any other front; that front
        reports to the client that no front has what it asked for."""
        asker = asker or next((front for front in self._fronts() if front.able), None)
        if asker is None:
            self._drop(moving)
        else:
            self._send(asker, replace(moving, message=moving.message.with_final_hop()))

    def _send(self, front: FrontProcess, moving: MovingConnection) -> None:
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

    def _wait(self, moving: MovingConnection) -> None:
        if len(self._waiting) < WAITING_MAX:
            self._waiting.append(moving)
        else:
            self._drop(moving)

    def _drop(self, moving: MovingConnection) -> None:
        """Close our descriptors of a connection. If no front has taken it, the client loses the
        connection."""
        packets.close_all(moving.fds)
        self._held_bytes -= moving.size_bytes
