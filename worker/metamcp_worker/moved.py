"""Connections that another process has accepted, and has read the first request of.

Owns: how such a connection begins here. Never: how it came here, what it asks for.
"""

import asyncio
import socket

from metamcp_worker.asgi import Left
from metamcp_worker.serve import Connection, HttpServer


async def adopt(server: HttpServer, left: Left) -> None:
    """Go on with this connection; its descriptor is taken."""
    sock = socket.socket(fileno=left.socket_fd)
    if server.config is None:  # it does not serve yet
        sock.close()
        return
    try:
        sock.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(
            lambda: _Moved(server, left), sock=sock
        )
    except OSError:  # the client went away on the way here
        sock.close()


class _Moved(Connection):
    """What was read elsewhere is read here before anything else."""

    def __init__(self, server: HttpServer, left: Left) -> None:
        assert server.config is not None
        super().__init__(server, server.config)
        self.hops = left.hops
        self._left = left

    def connection_made(  # type: ignore[override] # as in its parent
        self, transport: asyncio.Transport
    ) -> None:
        super().connection_made(transport)
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
