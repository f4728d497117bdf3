"""Process of the console: it serves the pages on the listening socket of the supervisor.

Owns: the server, its figures, and when nobody looks any more. Never: paths and pages (`site`).
"""

import logging
import socket

from metamcp_supervisor.console.site import ConsoleSite
from metamcp_supervisor.control.console_sessions import ConsoleFigures, ConsoleIdle, ConsoleOn
from metamcp_worker.http.serve import ClientLimits, HttpServer
from metamcp_worker.ipc import codec, packets
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.messages import Stop, Tune
from metamcp_worker.runtime import loop
from metamcp_worker.runtime.role_worker import RoleWorker

IDLE_S_MAX = 15 * 60.0
"""Seconds without a request and an open page after which the process may end."""
CONNECTIONS_MAX = 256
"""Maximum connections of browsers: each tab has some."""
DRAIN_S = 1.0
"""Seconds for open requests to end."""

log = logging.getLogger("metamcp.console")
_read = codec.reader(ConsoleOn | Tune | Stop)


def main(sock: socket.socket) -> int:
    """Run this process and return its exit code. `sock`: the control socket to the supervisor."""
    return loop.run(_live(sock))


async def _live(sock: socket.socket) -> int:
    return await ConsoleWorker(sock).run()


class ConsoleWorker(RoleWorker):
    what = "the console"
    log = log

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock, _read)
        self._site: ConsoleSite | None = None
        self._server: HttpServer | None = None
        self._seen = 0
        self._active = self._loop.time()

    def take(self, message: Message, fds: list[int]) -> None:
        if isinstance(message, ConsoleOn) and fds and self._server is None:
            self._chores.begin(self._serve(message, socket.socket(fileno=packets.take_fd(fds))))

    async def _serve(self, on: ConsoleOn, listener: socket.socket) -> None:
        tls = None
        if on.tls is not None:
            from metamcp_worker.http.tls_files import TlsFiles  # few consoles have it

            tls = TlsFiles(on.tls)
            self._chores.begin(tls.follow())
        self._site = ConsoleSite(on)
        limits = ClientLimits(connections_max=CONNECTIONS_MAX, makes_room=True)
        self._server = HttpServer(self._site, limits=limits, tls=tls)
        listener.setblocking(False)
        await self._server.start([listener])

    def figures(self) -> ConsoleFigures:
        site = self._site
        return (
            ConsoleFigures()
            if site is None
            else ConsoleFigures(requests=site.requests, streams=site.streams)
        )

    def on_heartbeat(self) -> None:
        figures, now = self.figures(), self._loop.time()
        if figures.streams or figures.requests != self._seen:
            self._seen, self._active = figures.requests, now
        elif now - self._active > IDLE_S_MAX:
            self._active = now
            self.tell(ConsoleIdle())

    def retire(self, within_s: float) -> None:
        self.finish(0)

    async def end(self) -> None:
        if self._server is not None:
            await self._server.drain(DRAIN_S)
        await super().end()
