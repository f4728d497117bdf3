"""What one HTTP client may send and how long it may take: the numbers of `serve`.

Owns: the limits that nobody needs otherwise. Never: those that an operator or a test sets
(`patience.Limits`), and those of MCP.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

URL_BYTES_MAX = 8 * 1024
HEADERS_MAX = 100
HEAD_BYTES_MAX = 32 * 1024
"""Names and values of all headers of one request."""
BODY_RATE = 1024
"""Bytes per second, on average, that a body must come with."""
BODY_CHECK_S = 1.0
LINGER_S = 2.0
"""How long a refused client may go on sending. Closing at once would make the kernel throw away
the refusal before the client has read it."""
LINGER_BYTES_MAX = 1024 * 1024
"""Of a body that nobody wants: enough for what is on its way already."""
UNWANTED_BYTES_MAX = 64 * 1024
"""Of a body that the application does not ask for (yet); then nothing more is read."""
KNOWN_HEADS_MAX = 512
"""Heads of requests that a server knows by their bytes; it begins anew when there are more."""
KNOWN_BYTES_MAX = 2048
"""The size of one. Together they are a megabyte or two, parsed."""
BACKLOG = 2048
"""Connections that wait in the kernel while a front restarts."""
DESCRIPTORS_KEPT = 128
"""Of this process's open-file limit: for pipes to come, control sockets and blobs."""
END_S = 1.0
"""From cutting a connection to its end: a few turns of the loop."""


class ClientLimits(Struct, frozen=True, kw_only=True):
    """Seconds and counts that an operator or a test may want otherwise."""

    head_s: float = 10.0
    body_grace_s: float = 10.0
    idle_s: float = 60.0
    connections_max: int = 10_000


class Sender(Protocol):
    """Who sends. `read_paused`: nothing of it is read now; `body_bytes`: came of the body."""

    read_paused: bool
    body_bytes: int

    def refuse(self, status: int, sentence: str, reason: str) -> None:
        """Answer what cannot be a request any more."""
        ...


class SenderPatience:
    """With one sender."""

    __slots__ = ("_limits", "_loop", "_sender", "_since", "_timer")

    def __init__(self, limits: ClientLimits, sender: Sender) -> None:
        self._loop = asyncio.get_running_loop()
        self._limits = limits
        self._sender = sender
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def head(self) -> None:
        """The rest of a head has to come. Whoever does not read it stops this meanwhile."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._limits.head_s, self._head_late)

    def body(self, since: float) -> None:
        """The rest of a body has to come. `since`: its first part is there."""
        if self._timer is None:
            self._since = since
            self._timer = self._loop.call_later(self._limits.body_grace_s, self._body_late)

    def linger(self, end: Callable[[], None]) -> None:
        """The client was told to go, and may go on sending for a moment."""
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
