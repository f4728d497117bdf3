"""Connections of clients on their way from this front to the one that has what they ask for.

Owns: sending a connection away, taking one in, and the bound on those that wait to be sent. Never:
whose a session is (the supervisor knows), what a request asks for.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from metamcp_worker.front.wrong_front import NOBODY, Elsewhere
from metamcp_worker.http.http1 import MovedConnection
from metamcp_worker.http.movable import NotYet
from metamcp_worker.ipc import packets
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.messages import HandOver, Message

QUEUED_MAX = 64
"""Packets that may wait in the control socket, each connection with two descriptors; a client that
comes then is told to try again."""
LARGE_BYTES = 256 * 1024
QUEUED_LARGE_MAX = 4
"""The same for a request with a body that is larger than that: what waits takes memory."""


PARTED_MAX = 32
PARTED_S = 0.05
"""No more connections than that in this time: their heir has to take them, too."""


class Leaving(Protocol):
    """A request whose connection may go, as in `requests.HttpRequest`."""

    @property
    def hops(self) -> int: ...

    def leave(self, body: bytes) -> MovedConnection | None: ...


class Handover:
    """`send`: queues a message with its descriptors; `queued`: how many are queued there."""

    def __init__(
        self, send: Callable[[Message, tuple[int, ...]], None], queued: Callable[[], int]
    ) -> None:
        self._send = send
        self._queued = queued
        self._since = 0.0
        self._parted = 0

    def give(self, request: Leaving, where: Elsewhere, body: bytes) -> bool:
        """Send this connection to whoever has what its request, with this body, asks for. False: it
        cannot go now."""
        queued_max = QUEUED_LARGE_MAX if len(body) > LARGE_BYTES else QUEUED_MAX
        left = None if self._queued() >= queued_max else request.leave(body)
        if left is None:
            return False
        try:
            blob = packets.blob(left.read)
        except (OSError, TooLarge):  # no descriptor is free: the client is cut
            packets.close_all([left.socket_fd])
            return True
        hops = request.hops + 1
        message = HandOver(name=where.name, maker=where.maker, hops=hops, last=left.last)
        self._send(message, (blob, left.socket_fd))
        return True

    def part(self, leave: Callable[[], MovedConnection | None]) -> None:
        """Send a connection between two requests to any other front. Raises moved.NotYet."""
        now = asyncio.get_running_loop().time()
        if now - self._since > PARTED_S:
            self._since, self._parted = now, 0
        self._parted += 1
        if self._parted > PARTED_MAX or self._queued() >= QUEUED_MAX:
            raise NotYet("too many connections are on their way")
        left = leave()
        if left is None:
            raise NotYet("it cannot leave now")
        try:
            blob = packets.blob(left.read)
        except OSError:  # no descriptor is free: the client is cut
            packets.close_all([left.socket_fd])
            return
        self._send(HandOver(name="", maker=NOBODY, hops=0), (blob, left.socket_fd))


def taken(message: HandOver, fds: list[int]) -> MovedConnection:
    """A connection that comes with its descriptors, which then are gone from `fds`. Raises OSError
    and TooLarge."""
    read = packets.read_blob(fds.pop(0))
    return MovedConnection(fds.pop(0), read, message.last, message.hops)
