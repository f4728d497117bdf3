"""Accepting connections of a listening socket; without free descriptors they wait in its queue.

Owns: the listening socket, the pause when a process is at its open-file limit, the descriptors that
are reserved for that time. Never: the bytes on a connection.

At the limit one library closes the waiting connections, so that clients are cut, and another logs a
stack each second. Here connections wait: another process may listen on the same socket, and this
process goes on as soon as it can. A listener that must always be reachable reserves a few
descriptors.
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
"""Maximum connections accepted in one turn of the loop, so that other work has its turn."""
PAUSE_S = 0.25
"""Seconds until the next try without a free descriptor; short, because connections end at any time
and a try is cheap."""


class Acceptor:
    """Accepts on `listener`, which it owns, until `close`. `make`: returns the protocol of a new
    connection. `reserve`: number of descriptors to give up for connections when no other is free.
    """

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
        """Accept no more. Closes the socket and never shuts it down: other processes may listen on
        it too. Accepted connections have their protocols when this returns."""
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
        """Whether an accepted connection has no protocol yet."""
        return bool(self._opening)

    def admit(self, yes: bool) -> None:
        """Accept connections, or leave them in the queue for now."""
        self._admits = yes
        if self._open and yes:
            self._loop.add_reader(self._listener, self._accept)
        elif self._open:
            self._loop.remove_reader(self._listener)

    def refill(self) -> None:
        """Reserve descriptors that are free now, as after the end of a connection."""
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
        """Try to accept again, and fill the reserve again."""
        self._pause = None
        if self._admits:
            self._loop.add_reader(self._listener, self._accept)
        self.refill()
        if len(self._reserve) < self._reserve_max:
            self._rest()
