"""Limits of one HTTP client: how much it may send, and how slowly.

Owns: the fixed limits, those that an operator or a test may change (`ClientLimits`), and the timer
for a request that arrives slowly (`SenderTimer`). Never: limits of MCP.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

URL_BYTES_MAX = 8 * 1024
HEADERS_MAX = 100
HEAD_BYTES_MAX = 32 * 1024
"""Maximum bytes of the names and values of all headers of one request."""
BODY_RATE = 1024
"""Minimum bytes per second, on average, at which a body must come."""
BODY_CHECK_S = 1.0
LINGER_S = 2.0
"""Seconds that a refused client may go on sending. Closing at once would make the kernel throw away
the refusal before the client has read it."""
LINGER_BYTES_MAX = 1024 * 1024
"""Maximum bytes of a refused body to read and discard: enough for those on their way already."""
UNWANTED_BYTES_MAX = 64 * 1024
"""Maximum bytes to read of a body that the application does not ask for (yet)."""
BACKLOG = 2048
"""Maximum connections that wait in the kernel while a front restarts."""
DESCRIPTORS_KEPT = 128
"""Descriptors of the open-file limit that are kept for new pipes, control sockets and blobs."""
END_S = 1.0
"""Seconds to wait from cutting a connection to its end, which takes a few turns of the loop."""


class ClientLimits(Struct, frozen=True, kw_only=True):
    """Seconds and counts that an operator or a test may want otherwise. `makes_room`: if all places
    are taken, a client without a whole request loses its place to a new one. All connections are
    looked at for that, so it is for servers with few."""

    head_s: float = 10.0
    body_grace_s: float = 10.0
    idle_s: float = 60.0
    connections_max: int = 10_000
    makes_room: bool = False


class Sender(Protocol):
    """Sender of a request. `read_paused`: reading is paused now; `body_bytes`: bytes of the body
    that came."""

    read_paused: bool
    body_bytes: int

    def refuse(self, status: int, sentence: str, reason: str) -> None:
        """Answer bytes that cannot become a request any more."""
        ...


class SenderTimer:
    """Timer for one sender: refuses it if its request arrives too slowly."""

    __slots__ = ("_limits", "_loop", "_sender", "_since", "_timer")

    def __init__(self, limits: ClientLimits, sender: Sender) -> None:
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._sender = sender
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def head(self) -> None:
        """Wait for the rest of a head. A connection that pauses reading calls `stop`."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._limits.head_s, self._head_late)

    def body(self, since: float) -> None:
        """Wait for the rest of a body. `since`: time when its first part came."""
        if self._timer is None:
            self._since = since
            self._timer = self._loop.call_later(self._limits.body_grace_s, self._body_late)

    def linger(self, end: Callable[[], None]) -> None:
        """Call `end` in a moment; until then a refused client may go on sending."""
        self.stop()
        self._timer = self._loop.call_later(LINGER_S, end)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_late(self) -> None:
        sentence = f"The head of the request did not arrive within {self._limits.head_s:g} seconds."
        self._sender.refuse(408, sentence, "slow_head")

    def _body_late(self) -> None:
        if self._sender.read_paused:  # not the client's fault: we do not read
            self._since += BODY_CHECK_S
        else:
            counted = self._loop.time() - self._since - self._limits.body_grace_s
            if self._sender.body_bytes <= counted * BODY_RATE:
                sentence = f"The body came with less than {BODY_RATE} bytes per second."
                self._sender.refuse(408, sentence, "slow_body")
                return
        self._timer = self._loop.call_later(BODY_CHECK_S, self._body_late)
