"""How slowly the requests of one connection may come.

Owns: the limits that an operator or a test may want otherwise, the timer of a request that did not
arrive whole in one read, and of a client that was told to go. Never: what else is wrong with a
request, when a connection idles (`connection`).
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from metamcp_worker.http import bounds


class Limits(Struct, frozen=True, kw_only=True):
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


class Patience:
    """With one sender."""

    __slots__ = ("_limits", "_loop", "_sender", "_since", "_timer")

    def __init__(self, limits: Limits, sender: Sender) -> None:
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
        self._timer = self._loop.call_later(bounds.LINGER_S, end)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_late(self) -> None:
        sentence = f"The head of the request did not arrive within {self._limits.head_s:g} seconds."
        self._sender.refuse(408, sentence, "slow_head")

    def _body_late(self) -> None:
        if self._sender.read_paused:  # not the client's fault: we do not read
            self._since += bounds.BODY_CHECK_S
        else:
            counted = self._loop.time() - self._since - self._limits.body_grace_s
            if self._sender.body_bytes <= counted * bounds.BODY_RATE:
                sentence = f"The body came with less than {bounds.BODY_RATE} bytes per second."
                self._sender.refuse(408, sentence, "slow_body")
                return
        self._timer = self._loop.call_later(bounds.BODY_CHECK_S, self._body_late)
