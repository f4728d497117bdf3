"""The process of a nursery, until all processes that it left are gone.

Owns: the control socket to it, the wait for its exit, and the sweep of orphans in steps that leave
the event loop free. Never: executing it (`nursery_start`), orders to it (`nursery`).
"""

import asyncio
import os
import signal
from collections.abc import Callable, Collection
from socket import socket
from typing import Protocol

from msgspec import Struct, field

from metamcp_supervisor.config import printed_values
from metamcp_worker.ipc import packets
from metamcp_worker.ipc.errors import MetaMCPError
from metamcp_worker.ipc.messages import NurseryReady
from metamcp_worker.runtime import orphans


class NurseryDown(MetaMCPError):
    """The nursery did not start."""


class NotForked(MetaMCPError):
    """A worker could not be forked. The text says which and why."""


class NurseryGone(NotForked):
    """A worker could not be forked because the nursery died or was replaced; the worker's server or
    front is not at fault."""


class ForkedWorker(Struct, frozen=True):
    """A forked process. `sock`: the supervisor's end of its control socket, in blocking mode and
    not read yet; it belongs to the caller of `fork`. `shared`: name of the process if it works for
    several servers; `slot`: number of the server in it."""

    pid: int
    role: str
    name: str
    sock: socket
    shared: str = ""
    slot: int = 0


class ChildProcess(Protocol):
    """A child of this process. `returncode`: as `subprocess` has it."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    def poll(self) -> int | None: ...

    def send_signal(self, sig: int) -> None: ...

    def kill(self) -> None: ...


class InheritedChild:
    """A child that was forked in this process, by this program or a previous one."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                reaped_pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # it was reaped before this program began
                self.returncode = -signal.SIGKILL
            else:
                self.returncode = os.waitstatus_to_exitcode(status) if reaped_pid else None
        return self.returncode

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)  # it is not reaped, so the pid is still its own

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class NurseryRun(Struct, eq=False):
    """A run of the nursery, from its start until its process is reaped and its orphans are
    killed."""

    process: ChildProcess
    born: asyncio.Future[NurseryReady | None]
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    channel: packets.Channel | None = None


def adopt_nursery(pid: int) -> NurseryRun:
    """Return the life of a nursery that a previous program started and that is up."""
    life = NurseryRun(InheritedChild(pid), asyncio.get_running_loop().create_future())
    life.born.set_result(NurseryReady(pid=pid))
    return life


PAUSE_S = 0.005
"""Seconds between two looks at a process that was killed, or at the orphans that are left. Each
look holds the event loop for well under a millisecond."""


async def sweep(spared: Callable[[], Collection[int]]) -> tuple[set[int], bool]:
    """Kill every child of this process that is neither spared nor a program of the configuration.
    Return the pids of the killed processes, and whether all of them are gone."""
    work = orphans.Sweep()

    def step() -> bool:
        with printed_values.block_starts() as programs:
            return work.step({*spared(), *programs})

    loop = asyncio.get_running_loop()
    deadline = loop.time() + orphans.SWEEP_S_MAX
    while not step():
        if loop.time() > deadline:
            return work.killed, False
        await asyncio.sleep(PAUSE_S)
    return work.killed, True


async def wait_for_exit(process: ChildProcess, within_s: float) -> bool:
    """Wait for a process to end, and reap it. Return whether it ended within this time."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + within_s
    while process.poll() is None:
        if loop.time() > deadline:
            return False
        await asyncio.sleep(PAUSE_S)
    return True


def how(process: ChildProcess) -> str:
    code = process.returncode
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
