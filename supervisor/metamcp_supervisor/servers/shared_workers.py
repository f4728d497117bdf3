"""Workers that several servers share: which servers share one, and its process.

Owns: the name of the worker that a server shares, starting and ending these processes, the servers
that were moved out. Never: what a worker reports about a server (`instances`), deadlines, kills
(`server_copies`).

A server is a process of its own in a shared worker as well. Servers share a worker if they are of
one workspace and their configuration says so; code of others in the worker's own process, and
processes for one client, are alone. A server that makes its neighbours wait, and all servers of a
worker that ends twice, get workers of their own until the gateway is restarted.
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
    return f"{process_names.workspace_of(server.name)}:{choice}"


class _SharedWorker:
    def __init__(self, pid: int, channel: Channel) -> None:
        self.pid = pid
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
        self._workers: dict[str, _SharedWorker] = {}
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
            worker = self._workers.get(shared)
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

    def drop(self, name: str, slot: int) -> None:
        """Let a worker end this server at once."""
        if worker := self._workers.get(name):
            worker.channel.send(messages.pack(DropServer(slot=slot)))

    def on_exit(self, pid: int, servers: Collection[str], now: float) -> None:
        """Forget a worker that has ended, if this is the process of one. `servers`: those that it
        worked for, none if it ended for no fault of theirs. `now`: monotonic seconds."""
        name = next((name for name, each in self._workers.items() if each.pid == pid), "")
        if not name:
            return
        self._workers.pop(name).channel.close()
        ends = self._ends[name]
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
            (name, worker.pid, worker.channel.take_snapshot())
            for name, worker in self._workers.items()
        )

    def adopt(self, snapshots: Iterable[tuple[str, int, ChannelSnapshot]]) -> None:
        """Continue with the workers of the previous program."""
        for name, pid, line in snapshots:
            worker = self._add(name, pid, socket.socket(fileno=line.fd))
            for data, fds in line.waiting:
                worker.channel.send(data, fds)

    def adopt_server(self, name: str, slot: int) -> None:
        """Continue with a server in a worker of the previous program."""
        if worker := self._workers.get(name):
            worker.slots.add(slot)
            self._slots = itertools.count(max(slot + 1, next(self._slots)))

    def _add(self, name: str, pid: int, sock: socket.socket) -> _SharedWorker:
        def on_packet(data: bytes, fds: list[int]) -> None:
            packets.close_all(fds)
            self._on_packet(name, pid, data)

        channel = Channel(sock, on_packet, lambda: None)
        worker = self._workers[name] = _SharedWorker(pid, channel)
        return worker

    def _on_packet(self, name: str, pid: int, data: bytes) -> None:
        try:
            end = messages.unpack_from_shared(data)
        except codec.Malformed:
            return
        self._on_left(pid, end.slot, WorkerExit(pid=pid, code=end.code))
        worker = self._workers.get(name)
        if worker is not None and worker.pid == pid:
            worker.slots.discard(end.slot)
            if not worker.slots:
                del self._workers[name]
                worker.channel.close()
