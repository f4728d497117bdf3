"""Connections taken from a listening socket, and left in its queue while there is no descriptor.

Owns: the listening socket, the pause when a process is at its open-file limit, the descriptors that
are kept for that time. Never: what is said on a connection.

At the limit one library closes what waits in the queue, so that clients are cut, and the other one
logs a stack each second. Here they wait: another process may listen on the same socket, and this
one goes on as soon as it can. Where somebody must always get in, a few descriptors are held back.
"""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable

from metamcp_worker.http import client_limits
from metamcp_worker.ipc import packets

log = logging.getLogger("metamcp.http")

AT_ONCE_MAX = 64
"""Connections in one turn of the loop; then others have theirs."""
PAUSE_S = 0.25
"""Until the next try without a free descriptor. Connections end at any time, and a try is cheap."""


class Acceptor:
    """Accepts on `listener`, which it owns, until `close`. `make`: the protocol of a connection.
    `reserve`: descriptors that are given up for connections when no other is free."""

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[], asyncio.BaseProtocol],
        *,
        reserve: int = 0,
    ) -> None:
        self._listener = listener
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._pause: asyncio.TimerHandle | None = None
        self._open = self._admits = True
        self._reserve_max = reserve
        self._reserve: list[int] = []
        self.refill()
        listener.setblocking(False)
        if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            listener.listen(client_limits.BACKLOG)
        self._loop.add_reader(listener, self._accept)

    async def close(self) -> None:
        """Take no more. The socket is closed, never shut down: others may listen on it too. What
        was taken has its protocol when this returns."""
        if not self._open:
            return
        self._open = False
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        packets.close_all(self._reserve)
        self._reserve.clear()
        if self._opening:
            await asyncio.wait(self._opening, timeout=client_limits.END_S)

    @property
    def opening(self) -> bool:
        """Is there a connection that has no protocol yet?"""
        return bool(self._opening)

    def admit(self, yes: bool) -> None:
        """Take connections, or leave them in the queue for now."""
        self._admits = yes
        if self._open and yes:
            self._loop.add_reader(self._listener, self._accept)
        elif self._open:
            self._loop.remove_reader(self._listener)

    def refill(self) -> None:
        """Hold back what is free now, as after the end of a connection."""
        with contextlib.suppress(OSError):
            while self._open and len(self._reserve) < self._reserve_max:
                self._reserve.append(os.dup(self._listener.fileno()))

    def _accept(self) -> None:
        for _ in range(AT_ONCE_MAX):
            try:
                sock, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:
                continue  # the client left while it waited
            except OSError as error:
                if not self._reserve:
                    log.warning("connections wait in the queue: %s", error.strerror)
                    self._loop.remove_reader(self._listener)
                    self._rest()
                    return
                os.close(self._reserve.pop())
                self._rest()
                continue
            task = self._loop.create_task(self._begin(sock))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _begin(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        try:
            await self._loop.connect_accepted_socket(self._make, sock)
        except OSError:  # the client is gone
            sock.close()

    def _rest(self) -> None:
        if self._pause is None:
            self._pause = self._loop.call_later(PAUSE_S, self._resume)

    def _resume(self) -> None:
        """Go on accepting, or try to, and hold as much back as before."""
        self._pause = None
        if self._admits:
            self._loop.add_reader(self._listener, self._accept)
        self.refill()
        if len(self._reserve) < self._reserve_max:
            self._rest()
