"""Workers that several servers share: which servers share one, and its process.

Owns: the name of the worker that a server shares, starting and ending these processes, the servers
that were moved out. Never: what a worker reports about a server (`instances`), deadlines, kills
(`server_copies`).

A server is a process of its own in a shared worker as well. Servers share a worker if they are of
one workspace and their configuration says so; code of others in the worker's own process, and
processes for one client, are alone. A server that makes its neighbours wait, and all servers of a
worker that ends twice, get workers of their own until the gateway is restarted or upgraded.
"""

import asyncio
import itertools
import socket
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable

from metamcp_supervisor.config.config import Server
from metamcp_supervisor.fronts.front import Forker
from metamcp_supervisor.processes.nursery import ForkedWorker, NotForked
from metamcp_worker.ipc import codec, messages, packets, process_names
from metamcp_worker.ipc.messages import DropServer, HostServer, WorkerExit
from metamcp_worker.ipc.packets import Channel, ChannelSnapshot

OWN, SHARED = "own", "shared"
REMOTE = "-remote"
"""End of the name of a worker for servers that are reached by URL."""
CRASHES_MAX = 1
CRASHES_WINDOW_S = 600.0
"""Seconds in which a shared worker may end CRASHES_MAX times; after one more end its servers are
alone."""
_TRANSPORTS = frozenset({"auto", "http", "sse"})
"""Transports that are code of this program."""


def find_worker(server: Server, workers: str) -> str:
    """Return the name of the worker that a server shares, empty for a worker of its own. `workers`:
    `workers` of `[gateway]`."""
    choice = server.worker or (SHARED if workers == SHARED else OWN)
    runs_code = server.module is not None or (
        not server.command and server.transport not in _TRANSPORTS
    )
    is_for_one = process_names.parse_client(server.name) not in ("", process_names.LEGACY)
    if choice == OWN or runs_code or is_for_one:
        return ""
    # Names are resolved in threads, and a process with threads must not fork.
    kind = "" if server.command else REMOTE
    return f"{process_names.workspace_of(server.name)}:{choice}{kind}"


class _SharedWorker:
    """Process of a worker; `replaced`: another process takes the servers that start."""

    def __init__(self, name: str, pid: int, channel: Channel) -> None:
        self.name = name
        self.pid = pid
        self.replaced = False
        self.channel = channel
        self.slots: set[int] = set()


class SharedWorkers:
    """`on_left(pid, slot, end)`: a server of a worker is gone; `workers`: as `find_worker` has
    it."""

    def __init__(
        self, forker: Forker, on_left: Callable[[int, int, WorkerExit], None], workers: str
    ) -> None:
        self._forker = forker
        self._on_left = on_left
        self._default = workers
        self._workers: dict[int, _SharedWorker] = {}
        """By process."""
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._slots = itertools.count(1)
        self._ends: defaultdict[str, deque[float]] = defaultdict(deque)
        self._alone: set[str] = set()

    def find(self, server: Server) -> str:
        """Return the name of the worker that this server shares, empty for one of its own."""
        return "" if server.name in self._alone else find_worker(server, self._default)

    def move_out(self, server: str) -> bool:
        """Give this server a worker of its own from its next start. Return whether that is new."""
        is_new = server not in self._alone
        self._alone.add(server)
        return is_new

    def is_alone(self, server: str) -> bool:
        """Whether this server was moved out."""
        return server in self._alone

    async def fork(self, server: Server, name: str) -> ForkedWorker:
        """Start a worker for a server, or let a shared one work for it. As `Nursery.fork`: await
        this method directly. `name`: of a worker of its own. Raises NotForked."""
        shared = self.find(server)
        if not shared:
            return await self._forker.fork("child", name)
        async with self._locks[shared]:
            worker = self._find(shared)
            if worker is None:
                forked = await self._forker.fork("shared", shared)
                worker = self._add(shared, forked.pid, forked.sock)
            try:
                ours, theirs = packets.pair()
            except OSError as error:
                problem = f"{name} gets no control socket: {error.strerror}"
                raise NotForked(problem) from None
            slot = next(self._slots)
            worker.slots.add(slot)
            worker.channel.send(messages.pack(HostServer(slot=slot)), [theirs.detach()])
            return ForkedWorker(worker.pid, "child", name, ours, shared, slot)

    def _find(self, name: str) -> _SharedWorker | None:
        """Return the process that takes the servers that start, None if there is none."""
        workers = (each for each in self._workers.values() if each.name == name)
        return next((each for each in workers if not each.replaced), None)

    def replace(self, name: str) -> None:
        """Let servers of this worker start in another process from now on; the one of now ends with
        its last server."""
        if worker := self._find(name):
            worker.replaced = True

    def drop(self, pid: int, slot: int) -> None:
        """Let a worker end this server at once."""
        if worker := self._workers.get(pid):
            worker.channel.send(messages.pack(DropServer(slot=slot)))

    def on_exit(self, pid: int, servers: Collection[str], now: float) -> None:
        """Forget a worker that has ended, if this is the process of one. `servers`: those that it
        worked for, none if it ended for no fault of theirs. `now`: monotonic seconds."""
        worker = self._workers.pop(pid, None)
        if worker is None:
            return
        worker.channel.close()
        ends = self._ends[worker.name]
        if servers:
            ends.append(now)
        while ends and ends[0] < now - CRASHES_WINDOW_S:
            ends.popleft()
        if len(ends) > CRASHES_MAX:
            self._alone.update(servers)

    def take_snapshot(self) -> tuple[tuple[str, int, ChannelSnapshot], ...]:
        """Return name, process and control socket of each worker, for the program after this
        one."""
        return tuple(
            (worker.name, worker.pid, worker.channel.take_snapshot())
            for worker in self._workers.values()
        )

    def adopt(self, snapshots: Iterable[tuple[str, int, ChannelSnapshot]]) -> None:
        """Continue with the workers of the previous program."""
        for name, pid, line in snapshots:
            worker = self._add(name, pid, socket.socket(fileno=line.fd))
            for data, fds in line.waiting:
                worker.channel.send(data, fds)

    def adopt_server(self, pid: int, slot: int) -> None:
        """Continue with a server in a worker of the previous program."""
        if worker := self._workers.get(pid):
            worker.slots.add(slot)
            self._slots = itertools.count(max(slot + 1, next(self._slots)))

    def _add(self, name: str, pid: int, sock: socket.socket) -> _SharedWorker:
        def on_packet(data: bytes, fds: list[int]) -> None:
            packets.close_all(fds)
            self._on_packet(pid, data)

        channel = Channel(sock, on_packet, lambda: None)
        self.replace(name)
        worker = self._workers[pid] = _SharedWorker(name, pid, channel)
        return worker

    def _on_packet(self, pid: int, data: bytes) -> None:
        try:
            end = messages.unpack_from_shared(data)
        except codec.Malformed:
            return
        self._on_left(pid, end.slot, WorkerExit(pid=pid, code=end.code))
        if worker := self._workers.get(pid):
            worker.slots.discard(end.slot)
            if not worker.slots:
                del self._workers[pid]
                worker.channel.close()
