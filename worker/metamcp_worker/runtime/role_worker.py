"""Base of the processes that work for fronts and the supervisor: audit, sandboxes, engine, vectors.

Owns: the control socket, the acceptor, heartbeats and figures, background tasks, the end of
the process. Never: what a process does.
"""

import asyncio
import itertools
import logging
import socket
from collections.abc import Callable

from msgspec import structs

from metamcp_worker.ipc import codec, messages, packets
from metamcp_worker.ipc.envelope import Message
from metamcp_worker.ipc.errors import DescriptorsLost, PeerGone, TooLarge
from metamcp_worker.ipc.messages import Heartbeat, Stop, Tune
from metamcp_worker.ipc.packets import Channel
from metamcp_worker.ipc.spec import LogSpec
from metamcp_worker.runtime import logs
from metamcp_worker.runtime.loop import BackgroundTasks

BEAT_S = 1.0
END_S = 1.0
"""Seconds for cancelled tasks to end."""
RETIRE_S_MAX = 30.0
"""Seconds for what is under way when the supervisor is gone."""


class RoleWorker:
    """Process with a role. `what`: words for it; `read`: reads the messages of the supervisor. A
    subclass carries out those in `take`."""

    what = ""
    log = logging.getLogger("metamcp")
    links_max = 64
    """Maximum connections; a further one is closed at once."""

    def __init__(self, sock: socket.socket, read: Callable[[bytes], Message]) -> None:
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[int] = self._loop.create_future()
        self._read = read
        self._levels = LogSpec()
        self._acceptor: socket.socket | None = None
        self._chores = BackgroundTasks(self.faulty)
        self._channel = Channel(sock, self._packet, lambda: self.retire(RETIRE_S_MAX))

    async def run(self) -> int:
        """Run until the end, and return the exit code."""
        self._chores.begin(self._beat())
        self._chores.begin(logs.count_every_second())
        try:
            return await self._over
        finally:
            self.deafen()
            await self.end()
            self._channel.close()

    # Of a subclass

    def take(self, message: Message, fds: list[int]) -> None:
        """Carry out a message of the supervisor. `fds`: closed after it, unless they are taken
        out. Raises codec.Malformed, TooLarge and OSError, which end the process."""
        raise NotImplementedError

    def figures(self) -> Message:
        """Return the figures of the process, which are sent with a heartbeat if they are new."""
        raise NotImplementedError

    def on_connection(self, sock: socket.socket) -> None:
        """Take a connection of a front, or of the supervisor; it does not block."""
        raise NotImplementedError

    @property
    def links(self) -> int:
        """Number of connections that are open."""
        return 0

    def on_heartbeat(self) -> None:
        """Work that is due with each heartbeat."""

    def retire(self, within_s: float) -> None:
        """Take nothing new, and end when all is done, after at most `within_s` seconds."""
        self.finish(0)

    async def end(self) -> None:
        """Close everything but the sockets of this class."""
        await self._chores.close(END_S)

    # For a subclass

    @property
    def accepts(self) -> bool:
        """Whether connections are taken."""
        return self._acceptor is not None

    def accept(self, acceptor: socket.socket) -> None:
        """Take connections from this acceptor (`packets`), in place of the one before."""
        self.deafen()
        acceptor.setblocking(False)
        self._acceptor = acceptor
        self._loop.add_reader(acceptor, self._accept)

    def deafen(self) -> None:
        """Close the acceptor; the supervisor may have another descriptor of it."""
        if self._acceptor is not None:
            self._loop.remove_reader(self._acceptor)
            self._acceptor.close()
            self._acceptor = None

    def tell(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        """Send a message to the supervisor."""
        self._channel.send(messages.pack(message), fds)

    def finish(self, code: int) -> None:
        """End with this exit code."""
        if not self._over.done():
            self._over.set_result(code)

    def faulty(self, error: BaseException) -> None:
        """End, because a background task failed."""
        self.log.error("%s ends and has a fault", self.what, exc_info=error)
        self.finish(1)

    def _packet(self, data: bytes, fds: list[int]) -> None:
        try:
            match self._read(data):
                case Tune(format=form, level=level, levels=levels):
                    spec = structs.replace(self._levels, format=form, level=level, levels=levels)
                    logs.tune(spec)
                case Stop(grace_s=grace_s):
                    self.retire(grace_s)
                case message:
                    self.take(message, fds)
        except (codec.Malformed, TooLarge, OSError) as error:
            self.log.error("%s ends, as it cannot do what it is told: %s", self.what, error)
            self.finish(1)
        finally:
            packets.close_all(fds)

    def _accept(self) -> None:
        assert self._acceptor is not None
        try:
            sock = packets.accept(self._acceptor)
        except PeerGone:  # the supervisor and all fronts have ended
            self.deafen()
            return
        except (DescriptorsLost, OSError):  # its front connects again
            return
        if self.links >= self.links_max:
            sock.close()
            return
        sock.setblocking(False)
        self.on_connection(sock)

    async def _beat(self) -> None:
        last_figures: Message | None = None
        for number in itertools.count(1):
            due = self._loop.time() + BEAT_S
            await asyncio.sleep(BEAT_S)
            self.on_heartbeat()
            self.tell(Heartbeat(seq=number, lag_ms=(self._loop.time() - due) * 1000))
            figures = self.figures()
            if figures != last_figures:
                last_figures = figures
                self.tell(figures)
