"""Connections of clients that go from one process to another, and those that have come.

Owns: how one leaves here, for its request or between two of them, and how one begins here of which
something was read elsewhere. Never: how it gets there, who has what it asks for.

Bytes that nobody has read yet go with the socket, so that a client which sends something at that
very moment notices nothing.
"""

import asyncio
import os
import socket
from collections.abc import Callable
from typing import cast

from metamcp_worker import asgi
from metamcp_worker.asgi import App, Left, Scope
from metamcp_worker.errors import MetaMCPError
from metamcp_worker.serve import Connection, HttpServer, Limits

AGAIN_S = 0.05
"""Until the next try of a connection that could not leave: its client reads slowly, or too many are
on their way."""


class NotYet(MetaMCPError):
    """A connection cannot be sent away at this moment."""


class MovableServer(HttpServer):
    """One whose connections can go to another process. `away`: takes what leaves between two
    requests when this server drains, or raises NotYet; None: such connections end. `arriving`:
    connections that were taken and have not begun."""

    def __init__(
        self,
        app: App,
        *,
        limits: Limits = Limits(),  # noqa: B008 - frozen
        on_refused: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(app, limits=limits, on_refused=on_refused, kind=Movable)
        self.away: Callable[[Callable[[], Left | None]], None] | None = None
        self.arriving = 0

    def _empty(self) -> bool:
        return not self.arriving and super()._empty()


class Movable(Connection):
    """A connection of a `MovableServer`."""

    _server: MovableServer

    def leave(self, body: bytes) -> Left | None:
        cycle = self._running
        assert cycle is not None
        if cycle.response_started or cycle.disconnected:
            return None
        read = [asgi.request(cast(Scope, cycle.scope), body)]
        for later, _ in reversed(self.pipeline):  # the first in line is at its end
            if not later.more_body:
                read.append(asgi.request(cast(Scope, later.scope), bytes(later.body)))
        # A request that has come in part cannot be written anew: it will not be answered.
        left = self._let_go(b"".join(read), last=not self._whole)
        cycle.disconnected = cycle.disconnected or left is not None
        return left

    def shutdown(self) -> None:
        """The server drains. What is under way is answered first."""
        if self._server.away is None:
            super().shutdown()
        else:
            self._go()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._server.draining and self._server.away is not None:
            self.loop.call_soon(self._go)

    def _go(self) -> None:
        """Leave, if nothing is under way here."""
        busy = self._unanswered or not self._whole
        if busy or self.transport.is_closing() or self._server.away is None:
            return  # after the answer, or not at all
        try:
            if self.transport.get_write_buffer_size():
                raise NotYet("the client has not read its answer")
            self._server.away(lambda: self._let_go(b"", last=False))
        except NotYet:
            self.loop.call_later(AGAIN_S, self._go)

    def _let_go(self, read: bytes, *, last: bool) -> Left | None:
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            return None
        try:
            socket_fd = os.dup(self.transport.get_extra_info("socket").fileno())
        except OSError:
            return None
        self._deaf = True
        self.transport.abort()  # this end of it: the socket has another descriptor now
        return Left(socket_fd, read, last=last)


async def adopt(server: MovableServer, left: Left) -> None:
    """Go on with this connection; its descriptor is taken."""
    sock = socket.socket(fileno=left.socket_fd)
    if server.config is None:  # it does not serve yet
        sock.close()
        return
    server.arriving += 1
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: _Moved(server, left), sock=sock
        )
    except OSError:  # the client went away on the way here
        sock.close()
    finally:
        server.arriving -= 1
        server.gone()


class _Moved(Movable):
    """What was read elsewhere is read here before anything else."""

    def __init__(self, server: MovableServer, left: Left) -> None:
        assert server.config is not None
        super().__init__(server, server.config)
        self.hops = left.hops
        self._left = left

    def connection_made(  # type: ignore[override] # as in its parent
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(transport)
        if self._left.read:
            self.data_received(self._left.read)
        if self._left.last and not self._deaf:
            self._deaf = True
            self.cycle.keep_alive = False
        if self._server.draining:
            self.shutdown()
        del self._left  # it may be large

    def on_response_complete(self) -> None:
        self.hops = 0  # they were for the first request
        super().on_response_complete()
