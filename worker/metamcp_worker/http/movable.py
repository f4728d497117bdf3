"""Connections of clients that move from one process to another.

Owns: how a connection leaves this process, for its request or between two requests, and how a
connection begins here of which another process has read bytes. Never: how it gets there, which
process is the right one for a request.

Unread bytes move with the socket, so that a client which is sending at that moment notices nothing.
"""

import asyncio
import os
import socket
from collections.abc import Callable

from metamcp_worker.http import http1
from metamcp_worker.http.client_limits import ClientLimits
from metamcp_worker.http.connection import Connection
from metamcp_worker.http.http1 import MovedConnection
from metamcp_worker.http.requests import Handler, HttpRequest
from metamcp_worker.http.serve import HttpServer
from metamcp_worker.ipc.errors import MetaMCPError

AGAIN_S = 0.05
"""Seconds until the next try of a connection that could not leave, because its client reads slowly
or too many are on their way."""


class NotYet(MetaMCPError):
    """Raised if a connection cannot be sent away at this moment."""


class MovableServer(HttpServer):
    """HTTP server whose connections can move to another process. `away`: takes a connection that
    leaves between two requests when this server drains, or raises NotYet; None: such connections
    end. `arriving`: number of connections that were taken and have not begun."""

    def __init__(
        self,
        app: Handler,
        *,
        limits: ClientLimits = ClientLimits(),  # noqa: B008 - frozen
        on_refused: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(app, limits=limits, on_refused=on_refused, kind=Movable)
        self.away: Callable[[Callable[[], MovedConnection | None]], None] | None = None
        self.arriving = 0

    def _empty(self) -> bool:
        return not self.arriving and super()._empty()


class Movable(Connection):
    """Connection of a `MovableServer`."""

    _server: MovableServer

    def leave(self, request: HttpRequest, body: bytes) -> MovedConnection | None:
        if request.begun or request.lost:
            return None
        read = [http1.request(request.head, body)]
        read += [http1.request(one.head, one.came_so_far) for one in self._queue if one.whole]
        # A request that has come in part cannot be written anew: it will not be answered.
        left = self._let_go(b"".join(read), last=not self._whole)
        if left is not None:
            request.lost = True
        return left

    def shutdown(self) -> None:
        """Move or close the connection for a server that drains, after the answers under way."""
        if self._server.away is None:
            super().shutdown()
        else:
            self._go()

    def completed(self) -> None:
        super().completed()
        if self._server.draining and self._server.away is not None:
            self.loop.call_soon(self._go)

    def _go(self) -> None:
        """Move to another process, if no request is under way here."""
        busy = self._begun > self._answered or not self._whole
        if busy or self.transport.is_closing() or self._server.away is None:
            return  # after the answer, or not at all
        try:
            if self.transport.get_write_buffer_size():
                raise NotYet("the client has not read its answer")
            self._server.away(lambda: self._let_go(b"", last=False))
        except NotYet:
            self.loop.call_later(AGAIN_S, self._go)

    def _let_go(self, read: bytes, *, last: bool) -> MovedConnection | None:
        if self.transport.is_closing() or self.transport.get_write_buffer_size():
            return None
        try:
            socket_fd = os.dup(self.transport.get_extra_info("socket").fileno())
        except OSError:
            return None
        self._deaf = True
        self.transport.abort()  # this end of it: the socket has another descriptor now
        return MovedConnection(socket_fd, read, last=last)


async def adopt(server: MovableServer, left: MovedConnection) -> None:
    """Continue with this connection. Takes its descriptor."""
    sock = socket.socket(fileno=left.socket_fd)
    if not server.started:
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
    """Connection from another process; the bytes that were read there are parsed first."""

    def __init__(self, server: MovableServer, left: MovedConnection) -> None:
        super().__init__(server)
        self.hops = left.hops
        self._left = left

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._left.read and not self._deaf:
            self._parse(self._left.read)
        if self._left.last and not self._deaf:
            self._deaf = True
            self._last_one()
        del self._left  # it may be large
        if self._server.draining:
            self.shutdown()
        self._advance()

    def completed(self) -> None:
        self.hops = 0  # they were for the first request
        super().completed()
