"""What the tree keeps of one configured server, and the sentences about it in the journal.

Owns: the entry and its two timers. Never: what happens to it (`tree`), the rules (`server`).
"""

import asyncio
import os
from collections.abc import Callable

from metamcp_supervisor.lives.catalogues import Offer
from metamcp_supervisor.lives.instances import Instance
from metamcp_supervisor.lives.server import Life
from metamcp_supervisor.lives.states import Phase
from metamcp_supervisor.wanted.config import Server
from metamcp_supervisor.wanted.remote import origin


class Entry:
    """One configured server. `instance` is there from the fork to the end of everything below it.
    `probe`: ask it first whether it is modern. `removed`: no longer configured, and gone as soon as
    it is down. `answered`: calls that it answered so far, by front."""

    def __init__(self, server: Server, offer: Offer) -> None:
        phase = Phase.IDLE if server.enabled else Phase.DISABLED
        self.server = server
        self.life = Life(phase=phase, restart=server.restart)
        self.offer = offer
        self.instance: Instance | None = None
        self.launch: asyncio.Task[None] | None = None
        self.answered: dict[int, int] = {}
        self.probe = True
        self.removed = False
        self._retry: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def name(self) -> str:
        return self.server.name

    @property
    def running(self) -> bool:
        """Is there a process of it, or will there be one in a moment?"""
        return self.instance is not None or self.launch is not None

    @property
    def launcher(self) -> str:
        """What it depends on, such as a program or a host: those who share it fail together."""
        server = self.server
        if server.url is not None:
            return origin(server.url)
        if server.command:
            return os.path.basename(server.command[0])
        return "module" if server.module is not None else server.transport

    def retry_at(self, when: float, start: Callable[["Entry"], None]) -> None:
        """Call `start` at this time, instead of an earlier plan."""
        self.no_retry()
        self._retry = asyncio.get_running_loop().call_at(when, start, self)

    def no_retry(self) -> None:
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def deadline(self, seconds: float, overdue: Callable[["Entry"], None]) -> None:
        """Call `overdue` after so long, instead of an earlier deadline."""
        self.no_deadline()
        self._deadline = asyncio.get_running_loop().call_later(seconds, overdue, self)

    def no_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def why(life: Life, now: float) -> str:
    """What the journal says of a server that went down."""
    text = f"{life.reason}: {life.message}" if life.reason is not None else ""
    if life.retry_at is not None:
        text += f"; next start in {max(0.0, life.retry_at - now):.1f} s"
    return text
