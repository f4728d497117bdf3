"""The worker of several servers: one process, one event loop, a `ServerWorker` for each server.

Owns: the control socket of the process, the pulse for all of its servers, processes that servers
leave behind, which are told apart by their marks. Never: the work for one server (`run`), which
servers share a worker.
"""

import asyncio
import logging
import os
import signal
import socket

from metamcp_worker.child import process
from metamcp_worker.child.run import EXIT_SERVER_DOWN, ServerWorker
from metamcp_worker.ipc import messages, packets
from metamcp_worker.ipc.messages import DropServer, HostServer, ServerLeft
from metamcp_worker.ipc.packets import Channel
from metamcp_worker.runtime import after_fork, loop, orphans
from metamcp_worker.runtime.after_fork import BEAT_S

log = logging.getLogger("metamcp.worker")


def main(sock: socket.socket) -> int:
    """Run a shared worker to its end, and return its exit code. `sock`: the control socket."""
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    orphans.become_subreaper()
    process.keep_start_folder()
    return loop.run(_live(sock))


async def _live(sock: socket.socket) -> int:
    return await SharedWorker(sock).run()


class SharedWorker:
    """Worker of several servers, until the supervisor closes the control socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._channel = Channel(sock, self._on_order, self._over.set, self._on_lost)
        self._workers: dict[int, ServerWorker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._due = self._loop.time()
        self._timer = self._loop.call_soon(self._beat)

    async def run(self) -> int:
        """Work for servers until the supervisor is gone or needs this worker no longer."""
        await self._over.wait()
        for worker in self._workers.values():
            worker.abort()
        if self._tasks:
            await asyncio.wait(self._tasks)
        self._timer.cancel()
        return 0

    def _on_order(self, data: bytes, fds: list[int]) -> None:
        match messages.unpack_to_shared(data):
            case HostServer(slot=slot) if len(fds) == 1:
                sock = socket.socket(fileno=fds.pop())
                self._workers[slot] = ServerWorker(sock, _mark(slot))
                task = self._loop.create_task(self._serve(slot, self._workers[slot]))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case DropServer(slot=slot) if slot in self._workers:
                self._workers[slot].abort()
            case HostServer(slot=slot) | DropServer(slot=slot):
                self._report_end(slot, EXIT_SERVER_DOWN)
        packets.close_all(fds)

    def _on_lost(self, data: bytes) -> None:
        """Report a server whose control socket did not arrive, as this process has no free
        descriptor."""
        self._report_end(messages.unpack_to_shared(data).slot, EXIT_SERVER_DOWN)

    def _report_end(self, slot: int, code: int) -> None:
        self._channel.send(messages.pack(ServerLeft(slot=slot, code=code)))

    async def _serve(self, slot: int, worker: ServerWorker) -> None:
        code = EXIT_SERVER_DOWN
        try:
            code = await worker.run()
        except Exception as error:  # the other servers go on
            log.exception("the worker of a server failed: %r", error)
        del self._workers[slot]
        self._report_end(slot, code)

    def _beat(self) -> None:
        """Show the supervisor that this loop turns, and end what no server here may have left
        behind: such a process has removed its mark."""
        now = self._loop.time()
        after_fork.write_pulse(now, max(0.0, now - self._due))
        orphans.Sweep(self._list_unmarked).step(())
        self._due = after_fork.next_beat(now, BEAT_S)
        self._timer = self._loop.call_at(self._due, self._beat)

    def _list_unmarked(self) -> set[int]:
        marks = {_mark(slot) for slot in self._workers}
        return {pid for pid, mark in process.list_strays().items() if mark not in marks}


def _mark(slot: int) -> str:
    return f"{os.getpid()}.{slot}"
