"""HTTP/1.1 server on listening sockets, for any application: all connections, and the graceful end.

Owns: accepting, the maximum of connections, draining; the pause when a process is at its open-file
limit, and the descriptors that are reserved for that time. Never: a single connection
(`connection`), a path, MCP.

At the limit one library closes the waiting connections, so that clients are cut, and another logs a
stack each second. Here connections wait: another process may listen on the same socket, and this
process goes on as soon as it can. A listener that must always be reachable reserves a few
descriptors.
"""

import asyncio
import contextlib
import logging
import os
import resource
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from metamcp_worker.http import client_limits
from metamcp_worker.http.client_limits import ClientLimits
from metamcp_worker.http.connection import Connection
from metamcp_worker.http.request_head import MovedConnection
from metamcp_worker.http.requests import Handler, HttpRequest
from metamcp_worker.ipc import packets

if TYPE_CHECKING:
    from metamcp_worker.http.tls_files import TlsFiles

__all__ = ["ClientLimits", "HttpServer"]

log = logging.getLogger("metamcp.http")

_CONNECTIONS = (
    "connections", "This gateway has as many connections as it may have; try again later.",
)  # fmt: skip
_DESCRIPTORS = (
    "descriptors", "This gateway has no free descriptors for more connections; try again later.",
)  # fmt: skip
_RAISE = "raise the limit of open files (ulimit -n, LimitNOFILE=)"


class HttpServer:
    """Serves one application on listening sockets. `on_refused`: gets a word for every request that
    is refused before the application sees it. `request`: class of the requests; `reserve`: number
    of descriptors reserved for connections when no other is free; `tls`: None for plain HTTP;
    `open`: the connections; `tasks`: of requests that wait;
    `started`: it accepts, or did; `draining`: it accepts no more;
    `ended`: no connection is open, or time is up.

    `away`: takes a connection that leaves for another process between two requests when this server
    drains, or raises NotYet; None: such connections end. `arriving`: number of connections that
    were taken from another process and have not begun."""

    def __init__(
        self,
        app: Handler,
        *,
        request: type[HttpRequest] = HttpRequest,
        limits: ClientLimits = ClientLimits(),  # noqa: B008 - frozen
        on_refused: Callable[[str], None] | None = None,
        reserve: int = 0,
        tls: "TlsFiles | None" = None,
    ) -> None:
        self.app = app
        self._tls = tls
        self.request = request
        self.limits = limits
        self.tasks: set[asyncio.Task[None]] = set()
        self.away: Callable[[Callable[[], MovedConnection | None]], None] | None = None
        self.arriving = 0
        self.open: set[Connection] = set()
        self.started = False
        self.draining = False
        self.ended = False
        self._fd_max = sys.maxsize
        self._shaking: dict[asyncio.Task[None], None] = {}
        """Handshakes under way, oldest first."""
        self._reserve = reserve
        self._on_refused = on_refused
        self._acceptors: list[Acceptor] = []
        self._quiet: asyncio.Future[None] | None = None

    @property
    def connections(self) -> int:
        return len(self.open)

    @property
    def handshakes(self) -> int:
        """Number of connections that do not speak TLS yet."""
        return len(self._shaking)

    def full(self, fd: int) -> tuple[str, str] | None:
        """Why the newest connection, with this descriptor, is over a limit, as a word and a
        sentence, or None. A new descriptor has the lowest free number, which shows how many
        descriptors there are, those of pipes included."""
        if self.connections > self.limits.connections_max and not self._make_room(fd):
            return _CONNECTIONS
        if fd >= self._fd_max:
            log.warning("no free descriptors: connections are refused; %s", _RAISE)
            return _DESCRIPTORS
        return None

    def _make_room(self, fd: int) -> bool:
        """End a connection without a whole request in favour of the newest one, which has this
        descriptor: of the address with the most connections, the one that was silent longest.
        Returns False if there is none."""
        others = [
            connection
            for connection in (self.open if self.limits.makes_room else ())
            if connection.dispensable
            and connection.transport.get_extra_info("socket").fileno() != fd
        ]
        if not others:
            return False
        counts = Counter(connection.address for connection in self.open)
        longest = min(
            others, key=lambda connection: (-counts[connection.address], connection.heard_at)
        )
        self.open.discard(longest)
        longest.transport.abort()
        self.report_refusal(_CONNECTIONS[0])
        return True

    async def start(self, sockets: Sequence[socket.socket]) -> None:
        """Accept on these sockets; the server owns them now. Other processes may share them."""
        self.started = True
        files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if files != resource.RLIM_INFINITY and not self._reserve:
            self._fd_max = max(files - client_limits.DESCRIPTORS_KEPT, files // 2)
        for sock in sockets:
            make = partial(Connection, self)
            tls = None if sock.family == socket.AF_UNIX else self._tls
            shaken = None if tls is None else partial(self._shaken, tls, make)
            self._acceptors.append(Acceptor(sock, make, reserve=self._reserve, shaken=shaken))

    async def drain(self, grace_s: float) -> None:
        """Accept no more, let open requests finish for `grace_s`, then cut the rest.

        The listening sockets are closed here, never shut down: other processes still use them.
        """
        self.draining = True
        while self._acceptors:
            await self._acceptors.pop().close()
        for connection in list(self.open):
            connection.shutdown()
        if not await self._wait_until_empty(grace_s):
            for connection in list(self.open):
                connection.transport.abort()
            await self._wait_until_empty(client_limits.END_S)
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=client_limits.END_S)

    async def adopt(self, moved: MovedConnection) -> None:
        """Continue with a connection from another process. Takes its descriptor."""
        sock = socket.socket(fileno=moved.socket_fd)
        if not self.started:
            sock.close()
            return
        self.arriving += 1
        try:
            sock.setblocking(False)
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: Connection(self, moved), sock=sock
            )
        except OSError:  # the client went away on the way here
            sock.close()
        finally:
            self.arriving -= 1
            self.on_connection_end()

    async def _shaken(
        self, tls: "TlsFiles", make: Callable[[], Connection], sock: socket.socket
    ) -> None:
        """Give an accepted socket its protocol after a handshake. Handshakes count as connections
        do; one too many is closed, because nothing can be said yet. Raises OSError."""
        limits, full = self.limits, self.handshakes >= self.limits.connections_max
        if full and limits.makes_room:  # the oldest of them gives way
            oldest = next(iter(self._shaking))
            del self._shaking[oldest]
            oldest.cancel()
        reason = "connections" if full and not limits.makes_room else ""
        if sock.fileno() >= self._fd_max:
            reason = _DESCRIPTORS[0]
            log.warning("no free descriptors: connections are refused; %s", _RAISE)
        if reason:
            self.report_refusal(reason)
            sock.close()
            return
        task = asyncio.current_task()
        assert task is not None
        self._shaking[task] = None
        try:
            await tls.accept(asyncio.get_running_loop(), make, sock, limits.head_s)
        finally:
            self._shaking.pop(task, None)

    def report_refusal(self, reason: str) -> None:
        if self._on_refused is not None:
            self._on_refused(reason)

    def on_connection_end(self) -> None:
        """Note that a connection has ended."""
        for acceptor in self._acceptors:
            acceptor.refill()
        if self._quiet is not None and self._empty():
            self.ended = True  # at this very moment: nothing can come in between
            if not self._quiet.done():
                self._quiet.set_result(None)

    def _empty(self) -> bool:
        return not (self.open or self.arriving)

    async def _wait_until_empty(self, wait_s: float) -> bool:
        self._quiet = asyncio.get_running_loop().create_future()
        self.on_connection_end()
        done, _ = await asyncio.wait([self._quiet], timeout=wait_s)
        self.ended = True
        return bool(done)


AT_ONCE_MAX = 64
"""Maximum connections accepted in one turn of the loop, so that other work has its turn."""
PAUSE_S = 0.25
"""Seconds until the next try without a free descriptor; short, because connections end at any time
and a try is cheap."""


class Acceptor:
    """Accepts on `listener`, which it owns, until `close`. `make`: returns the protocol of a new
    connection. `reserve`: number of descriptors to give up for connections when no other is free;
    `shaken`: gives a connection its protocol after a handshake; None for plain connections."""

    def __init__(
        self,
        listener: socket.socket,
        make: Callable[[], asyncio.BaseProtocol],
        *,
        reserve: int = 0,
        shaken: Callable[[socket.socket], Awaitable[None]] | None = None,
    ) -> None:
        self._listener = listener
        self._shaken = shaken
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
            _, late = await asyncio.wait(self._opening, timeout=client_limits.END_S)
            for task in late:  # a handshake: its connection would begin after the end
                task.cancel()

    @property
    def is_opening(self) -> bool:
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
            if self._shaken is None:
                await self._loop.connect_accepted_socket(self._make, sock)
            else:
                await self._shaken(sock)
        except OSError:  # the client is gone, or does not speak TLS
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
