"""Connections of clients that move to another front, which has the session or task of a request.

Owns: `WrongFront`, which says that a request may belong to another front; sending a connection
away, taking one in, and the limits for connections that wait to be sent. Never: which front has a
session (the supervisor knows), reading requests."""

import asyncio
from collections.abc import Callable
from typing import Protocol

from metamcp_worker.http.connection import ConnectionBusy
from metamcp_worker.http.request_head import MovedConnection
from metamcp_worker.ipc import messages, packets
from metamcp_worker.ipc.errors import TooLarge
from metamcp_worker.ipc.messages import HandOver, Message

QUEUED_MAX = 64
"""Maximum packets in the control socket, each connection with two descriptors; with more, a further
client is asked to try again."""
LARGE_BYTES = 256 * 1024
"""Bytes above which the body of a request counts as large."""
QUEUED_LARGE_MAX = 4
"""Maximum packets in the control socket for a request with a large body, which takes memory."""


PARTED_MAX = 32
"""Maximum connections that leave within PARTED_S: the other front has to keep up."""
PARTED_S = 0.05
"""Seconds over which connections that leave are counted."""


NOBODY = -1
"""Number that no front has."""


class WrongFront(Exception):
    """Raised for a name that is not known here. `maker`: number of the front that created the name;
    `otherwise`: error for the client if no other front has it either. Without a name: any other
    front can answer the request."""

    def __init__(self, name: str, maker: int, otherwise: Exception) -> None:
        super().__init__(name)
        self.name = name
        self.maker = maker
        self.otherwise = otherwise


def build_unknown_error(name: str, otherwise: Exception) -> Exception:
    """Return the exception to raise for a name that is not known here."""
    maker = messages.maker(name)
    return otherwise if maker is None else WrongFront(name, maker, otherwise)


class MovableRequest(Protocol):
    """Request whose connection may move, as in `requests.HttpRequest`."""

    @property
    def hops(self) -> int: ...

    def leave(self, body: bytes) -> MovedConnection | None: ...


class Handover:
    """Sends connections to other fronts. `send`: queues a message with its descriptors; `queued`:
    number of messages in that queue."""

    def __init__(
        self, send: Callable[[Message, tuple[int, ...]], None], queued: Callable[[], int]
    ) -> None:
        self._send = send
        self._queued = queued
        self._since = 0.0
        self._parted = 0

    def give(self, request: MovableRequest, elsewhere: WrongFront, body: bytes) -> bool:
        """Send the connection of a request with this body to the front that can answer the request.
        Returns False if the connection cannot move now."""
        queued_max = QUEUED_LARGE_MAX if len(body) > LARGE_BYTES else QUEUED_MAX
        moved = None if self._queued() >= queued_max else request.leave(body)
        if moved is None:
            return False
        try:
            blob = packets.blob(moved.read)
        except (OSError, TooLarge):  # no descriptor is free: the client is cut
            packets.close_all([moved.socket_fd])
            return True
        hops = request.hops + 1
        message = HandOver(name=elsewhere.name, maker=elsewhere.maker, hops=hops, last=moved.last)
        self._send(message, (blob, moved.socket_fd))
        return True

    def part(self, leave: Callable[[], MovedConnection | None]) -> None:
        """Send a connection between two requests to any other front. Raises NotYet."""
        now = asyncio.get_running_loop().time()
        if now - self._since > PARTED_S:
            self._since, self._parted = now, 0
        self._parted += 1
        if self._parted > PARTED_MAX or self._queued() >= QUEUED_MAX:
            raise ConnectionBusy("too many connections are on their way")
        moved = leave()
        if moved is None:
            raise ConnectionBusy("it cannot leave now")
        try:
            blob = packets.blob(moved.read)
        except OSError:  # no descriptor is free: the client is cut
            packets.close_all([moved.socket_fd])
            return
        self._send(HandOver(name="", maker=NOBODY, hops=0), (blob, moved.socket_fd))


def take_connection(message: HandOver, fds: list[int]) -> MovedConnection:
    """Return the connection that came with these descriptors, and remove them from `fds`. Raises
    OSError and TooLarge."""
    read = packets.read_blob(fds.pop(0))
    return MovedConnection(fds.pop(0), read, message.last, message.hops)
